"""One spelling of each move: `dims=[-1]` and `[1]` on rank 2, a slice up to the end and one to the size."""

from __future__ import annotations

from dataclasses import replace

from blockscale.graph.dims import Alphabet
from blockscale.numerics.moves import (
    Cat,
    Expand,
    Flip,
    Gather,
    Move,
    Permute,
    Reshape,
    Roll,
    Same,
    Shape,
    Slice,
    Split,
    axes_of,
    axis_of,
)


def canonical(move: Move, shape: Shape, alphabet: Alphabet) -> Move:
    """What all spellings of `move` on `shape` (on stand-ins) have in common; Same if it does nothing."""
    if isinstance(move, Reshape | Expand):
        target = move.shape(shape)
        return Same() if target == shape else type(move)(target)
    if isinstance(move, Permute):
        order = move.order(shape)
        return Same() if order == tuple(range(len(shape))) else Permute(order)
    if isinstance(move, Slice):
        return _slice(move, shape, alphabet)
    if isinstance(move, Split | Cat):
        return replace(move, axis=axis_of(move.axis, shape))
    if isinstance(move, Gather):
        axis = axis_of(move.axis, shape)
        known = not alphabet.involves_symbol(shape[axis])
        return Gather(axis, move.positions(shape[axis]) if known else move.indices)
    if isinstance(move, Flip):
        return Flip(tuple(sorted(axes_of(move.axes, shape))))
    if isinstance(move, Roll):
        pairs = sorted(zip(axes_of(move.axes, shape), move.shifts, strict=True))
        return Roll(tuple(shift for _, shift in pairs), tuple(axis for axis, _ in pairs))
    return move


def _slice(move: Slice, shape: Shape, alphabet: Alphabet) -> Move:
    axis = axis_of(move.axis, shape)
    n = shape[axis]
    if (move.start, move.stop, move.step) == (0, None, 1):
        return Same()
    if alphabet.involves_symbol(n):
        return replace(move, axis=axis)
    start, stop, step, count = move.bounds(n)
    return Same() if count == n else Slice(axis, start, stop, step)
