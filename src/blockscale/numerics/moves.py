"""Moves: the operators that a quantize may cross, as data.

A move acts in the same way on a tensor, on its codes and on its scales, so `through.py` answers with
moves again. Sizes are checked against a shape in `shapes`; `apply` takes numpy arrays, and torch
tensors through the methods that they have in numpy's place (nothing here imports torch).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from blockscale.errors import ArgumentError, AxisError, ShapeError
from blockscale.numerics.arrays import Array

Shape = tuple[int, ...]


class Move:
    """One input, one output (but Cat: several inputs, and Split: several outputs)."""

    def shapes(self, *shapes: Shape) -> tuple[Shape, ...]:
        """Shapes of the outputs for inputs of `shapes`; an error where they do not fit."""
        raise NotImplementedError

    def shape(self, *shapes: Shape) -> Shape:
        """Shape of the only output."""
        (result,) = self.shapes(*shapes)
        return result

    def apply(self, x: Array) -> Array:
        """The result as a new array or a view. Cat takes a sequence, Split gives a tuple."""
        raise NotImplementedError


def axis_of(axis: int, shape: Shape) -> int:
    """`axis` counted from the front."""
    if not -len(shape) <= axis < len(shape):
        raise AxisError("axis", axis, f"a dimension of shape {shape}")
    return axis % len(shape)


def axes_of(axes: Sequence[int], shape: Shape) -> Shape:
    found = tuple(axis_of(axis, shape) for axis in axes)
    if len(set(found)) != len(found):
        raise AxisError("axes", tuple(axes), f"each dimension of shape {shape} once")
    return found


def with_entry(values: Shape, index: int, value: int) -> Shape:
    return (*values[:index], value, *values[index + 1 :])


def _call(x: Array, method: str, function: Callable[..., Any], *arguments: Any) -> Array:
    """A method of torch's tensors, or the function that numpy has instead."""
    return getattr(x, method)(*arguments) if hasattr(x, method) else function(x, *arguments)


def _full(like: Array, shape: Shape, value: float) -> Array:
    if hasattr(like, "new_full"):
        return like.new_full(shape, value)
    return np.full(shape, value, dtype=like.dtype)


def _along(axis: int, index: object) -> tuple[object, ...]:
    return (slice(None),) * axis + (index,)


# ------------------------------------------------------------------------- shape and order


@dataclass(frozen=True)
class Same(Move):
    """Nothing: what the scales get when every element keeps its scale."""

    def shapes(self, *shapes: Shape) -> tuple[Shape, ...]:
        return shapes

    def apply(self, x: Array) -> Array:
        return x


@dataclass(frozen=True)
class Chain(Move):
    """Moves one after the other."""

    moves: tuple[Move, ...]

    def shapes(self, *shapes: Shape) -> tuple[Shape, ...]:
        for move in self.moves:
            shapes = move.shapes(*shapes)
        return shapes

    def apply(self, x: Array) -> Array:
        for move in self.moves:
            x = move.apply(x)
        return x


