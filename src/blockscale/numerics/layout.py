"""`Layout`: numbers bound to a shape. The shape of the scale is the blocks.

extent[i]      = shape[i] if block[i] == 0 else block[i]
scale_shape[i] = 1 if block[i] == 0 else ceil(shape[i] / block[i])
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from blockscale.errors import ArgumentError, AxisError, BlockError, ScaleError, ShapeError, SizeError
from blockscale.numerics.scheme import Numbers, Scheme, scheme_named

if TYPE_CHECKING:
    from blockscale.numerics.follow import Moved
    from blockscale.numerics.moves import Move
    from blockscale.numerics.through import Refused

MOST_DIMENSIONS = 64  # as in numpy, and in the core
LARGEST = (1 << 62) - 1  # bytes of a tensor, in the core; layouts of graphs may be larger


@dataclass(frozen=True)
class Layout:
    """Numbers, a shape, and the block in each dimension (0: the whole dimension).

    Equal only if every field is. The element at index x belongs to block x // extent, the last
    block of a dimension may be short.
    """

    numbers: Numbers
    shape: tuple[int, ...]
    block: tuple[int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.numbers, Numbers):
            raise ArgumentError("numbers", self.numbers, "Numbers, or a Scheme: `scheme_named` makes one")
        object.__setattr__(self, "numbers", self.numbers.numbers)
        object.__setattr__(self, "shape", checked_shape(self.shape))
        try:
            object.__setattr__(self, "block", tuple(map(operator.index, self.block)))
        except TypeError:
            raise BlockError("block", self.block, "integers: positive, or 0 for a whole dimension") from None
        if len(self.block) != len(self.shape):
            raise BlockError("block", self.block, f"one entry a dimension of shape {self.shape}")
        for b in self.block:
            if b < 0:
                raise BlockError("block", self.block, "positive, or 0 for a whole dimension")
        if self.numbers.sub_block:
            self._check_sub_blocks(self.numbers.sub_block)

    def _check_sub_blocks(self, size: int) -> None:
        wide = [b for b in self.block if b != 1]
        if len(wide) > 1 or any(b % size for b in wide):
            raise BlockError(
                "block", self.block,
                f"along one dimension, and a multiple of the sub-blocks' {size} elements, for {self.numbers}",
            )  # fmt: skip

    @cached_property
    def fine(self) -> Layout:
        """The sub-blocks as blocks; without them the layout itself."""
        size = self.numbers.sub_block
        if not size:
            return self
        return Layout(self.numbers, self.shape, tuple(1 if b == 1 else size for b in self.block))

    @cached_property
    def scale_shape(self) -> tuple[int, ...]:
        pairs = zip(self.shape, self.block, strict=True)
        return tuple(1 if b == 0 else -(-n // b) for n, b in pairs)

    @cached_property
    def codes_shape(self) -> tuple[int, ...]:
        """Shape of the stored codes: the last dimension is packed into whole bytes."""
        element = self.numbers.element_format
        if not element.packed or not self.shape:
            return self.shape
        return (*self.shape[:-1], -(-self.shape[-1] * element.bits // 8))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    # ------------------------------------------------------------------ what kind of blocks
    #
    # Every layout is exactly one of these; n is the number of scales along a dimension, N its size:
    #
    #   per_tensor    n = 1 in every dimension
    #   per_channel   n = N ≠ 1 in one dimension, n = 1 in the others
    #   per_group     1 < n < N in one dimension, n = 1 or N in the others
    #   blockwise     anything else: 1 < n < N in several dimensions, or in none and n = N ≠ 1 in several

    @property
    def per_tensor(self) -> bool:
        return all(n == 1 for n in self.scale_shape)

    @property
    def channel_axis(self) -> int | None:
        """The one dimension of the scale that is not 1; 0 if all are; None if several are not."""
        wide = [i for i, n in enumerate(self.scale_shape) if n != 1]
        if len(wide) > 1:
            return None
        return wide[0] if wide else 0

    @property
    def per_channel(self) -> bool:
        """One scale for each index of one dimension (never true of a scale [1, G] with G < K)."""
        axis = self.channel_axis
        return axis is not None and not self.per_tensor and self.scale_shape[axis] == self.shape[axis]

    @property
    def per_group(self) -> bool:
        """Groups along one dimension."""
        pairs = zip(self.scale_shape, self.shape, strict=True)
        return sum(1 < n < size for n, size in pairs) == 1

    @property
    def blockwise(self) -> bool:
        return not (self.per_tensor or self.per_channel or self.per_group)

    @cached_property
    def blocked_axes(self) -> tuple[int, ...]:
        """Dimensions along which more than one element may share a scale."""
        return tuple(i for i, b in enumerate(self.block) if b != 1)

    @property
    def has_compact_form(self) -> bool:
        """Per tensor, per channel, or groups beside one dimension of channels (block 1)."""
        return self.per_tensor or self.per_channel or (self.per_group and self.block.count(1) == 1)

    @property
    def compact_scale_shape(self) -> tuple[int, ...]:
        """Scale shape without its dimensions of 1: [K] per channel, [K, groups] per group."""
        if not self.has_compact_form:
            raise ScaleError(
                "scale shape",
                self.scale_shape,
                f"on shape {self.shape} it is neither per tensor, per channel nor in groups with "
                "one dimension of channels, so it has no compact form",
            )
        return tuple(n for n in self.scale_shape if n != 1)

    def through(self, move: Move, *others: Layout, codes: bool = False) -> Moved | Refused:
        """The layout after `move` and what becomes of the scales, or a reason to stay (`through.py`)."""
        from blockscale.numerics.through import through  # it is made of layouts

        return through(self, move, *others, codes=codes)

    def with_shape(self, shape: Sequence[int]) -> Layout:
        return Layout(self.numbers, tuple(shape), self.block)


def checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        dims = tuple(map(operator.index, shape))
    except TypeError:
        raise ShapeError("shape", shape, "integers from 0") from None
    if len(dims) > MOST_DIMENSIONS:
        raise ShapeError("shape", f"{len(dims)} dimensions", f"at most {MOST_DIMENSIONS}")
    if any(n < 0 for n in dims):
        raise ShapeError("shape", dims, "no dimension below 0")
    return dims


def check_fits(layout: Layout) -> None:
    """That the core can run it: elements × bytes stay below 2^63 on every path.

    A layout itself may be larger: in a graph, sizes of the run are stand-ins whose product is no size.
    """
    if math.prod(max(n, 1) for n in layout.shape) > LARGEST // 8:
        raise SizeError("shape", layout.shape, "fewer than 2^59 elements")
    if max(layout.block, default=0) > LARGEST:
        raise BlockError("block", layout.block, "below 2^62, or 0 for a whole dimension")


def bind(scheme: Scheme, shape: Sequence[int]) -> Layout:
    """The layout of `scheme` on `shape`. A tensor of rank 0 counts as one element of axis 0."""
    shape = checked_shape(shape)
    rank = len(shape)
    block: list[int] = [scheme.others] * rank
    seen: set[int] = set()
    for axis, size in zip(scheme.axes, scheme.blocks, strict=True):
        limit = max(rank, 1)
        if not -limit <= axis < limit:
            raise AxisError("axis", axis, f"from {-limit} to {limit - 1} for shape {shape}")
        index = axis % limit
        if index in seen:
            raise AxisError("axis", scheme.axis, f"each dimension of {shape} once")
        seen.add(index)
        if rank:
            block[index] = size
    return Layout(scheme.numbers, shape, tuple(block))


@lru_cache(maxsize=4096)
def layout_named(text: str, shape: tuple[int, ...]) -> Layout:
    return bind(scheme_named(text), shape)


def block_of_scale(
    shape: Sequence[int], scale_shape: Sequence[int], block: Sequence[int] | None = None
) -> tuple[int, ...]:
    """The block that a full-rank scale stands for; with `block`, that it is so.

    It is inferred only where nothing else is likely: 1, the whole dimension, or an exact quotient
    that is a power of two. (40 elements with two scales are blocks of 20, or of 32 with a short one.)
    """
    shape, scale_shape = tuple(shape), tuple(scale_shape)
    if len(scale_shape) != len(shape):
        if math.prod(scale_shape) == 1:
            return (0,) * len(shape)
        raise ScaleError(
            "scale shape",
            scale_shape,
            f"as many dimensions as the tensor, {shape}; view a 1-D scale to full rank "
            f"(for channels of dimension c: {len(shape)} dimensions, all 1 but c)",
        )
    if block is not None:
        found = Layout(Numbers(element="int8", scale="f32"), shape, tuple(block))
        if found.scale_shape != scale_shape:
            raise ScaleError(
                "scale shape", scale_shape,
                f"{found.scale_shape} for shape {shape} in blocks of {tuple(block)}",
            )  # fmt: skip
        return found.block
    return tuple(_inferred_block(shape, scale_shape, axis) for axis in range(len(shape)))


def _inferred_block(shape: tuple[int, ...], scale_shape: tuple[int, ...], axis: int) -> int:
    n, groups = shape[axis], scale_shape[axis]
    if groups == n:
        return 1
    if groups == 1:
        return 0
    if 0 < groups < n and n % groups == 0 and (n // groups).bit_count() == 1:
        return n // groups
    least = -(-n // groups) if groups > 0 else 0
    most = (n - 1) // (groups - 1) if 1 < groups < n else -1
    if least > most:
        raise ScaleError(
            "scale shape",
            scale_shape,
            f"no block makes {groups} scales of the {n} elements in dimension {axis}",
        )
    raise ScaleError(
        "scale shape", scale_shape,
        f"{groups} scales for {n} elements in dimension {axis} may be blocks of {least} to {most}; "
        f"give the block, in a Layout or a scheme such as int8-g{least}",
    )  # fmt: skip
