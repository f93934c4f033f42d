"""Between a tensor and its blocks: gather each block's elements, spread a value over its block."""

from __future__ import annotations

import math

from blockscale.numerics.arrays import Array, Arrays
from blockscale.numerics.layout import Layout


def blocks_of(xp: Arrays, x: Array, layout: Layout) -> Array:
    """[*scale_shape, n]: each block's elements in row-major order, short blocks padded with zeros."""
    grid = layout.scale_shape
    extents = tuple(n if b == 0 else b for n, b in zip(layout.shape, layout.block, strict=True))
    extents = tuple(min(e, max(n, 1)) for e, n in zip(extents, layout.shape, strict=True))
    padding = [g * e - n for g, e, n in zip(grid, extents, layout.shape, strict=True)]
    if any(padding):
        x = xp.pad(x, padding)
    pairs = [size for pair in zip(grid, extents, strict=True) for size in pair]
    rank = layout.rank
    order = [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)]
    return xp.transpose(x.reshape(pairs), order).reshape(*grid, math.prod(extents))


def per_element(xp: Arrays, p: Array, layout: Layout) -> Array:
    """Spread one value a block (shape scale_shape) over the shape of the tensor."""
    for axis, (n, b) in enumerate(zip(layout.shape, layout.block, strict=True)):
        if b != 1:
            extent = n if b == 0 else min(b, max(n, 1))
            p = xp.repeat(p, extent, axis)
            p = p[(slice(None),) * axis + (slice(0, n),)]
    return p