@dataclass(frozen=True)
class Reshape(Move):
    """reshape, view, squeeze, unsqueeze, flatten; one size may be -1."""

    target: Shape

    def shapes(self, *shapes: Shape) -> tuple[Shape, ...]:
        (shape,) = shapes
        size, target = math.prod(shape), self.target
        if target.count(-1) == 1:
            rest = math.prod(n for n in target if n != -1)
            if rest > 0 and size % rest == 0:
                target = with_entry(target, target.index(-1), size // rest)
        if any(n < 0 for n in target) or math.prod(target) != size:
            raise ShapeError("shape", self.target, f"as many elements as {shape} has, {size}")
        return (target,)

    def apply(self, x: Array) -> Array:
        return x.reshape(self.target)


@dataclass(frozen=True)
class Permute(Move):
    """Dimension i of the result is dimension dims[i] of the input."""

    dims: tuple[int, ...]

    def order(self, shape: Shape) -> Shape:
        dims = axes_of(self.dims, shape)
        if len(dims) != len(shape):
            raise AxisError("dims", self.dims, f"every dimension of shape {shape}")
        return dims

    def inverse(self) -> Permute:
        rank = len(self.dims)
        return Permute(tuple(int(i) for i in np.argsort([d % rank for d in self.dims])))

    def shapes(self, *shapes: Shape) -> tuple[Shape, ...]:
        (shape,) = shapes
        return (tuple(shape[d] for d in self.order(shape)),)

    def apply(self, x: Array) -> Array:
        return _call(x, "permute", np.transpose, self.order(tuple(x.shape)))


@dataclass(frozen=True)
class Expand(Move):
    """Dimensions of size 1 repeated, and new ones in front; -1 keeps a size."""

    target: Shape

    def shapes(self, *shapes: Shape) -> tuple[Shape, ...]:
        (shape,) = shapes
        new = len(self.target) - len(shape)
        old = (-1,) * new + shape
        target = tuple(n if m == -1 else m for n, m in zip(old, self.target, strict=False))
        fits = all(
            m >= 0 and (i < new or n in (m, 1)) for i, (n, m) in enumerate(zip(old, target, strict=False))
        )
        if new < 0 or not fits:
            raise ShapeError("shape", self.target, f"{shape} with dimensions of 1 enlarged or new in front")
        return (target,)

    def apply(self, x: Array) -> Array:
        return _call(x, "expand", np.broadcast_to, self.shape(tuple(x.shape)))


# --------------------------------------------------------------------------- along one axis


@dataclass(frozen=True)
class Slice(Move):
    """x[start:stop:step] along one axis, bounds as Python reads them; `Flip` goes backwards."""

    axis: int
    start: int = 0
    stop: int | None = None
    step: int = 1

    def __post_init__(self) -> None:
        if self.step < 1:
            raise ArgumentError("step", self.step, "at least 1; use Flip to go backwards")

    def bounds(self, n: int) -> tuple[int, int, int, int]:
        """start, stop, step, count on a dimension of n; stop - start is count for step 1."""
        found = range(n)[self.start : self.stop : self.step]
        if not found:
            return 0, 0, 1, 0
        first, last = found[0], found[-1]
        count = (last - first) // self.step + 1  # len(found) has no room for every product of stand-ins
        return first, last + 1, self.step if count > 1 else 1, count

    def shapes(self, *shapes: Shape) -> tuple[Shape, ...]:
        (shape,) = shapes
        axis = axis_of(self.axis, shape)
        return (with_entry(shape, axis, self.bounds(shape[axis])[3]),)

    def apply(self, x: Array) -> Array:
        axis = axis_of(self.axis, tuple(x.shape))
        return x[_along(axis, slice(self.start, self.stop, self.step))]


@dataclass(frozen=True)
class Split(Move):
    """Consecutive parts of `sizes` along one axis."""

    axis: int
    sizes: tuple[int, ...]

    def cuts(self) -> tuple[int, ...]:
        """Where parts begin and end: one more than there are parts."""
        return (0, *accumulate(self.sizes))

    def parts(self) -> tuple[Slice, ...]:
        return tuple(Slice(self.axis, a, b) for a, b in pairwise(self.cuts()))

    def shapes(self, *shapes: Shape) -> tuple[Shape, ...]:
        (shape,) = shapes
        axis = axis_of(self.axis, shape)
        if min(self.sizes, default=-1) < 0 or sum(self.sizes) != shape[axis]:
            raise ShapeError("sizes", self.sizes, f"sizes that add up to {shape[axis]}, of shape {shape}")
        return tuple(with_entry(shape, axis, size) for size in self.sizes)

    def apply(self, x: Array) -> Array:
        return tuple(part.apply(x) for part in self.parts())


@dataclass(frozen=True)
class Cat(Move):
    """Several tensors one after the other along one axis."""

    axis: int

    def shapes(self, *shapes: Shape) -> tuple[Shape, ...]:
        if not shapes:
            raise ArgumentError("tensors", (), "at least one")
        first = shapes[0]
        axis = axis_of(self.axis, first)
        for shape in shapes:
            if len(shape) != len(first) or with_entry(shape, axis, first[axis]) != first:
                raise ShapeError("shapes", shapes, f"equal but for dimension {axis}")
        return (with_entry(first, axis, sum(shape[axis] for shape in shapes)),)

    def apply(self, x: Array) -> Array:
        first = x[0]
        if not hasattr(first, "new_full"):
            return np.concatenate(list(x), self.axis)
        shapes = [tuple(part.shape) for part in x]
        result = first.new_empty(self.shape(*shapes))
        axis, at = axis_of(self.axis, shapes[0]), 0
        for part, shape in zip(x, shapes, strict=True):
            result[_along(axis, slice(at, at + shape[axis]))] = part
            at += shape[axis]
        return result


@dataclass(frozen=True)
class Gather(Move):
    """index_select: x[..., indices, ...] along one axis."""

    axis: int
    indices: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "indices", tuple(int(i) for i in self.indices))

    def positions(self, n: int) -> tuple[int, ...]:
        """Indices counted from the front."""
        if any(not -n <= i < n for i in self.indices):
            raise ArgumentError("indices", self.indices, f"from {-n} to {n - 1}")
        return tuple(i % n for i in self.indices)

    def shapes(self, *shapes: Shape) -> tuple[Shape, ...]:
        (shape,) = shapes
        axis = axis_of(self.axis, shape)
        return (with_entry(shape, axis, len(self.positions(shape[axis]))),)

    def apply(self, x: Array) -> Array:
        axis = axis_of(self.axis, tuple(x.shape))
        return x[_along(axis, np.array(self.positions(x.shape[axis]), dtype=np.int64))]


