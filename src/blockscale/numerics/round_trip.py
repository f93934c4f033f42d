"""Whether codes survive being decoded and quantized again: Q(DQ(c)) = c for every code c.

With given scales this is tried, on every code with every scale: rounding, saturation, the dtype between,
dialects and ranges are all in the trial. For integers in float32 it holds unless a value overflows: with
n = |c - z| < 2^16, float32(n · s) / s is off by less than n · 2^-23, which rounds to n.

With scales that are measured again it holds where the maximum of a block keeps its exponent.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from blockscale.numerics import native
from blockscale.numerics.arrays import TENSOR_DTYPES, Array
from blockscale.numerics.layout import Layout
from blockscale.numerics.packing import pack
from blockscale.numerics.scheme import Numbers

MOST = 1 << 24  # codes · scales that are tried
_ODD = ("half_even", "half_away")  # half_up rounds a negative maximum down


def lost(numbers: Numbers, stored: native.Stored, tensor_format: str, made: bool) -> str:
    """Why codes do not survive with these parameters of blocks; empty if each one does.

    made  all codes come out of a quantize of these numbers, with these parameters
    """
    if numbers.rounding == "stochastic":
        return "stochastic rounding draws anew"
    if numbers.why_no_codes:
        return numbers.why_no_codes
    scales, zeros = _pairs(stored, made)
    t = None if stored.tensor_scale is None else float(stored.tensor_scale)
    return _tried(
        numbers, scales.tobytes(), None if zeros is None else zeros.tobytes(), t, tensor_format, made
    )


@lru_cache(maxsize=1024)
def _tried(
    numbers: Numbers, scale: bytes, zero: bytes | None, t: float | None, tensor_format: str, made: bool
) -> str:
    codes = _codes(numbers, made)
    scales = np.frombuffer(scale, TENSOR_DTYPES.get(numbers.scale, np.dtype(np.uint8)))[:, None]
    if len(scales) * len(codes) > MOST:
        return f"{len(scales)} scales with {len(codes)} codes each are too many to try"
    layout = Layout(numbers, (len(scales), len(codes)), (1, 0))
    zeros = None if zero is None else np.frombuffer(zero, np.int32)[:, None]
    given = native.Stored(scales, zeros, None if t is None else np.array(t, np.float32))
    packed = np.ascontiguousarray(pack(np.broadcast_to(codes, layout.shape), numbers.element_format))
    values = native.dequantize(packed, layout, given, tensor_format)
    again, _ = native.quantize(values, layout, given)
    if np.array_equal(again, packed):
        return ""
    row = int(np.argwhere((again != packed).any(-1))[0, 0])
    return f"not every code of {numbers} survives the scale {scales[row, 0]} in {tensor_format}"


def _codes(numbers: Numbers, made: bool) -> Array:
    """All that may be stored, or only those that a quantize gives."""
    element = numbers.element_format
    if not element.is_fixed:
        codes = np.arange(1 << element.bits)
        return codes[np.isfinite(element.decode(codes))] if made else codes
    low, high = numbers.quant_min, numbers.quant_max
    if made:
        low = element.min_code if low is None else low
        high = element.max_code if high is None else high
        return np.arange(low, high + 1)
    ranged = numbers.quant_min is not None
    bits = 8 * element.storage_dtype.itemsize if ranged and not element.packed else element.bits
    least = -(1 << bits - 1) if element.signed else 0
    return np.arange(least, least + (1 << bits))


def _pairs(stored: native.Stored, made: bool) -> tuple[Array, Array | None]:
    """Each scale with each of its zero points once, as columns. A NaN block that was made has code 0 alone."""
    scales = np.asarray(stored.scales).reshape(-1)
    if stored.zero_points is None:
        bits = np.unique(scales.view(f"u{scales.itemsize}"))
        if made and scales.dtype == np.uint8:
            bits = bits[bits != (0x7F if stored.tensor_scale is not None else 255)]
        return bits.view(scales.dtype)[:, None], None
    zeros = np.asarray(stored.zero_points).reshape(-1)
    wide = scales.view(f"u{scales.itemsize}").astype(np.int64)
    _, first = np.unique(np.stack([wide, zeros.astype(np.int64)]), axis=1, return_index=True)
    return scales[first][:, None], zeros[first][:, None]


def drifts(numbers: Numbers, tensor_format: str) -> str:
    """Why Q(DQ(Q(x))) may not be Q(x) where each Q measures its scales; empty if it is."""
    if numbers.rounding == "stochastic":
        return "stochastic rounding draws anew"
    if numbers.family != "mx":
        return "its scales are measured again, on values that were rounded"
    if numbers.rule == "floor" or (numbers.rule == "even" and numbers.rounding in _ODD):
        if numbers.dialect != "ocp":
            return f"dialect {numbers.dialect!r} has its own range"
        if tensor_format == "f32":
            return ""
        return f"not every value of it is one of {tensor_format}"
    return (
        f"under rule {numbers.rule!r} the maximum of a block may be rounded to one that takes another scale"
    )
