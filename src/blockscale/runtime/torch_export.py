"""A module of torch as an exported program, or an error that says which line of it stands in the way."""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from blockscale.errors import ArgumentError, ExportError
from blockscale.runtime.torch_values import evaluating

_REFUSED = (  # by torch.export
    "make the line free of control flow that depends on data (torch.where or torch.cond in its place), pass "
    "other example_inputs or dynamic_shapes, or quantize the parts of the model that can be exported, each a "
    "module of its own"
)
_FAILED = (  # while it ran
    "see whether the model itself runs on these example_inputs; if it does, the line does what cannot be traced: "
    "quantize the parts of the model that can be exported, each a module of its own"
)
_STDLIB = sysconfig.get_paths()["stdlib"]


def exported(
    module: nn.Module, example_inputs: Any, dynamic_shapes: Any = None, *, evaluate: bool = False
) -> ExportedProgram:
    """`example_inputs` are a tensor, a tuple of arguments, or a dict of arguments by name.

    evaluate  as the module is in evaluation, whatever its mode; the mode stays
    """
    args, kwargs = arguments(example_inputs)
    _check_arguments(module, args, kwargs)
    args, kwargs = _distinct((args, kwargs))
    try:
        with torch.no_grad(), evaluating(module) if evaluate else nullcontext():
            return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes)
    except Exception as error:  # whatever a model of a user raises
        kind = type(error)
        said = str(error).strip().partition("\n\n")[0]
        way_out = _REFUSED if kind.__module__.startswith("torch.") else _FAILED
        raise ExportError(
            f"torch.export cannot trace {type(module).__name__}{_line(error)}: {kind.__name__}: {said}\n"
            f"Way out: {way_out}"
        ) from error


def arguments(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments of a call."""
    if isinstance(given, Mapping):
        return (), dict(given)
    if isinstance(given, tuple | list):
        return tuple(given), {}
    if isinstance(given, torch.Tensor):
        return (given,), {}
    raise ArgumentError(
        "example_inputs",
        type(given).__name__,
        "a tensor, a tuple of arguments, or a dict of arguments by name",
    )


def _check_arguments(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    signature = inspect.signature(module.forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        takes = ", ".join(map(str, signature.parameters.values()))
        shown = ", ".join([*(type(a).__name__ for a in args), *kwargs]) or "nothing"
        raise ArgumentError(
            "example_inputs", shown, f"{error}; {type(module).__name__} takes ({takes})"
        ) from None


def _distinct(given: Any) -> Any:
    """One tensor given twice is two inputs; torch.export would let the last stand for both."""
    seen: set[int] = set()

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or id(leaf) not in seen:
            seen.add(id(leaf))
            return leaf
        return leaf.detach().clone()

    return pytree.tree_map(own, given)


def _line(error: BaseException) -> str:
    """The last line of somebody's code that is neither torch's nor Python's."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_inner(f.filename)]
    return f", at {frames[-1].filename}:{frames[-1].lineno} ({frames[-1].line})" if frames else ""


def _is_inner(file: str) -> bool:
    if file.startswith(_STDLIB) and "site-packages" not in file:
        return True
    return any(part in file for part in ("/torch/", "/blockscale/", "<"))
