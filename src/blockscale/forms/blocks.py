"""Blocks in standard operators: the extremes of each, and a scale of each spread over its elements.

A block per dimension: 1 is every element for itself, 0 the whole dimension, n runs of n with a short last one.
Extremes are taken one dimension after the other, so blocks may have several. Zeros that fill a short block up
change nothing: every range has 0 in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from blockscale.forms.body import Body


@dataclass(frozen=True)
class Blocks:
    """`even`, a dimension: known to have no short block, and where it is one block as a whole, no empty one."""

    block: tuple[int, ...]
    even: tuple[bool, ...]

    @staticmethod
    def of(block: Sequence[int], sizes: Sequence[int | None]) -> Blocks:
        """`sizes` as far as they are known before the run."""
        pairs = zip(block, sizes, strict=True)
        return Blocks(tuple(block), tuple(n is not None and (n % b == 0 if b else n > 0) for b, n in pairs))

    @property
    def whole(self) -> Blocks:
        """All dimensions as one block."""
        pairs = zip(self.block, self.even, strict=True)
        return Blocks((0,) * len(self.block), tuple(even and b == 0 for b, even in pairs))

    def fine(self, sub_block: int) -> Blocks:
        """Of sub-blocks; themselves where there are none."""
        if not sub_block:
            return self
        return Blocks(tuple(1 if b == 1 else sub_block for b in self.block), (False,) * len(self.block))


def reduced(b: Body, op_type: str, x: ir.Value, blocks: Blocks) -> ir.Value:
    """ReduceMax or ReduceMin over each block: of the shape that scales have."""
    for axis, (size, even) in enumerate(zip(blocks.block, blocks.even, strict=True)):
        if size == 1:
            continue
        if size == 0:
            if not even:  # nothing has no maximum
                x = with_zeros(b, x, axis, b.i64([1]))
            x = b(op_type, x, b.i64([axis]), keepdims=1)
        else:
            x = b(op_type, in_runs(b, x, axis, size, even), b.i64([axis + 1]), keepdims=0)
    return x


def spread(b: Body, scale: ir.Value, x: ir.Value, blocks: Blocks) -> ir.Value:
    """What each block has for its elements, as far as broadcasting does not do it."""
    for axis, size in enumerate(blocks.block):
        if size > 1:
            count = b("Squeeze", b.size_of(x, axis), b.i64([0]))
            index = b("Div", b("Range", b.i64(0), count, b.i64(1)), b.i64(size))
            scale = b("Gather", scale, index, axis=axis)
    return scale


def scaled(b: Body, x: ir.Value, scale: ir.Value, blocks: Blocks) -> ir.Value:
    """x times the scale of its block."""
    blocked = [axis for axis, size in enumerate(blocks.block) if size > 1]
    if len(blocked) != 1 or not blocks.even[blocked[0]]:
        return b("Mul", x, spread(b, scale, x, blocks))
    (axis,) = blocked  # whole runs: nothing of the size of x is made of the scales
    runs = in_runs(b, x, axis, blocks.block[axis], even=True)
    return b("Reshape", b("Mul", runs, b("Unsqueeze", scale, b.i64([axis + 1]))), b("Shape", x), allowzero=1)


def in_runs(b: Body, x: ir.Value, axis: int, size: int, even: bool = False) -> ir.Value:
    """[…, n, …] → […, ceil(n / size), size, …]"""
    n = b.size_of(x, axis)
    count = b("Div", b("Add", n, b.i64([size - 1])), b.i64([size]))
    if not even:
        x = with_zeros(b, x, axis, b("Sub", b("Mul", count, b.i64([size])), n))
    shape = [count, b.i64([size]), b("Shape", x, start=axis + 1)]
    if axis:
        shape.insert(0, b("Shape", x, start=0, end=axis))
    return b.reshaped(x, *shape)


def with_zeros(b: Body, x: ir.Value, axis: int, count: ir.Value) -> ir.Value:
    """`count` (int64[1]) zeros behind the end of a dimension."""
    pads = b("Concat", b.i64([0]), count, axis=0)
    return b("Pad", x, pads, None, b.i64([axis]))
