"""Values in between, while a torch model runs: what calibration and comparison look at.

The model is not changed: a copy of its graph, which shares parameters and submodules, holds the watchers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from os import PathLike
from typing import Any

import ml_dtypes
import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from blockscale.errors import BlockscaleError, CalibrationError, DtypeError
from blockscale.graph.fx_copy import copied_graph
from blockscale.numerics.arrays import Array
from blockscale.runtime.calibration_data import Input, Random, batches, fits, items
from blockscale.runtime.torch_state import State

Model = fx.GraphModule | ExportedProgram
See = Callable[[str, Array], None]


class Watched:
    """A model that shows the values of `tensors` as it runs.

    tensors  names of fx nodes, or `node@reader` as it is when that node reads it, where memory is written to;
             in a body of control flow `path of the body.node`
    see      is given the name and the value, in the order in which nodes run
    """

    def __init__(self, model: Model, tensors: Sequence[str], see: See) -> None:
        module = _module_of(model) if isinstance(model, ExportedProgram) else model
        if not isinstance(module, fx.GraphModule):
            raise DtypeError(
                "model", type(model).__name__, "a torch.fx.GraphModule or a torch.export.ExportedProgram"
            )
        self.module = _watched(module, tensors, see)
        self.state = State(module, self.module)

    def run(self, source: Any, each: Callable[[Any], Iterator[Any]] = iter) -> Iterator[Any]:
        """Runs on each batch of `source`, in evaluation mode, and yields what the model returns.

        `each` passes the batches on: a progress bar.
        """
        for number, (args, kwargs) in enumerate(each(_calls(source, self.module)), 1):
            # Not over the yield: runs of two models take turns.
            with torch.no_grad(), evaluating(self.module), self.state.own():
                args, kwargs = self.state.inputs((args, kwargs))
                returned = _run(self.module, args, kwargs, f"calibration batch {number}")
            yield returned


def _module_of(program: ExportedProgram) -> fx.GraphModule:
    """Its inputs keep their names, which `module` changes where Python has a function of that name."""
    module: Any = program.module()
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, spec in zip(placeholders, specs, strict=True):
        node.name = spec.arg.name
    result: fx.GraphModule = module
    return result


def _run(module: fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> Any:
    try:
        inspect.signature(module.forward).bind(*args, **kwargs)
    except TypeError as error:
        takes = ", ".join(inspect.signature(module.forward).parameters)
        raise CalibrationError(f"{where}: {error}; the model takes ({takes})") from None
    try:
        return module(*args, **kwargs)
    except _Misfit as misfit:
        raise CalibrationError(f"{where}, {misfit}") from None
    except BlockscaleError:
        raise
    except Exception as error:
        raise CalibrationError(
            f"{where}: the model does not run on it: {type(error).__name__}: {error}"
        ) from error


# ----------------------------------------------------------------------------------------- the copy


class _Misfit(Exception):
    """An input of another shape or dtype than the model was made with."""


class _Look(nn.Module):
    """Shows a value by the name of its node."""

    def __init__(self, see: See) -> None:
        super().__init__()
        self.see = see

    def forward(self, value: Any, name: str) -> None:
        if not isinstance(value, torch.Tensor):
            raise CalibrationError(
                f"calibration of {name!r}: it is a {type(value).__name__}, not a tensor; "
                "of a node with several outputs observe the getitem nodes"
            )
        self.see(name, as_array(value))


class _CheckInputs(nn.Module):
    """That placeholders hold what the model was exported with."""

    def __init__(self, expected: list[Input]) -> None:
        super().__init__()
        self.expected = expected

    def forward(self, *values: Any) -> None:
        for value, one in zip(values, self.expected, strict=True):
            wrong = ""
            if not isinstance(value, torch.Tensor):
                wrong = f"is a {type(value).__name__}"
            elif _name(value.dtype) != one.dtype:
                wrong = f"is {_name(value.dtype)}"
            elif not fits(value.shape, one.shape):
                wrong = f"has shape {list(value.shape)}"
            if wrong:
                raise _Misfit(f"input {one.name!r} {wrong}: the model takes {one}{_other_sizes(one, value)}")


def _other_sizes(one: Input, value: Any) -> str:
    """What may be done about a size that was fixed when the model was exported."""
    shape = getattr(value, "shape", ())
    if one.shape is None or len(shape) != len(one.shape) or _name(value.dtype) != one.dtype:
        return ""
    free = {i: "Dim.AUTO" for i, n in enumerate(one.shape) if n is not None and shape[i] != n}
    said = ", ".join(f"{i}: {dim}" for i, dim in free.items())
    return f"; with dynamic_shapes={{{one.name!r}: {{{said}}}}} when it is exported it takes other sizes too"


def _watched(module: fx.GraphModule, tensors: Sequence[str], see: See) -> fx.GraphModule:
    """A copy of the module with looks in it."""
    names = {path: {n.name for n in body.graph.nodes if n.op != "output"} for path, body in _bodies(module)}
    wanted: dict[str, set[str]] = {}
    for tensor in tensors:
        path, _, name = tensor.rpartition(".")
        if not names.get(path, set()).issuperset(name.split("@")):
            raise _unknown(tensor, names)
        wanted.setdefault(path, set()).add(name)
    result = _with_looks(module, "", wanted, _Look(see))
    _add_check(result)
    return result


def _bodies(module: fx.GraphModule, path: str = "") -> Iterator[tuple[str, fx.GraphModule]]:
    """The module and the graphs within that its nodes use, by path."""
    yield path, module
    for node in module.graph.nodes:
        body = _body(module, node)
        if body is not None:
            yield from _bodies(body, _joined(path, node.target))


def _body(module: fx.GraphModule, node: fx.Node) -> fx.GraphModule | None:
    if node.op not in ("get_attr", "call_module"):
        return None
    found: Any = module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found if isinstance(found, fx.GraphModule) else None


def _joined(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _unknown(tensor: str, names: Mapping[str, set[str]]) -> CalibrationError:
    every = sorted(_joined(path, name) for path, inside in names.items() for name in inside)
    close = get_close_matches(tensor, every, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return CalibrationError(
        f"calibration of {tensor!r}: the graph that runs has no such node{hint} "
        "(parameters are not calibrated: blockscale.choose_params gives theirs)"
    )


def _with_looks(
    module: fx.GraphModule, path: str, wanted: Mapping[str, set[str]], look: _Look
) -> fx.GraphModule:
    """A copy in which each wanted node, by path of its body, is followed by a look at it."""
    graph, node_of = copied_graph(module.graph)
    result = fx.GraphModule(module, graph, type(module).__name__)
    result.add_module("blockscale_look", look)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    here = wanted.get(path, ())
    for old, node in node_of.items():
        if old.name in here:
            with graph.inserting_after(placeholders[-1] if node.op == "placeholder" else node):
                graph.call_module("blockscale_look", (node, _joined(path, old.name)))
        for read in old.all_input_nodes:
            if f"{read.name}@{old.name}" in here:
                with graph.inserting_before(node):
                    graph.call_module(
                        "blockscale_look", (node_of[read], _joined(path, f"{read.name}@{old.name}"))
                    )
        body = _body(module, node)
        inner = _joined(path, node.target)
        if body is not None and any(f"{one}.".startswith(f"{inner}.") for one in wanted):
            name = f"blockscale_{node.name}"  # under a name of its own: the body's parent may be shared
            result.add_module(name, _with_looks(body, inner, wanted, look))
            node.target = name
    result.recompile()
    return result


def _add_check(module: fx.GraphModule) -> None:
    """Before all else, also before the guards of an exported program, whose words are for developers."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    known = [node for node in placeholders if isinstance(node.meta.get("val"), torch.Tensor)]
    if known:
        expected = [_input(node, _name(node.meta["val"].dtype)) for node in known]
        module.add_module("blockscale_check", _CheckInputs(expected))
        with module.graph.inserting_after(placeholders[-1]):
            module.graph.call_module("blockscale_check", tuple(known))
        module.recompile()


