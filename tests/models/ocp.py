"""The definition of `ocp` from elsewhere: ml_dtypes casts, rounding by search in the list of all values."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

Array = Any
F32 = np.float32

DTYPES: dict[str, Any] = {
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "fp6_e3m2": ml_dtypes.float6_e3m2fn,
    "fp6_e2m3": ml_dtypes.float6_e2m3fn,
    "fp4_e2m1": ml_dtypes.float4_e2m1fn,
}
EMAX = {"fp8_e4m3": 8, "fp8_e5m2": 15, "fp6_e3m2": 4, "fp6_e2m3": 2, "fp4_e2m1": 2, "mxint8": 0}
OUTPUTS: dict[str, Any] = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}


def info(dtype: Any) -> Any:
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def largest_of(element: str) -> float:
    return 127 / 64 if element == "mxint8" else float(info(DTYPES[element]).max)


def mantissa_bits(element: str) -> int:
    return 6 if element == "mxint8" else int(info(DTYPES[element]).nmant)


def magnitudes(element: str) -> Array:
    """Every magnitude that quantizing gives, ascending; an odd index is an odd mantissa."""
    if element == "mxint8":
        return np.arange(128) / 64
    codes = np.arange(1 << (info(DTYPES[element]).bits - 1), dtype=np.uint8)
    values = codes.view(DTYPES[element]).astype(np.float64)
    return values[values <= largest_of(element)]


def cast(v: Array, element: str) -> Array:
    """float64 → element → float64 by ml_dtypes (mxint8: numpy's rint), half to even, saturating."""
    top = largest_of(element)
    v = np.clip(v, -top, top)
    if element == "mxint8":
        return np.rint(v * 64) / 64 + 0.0
    return v.astype(DTYPES[element]).astype(np.float64)


def nearest(v: Array, element: str, rounding: str) -> Array:
    """The grid value that `rounding` gives, found by search; of ties by exact arithmetic."""
    grid = magnitudes(element)
    a = np.minimum(np.abs(v), grid[-1])
    below = np.clip(np.searchsorted(grid, a, side="right") - 1, 0, len(grid) - 2)
    low, high = grid[below], grid[below + 1]
    twice = 2 * a - low - high  # exact: its sign says which of the two is nearer
    if rounding == "toward_zero":
        up = a >= high
    elif rounding == "half_away":
        up = twice >= 0
    elif rounding == "half_zero":
        up = twice > 0
    elif rounding == "half_up":
        up = (twice > 0) | ((twice == 0) & (v > 0))
    else:
        up = (twice > 0) | ((twice == 0) & (below % 2 == 1))
    r = np.copysign(np.where(up, high, low), v)
    return r + 0.0 if element == "mxint8" else r


def scale_exponent(amax: float, element: str, rule: str) -> int:
    """s before the clamp, in rational arithmetic; amax > 0 and finite."""
    a, top = Fraction(amax), Fraction(largest_of(element))
    exponent = int(np.frexp(np.float64(amax))[1]) - 1
    power = Fraction(2) ** exponent
    emax = EMAX[element]
    if rule == "floor":
        return exponent - emax
    if rule == "ceil":
        return exponent - emax + (a > power)
    if rule == "even":
        steps = (a / power * 2 ** mantissa_bits(element) + Fraction(1, 2)).__floor__()
        return int(exponent - emax + (steps >= 2 ** (mantissa_bits(element) + 1)))
    assert rule == "rceil"
    return next(s for s in range(exponent - emax - 1, exponent + 2) if a <= Fraction(2) ** s * top)


def mse_exponent(block: Array, element: str) -> int:
    """The rule `mse`, clamped, by trying."""
    amax = float(np.abs(block).max())
    floor = scale_exponent(amax, element, "floor") if amax else -127
    floor = max(floor, -127)
    best, least = 0, np.inf
    for step in (0, 1, -1):
        s = min(max(floor + step, -127), 127)
        error = 0.0
        for value in block.astype(np.float64):
            d = value - np.ldexp(cast(np.ldexp(value, -s), element), s)
            error += float(d) * float(d)
        if error < least:
            best, least = s, error
    return best


def mx(x: Array, element: str, s: Array, rounding: str, output: str = "f32") -> Array:
    """Fake-quantized [blocks, n] given the exponent of each block, [blocks, 1]."""
    finite = np.isfinite(x).all(-1, keepdims=True)
    v = np.ldexp(np.where(finite, x, 0).astype(np.float64), -s)
    r = cast(v, element) if rounding == "half_even" else nearest(v, element, rounding)
    return np.where(finite, narrowed(np.ldexp(r, s), output), OUTPUTS[output](np.nan))


def narrowed(y: Array, output: str) -> Array:
    """float64 → float32 → output; what is beyond the range becomes the largest finite value."""
    for name in ("f32", output):
        top = float(info(OUTPUTS[name]).max)
        with np.errstate(under="ignore", over="ignore"):
            y = np.clip(y.astype(np.float64), -top, top).astype(OUTPUTS[name])
    return y


def nvfp4(x: Array, tensor_scale: Any) -> tuple[Array, Array]:
    """Block scale bytes [blocks, 1] and values, blocks of 16."""
    t = F32(tensor_scale)
    finite = np.isfinite(x).all(-1, keepdims=True)
    with np.errstate(all="ignore"):
        kept = np.where(finite, x, F32(0))
        amax = np.abs(kept).max(-1, keepdims=True)
        b = np.minimum(amax / F32(6) / t, F32(448)).astype(ml_dtypes.float8_e4m3fn)
        byte = np.where(amax == 0, 0, np.maximum(b.view(np.uint8), 1)).astype(np.uint8)
        e = byte.view(ml_dtypes.float8_e4m3fn).astype(F32) * t
        v = np.where(e == 0, np.copysign(F32(0), kept), kept / e)
        values = cast(v.astype(np.float64), "fp4_e2m1").astype(F32) * e
    top = np.finfo(F32).max
    values = np.where(finite, np.clip(values, -top, top), F32(np.nan))
    return np.where(finite, byte, 0x7F), values


def affine(x: Array, scale: Array, zero: Array, low: int, high: int) -> tuple[Array, Array]:
    """Codes and values; scale, zero: one a row."""
    with np.errstate(all="ignore"):
        q = np.rint(x / scale).astype(np.float64)
        q = np.clip(np.where(np.isnan(q), 0, q) + zero, low, high).astype(np.int64)
        return q, (q - zero).astype(F32) * scale


def philox(counter: int, key: int) -> list[int]:
    """Philox 4×32-10 (Salmon et al. 2011) in Python integers: four words."""
    word = 0xFFFFFFFF
    c = [counter >> shift & word for shift in (0, 32, 64, 96)]
    k = [key & word, key >> 32 & word]
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [b >> 32 ^ c[1] ^ k[0], b & word, a >> 32 ^ c[3] ^ k[1], a & word]
        k = [k[0] + 0x9E3779B9 & word, k[1] + 0xBB67AE85 & word]
    return c
