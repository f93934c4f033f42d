"""A quantized tensor times a factor: the factor goes into its scales, its sign into its codes.

    DQ(codes', scales') ≈ DQ(codes, scales) · factor

What the scales can say decides: a factor is one number for each block; E8M0 takes powers of two, NVFP4 one
number for the tensor. A negative factor reflects codes and zero points, a factor of 0 leaves the code of 0.
`differs` says how near the result is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from blockscale.numerics import native
from blockscale.numerics.arrays import Array
from blockscale.numerics.layout import Layout
from blockscale.numerics.packing import pack, unpack

Nearness = Literal["exact", "close"]
CLOSE = 2.0**-22
_LEAST = 2.0**-126  # from here on a float32 has all its bits


def scaled(
    layout: Layout, codes: Array, stored: native.Stored, factor: Array
) -> tuple[Array, native.Stored] | str:
    """Stored codes and parameters of the product with `factor` (float64, broadcastable); or why there are none."""
    blocks = by_block(layout, factor)
    if isinstance(blocks, str):
        return blocks
    magnitude = np.where(blocks == 0, 1.0, np.abs(blocks))
    made = _scales(layout, stored, magnitude)
    if isinstance(made, str) or bool((blocks > 0).all()):
        return made if isinstance(made, str) else (codes, made)
    sign = np.sign(np.broadcast_to(factor, layout.shape))
    reflected = _codes(layout, codes, stored, sign)
    if isinstance(reflected, str) or made.zero_points is None:
        return reflected if isinstance(reflected, str) else (reflected, made)
    low, high = _range(layout)
    turned = np.where(
        np.broadcast_to(blocks < 0, layout.scale_shape), low + high - made.zero_points, made.zero_points
    )
    return reflected, replace(made, zero_points=turned.astype(np.int32))


def by_block(layout: Layout, factor: Array) -> Array | str:
    """The factor of each block, broadcastable to the scales."""
    if not np.isfinite(factor).all():
        return "a factor is not finite"
    found = np.asarray(factor, np.float64).reshape((1,) * (layout.rank - np.ndim(factor)) + np.shape(factor))
    for axis, (n, b) in enumerate(zip(layout.shape, layout.block, strict=True)):
        if found.shape[axis] == 1 or b == 1:
            continue
        extent = b or n
        first = np.take(found, np.arange(0, n, extent), axis)
        if not np.array_equal(np.take(np.repeat(first, extent, axis), np.arange(n), axis), found):
            return "the factor differs within blocks, and a scale is one number for a block"
        found = first
    return found


def _scales(layout: Layout, stored: native.Stored, magnitude: Array) -> native.Stored | str:
    family = layout.numbers.family
    if family == "mx":
        mantissa, exponent = np.frexp(magnitude)
        if (mantissa != 0.5).any():
            return "its scales are powers of two, the factor is none"
        moved = stored.scales.astype(np.int64) + exponent - 1
        if ((moved < 0) | (moved > 254))[stored.scales != 255].any():
            return "a scale times the factor is beyond what E8M0 can say"
        return replace(stored, scales=np.where(stored.scales == 255, 255, moved).astype(np.uint8))
    if family == "tensor_scaled":
        if np.unique(magnitude).size != 1:
            return "the factor differs within the tensor, and its scales of blocks are too coarse for it"
        assert stored.tensor_scale is not None
        t = np.float32(float(stored.tensor_scale) * float(magnitude.reshape(-1)[0]))
        if not _LEAST <= t < np.inf:
            return "the tensor scale times the factor is out of range"
        return replace(stored, tensor_scale=np.array(t, np.float32))
    with np.errstate(over="ignore", under="ignore"):
        scales = (np.asarray(stored.scales).astype(np.float64) * magnitude).astype(stored.scales.dtype)
    wide = scales.astype(np.float64)
    if not ((wide >= 2.0**layout.numbers.scale_format.emin) & np.isfinite(wide)).all():
        return f"a scale times the factor is out of the range of {layout.numbers.scale}"
    return replace(stored, scales=np.asarray(scales, order="C"))


def _range(layout: Layout) -> tuple[int, int]:
    element = layout.numbers.element_format
    low, high = layout.numbers.quant_min, layout.numbers.quant_max
    return element.min_code if low is None else low, element.max_code if high is None else high


def _codes(layout: Layout, codes: Array, stored: native.Stored, sign: Array) -> Array | str:
    """With the sign of each element applied; 0 makes the code of 0."""
    element = layout.numbers.element_format
    flat: Any = unpack(codes, element, layout.shape[-1] if layout.shape else 1)
    if element.is_float:
        turned = np.where(sign < 0, flat ^ (1 << element.bits - 1), np.where(sign == 0, 0, flat))
        return np.asarray(pack(turned, element), order="C")
    low, high = _range(layout)
    if stored.zero_points is None:
        turned = flat * sign.astype(np.int64)
        if (turned[sign < 0] > high).any() or (turned[sign < 0] < low).any():
            return f"a code has no counterpart of the other sign in {low}..{high}"
        return np.asarray(pack(turned, element), order="C")
    zeros = stored.zero_points
    for axis, (n, b) in enumerate(zip(layout.shape, layout.block, strict=True)):
        zeros = np.take(np.repeat(zeros, b or max(n, 1), axis), np.arange(n), axis)
    turned = np.where(sign < 0, low + high - flat, np.where(sign == 0, zeros, flat))
    return np.asarray(pack(turned, element), order="C")


def differs(before: Array, after: Array, factor: Array, near: Nearness) -> str:
    """Why `after` is not `before` · factor, in real numbers with signed zeros or within 2^-22; empty if it is."""
    wide = np.asarray(after).astype(np.float64)
    with np.errstate(invalid="ignore"):
        product = np.asarray(before).astype(np.float64) * factor
    product, wide = np.broadcast_arrays(product, wide)
    nan = np.isnan(product) & np.isnan(wide)
    if near == "exact":
        same = (product == wide) & (np.signbit(product) == np.signbit(wide))
        return (
            ""
            if (same | nan).all()
            else "the product of a weight and the factor is rounded, or a 0 would change its sign"
        )
    with np.errstate(invalid="ignore"):
        same = np.abs(product - wide) <= CLOSE * np.abs(product)
    return (
        ""
        if (same | nan | (product == wide)).all()
        else "the product of a weight and the factor leaves the range"
    )
