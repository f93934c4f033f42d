"""What a move makes of *stored* codes, which share bytes: a move of whole bytes, or a reason.

Two ways: runs of codes that fill bytes move whole (4-bit codes in pairs), or rows do, where the last
dimension stays as it is (any width).
"""

from __future__ import annotations

from dataclasses import replace

from blockscale.numerics.follow import Moved
from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import (
    Cat,
    Expand,
    Flip,
    Gather,
    Move,
    Pad,
    Permute,
    Repeat,
    Reshape,
    Roll,
    Same,
    Slice,
    Split,
    axis_of,
)
from blockscale.numerics.through import Refused, runs_through


def stored_move(moved: Moved, move: Move, zero_point: int | None = None) -> Move | Refused:
    """The move of stored codes for a `moved` that `through(layout, move, …)` gave.

    `zero_point` is that of the tensor; None where it is not one known number.
    """
    layout = moved.before[0]
    if moved.at_zero_point and zero_point is None:
        return Refused("the zero point, which fills the padding, is not known")
    codes = moved.codes_at(zero_point or 0)
    element = layout.numbers.element_format
    if not element.packed or isinstance(codes, Same):
        return codes
    if 8 % element.bits == 0:
        in_bytes = runs_through(8 // element.bits, layout, move, *moved.before[1:])
        if in_bytes is not None:
            return in_bytes
    whole_rows = _of_rows(codes, layout, moved.after[0])
    if whole_rows is None:
        return Refused(
            f"codes of {element.bits} bits share bytes along the last dimension, "
            f"and {move} would tear them apart"
        )
    return whole_rows


def _of_rows(move: Move, before: Layout, after: Layout) -> Move | None:
    """`move` on rows of bytes, where it leaves every row as it is."""
    rank = before.rank
    if rank == 0 or after.rank == 0 or before.shape[-1] != after.shape[-1]:
        return None
    last, width = rank - 1, after.codes_shape[-1]
    if isinstance(move, Reshape):
        return Reshape((*after.shape[:-1], width))
    if isinstance(move, Permute):
        return move if move.order(before.shape)[-1] == last else None
    if isinstance(move, Expand):
        return Expand((*after.shape[:-1], width))
    if isinstance(move, Slice | Split | Cat | Gather):
        return move if axis_of(move.axis, before.shape) != last else None
    if isinstance(move, Repeat):
        return move if move.times[-1] == 1 else None
    if isinstance(move, Flip | Roll):
        return move if last not in {axis_of(axis, before.shape) for axis in move.axes} else None
    if isinstance(move, Pad):
        return replace(move) if move.widths[-1] == (0, 0) and move.value == 0 else None
    return None
