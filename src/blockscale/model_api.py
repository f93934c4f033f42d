"""The public functions on models: a recipe's quantization, the value-preserving passes, loading, comparing."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import chain, tee
from pathlib import Path
from typing import Any

from blockscale import compiler
from blockscale.compiler import Method
from blockscale.compiler_report import Report, constant_bytes
from blockscale.errors import ArgumentError, CombinationError, RecipeError, UnknownNameError
from blockscale.graph import models
from blockscale.graph.ops import QUANTIZERS, SILENT
from blockscale.graph.overlay import Graph
from blockscale.graph.view import Meta
from blockscale.passes import pipeline
from blockscale.passes.log import Log, counts
from blockscale.passes.pipeline import FLOATS, OPTIMIZE
from blockscale.recipe import Given
from blockscale.report.comparison import Comparison, compared
from blockscale.runtime.calibration_data import Random, items
from blockscale.runtime.watch import shown

__all__ = ["compare", "fake_quantize_model", "load", "optimize", "quantize_model"]

# Adapter → target that runs its models in memory; suffix of a file → target that reads it.
_IN_MEMORY = {"blockscale.graph.fx_program": "torch", "blockscale.graph.onnx": "onnx"}
_READERS = {".pt2": "torch", ".onnx": "onnx"}
_PREPARE = "prepare"  # the stage in a report
_ALREADY = "the model is quantized already: give the float model, or no recipe"
# What runs there takes codes, or floats.
_STAGES = {"torch": OPTIMIZE, "onnx": FLOATS}
_COMPAT = ("quark",)  # whose placement an ONNX model may get


def quantize_model(
    model: Any, recipe: Given | None = None, *, example_inputs: Any = None, dynamic_shapes: Any = None,
    calibration: Any = None, method: Method = "minmax", libraries: Iterable[str] = (),
    compat: str | None = None, prepare: str | Sequence[str] = "auto",
    stages: Sequence[str] | None = None, check: bool = False,
) -> Any:  # fmt: skip
    """The model with its tensors quantized as the recipe says; callable, with `.save(path)` and `.report`.

    model           a torch module, ExportedProgram or GraphModule; an onnx_ir.Model or ModelProto; or the path
                    of an .onnx or .pt2 file. It stays as it is. What it does in evaluation is what is quantized
    recipe          a preset's name ("mxfp4", "mxfp4-mxint8", "int8", …), a Recipe, a .yaml file, …; None takes
                    the quantizes that the model has, ours or foreign
    example_inputs  of a torch module, to export it with: a tensor, a tuple of arguments, or a dict by name.
                    Without them the result is a copy of the module, of the same class (so `generate` of
                    transformers runs on it), whose nn.Linear and nn.Embedding have weights of codes; its report
                    is `.blockscale_report`, and it is saved by its state_dict
    dynamic_shapes  as torch.export takes them
    calibration     inputs for static scales (`int8` has some, MX none): an iterable of batches, …
    method          how static scales are found: "minmax", ("percentile", {"percentile": 99.9}), …
    libraries       of custom operators that onnxruntime needs to run the model over calibration data
    compat          "quark": an ONNX model gets MX on the tensors and along the axes of AMD Quark's quantizer
    prepare         of ONNX models, before the recipe: "auto", "none", or steps: opset, names, defaults, identity,
                    shapes, constants, batch_norm, unused
    stages, check   see `optimize`; by default fused operators on codes for torch, and for ONNX one node a quantize
    """
    log = Log()
    if recipe is not None and _is_ours(model):
        raise CombinationError(_ALREADY)
    if recipe is not None and example_inputs is None and _is_plain_module(model):
        _check_only_for_graphs(dynamic_shapes=dynamic_shapes, libraries=tuple(libraries) or None, compat=compat,
                               stages=stages)  # fmt: skip
        modules = import_module("blockscale.targets.torch_modules")
        return modules.replaced(model, recipe, calibration=calibration, method=method)
    model = _graph_of(model, example_inputs, dynamic_shapes, evaluate=True)
    if _library(model) == "torch":
        model = import_module("blockscale.targets.torch").evaluated(model)
    _check_compat(compat, recipe, model)
    given = models.snapshot(model)
    explanation = None
    _check_float(model, recipe, given)
    if recipe is None and not any(counts(given)[kind] for kind in QUANTIZERS):
        raise ArgumentError(
            "recipe", None, "one, such as 'mxfp4' or 'int8', for a model that has no quantizes of its own"
        )
    model = _prepared(model, recipe, prepare, log)
    if recipe is not None:
        reading = _reading(model, libraries)
        with _told_what_is_gone(log):
            made = compiler.fake_quantized(
                model, recipe, log, calibration=calibration, method=method, compat=compat, **reading
            )
        explanation, model = made.explanation, made.model
    stages = _STAGES[_library(model)] if stages is None else stages
    model = pipeline.optimize(model, stages=stages, log=log, check=check)
    log.before = counts(given)
    report = Report.of(explanation, log, constant_bytes(given), constant_bytes(models.snapshot(model)))
    settings = {} if compat is None else {"compat": compat}
    return import_module(f"blockscale.targets.{_library(model)}").quantized(model, report, **settings)


def fake_quantize_model(
    model: Any, recipe: Given, *, example_inputs: Any = None, dynamic_shapes: Any = None,
    calibration: Any = None, method: Method = "minmax", libraries: Iterable[str] = (),
    compat: str | None = None, prepare: str | Sequence[str] = "auto", gradient: str = "straight",
    log: Log | None = None,
) -> Any:  # fmt: skip
    """The model with the recipe's fake-quantizes, in float: to train, or to compare.

    A torch module becomes a GraphModule that shares its parameters and does what the module does in its mode,
    training or evaluation. Gradients go straight through quantizes, or with gradient="clipped" only where a
    value is in range. Train it, then hand it to `quantize_model` without a recipe. An ONNX file becomes an
    onnx_ir.Model, prepared as there; everything else is what it was. Other arguments as there.
    """
    log = Log() if log is None else log
    given = _graph_of(model, example_inputs, dynamic_shapes)
    _check_compat(compat, recipe, given)
    _check_float(given, recipe, models.snapshot(given))
    given = _prepared(given, recipe, prepare, log)
    with _told_what_is_gone(log):
        made = compiler.fake_quantized(
            given, recipe, log, calibration=calibration, method=method, gradient=gradient, compat=compat,
            **_reading(given, libraries),
        )  # fmt: skip
    return made.model.module() if _is_module(model) else _as_given(made.model, model)


def optimize(
    model: Any, *, stages: Sequence[str] = OPTIMIZE, log: Log | None = None, check: bool = False,
    in_place: bool = False,
) -> Any:  # fmt: skip
    """`blockscale.passes.optimize`, also of ModelProtos and of files."""
    read = _graph_of(model, None, None)
    if in_place and read is not model:
        raise CombinationError(
            f"in_place with a {type(model).__name__}, which is read as a {type(read).__name__}"
        )
    made = pipeline.optimize(read, stages=stages, log=log, check=check, in_place=in_place)
    return _as_given(made, model)


def load(path: str | os.PathLike[str]) -> Any:
    """A quantized model that `save` wrote: callable, with `.save` and `.report`."""
    return _file_target(path).load(Path(path))


def compare(a: Any, b: Any, inputs: Any) -> Comparison:
    """How far model b is from model a on inputs: SQNR, cosine and greatest error of each tensor that both have.

    a, b    float, fake-quantized or quantized: what `quantize_model` takes or gives, or files; both of torch
            or both of ONNX. Modules are compared as they are in evaluation
    inputs  as calibration data: an iterable of batches, …
    """
    sources: Any = (inputs, inputs)
    if not isinstance(inputs, str | os.PathLike | Random):
        sources = tee(items(inputs, "inputs"))
    graphs = []
    for model in (a, b):
        if _is_plain_module(model):
            first, sources = _first(sources)  # to export it with
            model = import_module("blockscale.targets.torch").exported_for(model, first)
        graphs.append(_graph_of(model, None, None))
    one, other = map(_library, graphs)
    if one != other:
        raise CombinationError(f"a is a model of {one}, b of {other}: their tensors have no names in common")
    target = import_module(f"blockscale.targets.{one}")
    tensors = [_float_tensors(graph) for graph in graphs]
    common = sorted(tensors[0].keys() & tensors[1].keys())
    runs = (
        _named(
            target.values(graph, [here[name] for name in common], source),
            {here[name]: name for name in common},
        )
        for graph, here, source in zip(graphs, tensors, sources, strict=True)
    )
    pairs = shown(zip(*runs, strict=True), "comparing", inputs)
    found = compared(pairs, target.output_names(graphs[0]))
    if not found.batches:
        raise ArgumentError("inputs", "no batch", "one batch at least; a generator can be read only once")
    return found


def _first(sources: Any) -> Any:
    """The first batch, and the sources as they were."""
    looked, other = sources
    if not isinstance(looked, Iterator):
        raise ArgumentError("inputs", looked, "an iterable of inputs, where a model has to be exported first")
    batch = next(looked, None)
    if batch is None:
        raise ArgumentError("inputs", "no batch", "one batch at least; a generator can be read only once")
    return batch, (chain([batch], looked), other)


def _named(batches: Iterator[dict[str, Any]], names: dict[str, str]) -> Iterator[dict[str, Any]]:
    return ({names.get(tensor, tensor): values for tensor, values in batch.items()} for batch in batches)


def _float_tensors(model: Any) -> dict[str, str]:
    """Name → name here, of what operators that compute give; not of what only has its elements elsewhere.

    What a fused operator of ours gives has the name of what it replaced.
    """
    graph = models.snapshot(model)
    found: dict[str, str] = {}
    for one in graph.walk() if _library(model) == "torch" else (graph,):
        for node in one.nodes:
            if node.kind in SILENT or node.kind == "output":
                continue
            for value in node.outputs:
                if value.used and _is_float(value.meta):
                    name = one.prefix + value.name
                    found.setdefault(name, name)
                    found.setdefault(_MADE.sub("", name), name)
    return found


_MADE = re.compile(r"_bs\d+$")  # what an overlay puts behind the names of its nodes


def _is_float(meta: Meta | None) -> bool:
    return meta is not None and meta.dtype in ("float32", "bfloat16", "float16", "float64")


def _file_target(path: str | os.PathLike[str]) -> Any:
    path = Path(path)
    if path.suffix not in _READERS:
        raise UnknownNameError("suffix of path", path.suffix, _READERS)
    if not path.is_file():
        raise ArgumentError("path", str(path), "a file that exists")
    return import_module(f"blockscale.targets.{_READERS[path.suffix]}")


def _graph_of(model: Any, example_inputs: Any, dynamic_shapes: Any, *, evaluate: bool = False) -> Any:
    """The model as an adapter takes it: torch modules are exported, files read."""
    if _is_ours(model):
        return model.graph
    if _is_module(model) and (example_inputs is not None or not _is_graph_module(model)):
        if example_inputs is None:
            raise ArgumentError(
                "example_inputs", None,
                "inputs that torch.export can trace the module with: a tensor, a tuple of arguments, or a dict "
                "of arguments by name",
            )  # fmt: skip
        export = import_module("blockscale.runtime.torch_export")
        return export.exported(model, example_inputs, dynamic_shapes, evaluate=evaluate)
    for name, value in (("example_inputs", example_inputs), ("dynamic_shapes", dynamic_shapes)):
        if value is not None:
            raise CombinationError(
                f"{name} with a model of type {type(model).__name__}: they are for torch modules, to export them with"
            )
    if _is_module(model):
        _check_shapes(model)
    if isinstance(model, str | os.PathLike):
        return _file_target(model).read(model)
    if _is_proto(model):
        return import_module("blockscale.targets.onnx").read(model)
    return model


def adapted(model: Any) -> Any:
    """The same, but nothing is exported: a module, as all that is no model, is given back."""
    return _graph_of(model, None, None) if _is_proto(model) or isinstance(model, str | os.PathLike) else model


def _check_shapes(module: Any) -> None:
    """What torch.fx traced knows no shapes; nothing could be said of its tensors."""
    if not any("val" in node.meta for node in module.graph.nodes):
        raise ArgumentError(
            "example_inputs", None,
            "inputs of the model: the graph of this GraphModule knows no shapes (no node has meta['val']), and is "
            "exported with them",
        )  # fmt: skip


def _as_given(made: Any, model: Any) -> Any:
    if _is_proto(model):
        return import_module("onnx_ir").to_proto(made)
    return made


def _library(model: Any) -> str:
    return _IN_MEMORY[models.adapter_of(model).__name__]


def _reading(model: Any, libraries: Iterable[str]) -> dict[str, Any]:
    libraries = tuple(libraries)
    if libraries and _library(model) != "onnx":
        raise CombinationError("libraries with a model of torch: they are for ONNX models")
    return {"libraries": libraries} if libraries else {}


def _prepared(model: Any, recipe: Given | None, prepare: str | Sequence[str], log: Log) -> Any:
    """A float ONNX model after the steps that `prepare` names; by itself nothing is done where there is no recipe."""
    if _library(model) != "onnx":
        if prepare != "auto":
            raise CombinationError("prepare with a model of torch: it is for ONNX models")
        return model
    if prepare == "auto" and recipe is None:
        return model
    steps = import_module("blockscale.graph.onnx_prepare")
    made = steps.prepared(model, prepare)
    if recipe is not None:
        steps.check_opset(made.model)
    for told in made.told:
        log.note(_PREPARE, told.node or told.step, told.did, told.left)
    return made.model


@contextmanager
def _told_what_is_gone(log: Log) -> Iterator[None]:
    """A recipe may name what was there before the model was prepared."""
    try:
        yield
    except RecipeError as error:
        named = re.findall(r"'([^'\n]+)'", str(error))
        gone = [
            f"\n{entry.node}: {entry.did} (prepare={'none'!r} leaves the model as it is)" for entry in log.entries
            if entry.stage == _PREPARE and any(n == entry.node or repr(n) in entry.did for n in named)
        ]  # fmt: skip
        if not gone:
            raise
        raise RecipeError(f"{error}{''.join(gone)}") from error


def _check_float(model: Any, recipe: Given | None, given: Graph) -> None:
    """An ONNX model that a recipe is for has no quantizes, and no operators on codes."""
    if recipe is None or _library(model) != "onnx":
        return
    on_codes = import_module("blockscale.graph.onnx_quantizers").ON_CODES
    found = [
        f"{count} × {name.removeprefix('ai.onnx::')}" for name, count in counts(given).items()
        if name in QUANTIZERS or name.startswith("fused.") or on_codes.fullmatch(name)
    ]  # fmt: skip
    if found:
        raise CombinationError(
            f"{_ALREADY}. It holds {', '.join(found)}; without a recipe quantizes are taken as they are"
        )


def _check_compat(compat: str | None, recipe: Given | None, model: Any) -> None:
    if compat is None:
        return
    if compat not in _COMPAT:
        raise UnknownNameError("compat", compat, _COMPAT)
    if recipe is None:
        raise CombinationError(f"compat={compat!r} without a recipe: say which format, such as 'mxint8'")
    if _library(model) != "onnx":
        raise CombinationError(f"compat={compat!r} with a model of torch: it is for ONNX models")


def _is_ours(model: object) -> bool:
    return type(model).__module__.startswith("blockscale.targets.")


def _is_module(model: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def _is_plain_module(model: object) -> bool:
    return _is_module(model) and not _is_graph_module(model) and not _is_ours(model)


def _check_only_for_graphs(**given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise CombinationError(
                f"{name} without example_inputs: it is for graphs, which modules are exported to"
            )


def _is_graph_module(model: object) -> bool:
    return isinstance(model, sys.modules["torch"].fx.GraphModule)


def _is_proto(model: object) -> bool:
    onnx = sys.modules.get("onnx")
    return onnx is not None and isinstance(model, onnx.ModelProto)
