"""The public functions on models: a recipe's quantization, the value-preserving passes, loading."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from blockscale import compiler
from blockscale.compiler import Method
from blockscale.compiler_report import Report, constant_bytes
from blockscale.errors import ArgumentError, UnknownNameError
from blockscale.graph import models
from blockscale.passes.log import Log
from blockscale.passes.pipeline import OPTIMIZE, run
from blockscale.recipe import Given

__all__ = ["fake_quantize_model", "load", "optimize", "quantize_model"]

# Adapter → target that runs its models in memory; suffix of a file → target that reads it.
_IN_MEMORY = {"blockscale.graph.fx_program": "torch", "blockscale.graph.onnx": "onnx"}
_READERS = {".pt2": "torch", ".onnx": "onnx"}


def quantize_model(
    model: Any, recipe: Given | None = None, *, example_inputs: Any = None, dynamic_shapes: Any = None,
    calibration: Any = None, method: Method = "minmax", stages: Sequence[str] = OPTIMIZE, check: bool = False,
    **reading: Any,
) -> Any:  # fmt: skip
    """The model with its tensors quantized as the recipe says; callable, with `.save(path)` and `.report`.

    model           a torch module, ExportedProgram or GraphModule; an ONNX model or the path of one. It stays
                    as it is
    recipe          a preset's name ("mxfp4", "mxfp4-mxint8", "int8", …), a Recipe, a .yaml file, …; None takes
                    the quantizes that the model has, ours or foreign
    example_inputs  of a torch module, to export it with: a tensor, a tuple of arguments, or a dict by name
    dynamic_shapes  as torch.export takes them
    calibration     inputs for static scales (`int8` has some, MX none): an iterable of batches, …
    method          how static scales are found: "minmax", ("percentile", {"percentile": 99.9}), …
    stages, check   see `optimize`
    """
    log = Log()
    model = _graph_of(model, example_inputs, dynamic_shapes)
    before = constant_bytes(models.snapshot(model))
    explanation = None
    if recipe is not None:
        made = compiler.fake_quantized(model, recipe, log, calibration=calibration, method=method, **reading)
        explanation, model = made.explanation, made.model
    graph = models.snapshot(model := models.copied(model))
    run(graph, stages, log, check=check)
    model = models.commit(graph, model)
    if check:
        models.check(model, "writing")
    report = Report.of(explanation, log, before, constant_bytes(models.snapshot(model)))
    target = import_module(f"blockscale.targets.{_IN_MEMORY[models.adapter_of(model).__name__]}")
    return target.quantized(model, report)


def fake_quantize_model(
    model: Any, recipe: Given, *, example_inputs: Any = None, dynamic_shapes: Any = None,
    calibration: Any = None, method: Method = "minmax", gradient: str = "straight", **reading: Any,
) -> Any:  # fmt: skip
    """The model with the recipe's fake-quantizes, in float, of the kind that was given: to train, or to compare.

    A torch module becomes a GraphModule that shares its parameters; gradients go straight through
    quantizes, or with gradient="clipped" only where a value is in range. Train it, then hand it to
    `quantize_model` without a recipe. Other arguments as there.
    """
    given = _graph_of(model, example_inputs, dynamic_shapes)
    made = compiler.fake_quantized(
        given, recipe, Log(), calibration=calibration, method=method, gradient=gradient, **reading
    )
    return made.model.module() if given is not model and hasattr(made.model, "module") else made.model


def optimize(
    model: Any, *, stages: Sequence[str] = OPTIMIZE, log: Log | None = None, check: bool = False,
    in_place: bool = False,
) -> Any:  # fmt: skip
    """`blockscale.passes.optimize`."""


def load(path: str | os.PathLike[str]) -> Any:
    """A quantized model that `save` wrote: callable, with `.save` and `.report`."""
    path = Path(path)
    if path.suffix not in _READERS:
        raise UnknownNameError("suffix of path", path.suffix, _READERS)
    if not path.is_file():
        raise ArgumentError("path", str(path), "a file that exists")
    return import_module(f"blockscale.targets.{_READERS[path.suffix]}").load(path)


def _graph_of(model: Any, example_inputs: Any, dynamic_shapes: Any) -> Any:
    """The model as an adapter takes it: torch modules are exported, ONNX files read."""
    if _is_module(model):
        if example_inputs is None:
            raise ArgumentError("example_inputs", None, "inputs that torch.export can trace the module with")
        return import_module("blockscale.runtime.torch_export").exported(
            model, example_inputs, dynamic_shapes
        )
    for name, value in (("example_inputs", example_inputs), ("dynamic_shapes", dynamic_shapes)):
        if value is not None:
            raise ArgumentError(name, type(value).__name__, "for torch modules, which are exported with them")
    return model


def _is_module(model: object) -> bool:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        return False
    return not isinstance(model, torch.fx.GraphModule)
