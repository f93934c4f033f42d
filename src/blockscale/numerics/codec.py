"""The reference codec: quantize, dequantize and fake-quantize as they are defined, slowly.

Written for reading and for checking the compiled core, over any array library (`arrays.py`).
Arguments are taken as valid; `blockscale.ops` checks them for users.
"""

from __future__ import annotations

from dataclasses import dataclass

from blockscale.numerics.arrays import NUMPY, Array, Arrays
from blockscale.numerics.blocking import blocks_of, per_element
from blockscale.numerics.formats import FORMATS, format_named
from blockscale.numerics.layout import Layout
from blockscale.numerics.rounding import philox, round_to_grid
from blockscale.numerics.scales import (
    E8M0_NAN,
    affine,
    mx_exponent,
    tensor_scale_of,
    tensor_scaled,
)
from blockscale.numerics.scheme import Numbers


@dataclass(frozen=True)
class Params:
    """What decodes codes: one entry a block, shape layout.scale_shape.

    scales        e8m0 and fp8_e4m3: int64 bytes; f32, bf16, f16: float32 values. Where blocks have
                  sub-blocks, one entry a sub-block: shape layout.fine.scale_shape
    zero_points   int64, or None where the numbers have none
    tensor_scale  float32 scalar array, or None
    """

    scales: Array
    zero_points: Array | None = None
    tensor_scale: Array | None = None


def choose_params(
    x: Array, layout: Layout, tensor_format: str = "f32", tensor_scale: Array | None = None,
    xp: Arrays = NUMPY,
) -> Params:  # fmt: skip
    """Scales, zero points and tensor scale from the data, by the rule of the layout."""
    numbers = layout.numbers
    x = _flushed(x, layout, xp)
    finite, nan = xp.isfinite(x), xp.isnan(x)
    kept = xp.where(finite, x, xp.zeros_like(x))
    blocks = blocks_of(xp, kept, layout)
    if numbers.family == "affine":
        low, high = -xp.amax(-blocks, -1), xp.amax(blocks, -1)
        scales, zeros = affine(xp, low, high, numbers, tensor_format)
        return Params(scales, zeros if numbers.zero_point else None)
    spoils = ~finite
    nonfinite = numbers.dialect_row.nonfinite
    if nonfinite == "pass":
        spoils = finite & nan  # nothing
    elif nonfinite == "nan_zero":
        spoils = ~finite & ~nan
    elif nonfinite == "inf_large":
        spoils = nan
        # Inf as the next power of two; `rceil` divides by max first, so that it stays Inf
        large = xp.copysign(xp.zeros_like(x) + 2.0 ** (300 if numbers.rule == "rceil" else 128), x)
        blocks = blocks_of(xp, xp.where(finite | nan, kept, large), layout)
    amax = xp.amax(xp.abs(blocks), -1)
    spoilt = xp.amax(blocks_of(xp, xp.f64(spoils), layout), -1) > 0
    if numbers.family == "mx":
        s = mx_exponent(xp, blocks, amax, numbers)
        if numbers.sub_block:
            s, spoilt = _of_sub_blocks(kept, s, spoilt, layout, xp)
        if nonfinite == "pass":
            return Params(s + 127)  # may be below 0: there is no byte form in such a dialect
        return Params(xp.where(spoilt, xp.zeros_like(s) + E8M0_NAN, s + 127))
    if tensor_scale is None:
        whole = xp.amax(xp.abs(kept).reshape(-1), 0)
        tensor_scale = tensor_scale_of(xp, whole, numbers.element_format, numbers.scale_format)
    b = tensor_scaled(xp, amax, tensor_scale, numbers)
    codes = float_codes(xp, b, numbers.scale)
    nan = (1 << numbers.scale_format.bits - 1) - 1
    return Params(xp.where(spoilt, xp.zeros_like(codes) + nan, codes), None, tensor_scale)


