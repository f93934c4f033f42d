"""Whether a written torch.fx graph is sound: lint, and metadata recomputed equal the stored ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from blockscale.errors import GraphError
from blockscale.graph.fx_meta import fake_mode


def check(model: fx.GraphModule | ExportedProgram, stage: str) -> None:
    """A GraphError that names the stage and the node."""
    module = model.graph_module if isinstance(model, ExportedProgram) else model
    try:
        module.graph.lint()
        if isinstance(model, ExportedProgram):
            model.validate()  # type: ignore[no-untyped-call]
    except Exception as error:
        raise GraphError(f"after {stage}: the graph is not sound: {error}") from error
    mode = fake_mode(module.graph)
    for node in module.graph.nodes:
        if mode is None or node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if "val" not in node.meta:
            if node.target._schema.returns and all("val" in n.meta for n in node.all_input_nodes):
                raise GraphError(f"after {stage}: {node.name} ({node.target}) has no metadata")
            continue
        if any("val" not in n.meta for n in node.all_input_nodes):
            continue
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        with mode:
            made = node.target(*args, **kwargs)
        if _facts(made) != _facts(node.meta["val"]):
            raise GraphError(
                f"after {stage}: {node.name} ({node.target}) gives {_facts(made)}, "
                f"its metadata say {_facts(node.meta['val'])}"
            )


def _facts(value: Any) -> Any:
    """dtype and shape; sizes known only at run time by what they are equal to."""
    if isinstance(value, list | tuple):
        return [_facts(item) for item in value]
    if isinstance(value, torch.Tensor):
        return str(value.dtype), [str(n) if not _fresh(n) else "?" for n in value.shape]
    return None


def _fresh(n: Any) -> bool:
    """A symbol that the run made up, such as the size of what nonzero finds: new each time."""
    return isinstance(n, torch.SymInt) and "u" in str(n)
