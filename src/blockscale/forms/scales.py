"""From the values of blocks to their scales, in standard operators: the rules of `numerics.scales`."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from blockscale.forms.blocks import Blocks, reduced
from blockscale.forms.body import Body
from blockscale.forms.grid import codes, power_below, rounded
from blockscale.numerics.scales import E8M0_NAN, epsilon
from blockscale.numerics.scheme import Numbers

FORMAT_TYPES = {"bf16": ir.DataType.BFLOAT16, "f16": ir.DataType.FLOAT16, "f32": ir.DataType.FLOAT}


@dataclass(frozen=True)
class Chosen:
    """What decodes a block.

    effective     float32: by what its elements are multiplied; NaN for a NaN block
    stored        as it is stored: bytes as int32, or values in the scale's own type
    zero_point    float32, or None
    tensor_scale  float32 of shape (), or None
    """

    effective: ir.Value
    stored: ir.Value
    zero_point: ir.Value | None = None
    tensor_scale: ir.Value | None = None


@dataclass(frozen=True)
class Values:
    """Of a tensor: its elements with 0 for what is not finite, and what spoils a block (None: nothing)."""

    kept: ir.Value
    spoils: ir.Value | None


def values(b: Body, x: ir.Value, numbers: Numbers) -> Values:
    infinite, nan = b("IsInf", x), b("IsNaN", x)
    kept = b.where(b("Or", infinite, nan), b.f32(0), x)
    if numbers.family == "affine":
        return Values(kept, None)
    spoils = {"block": b("Or", infinite, nan), "pass": None, "nan_zero": infinite}
    return Values(kept, spoils[numbers.dialect_row.nonfinite])


def chosen(
    b: Body, given: Values, blocks: Blocks, numbers: Numbers, tensor_format: str,
    tensor_scale: ir.Value | None,
) -> Chosen:  # fmt: skip
    if numbers.family == "affine":
        return _affine(b, given.kept, blocks, numbers, tensor_format)
    amax = reduced(b, "ReduceMax", b("Abs", given.kept), blocks)
    spoilt = None
    if given.spoils is not None:
        marks = b.where(given.spoils, b.f32(1), b.f32(0))
        spoilt = b("Greater", reduced(b, "ReduceMax", marks, blocks), b.f32(0))
    if numbers.family == "mx":
        return _mx(b, amax, spoilt, numbers)
    return _tensor_scaled(b, given, amax, spoilt, blocks, numbers, tensor_scale)


def _spoilt(b: Body, spoilt: ir.Value | None, value: ir.Value, otherwise: ir.Value) -> ir.Value:
    return otherwise if spoilt is None else b.where(spoilt, value, otherwise)


def _mx(b: Body, amax: ir.Value, spoilt: ir.Value | None, numbers: Numbers) -> Chosen:
    """The greatest power of two with amax ≥ 2^s · 2^emax, then the next one where the rule says so."""
    element = numbers.element_format
    top = 2.0**element.emax
    low = -127
    if not numbers.dialect_row.clamps:  # E is at least -127, and s is not a byte
        low -= element.emax
        amax = b("Max", amax, b.f32(2.0**-127))
    scale, index = power_below(b, amax, low, 127, top)
    up = None
    bound = b("Mul", scale, b.f32(top))
    if numbers.rule == "ceil":
        up = b("Greater", amax, bound)
    elif numbers.rule == "even":
        up = b("GreaterOrEqual", amax, b("Mul", bound, b.f32(2 - 2.0 ** -(element.fraction_bits + 1))))
    elif numbers.rule == "rceil":
        up = b("Greater", amax, b("Mul", bound, b.f32(element.max / top)))
    if up is not None:
        up = b("And", up, b("Less", scale, b.f32(2.0**127)))
        scale = b.where(up, b("Mul", scale, b.f32(2)), scale)
        index = b("Add", index, b.where(up, b.f32(1), b.f32(0)))
    effective = _spoilt(b, spoilt, b.f32(float("nan")), scale)
    byte = _spoilt(b, spoilt, b.f32(E8M0_NAN), index)
    return Chosen(effective, b.cast(byte, ir.DataType.INT32))


def _tensor_scaled(
    b: Body, given: Values, amax: ir.Value, spoilt: ir.Value | None, blocks: Blocks, numbers: Numbers,
    t: ir.Value | None,
) -> Chosen:  # fmt: skip
    element, scale, row = numbers.element_format, numbers.scale_format, numbers.dialect_row
    if t is None:
        whole = b("Squeeze", reduced(b, "ReduceMax", b("Abs", given.kept), blocks.whole))
        least = b("Max", b("Div", whole, b.f32(scale.max * element.max)), b.f32(2.0**-149))
        t = b.where(b("Equal", whole, b.f32(0)), b.f32(1), least)
    ratio = b("Div", b("Div", amax, b.f32(element.max)), t)
    found = rounded(b, b("Min", ratio, b.f32(scale.max)), scale, "half_even")
    lowest, of_zero = (float(one) for one in scale.decode([row.least_scale, row.zero_scale]))
    found = b.where(b("Equal", amax, b.f32(0)), b.f32(of_zero), b("Max", found, b.f32(lowest)))
    nan = (1 << scale.bits - 1) - 1
    stored = _spoilt(b, spoilt, b.i32(nan), codes(b, found, scale))
    effective = _spoilt(b, spoilt, b.f32(float("nan")), b("Mul", found, t))
    return Chosen(effective, stored, tensor_scale=t)


def _affine(b: Body, kept: ir.Value, blocks: Blocks, numbers: Numbers, tensor_format: str) -> Chosen:
    element = numbers.element_format
    high = b("Max", reduced(b, "ReduceMax", kept, blocks), b.f32(0))
    low = b("Min", reduced(b, "ReduceMin", kept, blocks), b.f32(0))
    middle = 0
    if element.is_fixed:
        qmin, qmax = float(numbers.quant_min or 0), float(numbers.quant_max or 0)
        middle = int((qmin + qmax + 1) / 2)  # toward zero
    else:
        qmin, qmax = -element.max, element.max
    if numbers.rule == "symmetric":
        scale = b("Div", b("Max", b("Neg", low), high), b.f32((qmax - qmin) / 2))
    elif numbers.rule == "no_clip":
        scale = b("Max", b("Div", low, b.f32(qmin)), b("Div", high, b.f32(qmax)))
    else:
        span = b("Sub", high, low)
        half = b("Sub", b("Mul", high, b.f32(0.5)), b("Mul", low, b.f32(0.5)))
        scale = b.where(
            b("IsInf", span),
            b("Div", half, b.f32((qmax - qmin) / 2)),
            b("Div", span, b.f32(qmax - qmin)),
        )
    scale = b("Max", scale, b.f32(epsilon(numbers, tensor_format)))
    stored = scale
    if numbers.scale != "f32":
        scale = b("Min", scale, b.f32(numbers.scale_format.max))  # what lies above would be Inf
        stored = b.cast(scale, FORMAT_TYPES[numbers.scale])
        scale = b.cast(stored, ir.DataType.FLOAT)
    if not numbers.zero_point:
        return Chosen(scale, stored)
    if numbers.rule == "asymmetric":
        zero = b("Sub", b.f32(qmin), b("Round", b("Div", low, scale)))
        zero = b("Min", b("Max", zero, b.f32(qmin)), b.f32(qmax))
    else:
        zero = b("Add", b("Mul", low, b.f32(0)), b.f32(middle))
    return Chosen(scale, stored, zero)
