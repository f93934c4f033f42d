"""The canonical dot product: the one exact meaning of x · Wᵀ for MXFP4, MXFP6 and MXINT8 operands.

With codes as integers (value = integer · 2^-m, m from the element format) and k the blocks of K:

    n[k]   = Σ x_int · w_int over block k                 an integer, |n| < 2^24
    p[k]   = float32(n[k] · 2^(sx[k] + sw[k] - mx - mw))  the powers first put together, one rounding
    result = ((0 + p[0]) + p[1]) + …                      float32, in ascending order

p is exact but for results beyond float32: above its range it is ±Inf (IEEE; a later -Inf makes NaN),
below 2^-126 it is rounded once, half to even, to a subnormal, which is kept. Hence the two scales
must not be multiplied in one after the other where one of them alone would leave the range: 2^-127 of x and
2^127 of W give 1. A block whose scale is NaN makes every result that it takes part in NaN. A row does not
depend on the other rows.
"""

from __future__ import annotations

import math

import numpy as np

from blockscale.errors import CombinationError, ShapeError
from blockscale.numerics.arrays import Array
from blockscale.numerics.formats import Format
from blockscale.numerics.layout import Layout
from blockscale.numerics.scales import E8M0_NAN

EXACT = 1 << 24  # integers below it are float32 numbers


def dot(x: Array, x_scales: Array, x_layout: Layout, w: Array, w_scales: Array, w_layout: Layout) -> Array:
    """float32 [..., N] of x [..., K] and w [N, K]: unpacked codes, and their E8M0 scale bytes."""
    block = _check(x_layout, w_layout)
    x_element, w_element = x_layout.numbers.element_format, w_layout.numbers.element_format
    length, columns = x_layout.shape[-1], w_layout.shape[0]
    rows = math.prod(x_layout.shape[:-1])
    x_int = integers(x, x_element).reshape(rows, length)
    w_int = integers(w, w_element)
    x_bytes = np.asarray(x_scales).astype(np.int64).reshape(rows, x_layout.scale_shape[-1])
    w_bytes = np.asarray(w_scales).astype(np.int64)
    # a byte b is 2^(b - 127)
    shift = fraction_bits(x_element) + fraction_bits(w_element) + 2 * 127
    total = np.zeros((rows, columns), np.float32)
    for k in range(x_layout.scale_shape[-1]):
        held = slice(k * block, (k + 1) * block)
        n = x_int[:, held] @ w_int[:, held].T
        a, b = x_bytes[:, k, None], w_bytes[None, :, k]
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            # float64 holds n · 2^e for every e that occurs, so the only rounding is to float32
            p = np.ldexp(n.astype(np.float64), (a + b - shift).astype(np.int32)).astype(np.float32)
            total = total + np.where((a == E8M0_NAN) | (b == E8M0_NAN), np.float32(np.nan), p)
    return total.reshape(*x_layout.shape[:-1], columns)


def fraction_bits(element: Format) -> int:
    """m of value = integer · 2^-m."""
    return element.mantissa_bits - (element.emin if element.is_float else 0)


def integers(codes: Array, element: Format) -> Array:
    """Codes as int64 integers: value · 2^m."""
    if element.is_fixed:
        return np.asarray(codes).astype(np.int64)
    table = element.decode(range(1 << element.bits)) * 2.0 ** fraction_bits(element)
    return table.astype(np.int64)[np.asarray(codes).astype(np.int64)]


def _check(x: Layout, w: Layout) -> int:
    """The common block length, or what is wrong."""
    if not x.shape or len(w.shape) != 2 or x.shape[-1] != w.shape[-1]:
        raise ShapeError("shapes", (x.shape, w.shape), "[..., K] and [N, K]")
    most = 1
    for name, one in (("x", x), ("w", w)):
        element = one.numbers.element_format
        if one.numbers.family != "mx" or (element.bits > 6 and element.is_float):
            raise CombinationError(
                f"{name} in {one.numbers}: the exact product is that of MXFP4, MXFP6 and MXINT8 operands"
            )
        along = one.block[-1]
        if along == 0 or any(b != 1 and n != 1 for b, n in zip(one.block[:-1], one.shape, strict=False)):
            raise CombinationError(
                f"{name} in blocks of {one.block}: they must run along the last axis alone"
            )
        largest = max(-element.min_code, element.max_code + 1) if element.is_fixed else element.max
        most *= int(largest * (1 if element.is_fixed else 2.0 ** fraction_bits(element)))
    block = x.block[-1]
    if block != w.block[-1]:
        raise CombinationError(
            f"x in blocks of {x.block[-1]}, w in blocks of {w.block[-1]}: they must be equal"
        )
    if most * min(block, x.shape[-1]) >= EXACT:
        raise CombinationError(
            f"sums over blocks of {block} may reach 2^24, where float32 is no longer exact"
        )
    return block