# ------------------------------------------------------------------------ along several axes


@dataclass(frozen=True)
class Repeat(Move):
    """The tensor tiled times[i] times along dimension i."""

    times: tuple[int, ...]

    def shapes(self, *shapes: Shape) -> tuple[Shape, ...]:
        (shape,) = shapes
        if len(self.times) != len(shape) or any(t < 0 for t in self.times):
            raise ShapeError("times", self.times, f"one count of at least 0 a dimension of {shape}")
        return (tuple(n * t for n, t in zip(shape, self.times, strict=True)),)

    def apply(self, x: Array) -> Array:
        return _call(x, "tile", np.tile, self.times)


@dataclass(frozen=True)
class Flip(Move):
    axes: tuple[int, ...]

    def shapes(self, *shapes: Shape) -> tuple[Shape, ...]:
        axes_of(self.axes, shapes[0])
        return shapes

    def apply(self, x: Array) -> Array:
        return _call(x, "flip", np.flip, self.axes)


@dataclass(frozen=True)
class Roll(Move):
    """Element i goes to (i + shift) mod n."""

    shifts: tuple[int, ...]
    axes: tuple[int, ...]

    def shapes(self, *shapes: Shape) -> tuple[Shape, ...]:
        if len(axes_of(self.axes, shapes[0])) != len(self.shifts):
            raise ArgumentError("shifts", self.shifts, f"one an axis of {self.axes}")
        return shapes

    def apply(self, x: Array) -> Array:
        return _call(x, "roll", np.roll, self.shifts, self.axes)


@dataclass(frozen=True)
class Pad(Move):
    """`value` added widths[i] = (before, after) times around dimension i."""

    widths: tuple[tuple[int, int], ...]
    value: float = 0

    def shapes(self, *shapes: Shape) -> tuple[Shape, ...]:
        (shape,) = shapes
        if len(self.widths) != len(shape) or any(w < 0 for pair in self.widths for w in pair):
            raise ShapeError("widths", self.widths, f"a pair of at least 0 a dimension of {shape}")
        return (tuple(n + sum(pair) for n, pair in zip(shape, self.widths, strict=True)),)

    def apply(self, x: Array) -> Array:
        shape = tuple(x.shape)
        result = _full(x, self.shape(shape), self.value)
        pairs = zip(shape, self.widths, strict=True)
        result[tuple(slice(before, before + n) for n, (before, _) in pairs)] = x
        return result


# ------------------------------------------------------------------------- element by element


class _Elementwise(Move):
    def shapes(self, *shapes: Shape) -> tuple[Shape, ...]:
        return shapes


@dataclass(frozen=True)
class Neg(_Elementwise):
    def apply(self, x: Array) -> Array:
        return -x


@dataclass(frozen=True)
class Abs(_Elementwise):
    def apply(self, x: Array) -> Array:
        return abs(x)


@dataclass(frozen=True)
class Relu(_Elementwise):
    """max(x, value); NaN stays."""

    value: float = 0

    def apply(self, x: Array) -> Array:
        return x.clip(self.value, None)


@dataclass(frozen=True)
class MulPow2(_Elementwise):
    """x · 2^k."""

    k: int

    def apply(self, x: Array) -> Array:
        return x * 2.0**self.k


@dataclass(frozen=True)
class FlipBit(_Elementwise):
    """Codes of floats negated: their sign bit flipped."""

    bit: int

    def apply(self, x: Array) -> Array:
        return x ^ (1 << self.bit)


@dataclass(frozen=True)
class ClearBit(_Elementwise):
    """Codes of floats made positive: their sign bit, which is the highest, cleared."""

    bit: int

    def apply(self, x: Array) -> Array:
        return x & ((1 << self.bit) - 1)
