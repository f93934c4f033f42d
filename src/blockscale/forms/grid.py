"""Rounding to an element grid in standard operators, and the codes of what is on it. float32, exact.

`numerics.rounding` and `numerics.codec` are the definition.
"""

from __future__ import annotations

import onnx_ir as ir

from blockscale.forms.body import Body
from blockscale.numerics.dialects import KEPT, PLUS
from blockscale.numerics.formats import Format
from blockscale.numerics.scheme import Numbers


def power_below(b: Body, x: ir.Value, low: int, high: int, factor: float = 1) -> tuple[ir.Value, ir.Value]:
    """2^e and e - low (float32) for the greatest e in low…high with x ≥ factor · 2^e; else low.

    A search by halves. `factor` is a power of two; where factor · 2^e overflows, only Inf is as great.
    """
    power, index = b.f32(2.0**low), b.f32(0)
    for k in reversed(range((high - low).bit_length())):
        higher = power
        for step in [64] * (1 << k >> 6) or [1 << k]:  # 2^128 is no float32
            higher = b("Mul", higher, b.f32(2.0**step))
        reached = b("GreaterOrEqual", x, b("Mul", higher, b.f32(factor)) if factor != 1 else higher)
        power = b.where(reached, higher, power)
        index = b("Add", index, b.where(reached, b.f32(1 << k), b.f32(0)))
    return power, index


def quantum(b: Body, magnitude: ir.Value, element: Format) -> tuple[ir.Value, ir.Value]:
    """Spacing of the grid at `magnitude` ≤ element.max, and how many binades above the first it is."""
    if element.is_fixed:
        return b.f32(2.0**-element.mantissa_bits), b.f32(0)
    power, index = power_below(b, magnitude, element.emin, element.emax)
    return b("Mul", power, b.f32(2.0**-element.mantissa_bits)), index


def rounded(b: Body, v: ir.Value, element: Format, rounding: str, nearly_half: bool = False) -> ir.Value:
    """`v` on the grid, its zeros with the sign of v. |v| ≤ element.max, or NaN, which gives anything."""
    magnitude = b("Abs", v)
    q, _ = quantum(b, magnitude, element)
    if rounding == "half_even" and not nearly_half:
        return b("Mul", b("Round", b("Div", v, q)), q)
    steps = b("Div", magnitude, q)
    k = b("Floor", steps)
    f = b("Sub", steps, k)
    half, above = b("Equal", f, b.f32(0.5)), b("Greater", f, b.f32(0.5))
    if rounding == "half_even":
        odd = b("Equal", b("Sub", k, b("Mul", b.f32(2), b("Floor", b("Mul", k, b.f32(0.5))))), b.f32(1))
        up = b("Or", above, b("And", half, odd))
    elif rounding == "half_away":
        up = b("Or", above, half)
    elif rounding == "half_up":
        up = b("Or", above, b("And", half, b("Greater", v, b.f32(0))))
    elif rounding == "half_zero":
        up = above
    else:
        assert rounding == "toward_zero"
        up = b("Greater", f, b.f32(1))
    if nearly_half and rounding != "toward_zero":
        up = b("Or", up, b("Equal", steps, b.f32(0.5 - 2.0**-25)))
    r = b("Mul", b("Add", k, b.where(up, b.f32(1), b.f32(0))), q)
    signed = b.where(b("Less", v, b.f32(0)), b("Neg", r), r)
    return b.where(b("Greater", r, b.f32(0)), signed, b("Mul", v, b.f32(0)))


def with_signs(b: Body, r: ir.Value, v: ir.Value, x: ir.Value, numbers: Numbers) -> ir.Value:
    """Results of 0 keep the sign of x, or not, as the dialect says. v = x / scale."""
    signs = numbers.dialect_row.zero_signs(numbers.element_format.is_fixed, str(numbers.rounding))
    if signs == KEPT:
        return r
    is_zero = b("Equal", r, b.f32(0))
    if signs == PLUS:
        return b.where(is_zero, b.f32(0), r)
    of_zero, of_underflow, of_tiny = (b.f32(one) for one in signs)
    kept = b.where(b("Equal", x, b.f32(0)), of_zero, b.where(b("Equal", v, b.f32(0)), of_underflow, of_tiny))
    return b.where(b("And", is_zero, b("Equal", kept, b.f32(0))), b.f32(0), r)


def codes(b: Body, r: ir.Value, element: Format) -> ir.Value:
    """int32 codes of values on the grid: bit patterns of floats, signed integers."""
    if element.is_fixed:
        return b.cast(b("Mul", r, b.f32(2.0**element.mantissa_bits)), ir.DataType.INT32)
    magnitude = b("Abs", r)
    q, index = quantum(b, magnitude, element)
    code = b("Add", b("Div", magnitude, q), b("Mul", index, b.f32(2.0**element.mantissa_bits)))
    negative = b("Less", b("Div", b.f32(1), r), b.f32(0))  # -0 too
    code = b("Add", code, b.where(negative, b.f32(2.0 ** (element.bits - 1)), b.f32(0)))
    return b.cast(code, ir.DataType.INT32)