def _of_sub_blocks(x: Array, s: Array, spoilt: Array, layout: Layout, xp: Arrays) -> tuple[Array, Array]:
    """From each block to its sub-blocks: their own exponent, if it is not too far below the block's."""
    fine = layout.fine
    most = (1 << layout.numbers.sub_shift) - 1
    blocks = blocks_of(xp, x, fine)
    own = mx_exponent(xp, blocks, xp.amax(xp.abs(blocks), -1), layout.numbers)
    # one entry a sub-block is to its block what an element is, in units of sub-blocks
    size = layout.numbers.sub_block
    extents = tuple(1 if b == 1 else -(-b // size) for b in layout.block)
    grid = Layout(Numbers(element="mxint8"), fine.scale_shape, extents)
    return xp.maximum(own, per_element(xp, s, grid) - most), per_element(xp, spoilt, grid)


def _flushed(x: Array, layout: Layout, xp: Arrays) -> Array:
    """float64; subnormals of float32 as 0 where the dialect has none."""
    x = xp.f64(x)
    if not layout.numbers.dialect_row.flushes:
        return x
    return xp.where(xp.abs(x) < 2.0**-126, xp.copysign(xp.zeros_like(x), x), x)


def quantize(
    x: Array, layout: Layout, params: Params | None = None, *, tensor_format: str = "f32",
    tensor_scale: Array | None = None, seed: int = 0, xp: Arrays = NUMPY,
) -> tuple[Array, Params]:  # fmt: skip
    """Codes (int64, unpacked: bit patterns of floats, signed integers) and the parameters."""
    if params is None:
        params = choose_params(x, layout, tensor_format, tensor_scale, xp)
    element = layout.numbers.element_format
    r = _on_grid(x, layout, params, seed, xp)
    if element.is_float:
        return float_codes(xp, r, element.name), params
    r = xp.where(xp.isnan(r), xp.zeros_like(r), r)
    codes = xp.i64(xp.ldexp(r, xp.zeros_like(xp.i64(r)) + element.mantissa_bits))
    if params.zero_points is not None:
        codes = codes + per_element(xp, params.zero_points, layout)
    return codes, params


def dequantize(
    codes: Array, layout: Layout, params: Params, tensor_format: str = "f32",
    xp: Arrays = NUMPY,
) -> Array:  # fmt: skip
    """Values of codes as an array of `tensor_format`; what overflows becomes the largest finite."""
    element = layout.numbers.element_format
    if element.is_float:
        r = xp.take(xp.table(element.decode(range(1 << element.bits)), codes), codes)
    else:
        zero = per_element(xp, params.zero_points, layout) if params.zero_points is not None else 0
        r = xp.f64(codes - zero) * 2.0**-element.mantissa_bits
    return _output(xp, _scaled(r, layout, params, xp), layout, tensor_format, xp.isfinite(r))


def fake_quantize(
    x: Array, layout: Layout, params: Params | None = None, *, tensor_format: str = "f32",
    tensor_scale: Array | None = None, seed: int = 0, xp: Arrays = NUMPY,
) -> Array:  # fmt: skip
    """dequantize(quantize(x)) without the codes; in dialects that have none, the definition."""
    if params is None:
        params = choose_params(x, layout, tensor_format, tensor_scale, xp)
    layout = layout.fine
    r = _on_grid(x, layout, params, seed, xp)
    y = _output(xp, _scaled(r, layout, params, xp), layout, tensor_format)
    if layout.numbers.dialect_row.nonfinite == "pass":
        y = xp.where(xp.isfinite(xp.f64(x)), y, x)
    return y


def _on_grid(x: Array, layout: Layout, params: Params, seed: int, xp: Arrays) -> Array:
    """x / scale, rounded and saturated: float64 on the element grid, NaN in a NaN block.

    With a zero point the range is shifted, so that 0 is 0.
    """
    numbers = layout.numbers
    element, dialect = numbers.element_format, numbers.dialect_row
    x = _flushed(x, layout, xp)
    x = xp.where(xp.isnan(x), xp.zeros_like(x), x)
    if numbers.family == "mx":
        s = per_element(xp, params.scales, layout)
        v = xp.ldexp(x, 127 - s)
        spoilt = s == E8M0_NAN
    else:
        scale = effective_scale(layout, params, xp)
        spoilt = per_element(xp, xp.isnan(scale), layout)
        if dialect.reciprocal:
            inverse = per_element(xp, _inverse_scale(layout, params, xp), layout)
            v = xp.multiply(xp.f32(x), xp.f32(inverse))
        else:
            v = xp.divide(xp.f32(x), xp.f32(per_element(xp, scale, layout)))
        zero = per_element(xp, scale == 0, layout)
        signed = xp.where(xp.isfinite(x), x, xp.zeros_like(x))  # Inf times 0 is no number: +0
        v = xp.where(zero, xp.copysign(xp.zeros_like(x), signed), xp.f64(v))
    low, high = limits(layout, params, xp)
    v = xp.where(xp.isnan(v) | spoilt, xp.zeros_like(v), v)
    underflows = xp.f32(v) == 0
    v = xp.minimum(xp.maximum(v, low), high)  # the limits are on the grid
    noise = None
    if numbers.rounding == "stochastic":
        index = xp.arange(layout.size, x).reshape(layout.shape)
        noise = philox(xp, seed, index)
    r = round_to_grid(xp, v, element, str(numbers.rounding), noise, dialect.nearly_half)
    of_zero, of_underflow, of_tiny = dialect.zero_signs(element.is_fixed, str(numbers.rounding))
    kept = xp.where(x == 0, of_zero, xp.where(underflows, of_underflow, of_tiny))
    r = xp.where((r == 0) & ~kept, xp.zeros_like(r), r)
    return xp.where(spoilt, xp.zeros_like(r) + float("nan"), r)


def limits(layout: Layout, params: Params, xp: Arrays) -> tuple[Array, Array]:
    """Least and greatest grid value, relative to the zero point; broadcastable to the shape."""
    numbers = layout.numbers
    element = numbers.element_format
    if numbers.quant_min is None or numbers.quant_max is None:
        top = xp.full((1,) * layout.rank, element.max, params.scales)
        low = numbers.dialect_row.least_code(element) * 2.0**-element.mantissa_bits
        return (top * 0 + low if element.is_fixed else -top), top
    low = xp.full((1,) * layout.rank, numbers.quant_min, params.scales)
    high = xp.full((1,) * layout.rank, numbers.quant_max, params.scales)
    if params.zero_points is None:
        return low, high
    zero = xp.f64(per_element(xp, params.zero_points, layout))
    return low - zero, high - zero


def effective_scale(layout: Layout, params: Params, xp: Arrays) -> Array:
    """float64 multiplier of each block, as dequantize uses it (NaN for a NaN block)."""
    scale = layout.numbers.scale_format
    if scale.kind == "exponent":
        value = xp.ldexp(xp.f64(params.scales) * 0 + 1, params.scales - 127)
        return xp.where(params.scales == E8M0_NAN, value * float("nan"), value)
    if params.tensor_scale is None:
        return xp.f64(params.scales)
    table = xp.table(scale.decode(range(256)), params.scales)
    b = xp.take(table, params.scales)
    return xp.f64(xp.f32(b * xp.f64(params.tensor_scale)))


def _inverse_scale(layout: Layout, params: Params, xp: Arrays) -> Array:
    """f32(1 / scale), or f32(f32(1 / t) / b) under a tensor scale t."""
    if params.tensor_scale is None:
        scale = xp.f32(effective_scale(layout, params, xp))
        return xp.divide(xp.f32(xp.f64(scale) * 0 + 1), scale)
    table = xp.table(layout.numbers.scale_format.decode(range(256)), params.scales)
    b = xp.f32(xp.take(table, params.scales))
    t = xp.f32(params.tensor_scale)
    return xp.divide(xp.divide(xp.f32(xp.f64(t) * 0 + 1), t), b)


def _scaled(r: Array, layout: Layout, params: Params, xp: Arrays) -> Array:
    """f32(r · scale), as float64."""
    y = r * per_element(xp, effective_scale(layout, params, xp), layout)
    return xp.f64(xp.f32(y))


def _output(xp: Arrays, y: Array, layout: Layout, tensor_format: str, finite: Array = True) -> Array:
    """Round to the tensor format. What is finite before scaling saturates, unless the dialect's does not."""
    if layout.numbers.dialect_row.saturates:
        top = xp.zeros_like(y) + FORMATS[tensor_format].max
        y = xp.where(xp.isnan(y) | ~(xp.isnan(y) | finite), y, xp.minimum(xp.maximum(y, -top), top))
    return xp.cast(y, tensor_format)


def float_codes(xp: Arrays, r: Array, name: str) -> Array:
    """Bit patterns (int64) of values on the grid of a float format; 0 for NaN."""
    element = format_named(name)
    nan = xp.isnan(r)
    magnitude = xp.where(nan, xp.zeros_like(r), xp.abs(r))
    negative = xp.copysign(xp.zeros_like(r) + 1, r) < 0
    exponent = xp.frexp(magnitude)[1] - 1
    smallest = xp.zeros_like(exponent) + element.emin
    exponent = xp.where(magnitude == 0, smallest, xp.maximum(exponent, smallest))
    steps = xp.i64(xp.ldexp(magnitude, element.mantissa_bits - exponent))
    code = steps + (exponent - element.emin) * (1 << element.mantissa_bits)
    code = code + xp.where(negative, 1 << (element.bits - 1), 0)
    return xp.where(nan, code * 0, code)