def _input(node: fx.Node, dtype: str) -> Input:
    shape = tuple(n if isinstance(n, int) else None for n in node.meta["val"].shape)
    return Input(node.name, shape, dtype)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation for a while. Set by hand: exported modules refuse eval()."""
    training = [one for one in module.modules() if one.training]
    for one in training:
        one.training = False
    try:
        yield
    finally:
        for one in training:
            one.training = True


# ----------------------------------------------------------------------------------------- inputs


def _calls(source: Any, module: fx.GraphModule) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    if isinstance(source, Random | str | PathLike):
        yield from _of_placeholders(source, module)
        return
    for item in items(source):
        if isinstance(item, Mapping):
            yield (), dict(item)
        elif isinstance(item, tuple | list):
            yield tuple(item), {}
        else:
            yield (item,), {}


def _of_placeholders(
    source: Random | str | PathLike[str], module: fx.GraphModule
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Random data or a folder: arrays by the names of the graph's inputs; torch casts them."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node in placeholders:
        if not isinstance(node.meta.get("val"), torch.Tensor):
            raise CalibrationError(
                f"calibration data for input {node.name!r}: its shape is not known; give an iterable of inputs, "
                "or a model from torch.export"
            )
    dtypes = {node.name: node.meta["val"].dtype for node in placeholders}
    spec = getattr(module, "_in_spec", None)
    for batch in batches(source, [_input(node, _drawn(dtypes[node.name])) for node in placeholders]):
        flat = [torch.from_numpy(values).to(dtypes[name]) for name, values in batch.items()]
        yield (tuple(flat), {}) if spec is None else pytree.tree_unflatten(flat, spec)


def _drawn(dtype: torch.dtype) -> str:
    """What numpy draws for it; torch casts it."""
    if dtype == torch.bool:
        return "bool"
    return "float32" if dtype.is_floating_point else "int64"


def _name(dtype: torch.dtype) -> str:
    """numpy's, as far as numpy has it."""
    return str(dtype).removeprefix("torch.")


def as_array(value: torch.Tensor) -> Array:
    value = value.detach().cpu()
    if value.dtype == torch.bfloat16:
        return value.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return value.numpy()
