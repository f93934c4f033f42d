"""When a quantize may move: `through(layout, move)` says whether, and how the scales follow.

    lifting   Q' ∘ f = f ∘ Q      codes=False: Q' has the layout after the move, Q the one before
    sinking   f ∘ DQ = DQ' ∘ f    codes=True: the same with codes in place of values

A `Moved` is exact in bits: codes (by `Moved.codes`), scales and zero points (by `Moved.scale`), and
decoded values (any NaN equals any NaN). A fake-quantize, DQ ∘ Q, moves where both may. Rules are one
function a move: those that only put elements elsewhere in `follow`, those that bring or change values in
`follow_values`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from blockscale.errors import CombinationError
from blockscale.numerics import follow, follow_values
from blockscale.numerics.follow import Moved, Terms
from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import (
    Abs,
    Cat,
    Expand,
    Flip,
    Gather,
    Move,
    MulPow2,
    Neg,
    Pad,
    Permute,
    Relu,
    Repeat,
    Reshape,
    Roll,
    Same,
    Shape,
    Slice,
    Split,
)
from blockscale.numerics.regroup import CannotFollow

Rule = Callable[[Any, Layout, Terms], Moved]
PLACING: dict[type[Move], Rule] = {
    Same: follow.follow_same,
    Reshape: follow.follow_reshape,
    Permute: follow.follow_permute,
    Slice: follow.follow_slice,
    Split: follow.follow_split,
    Gather: follow.follow_gather,
    Expand: follow.follow_expand,
    Repeat: follow.follow_repeat,
    Flip: follow.follow_flip,
    Roll: follow.follow_roll,
}
CHANGING: dict[type[Move], Rule] = {
    Pad: follow_values.follow_pad,
    Neg: follow_values.follow_neg,
    Abs: follow_values.follow_abs,
    Relu: follow_values.follow_relu,
    MulPow2: follow_values.follow_mul_pow2,
}
RULES = PLACING | CHANGING


@dataclass(frozen=True)
class Refused:
    """A move that the scales cannot follow. False in a condition."""

    reason: str

    def __bool__(self) -> bool:
        return False


def through(layout: Layout, move: Move, *others: Layout, codes: bool = False) -> Moved | Refused:
    """How `move` takes a quantize with `layout`, and for Cat those of its `others`, along.

    Arguments that do not fit the shapes are errors, not refusals.
    """
    layouts = (layout, *others)
    move.shapes(*(one.shape for one in layouts))
    if layout.numbers.rounding == "stochastic" and not codes:
        return Refused("stochastic rounding draws by element index, so it stays where it is")
    terms = Terms.of(layout.numbers, codes)
    try:
        if isinstance(move, Cat):
            return follow.follow_cat(move, layouts, terms)
        if type(move) not in RULES:
            return Refused(f"nothing is known of scales under {move}")
        return RULES[type(move)](move, layout, terms)
    except CannotFollow as cannot:
        return Refused(str(cannot))


def lifted(after: Layout, move: Move, *shapes: Shape, codes: bool = False) -> Moved | Refused:
    """The same, asked from behind: `after` is the layout of a Q that follows `move` on `shapes`.

    A static Q is refused where its scales before the move are not known from those after.
    """
    results = move.shapes(*shapes)
    if after.shape not in results:
        raise CombinationError(f"{move} gives shapes {results}, the layout is for {after.shape}")
    block: Shape | None = after.block[after.rank - len(shapes[0]) :]
    if isinstance(move, Reshape | Permute):
        back = Reshape(shapes[0]) if isinstance(move, Reshape) else move.inverse()
        returned = through(after, back, codes=codes)
        if not isinstance(returned, Moved):
            return returned
        block = returned.layout.block
    assert block is not None
    before = [Layout(after.numbers, shape, block) for shape in shapes]
    moved = through(before[0], move, *before[1:], codes=codes)
    if not isinstance(moved, Moved):
        return moved
    expected = [replace(after, shape=shape) for shape in results]
    if not all(map(same_blocks, moved.after, expected)):
        return Refused(f"no blocks of {shapes[0]} become blocks of {after.block} on {after.shape}")
    given = not Terms.of(after.numbers, codes).whole and not codes
    if moved.inverse is None and given:
        return Refused("the static scales of what the move drops or repeats are not known")
    return moved


def runs_through(length: int, layout: Layout, move: Move, *others: Layout) -> Move | None:
    """The move of whole runs of `length` elements along the last axis: of bytes that hold several codes.

    None where some run, or the order in it, does not survive.
    """
    runs = [_in_runs(one, length) for one in (layout, *others)]
    terms = Terms(codes=False, whole=True, ordered=True, all=False, fixed=True)
    try:
        if not all(one.shape for one in runs):
            return None
        if isinstance(move, Cat):
            moved = follow.follow_cat(move, runs, terms)
        elif type(move) in PLACING:
            moved = PLACING[type(move)](move, runs[0], terms)
        else:
            return None
    except CannotFollow:
        return None
    whole = all(after.shape and same_blocks(after, _in_runs(after, length)) for after in moved.after)
    return moved.scale if whole else None


def _in_runs(layout: Layout, length: int) -> Layout:
    return replace(layout, block=(1,) * (layout.rank - 1) + (length,) * bool(layout.shape))


def same_blocks(a: Layout, b: Layout) -> bool:
    """Equal shape and numbers, and every element shares its scale with the same others."""

    def extents(x: Layout) -> list[int]:
        return [min(b or n, n) for n, b in zip(x.shape, x.block, strict=True)]

    facts = [(one.numbers, one.shape, one.scale_shape, extents(one)) for one in (a, b)]
    return facts[0] == facts[1]
