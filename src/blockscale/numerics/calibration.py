"""What every observer does: check a batch, find its extremes, and turn a range into parameters.

How a range is chosen from what was seen is in `observers.py`. The meaning of a range is that of
`scales.py`, so that static parameters are those of `choose_params` on data of the same range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from blockscale.errors import AxisError, CalibrationError, CombinationError, DtypeError
from blockscale.numerics.arrays import NUMPY, TENSOR_DTYPES, Array
from blockscale.numerics.invariants import scale_dtype
from blockscale.numerics.layout import Layout, bind
from blockscale.numerics.native import Stored
from blockscale.numerics.scales import affine, tensor_scale_of
from blockscale.numerics.scheme import Numbers, Scheme

_NAMES = {dtype: name for name, dtype in TENSOR_DTYPES.items()}


@dataclass(frozen=True)
class Calibrated(Stored):
    """Static parameters and the range they stand for, low ≤ 0 ≤ high, float32.

    affine: scales and zero points, as `Stored`; NVFP4: the tensor scale alone (its block scales, and
    so `scales`, are None: they are dynamic), low and high of shape ().
    """

    low: Array = None
    high: Array = None


def parameters(numbers: Numbers, low: Array, high: Array, tensor_format: str) -> Calibrated:
    """What `choose_params` would choose from data of `tensor_format` with these extremes and 0."""
    low, high = NUMPY.f32(np.minimum(low, 0)), NUMPY.f32(np.maximum(high, 0))
    if numbers.family == "tensor_scaled":
        amax = np.maximum(-low, high).astype(np.float64)
        t = tensor_scale_of(NUMPY, amax, numbers.element_format, numbers.scale_format)
        return Calibrated(None, None, np.asarray(t, np.float32), low, high)
    scales, zeros = affine(NUMPY, low, high, numbers, tensor_format)
    stored_zeros = zeros.astype(np.int32) if numbers.zero_point else None
    return Calibrated(scales.astype(scale_dtype(numbers)), stored_zeros, None, low, high)


def extremes(values: Array, block: tuple[int, ...]) -> tuple[Array, Array]:
    """Least and greatest element of each block, shape scale_shape; NaN where the block holds one."""
    whole = tuple(axis for axis, b in enumerate(block) if b == 0)
    low = np.min(values, axis=whole, keepdims=True)
    high = np.max(values, axis=whole, keepdims=True)
    for axis, b in enumerate(block):
        if b > 1:
            starts = np.arange(0, values.shape[axis], b)
            low = np.minimum.reduceat(low, starts, axis)
            high = np.maximum.reduceat(high, starts, axis)
    return low, high


@dataclass(frozen=True)
class Batch:
    """One batch that has been checked: finite, not empty, laid out as the ones before.

    x        as given                      layout     bound to the shape of x
    values   x in float32                  low, high  extremes of each group, shape `grid`
    """

    x: Array
    values: Array
    layout: Layout
    low: Array
    high: Array


class Observer:
    """Sees batches of one tensor and chooses the range of each group of elements that shares a scale.

    A group is a block of the layout; for NVFP4, whose block scales are dynamic, it is the tensor.
    A failed `update` or `merge` leaves the observer as it was.
    """

    method: ClassVar[str]
    defaults: ClassVar[dict[str, Any]] = {}
    mergeable: ClassVar[str | None] = None  # else the reason why not

    def __init__(self, where: Layout | Scheme, name: str, options: dict[str, Any]) -> None:
        self.where, self.name, self.options = where, name, options
        self.numbers = where.numbers
        self.batches = 0
        self.elements = 0
        self.dtype: np.dtype[Any] | None = None
        self.grid: tuple[int, ...] | None = None  # one range an entry; known from the first batch on
        if isinstance(where, Layout) and self.numbers.family == "affine":
            self.grid = where.scale_shape

    # --------------------------------------------------------------- what a method says

    def _observe(self, batch: Batch) -> None:
        raise NotImplementedError

    def _range(self) -> tuple[Array, Array]:
        """Low and high of each group; 0 need not be between."""
        raise NotImplementedError

    def _absorb(self, other: Self) -> None:
        """Both have seen elements."""
        raise NotImplementedError

    def _take_over(self, other: Self) -> None:
        """`self` has seen nothing yet."""
        raise NotImplementedError

    # --------------------------------------------------------------- what users call

    def update(self, x: Array) -> None:
        """See one batch: float32, bfloat16 or float16."""
        if not isinstance(x, np.ndarray) or x.dtype not in _NAMES:
            raise DtypeError(
                self._who(), getattr(x, "dtype", type(x)), "float32, bfloat16 or float16; cast it first"
            )
        if self.dtype not in (None, x.dtype):
            raise DtypeError(self._who(), x.dtype, f"{self.dtype}, as in the batches before")
        layout = self._bound(x)
        if x.size:
            values = x.astype(np.float32, copy=False)
            scaled = self.numbers.family == "tensor_scaled"
            low, high = extremes(values, (0,) * x.ndim if scaled else layout.block)
            if not (np.isfinite(low).all() and np.isfinite(high).all()):
                raise CalibrationError(f"{self._who()}: {_not_finite(values)}")
            grid = () if scaled else layout.scale_shape
            self._observe(Batch(x, values, layout, low.reshape(grid), high.reshape(grid)))
            self.elements += x.size
            self.grid = grid
        self.dtype = x.dtype
        self.batches += 1

    def finish(self) -> Calibrated:
        """Parameters for what was seen so far; more may follow."""
        if self.elements == 0:
            seen = "no batch" if self.batches == 0 else f"{self.batches} batches without elements"
            raise CalibrationError(
                f"calibration of {self.name!r} has seen {seen}: static parameters of {self.numbers} come "
                "from a calibration set; give one (some hundred typical inputs), or take a scheme that "
                "needs none: MX formats, or a dynamic one"
            )
        low, high = self._range()
        return parameters(self.numbers, low, high, self._format())

    def merge(self, other: Observer) -> None:
        """As if this observer had also seen all that the other one saw."""
        if self.mergeable is not None:
            raise CombinationError(f"observers by {self.method!r} do not merge: {self.mergeable}")
        if type(other) is not type(self) or other._kind() != self._kind():
            raise CombinationError(
                f"merge of {self.name!r}: observers of one method, scheme and options merge, "
                f"not {self._kind()} with {other._kind()}"
            )
        if None not in (self.dtype, other.dtype) and self.dtype != other.dtype:
            raise DtypeError(f"merge of {self.name!r}: the other", other.dtype, f"{self.dtype}")
        if None not in (self.grid, other.grid) and self.grid != other.grid:
            raise CalibrationError(
                f"merge of {self.name!r}: scales of shape {self.grid} and {other.grid} do not fit"
            )
        if other.elements:
            if self.elements == 0:
                self._take_over(other)
            else:
                self._absorb(other)
            self.grid = other.grid
        self.dtype = self.dtype or other.dtype
        self.batches += other.batches
        self.elements += other.elements

    # --------------------------------------------------------------- details

    def _who(self) -> str:
        return f"calibration of {self.name!r}, batch {self.batches + 1}"

    def _kind(self) -> tuple[object, ...]:
        where = self.where
        place: object = where.block if isinstance(where, Layout) else where
        return self.method, str(self.numbers), place, tuple(self.options.items())

    def _format(self) -> str:
        assert self.dtype is not None
        return _NAMES[self.dtype]

    def _bound(self, x: Array) -> Layout:
        """The layout on the shape of x, whose scales must be those of the batches before."""
        where = self.where
        if isinstance(where, Scheme):
            try:
                layout = bind(where, x.shape)
            except AxisError as error:
                raise CalibrationError(f"{self._who()}: {error}") from error
        elif x.ndim != where.rank:
            raise CalibrationError(
                f"{self._who()} has shape {x.shape}: {where.rank} dimensions are wanted, as in {where.shape}"
            )
        else:
            layout = where.with_shape(x.shape)
        if self.grid is None or self.numbers.family == "tensor_scaled" or layout.scale_shape == self.grid:
            return layout
        raise CalibrationError(f"{self._who()} has shape {x.shape}: {self._misfit(layout)}")

    def _misfit(self, layout: Layout) -> str:
        grid = layout.scale_shape
        assert self.grid is not None
        if len(grid) != len(self.grid):
            return f"{len(self.grid)} dimensions are wanted, as in the batches before"
        axis = next(i for i, (a, b) in enumerate(zip(grid, self.grid, strict=True)) if a != b)
        each = "index" if layout.block[axis] == 1 else f"{layout.block[axis]} indices"
        return (
            f"a static scale with one entry for each {each} of dimension {axis} has {self.grid[axis]} of "
            f"them and cannot fit {grid[axis]}. Where a dimension varies, take a scheme whose blocks are "
            "whole there (per tensor, or per channel of another dimension), or a dynamic one"
        )


def _not_finite(values: Array) -> str:
    bad = ~np.isfinite(values)
    nan = int(np.isnan(values).sum())
    first = tuple(int(i) for i in np.argwhere(bad)[0])
    return (
        f"{nan} NaN and {int(bad.sum()) - nan} infinite of {values.size} elements, the first at {first}. "
        "A range cannot come from these: leave the batch out, or find what makes them (the first tensor "
        "of the model that has any)"
    )
