"""Which adapter sees which model; a framework is imported only where a model of it is given."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from blockscale.errors import DtypeError, GraphError
from blockscale.graph.collecting import at_rest
from blockscale.graph.overlay import Graph

# Class of a model → module of its adapter, with `snapshot(model)`, `commit(graph, model)`, `copied(model)`
# and `check(model)`.
_ADAPTERS = {
    "torch.fx.graph_module.GraphModule": "fx_program",
    "torch.export.exported_program.ExportedProgram": "fx_program",
    "onnx_ir.Model": "onnx",
    "onnx_ir._core.Model": "onnx",  # before version 1
}

# Adapter → what registers the operators that it writes. It lies in a higher layer, so it is loaded by name.
_OPERATORS = {"fx_program": "runtime.torch_fused"}


def adapter_of(model: object) -> Any:
    for kind in type(model).__mro__:
        name = _ADAPTERS.get(f"{kind.__module__}.{kind.__qualname__}")
        if name is not None:
            if name in _OPERATORS:
                import_module(f"blockscale.{_OPERATORS[name]}")
            return import_module(f"blockscale.graph.{name}")
    hint = ""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        hint = "; torch.export.export(module, example_inputs) makes one of a module"
    raise DtypeError(
        "model", type(model).__name__,
        f"a torch.fx.GraphModule, a torch.export.ExportedProgram or an onnx_ir.Model{hint}",
    )  # fmt: skip


@at_rest()
def snapshot(model: Any) -> Graph:
    """The overlay of a model; nothing is changed."""
    graph: Graph = adapter_of(model).snapshot(model)
    return graph


@at_rest()
def commit(graph: Graph, model: Any) -> Any:
    """The model with the edits of its overlay."""
    if any(one.notes for one in graph.walk()):
        raise GraphError(
            "models have no place for quantization metadata: run the stage expand_metadata first"
        )
    return adapter_of(model).commit(graph, model)


def copied(model: Any) -> Any:
    """The same model with a graph of its own; weights are shared."""
    return adapter_of(model).copied(model)


def check(model: Any, stage: str) -> None:
    """A GraphError where the written model is not sound."""
    adapter_of(model).check(model, stage)
