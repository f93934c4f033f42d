"""Moves as ONNX nodes, in the spellings that models have."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from blockscale.numerics import moves

if TYPE_CHECKING:
    from passes.onnx_graphs import Builder

END = 2**63 - 1


def moved(b: Builder, x: Any, move: moves.Move) -> Any:
    """`move` of a value, or for Cat of a list of them; for Split a list is given back."""
    return _call(move, b, x)


@singledispatch
def _call(move: moves.Move, b: Builder, x: Any) -> Any:
    raise NotImplementedError(move)


def _by(kind: type[moves.Move], write: Callable[[Builder, Any, Any], Any]) -> None:
    _call.register(kind)(lambda move, b, x: write(b, x, move))


def _rank(b: Builder, x: ir.Value) -> int:
    return len(b.sizes(x))


def _size(b: Builder, x: ir.Value, axis: int) -> int:
    size = b.sizes(x)[axis]
    assert isinstance(size, int)
    return size


def _reshape(b: Builder, x: ir.Value, move: moves.Reshape) -> ir.Value:
    empty = {"allowzero": 1} if 0 in move.target else {}
    return b.call("Reshape", x, b.ints(move.target), **empty)  # type: ignore[no-any-return]


def _permute(b: Builder, x: ir.Value, move: moves.Permute) -> ir.Value:
    rank = _rank(b, x)
    return b.call("Transpose", x, perm=[d % rank for d in move.dims])  # type: ignore[no-any-return]


def _slice(b: Builder, x: ir.Value, move: moves.Slice) -> ir.Value:
    stop = END if move.stop is None else move.stop
    numbers = ([move.start], [stop], [move.axis], [move.step])
    return b.call("Slice", x, *map(b.ints, numbers))  # type: ignore[no-any-return]


def _split(b: Builder, x: ir.Value, move: moves.Split) -> list[ir.Value]:
    made = b.add("Split", (x, b.ints(move.sizes)), outputs=len(move.sizes), axis=move.axis)
    return made if isinstance(made, list) else [made]


def _flip(b: Builder, x: ir.Value, move: moves.Flip) -> ir.Value:
    n = len(move.axes)
    numbers = ([-1] * n, [-END] * n, move.axes, [-1] * n)
    return b.call("Slice", x, *map(b.ints, numbers))  # type: ignore[no-any-return]


def _roll(b: Builder, x: ir.Value, move: moves.Roll) -> ir.Value:
    for shift, axis in zip(move.shifts, move.axes, strict=True):
        places = np.roll(np.arange(_size(b, x, axis)), shift)
        x = b.call("Gather", x, b.ints(places.tolist()), axis=axis)
    return x


def _pad(b: Builder, x: ir.Value, move: moves.Pad) -> ir.Value:
    pads = [before for before, _ in move.widths] + [after for _, after in move.widths]
    value = np.array(move.value, x.dtype.numpy())  # type: ignore[union-attr]
    return b.call("Pad", x, b.ints(pads), b.constant(value))  # type: ignore[no-any-return]


def _scaled(b: Builder, x: ir.Value, move: moves.MulPow2) -> ir.Value:
    return b.call("Mul", x, b.constant(np.array(2.0**move.k, x.dtype.numpy())))  # type: ignore


_by(moves.Reshape, _reshape)
_by(moves.Permute, _permute)
_by(moves.Expand, lambda b, x, m: b.call("Expand", x, b.ints([1 if n == -1 else n for n in m.target])))
_by(moves.Slice, _slice)
_by(moves.Split, _split)
_by(moves.Cat, lambda b, x, m: b.call("Concat", *x, axis=m.axis))
_by(moves.Gather, lambda b, x, m: b.call("Gather", x, b.ints(m.indices), axis=m.axis))
_by(moves.Repeat, lambda b, x, m: b.call("Tile", x, b.ints(m.times)))
_by(moves.Flip, _flip)
_by(moves.Roll, _roll)
_by(moves.Pad, _pad)
_by(moves.Neg, lambda b, x, m: b.call("Neg", x))
_by(moves.Abs, lambda b, x, m: b.call("Abs", x))
_by(moves.Relu, lambda b, x, m: b.call("Relu", x))
_by(moves.MulPow2, _scaled)
