"""What can go wrong, as one small tree. Every message says where, what was given and what is allowed.

BlockscaleError
├── ArgumentError (ValueError)     an argument has a value that is not allowed
│   ├── UnknownNameError           no such format, rule, rounding, dialect or preset
│   ├── AxisError                  axis out of range, or named twice
│   ├── BlockError                 block size that is not a positive integer or 0
│   ├── ShapeError                 a shape that does not fit the others
│   ├── ScaleError                 scale or zero point of wrong shape or value
│   ├── CodesError                 codes of wrong shape or value
│   ├── OutError                   `out` that cannot take the result
│   └── SizeError                  sizes whose product does not fit the machine
├── DtypeError (TypeError)         an array or tensor of a dtype that is not taken
├── CombinationError (ValueError)  values that are allowed, but not together
├── MoveError (ValueError)         a reshape, slice, … that the scales cannot follow
├── RecipeError (ValueError)       a recipe that does not fit the model
├── CalibrationError (ValueError)  calibration data that is missing, not finite or does not fit
├── ExportError (RuntimeError)     a model that torch.export cannot trace
├── GraphError (RuntimeError)      a graph that is not sound: a rule of graph/invariants.py does not hold
├── FileError (ValueError)         a file that cannot be read as what it claims to be
└── InstallationError (RuntimeError)  something this machine or installation lacks
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BlockscaleError(Exception):
    """Base of everything that blockscale raises on purpose."""


class ArgumentError(BlockscaleError, ValueError):
    """An argument has a value that is not allowed."""

    def __init__(self, argument: str, value: object, allowed: str) -> None:
        self.argument = argument
        self.value = value
        self.allowed = allowed
        super().__init__(f"{argument} = {_shown(value)}: {allowed}")


class UnknownNameError(ArgumentError):
    """A name that stands for nothing; carries the names that do."""

    def __init__(self, argument: str, value: object, names: Iterable[str], also: str = "") -> None:
        self.names = tuple(names)
        allowed = "allowed are " + ", ".join(self.names) + also
        close = difflib.get_close_matches(str(value), self.names, n=1)
        if close:
            allowed += f"; did you mean {close[0]!r}?"
        super().__init__(argument, value, allowed)


class AxisError(ArgumentError):
    """An axis is out of range or named twice."""


class BlockError(ArgumentError):
    """A block size is not a positive integer (or 0 for a whole dimension)."""


class ShapeError(ArgumentError):
    """A shape does not fit the others."""


class ScaleError(ArgumentError):
    """A scale or zero point has a wrong shape or value."""


class CodesError(ArgumentError):
    """Codes have a wrong shape or value."""


class OutError(ArgumentError):
    """`out` cannot take the result."""


class SizeError(ArgumentError):
    """Sizes multiply to more than the machine can address."""


class DtypeError(BlockscaleError, TypeError):
    """An array or tensor has a dtype that is not taken."""

    def __init__(self, argument: str, dtype: object, allowed: str) -> None:
        self.argument = argument
        self.dtype = dtype
        self.allowed = allowed
        super().__init__(f"{argument} has dtype {dtype}: {allowed}")


class CombinationError(BlockscaleError, ValueError):
    """Each value is allowed, but not all of them together."""


class MoveError(BlockscaleError, ValueError):
    """The scales cannot follow a reshape, permute, slice, cat or split."""


class RecipeError(BlockscaleError, ValueError):
    """A rule matches nothing, or a tensor cannot take its layout."""


class CalibrationError(BlockscaleError, ValueError):
    """Calibration data is missing, not finite, or its shape does not fit the scales."""


class ExportError(BlockscaleError, RuntimeError):
    """A module that torch.export cannot trace; the message has the line of it and the way out."""


class GraphError(BlockscaleError, RuntimeError):
    """A graph is not sound after a stage: a defect of blockscale, or of the model that was given."""


class FileError(BlockscaleError, ValueError):
    """A file is not what it claims to be."""


class InstallationError(BlockscaleError, RuntimeError):
    """This machine or installation lacks something; the message says what to install."""


def _shown(value: object) -> str:
    """On one line; of an array its kind and not its elements."""
    if hasattr(value, "shape") and hasattr(value, "dtype") and value.shape != ():
        return f"{value.dtype}{list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
