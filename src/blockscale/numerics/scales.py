"""From the values of a block to its scale: the MX rules, NVFP4's two levels, affine parameters.

Reference, float64 unless said. Every function takes blocks as [..., n]: the elements of one block
along the last dimension in ascending order, padded with zeros (see `blocking.blocks_of`).
"""

from __future__ import annotations

from blockscale.numerics.arrays import Array, Arrays
from blockscale.numerics.formats import FORMATS, Format
from blockscale.numerics.rounding import round_to_grid
from blockscale.numerics.scheme import Numbers

E8M0_NAN = 255


def mx_exponent(xp: Arrays, blocks: Array, amax: Array, numbers: Numbers) -> Array:
    """Scale exponent s of each block with finite amax, by the rule of `numbers`, then clamped."""
    element = numbers.element_format
    low, high = -127, 127
    if not numbers.dialect_row.clamps:  # E is at least -127, and s is not a byte
        low = -127 - element.emax
        amax = xp.maximum(amax, amax * 0 + 2.0**-127)
    mantissa, exponent = xp.frexp(amax)
    fraction = mantissa * 2  # amax = fraction · 2^E, 1 ≤ fraction < 2
    floor = exponent - 1 - element.emax
    if numbers.rule == "ceil":
        floor = floor + (fraction > 1)
    elif numbers.rule == "even":
        floor = floor + _rounds_up(xp, blocks, amax, numbers)
    elif numbers.rule == "rceil":
        floor = floor + (fraction > element.max * 2.0**-element.emax)
    s = xp.minimum(xp.maximum(floor, xp.zeros_like(floor) + low), xp.zeros_like(floor) + high)
    s = xp.where(amax == 0, xp.zeros_like(s) + low, s)
    if numbers.rule == "mse":
        s = _least_error(xp, blocks, s, numbers)
    return s


def _rounds_up(xp: Arrays, blocks: Array, amax: Array, numbers: Numbers) -> Array:
    """Whether the maximum, rounded half up to the bits of an element, is the next power of two.

    Where codes go down to -2^(bits-1), a negative maximum that is rounded so far has a code all the same.
    """
    element = numbers.element_format
    whole = element.name in numbers.dialect_row.full_range
    peak = xp.amax(blocks, -1) if whole else amax
    return xp.ldexp(peak, -xp.frexp(amax)[1]) >= 1 - 2.0 ** -(element.fraction_bits + 2)


def _least_error(xp: Arrays, blocks: Array, floor: Array, numbers: Numbers) -> Array:
    """Of clamped floor, floor + 1, floor - 1 the first with the least sum of squared errors."""
    best, least = floor, None
    for step in (0, 1, -1):
        s = xp.minimum(xp.maximum(floor + step, floor * 0 - 127), floor * 0 + 127)
        error = _squared_error(xp, blocks, s, numbers)
        if least is None:
            least = error
        else:
            better = error < least
            best, least = xp.where(better, s, best), xp.where(better, error, least)
    return best


def _squared_error(xp: Arrays, blocks: Array, s: Array, numbers: Numbers) -> Array:
    """Sum of (x - Q(x))² in ascending order, one rounding an operation."""
    element = numbers.element_format
    rounding = "half_even" if numbers.rounding == "stochastic" else str(numbers.rounding)
    v = xp.ldexp(blocks, -s[..., None])
    r = round_to_grid(xp, v, element, rounding)
    limit = xp.zeros_like(r) + element.max
    r = xp.minimum(xp.maximum(r, -limit), limit)
    error = blocks - xp.ldexp(r, s[..., None])
    square = error * error
    total = square[..., 0] * 0 if square.shape[-1] else xp.f64(s) * 0
    for i in range(square.shape[-1]):
        total = total + square[..., i]
    return total


def tensor_scale_of(xp: Arrays, amax: Array, element: Format, scale: Format) -> Array:
    """float32 t = amax / (scale.max · element.max), 1 for an all-zero tensor, at least 2^-149.

    An `amax` over finite elements only: a NaN block must not take the tensor with it.
    """
    t = xp.f32(xp.divide(xp.f32(amax), xp.f32(amax * 0 + scale.max * element.max)))
    t = xp.maximum(t, xp.f32(xp.f64(t) * 0 + 2.0**-149))
    return xp.where(amax == 0, xp.f32(amax * 0 + 1), t)


def tensor_scaled(xp: Arrays, amax: Array, t: Array, numbers: Numbers) -> Array:
    """Value (float64) of the block scale b = fp8(f32(f32(amax / element.max) / t))."""
    element, scale = numbers.element_format, numbers.scale_format
    ratio = xp.divide(xp.f32(xp.divide(xp.f32(amax), xp.f32(amax * 0 + element.max))), xp.f32(t))
    ratio = xp.minimum(xp.f64(ratio), amax * 0 + scale.max)
    b = round_to_grid(xp, ratio, scale, "half_even")
    b = xp.minimum(b, amax * 0 + scale.max)
    values = scale.decode([numbers.dialect_row.least_scale, numbers.dialect_row.zero_scale])
    b = xp.maximum(b, amax * 0 + values[0])
    return xp.where(amax == 0, amax * 0 + values[1], b)


def affine(xp: Arrays, low: Array, high: Array, numbers: Numbers, tensor_format: str) -> tuple[Array, Array]:
    """Scale (on the grid of the scale format, as float32) and int64 zero point of each block.

    low ≤ 0 ≤ high are the extremes of the finite elements and 0. float32 arithmetic, one rounding an
    operation; a range that overflows is halved first.
    """
    element = numbers.element_format
    middle = 0
    if element.is_fixed:
        qmin, qmax = float(numbers.quant_min or 0), float(numbers.quant_max or 0)
        middle = int((qmin + qmax + 1) / 2)  # toward zero
    else:
        qmin, qmax = -element.max, element.max

    def f32(value: float) -> Array:
        return xp.f32(xp.f64(low) * 0 + value)

    low, high = xp.f32(low), xp.f32(high)
    if numbers.rule == "symmetric":
        scale = xp.divide(xp.maximum(-low, high), f32((qmax - qmin) / 2))
    elif numbers.rule == "no_clip":
        scale = xp.maximum(xp.divide(low, f32(qmin)), xp.divide(high, f32(qmax)))
    else:
        span = xp.f32(xp.f64(high) - xp.f64(low))
        half = high * f32(0.5) - low * f32(0.5)
        scale = xp.divide(span, f32(qmax - qmin))
        scale = xp.where(xp.isfinite(span), scale, xp.divide(half, f32((qmax - qmin) / 2)))
    scale = xp.cast(xp.maximum(scale, f32(epsilon(numbers, tensor_format))), numbers.scale)
    largest = numbers.scale_format.max
    scale = xp.f32(xp.minimum(xp.f64(scale), xp.f64(low) * 0 + largest))
    if numbers.rule == "asymmetric":
        zero = qmin - xp.rint(xp.f64(xp.divide(low, scale)))
        zero = xp.minimum(xp.maximum(zero, zero * 0 + qmin), zero * 0 + qmax)
    else:
        zero = xp.f64(low) * 0 + (middle if numbers.zero_point else 0)
    return scale, xp.i64(zero)


def epsilon(numbers: Numbers, tensor_format: str) -> float:
    """Least scale that is chosen: the smallest normal number of the scale format.

    Not below that of the tensor's dtype in the torchao dialect, as torchao does.
    """
    least = numbers.scale_format.emin
    if numbers.dialect == "torchao":
        least = max(least, FORMATS[tensor_format].emin)
    return float(2.0**least)
