"""When a quantize may move: `through(layout, move)` says whether, and how the scales follow.

    lifting   Q' ∘ f = f ∘ Q      codes=False: Q' has the layout after the move, Q the one before
    sinking   f ∘ DQ = DQ' ∘ f    codes=True: the same with codes in place of values

A `Moved` is exact in bits: codes (by `Moved.codes`), scales and zero points (by `Moved.scale`), and
decoded values (any NaN equals any NaN). Rules are one function a move: those that only put elements
elsewhere in `follow`, those that bring or change values in `follow_values`.
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

RULES: dict[type[Move], Callable[[Any, Layout, Terms], Moved]] = {
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
    Pad: follow_values.follow_pad,
    Neg: follow_values.follow_neg,
    Abs: follow_values.follow_abs,
    Relu: follow_values.follow_relu,
    MulPow2: follow_values.follow_mul_pow2,
}


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
    if moved.inverse is None and not after.numbers.dynamic and not codes:
        return Refused("the static scales of what the move drops or repeats are not known")
    return moved


def same_blocks(a: Layout, b: Layout) -> bool:
    """Equal shape and numbers, and every element shares its scale with the same others."""

    def extents(x: Layout) -> list[int]:
        return [min(b or n, n) for n, b in zip(x.shape, x.block, strict=True)]

    return (a.numbers, a.shape, a.scale_shape) == (b.numbers, b.shape, b.scale_shape) and extents(
        a
    ) == extents(b)
