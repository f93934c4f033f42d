"""A module of torch as an exported program, or an error that says which line of it stands in the way."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from blockscale.errors import ArgumentError, ExportError
from blockscale.runtime.torch_values import evaluating

_WAYS_OUT = (
    "make the line free of control flow that depends on data (torch.where or torch.cond in its place), pass "
    "other example_inputs or dynamic_shapes, or quantize the parts of the model that can be exported, each a "
    "module of its own"
)
_LONGEST = 600


def exported(
    module: nn.Module, example_inputs: Any, dynamic_shapes: Any = None, *, evaluate: bool = False
) -> ExportedProgram:
    """`example_inputs` are a tensor, a tuple of arguments, or a dict of arguments by name.

    evaluate  as the module is in evaluation, whatever its mode; the mode stays
    """
    args, kwargs = arguments(example_inputs)
    try:
        with torch.no_grad(), evaluating(module) if evaluate else nullcontext():
            return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes)
    except Exception as error:  # whatever a model of a user raises
        said = str(error).strip()
        first = said[:_LONGEST] + ("…" if len(said) > _LONGEST else "")
        raise ExportError(
            f"torch.export cannot trace {type(module).__name__}{_line(error)}: {type(error).__name__}: {first}\n"
            f"Way out: {_WAYS_OUT}"
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


def _line(error: BaseException) -> str:
    """The last line of somebody's code that is not torch's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not any(part in f.filename for part in ("/torch/", "/blockscale/", "<eval"))]
    return f", at {own[-1].filename}:{own[-1].lineno} ({own[-1].line})" if own else ""
