"""How scales follow the moves that only put elements elsewhere: one function a move.

A move is a map of indices, and the element at index x belongs to block x // extent. What a move must
leave alone, its `Terms`, follows from the numbers:

- scales that are given, or already stored, need every block after the move to lie in one block before;
- scales that are *measured* need it to hold exactly the elements of that block (repeats are harmless);
- the `mse` rule sums in order and sub-blocks are runs of elements, so there they also keep order and number;
- a measured *tensor* scale needs every element of the tensor to stay.

The block of a dimension never changes, but by reshape; and that of MX and NVFP4 not even there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import (
    Cat,
    Expand,
    Flip,
    Gather,
    Move,
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
    axes_of,
    axis_of,
)
from blockscale.numerics.regroup import CannotFollow, regroup
from blockscale.numerics.scheme import Numbers

ORDER = "what is measured depends on the order of elements, which changes within blocks"


@dataclass(frozen=True)
class Moved:
    """What a legal move makes of a quantized tensor; every move is one of `moves.py`.

    before, after   layouts of inputs and outputs (several only for Cat and Split)
    codes           what the codes get: the move itself but for neg, abs and the fill of pad and relu
    scale           what scales and zero points get, on their full rank; a Cat takes all, or, where
                    `equal` names them, `Same` on those of the first
    inverse         from the scales after to those before: what a static scale needs when Q is lifted;
                    None where those before are not known from those after
    equal           Cat: which of scales, zero_points, tensor_scale must have equal values in all inputs
    at_zero_point   codes are filled (Pad) or compared (Relu) with the zero point: see `codes_at`
    """

    before: tuple[Layout, ...]
    after: tuple[Layout, ...]
    codes: Move
    scale: Move
    inverse: Move | None
    equal: tuple[str, ...] = ()
    at_zero_point: bool = False

    @property
    def layout(self) -> Layout:
        """The only layout after the move."""
        (layout,) = self.after
        return layout

    def codes_at(self, zero_point: int) -> Move:
        """`codes`, for the one zero point of a tensor."""
        if self.at_zero_point and isinstance(self.codes, Pad | Relu):
            return replace(self.codes, value=zero_point)
        return self.codes


@dataclass(frozen=True)
class Terms:
    """What a move must leave alone.

    codes    codes move, not values (DQ sinks)
    whole    scales are measured: a block keeps all its elements
    ordered  ... in their order, and none twice
    all      the tensor scale is measured: the tensor keeps all its elements
    fixed    the block is part of the format (MX, NVFP4): it stays as it is, along its axis
    """

    codes: bool
    whole: bool
    ordered: bool
    all: bool
    fixed: bool

    @staticmethod
    def of(numbers: Numbers, codes: bool) -> Terms:
        """Block scales of MX and NVFP4 are always measured; `dynamic` is about the tensor scale."""
        whole = not codes and (numbers.dynamic or numbers.family != "affine")
        return Terms(
            codes=codes,
            whole=whole,
            ordered=whole and (numbers.rule == "mse" or numbers.sub_block > 0),
            all=not codes and numbers.dynamic and numbers.tensor_scale,
            fixed=numbers.family != "affine",
        )


def moved(layout: Layout, move: Move, block: Shape, scale: Move, inverse: Move | None, **more: Any) -> Moved:
    after = tuple(Layout(layout.numbers, shape, block) for shape in move.shapes(layout.shape))
    known = Same() if isinstance(scale, Same) else inverse
    return Moved((layout,), after, more.pop("codes", move), scale, known, **more)


def follow_same(move: Same, layout: Layout, terms: Terms) -> Moved:
    return moved(layout, move, layout.block, Same(), None)


def follow_reshape(move: Reshape, layout: Layout, terms: Terms) -> Moved:
    target = move.shape(layout.shape)
    block = regroup(layout.shape, layout.block, target)

    def named(shape: Shape, block: Shape) -> list[int]:
        return [b for n, b in zip(shape, block, strict=True) if n != 1 and b != 1]

    sized = any(layout.block) or layout.numbers.sub_block > 0
    if terms.fixed and sized and named(layout.shape, layout.block) != named(target, block):
        raise CannotFollow(
            f"blocks of {layout.block} on {layout.shape} would become blocks of {block} on {target}, "
            f"but {layout.numbers} has blocks of its own size along one axis"
        )
    after = Layout(layout.numbers, target, block)
    scale = Reshape(after.scale_shape)
    scale.shapes(layout.scale_shape)
    inverse = Reshape(layout.scale_shape)
    return moved(layout, move, block, Same() if scale == inverse else scale, inverse)


def follow_permute(move: Permute, layout: Layout, terms: Terms) -> Moved:
    dims = move.order(layout.shape)
    wide = [d for d in dims if layout.block[d] != 1 and layout.shape[d] > 1]
    if terms.ordered and wide != sorted(wide):
        raise CannotFollow(ORDER)
    scale = Permute(dims)
    return moved(layout, move, tuple(layout.block[d] for d in dims), scale, scale.inverse())


def check_kept(terms: Terms, kept: bool) -> None:
    if terms.all and not kept:
        raise CannotFollow("the tensor scale is measured over the whole tensor, of which only a part is left")


def check_measurable(before: Layout, after: Layout) -> None:
    if before.size and not after.size and 0 not in after.scale_shape:
        raise CannotFollow("no element is left of which the scale is measured")


def _cut(n: int, b: int, bounds: tuple[int, int, int, int], terms: Terms) -> tuple[int, int, int] | None:
    """The slice that scales get where elements get `bounds`; None: all stay."""
    start, stop, step, count = bounds
    if count == n:
        return None
    check_kept(terms, False)
    if b == 0:
        if terms.whole:
            raise CannotFollow(f"the scale is measured over all {n} elements of the dimension")
        return None
    if b == 1 or count == 0:
        return start, stop, step
    if step == 1 and start % b == 0 and (not terms.whole or count % b == 0 or stop == n):
        return start // b, -(-stop // b), 1
    if not terms.whole and start // b == (stop - 1) // b:
        return start // b, start // b + 1, 1
    raise CannotFollow(f"elements {start}:{stop}:{step} of {n} are not whole blocks of {b}")


def follow_slice(move: Slice, layout: Layout, terms: Terms) -> Moved:
    axis = axis_of(move.axis, layout.shape)
    n = layout.shape[axis]
    cut = _cut(n, layout.block[axis], move.bounds(n), terms)
    return moved(layout, move, layout.block, Slice(axis, *cut) if cut else Same(), None)


def follow_split(move: Split, layout: Layout, terms: Terms) -> Moved:
    """Legal where one split of the scales does it, or all parts keep all of them."""
    axis = axis_of(move.axis, layout.shape)
    n, b = layout.shape[axis], layout.block[axis]
    cuts = move.cuts()
    scale: Move = Same()
    for part in move.parts():
        _cut(n, b, part.bounds(n), terms)
    shared = b == 0 or len(move.sizes) == 1 or (b >= n and 0 not in move.sizes)
    if not shared:
        if any(cut % b and cut != n for cut in cuts):
            raise CannotFollow(f"parts of {move.sizes} do not begin at whole blocks of {b}")
        ends = [-(-cut // b) for cut in cuts]
        scale = Split(axis, tuple(e - s for s, e in pairwise(ends)))
    return moved(layout, move, layout.block, scale, Cat(axis))


def follow_gather(move: Gather, layout: Layout, terms: Terms) -> Moved:
    axis = axis_of(move.axis, layout.shape)
    n, b = layout.shape[axis], layout.block[axis]
    positions = np.array(move.positions(n), dtype=np.int64)
    if len(positions) == n and np.array_equal(positions, np.arange(n)):
        return moved(layout, move, layout.block, Same(), None)
    check_kept(terms, len(np.unique(positions)) == n)
    sources = positions.tolist() if b == 1 else _sources(positions, n, b, terms)
    count = layout.scale_shape[axis]
    whole = len(sources) == count  # sizes of the run have large stand-ins
    if whole and sources == list(range(count)):
        return moved(layout, move, layout.block, Same(), None)
    inverse = None
    if whole and sorted(sources) == list(range(count)):
        inverse = Gather(axis, tuple(int(i) for i in np.argsort(sources)))
    return moved(layout, move, layout.block, Gather(axis, tuple(sources)), inverse)


def _sources(positions: np.ndarray[Any, Any], n: int, b: int, terms: Terms) -> list[int]:
    """Which block before the move each block after it is."""
    sources = []
    extent = b or max(n, 1)
    for at in range(0, len(positions), b) if b else [0]:
        held = positions[at : at + b] if b else positions
        source = int(held[0]) // extent if len(held) else 0
        first, end = source * extent, min((source + 1) * extent, n)
        if not ((first <= held) & (held < end)).all():
            raise CannotFollow(f"indices {at} to {at + len(held) - 1} mix blocks of {b}")
        if terms.whole and len(np.unique(held)) != max(end - first, 0):
            raise CannotFollow(f"indices {at} to {at + len(held) - 1} hold only a part of a block")
        if terms.ordered and (len(held) != end - first or (held[1:] - held[:-1] != 1).any()):
            raise CannotFollow(ORDER)
        sources.append(source)
    return sources


def follow_expand(move: Expand, layout: Layout, terms: Terms) -> Moved:
    target = move.shape(layout.shape)
    new = len(target) - layout.rank
    fresh = 1 if any(layout.block) or terms.fixed or 0 in target[:new] else 0
    block = (fresh,) * new + layout.block
    after = Layout(layout.numbers, target, block)
    old = (1,) * new + layout.shape
    if terms.whole and any(m != n and b != 1 for m, n, b in zip(target, old, block, strict=True)):
        if terms.ordered:
            raise CannotFollow(ORDER)
        check_measurable(layout, after)
    check_kept(terms, after.size > 0 or layout.size == 0)
    if after.scale_shape == layout.scale_shape:
        return moved(layout, move, block, Same(), None)
    if prod(after.scale_shape) == prod(layout.scale_shape):  # only dimensions of 1 are new
        return moved(layout, move, block, Reshape(after.scale_shape), Reshape(layout.scale_shape))
    return moved(layout, move, block, Expand(after.scale_shape), None)


def follow_repeat(move: Repeat, layout: Layout, terms: Terms) -> Moved:
    counts = []
    for n, b, times in zip(layout.shape, layout.block, move.times, strict=True):
        counts.append(1 if b == 0 else times)
        if times == 1 or b == 1:
            continue
        if 0 < n <= b and times:  # one block, and all of it in each block after the move
            counts[-1] = -(-n * times // b)
        aligned = b != 0 and n % b == 0
        short = n * times % b if 0 < n <= b and terms.whole else 0
        if 0 < b < n and not aligned and times:
            raise CannotFollow(f"the last of the blocks of {b} in {n} elements is short")
        if not aligned and 0 < short < n:
            raise CannotFollow(f"{n} elements {times} times end in a part of a block of {b}")
        if terms.ordered and not aligned and times:
            raise CannotFollow(ORDER)
    if terms.whole:
        check_measurable(layout, Layout(layout.numbers, move.shape(layout.shape), layout.block))
    check_kept(terms, 0 not in move.times or layout.size == 0)
    scale = Repeat(tuple(counts))
    return moved(layout, move, layout.block, Same() if set(counts) <= {1} else scale, None)


def follow_flip(move: Flip, layout: Layout, terms: Terms) -> Moved:
    axes = []
    for axis in axes_of(move.axes, layout.shape):
        n, b = layout.shape[axis], layout.block[axis]
        if n > 1 and b != 1 and terms.ordered:
            raise CannotFollow(ORDER)
        if 0 < b < n:
            if n % b:
                raise CannotFollow(f"the last of the blocks of {b} in {n} elements is short")
            axes.append(axis)
    scale = Flip(tuple(axes))
    return moved(layout, move, layout.block, scale if axes else Same(), scale)


def follow_roll(move: Roll, layout: Layout, terms: Terms) -> Moved:
    axes, shifts = [], []
    for axis, shift in zip(axes_of(move.axes, layout.shape), move.shifts, strict=True):
        n, b = layout.shape[axis], layout.block[axis]
        if n == 0 or shift % n == 0:
            continue
        if 0 < b < n:
            if n % b or shift % b:
                raise CannotFollow(f"a shift of {shift} in {n} elements does not move whole blocks of {b}")
            axes.append(axis)
            shifts.append(shift // b)
        elif terms.ordered:
            raise CannotFollow(ORDER)
    scale = Roll(tuple(shifts), tuple(axes))
    inverse = Roll(tuple(-s for s in shifts), tuple(axes))
    return moved(layout, move, layout.block, scale if axes else Same(), inverse)


def follow_cat(move: Cat, layouts: Sequence[Layout], terms: Terms) -> Moved:
    first = layouts[0]
    axis = axis_of(move.axis, first.shape)
    for other in layouts[1:]:
        if (other.numbers, other.block) != (first.numbers, first.block):
            raise CannotFollow(
                f"{other.numbers} in blocks of {other.block} is not "
                f"{first.numbers} in blocks of {first.block}"
            )
    b = first.block[axis]
    after = Layout(first.numbers, move.shape(*(one.shape for one in layouts)), first.block)
    if len(layouts) == 1:
        return Moved(tuple(layouts), (after,), move, Same(), Same())
    check_kept(terms, False)
    equal = ("tensor_scale",) if first.numbers.tensor_scale else ()
    sizes = [one.shape[axis] for one in layouts]
    if b and not any(n % b for n in sizes[:-1]):
        return Moved(tuple(layouts), (after,), move, Cat(axis), Split(axis, _counts(layouts, axis)), equal)
    if b and not (sum(sizes) <= b and sizes[0]):
        raise CannotFollow(f"of {sizes} elements put together, all but the last must be whole blocks of {b}")
    if terms.whole:
        raise CannotFollow(f"scales measured over {sizes} elements are not those of {sum(sizes)}")
    zero_points = ("zero_points",) if first.numbers.zero_point else ()
    return Moved(tuple(layouts), (after,), move, Same(), Same(), ("scales", *zero_points, *equal))


def _counts(layouts: Sequence[Layout], axis: int) -> Shape:
    return tuple(one.scale_shape[axis] for one in layouts)
