"""The peers' arithmetic in numpy, written from their sources and proven on them; no line of blockscale.

x is float32 [blocks, n] (n = 32, NVFP4 16) unless said. What docs/dialects.md lists as not copied is left
out here too: exponents are those of the exact log2, scale byte 0 is 2^-127, nothing wraps.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Array = Any
F32 = np.float32

#          E, M, emax, max
FORMATS = {
    "fp8_e4m3": (4, 3, 8, 448.0),
    "fp8_e5m2": (5, 2, 15, 57344.0),
    "fp6_e3m2": (3, 2, 4, 28.0),
    "fp6_e2m3": (2, 3, 2, 7.5),
    "fp4_e2m1": (2, 1, 2, 6.0),
    "mxint8": (0, 6, 0, 127 / 64),
}


def bits(x: Array) -> Array:
    return np.ascontiguousarray(x, F32).view(np.int32)


def exponent(x: Array) -> Array:
    """floor(log2 |x|), exact; 0 gives -10000, NaN and Inf 128."""
    e = np.frexp(np.abs(np.asarray(x, np.float64)))[1] - 1
    return np.where(np.isfinite(x), np.where(x == 0, -10000, e), 128)


def power(k: Array) -> Array:
    return np.ldexp(F32(1), np.asarray(k).astype(np.int32)).astype(F32)


def bfloat16(x: Array) -> Array:
    return np.asarray(x, F32).astype(ml_dtypes.bfloat16).astype(F32)


def largest(x: Array) -> Array:
    return np.abs(x).max(-1, keepdims=True)


# ----------------------------------------------------------------------------- AMD Quark


def quark(x: Array, element: str, rounding_mode: int = 2) -> Array:
    """MXQuantizeDequantize and MXFixNeuron: float32 or float16 in and out."""
    e_bits, m_bits, emax, top = FORMATS[element]
    b = x.astype(F32)
    field = bits(b) >> 23 & 255
    finite = field != 255
    s = np.where(finite, field, 0).max(-1, keepdims=True) - 127 - emax
    v = np.ldexp(np.where(finite, b, 0).astype(np.float64), -s)
    with np.errstate(under="ignore"):
        v = v.astype(F32).astype(np.float64)  # the division is float32: it may underflow
    if e_bits:
        step = np.maximum(exponent(v), 2 - 2 ** (e_bits - 1)) - m_bits
        q = np.clip(np.ldexp(np.rint(np.ldexp(v, -step)), step), -top, top) + 0.0  # never -0
    else:
        t = v * 64
        if rounding_mode == 2:
            q = np.where((np.rint(t) == 0) & (t != 0), 0.0, np.rint(t))
        elif rounding_mode == 1:
            q = np.copysign(np.floor(t) + (t - np.floor(t) >= 0.5), t)
        else:
            q = np.copysign(np.floor(np.abs(t) + 0.5), t)
        q = np.clip(q, -128, 127) / 64
    with np.errstate(over="ignore", under="ignore"):
        y = np.where(finite, np.ldexp(q, s).astype(F32), b)
        return y.astype(x.dtype)


# ----------------------------------------------------------------------------- microxcaling


def microxcaling(x: Array, element: str, rounding: str = "nearest") -> Array:
    """_quantize_mx with 8 scale bits, shared exponent by maximum; TICO's mx_fake_quantize."""
    e_bits, m_bits, emax, top = FORMATS[element]
    half = F32(0.5)
    with np.errstate(all="ignore"):
        amax = largest(x)
        bad = ~np.isfinite(amax)
        scale = power(np.maximum(exponent(np.where(bad, 1, amax)) - emax, -127))
        v = np.where(bad, 0, x) / scale
        p = power(np.maximum(exponent(v), 2 - 2 ** (e_bits - 1)) if e_bits else np.zeros(v.shape))
        a = np.abs(v) / p * F32(2**m_bits)
        if rounding == "nearest":
            r = np.floor(a + half)  # in float32, so that 0.5 - 2^-25 becomes 1
        elif rounding == "even":
            r = np.floor(a + half) - ((a - half) % F32(2) == 0)
        else:
            r = np.floor(a)
        q = np.sign(v) * r.astype(F32) / F32(2**m_bits) * p  # sign(-0) is +0
        return np.where(bad, F32(np.nan), np.clip(q, F32(-top), F32(top)) * scale)


# ----------------------------------------------------------------------------- torchao


def fp_code(x: Array, element: str) -> Array:
    """Half to even, saturating, sign of zero kept; NaN gives the all-ones magnitude."""
    e_bits, m_bits, _, top = FORMATS[element]
    bias = 2 ** (e_bits - 1) - 1
    nan = np.isnan(x)
    a = np.minimum(np.where(nan, 0, np.abs(x)).astype(np.float64), top)
    step = np.maximum(exponent(a), 1 - bias) - m_bits
    r = np.ldexp(np.rint(np.ldexp(a, -step)), step)
    e = np.maximum(exponent(r), 1 - bias)
    significand = np.ldexp(r, m_bits - e).astype(np.int64)  # with the leading bit, if normal
    code = ((e + bias - 1) << m_bits) + significand
    code = np.where(nan, 2 ** (e_bits + m_bits) - 1, code)
    return code | (bits(x) < 0).astype(np.int64) << (e_bits + m_bits)


def fp_value(code: Array, element: str) -> Array:
    e_bits, m_bits, _, _ = FORMATS[element]
    bias = 2 ** (e_bits - 1) - 1
    e, m = code >> m_bits & 2**e_bits - 1, code & 2**m_bits - 1
    v = np.ldexp((m + (e > 0) * 2**m_bits).astype(np.float64), np.maximum(e, 1) - bias - m_bits)
    if element.startswith("fp8"):
        v = np.where(code & 127 == 127, np.nan, v)
    return np.where(code >> (e_bits + m_bits) & 1, -v, v).astype(F32)


def torchao_mx(x: Array, element: str, rule: str, output: str = "f32") -> tuple[Array, Array, Array]:
    """to_mx, to_dtype: codes, scale bytes [blocks, 1], values."""
    _, m_bits, emax, top = FORMATS[element]
    with np.errstate(all="ignore"):
        amax = largest(x)
        nan, inf = np.isnan(amax), np.isinf(amax)
        if rule == "rceil":
            m, e = np.frexp(amax.astype(np.float64))
            s = np.where(amax == 0, -127, e - 1 - emax + (m * 2 > top / 2.0**emax))
            s = np.where(inf, 127, np.clip(s, -127, 127))
        else:
            i = bits(amax).astype(np.int64)
            if rule == "even":
                i = (i + (1 << (22 - m_bits))) & ~0x7FFFFF
            e = np.where(i < 1 << 23, exponent(np.where(nan, 1, amax)), (i >> 23) - 127)
            if rule == "ceil":
                e = e + np.where(i < 1 << 23, i & (i - 1), i & 0x7FFFFF).astype(bool)
            s = np.clip(e - emax, -127, 127)
        byte = np.where(nan, 255, s + 127)
        v = np.where(nan, np.nan, np.ldexp(x.astype(np.float64), -s)).astype(F32)
        code = fp_code(v, element)
        y = np.where(nan, F32(np.nan), fp_value(code, element) * power(s))  # may overflow to Inf
    return code, byte, bfloat16(y) if output == "bf16" else y


def torchao_nvfp4(x: Array, tensor_scale: Any) -> tuple[Array, Array, Array]:
    """nvfp4_quantize, NVFP4Tensor.dequantize: codes, E4M3 scale bytes [blocks, 1], values."""
    t = F32(tensor_scale)
    with np.errstate(all="ignore"):
        byte = fp_code(np.clip(largest(x) / F32(6) / t, F32(2.0**-6), F32(448)), "fp8_e4m3")
        b = fp_value(byte, "fp8_e4m3")
        code = fp_code(x * (F32(1) / t / b), "fp4_e2m1")
        return code, byte, fp_value(code, "fp4_e2m1") * (t * b)


def spread(p: Array, x: Array) -> Array:
    """One value a group along axis 1, over the elements."""
    return np.repeat(p, x.shape[1] // p.shape[1], 1)


def torchao_quantize_affine(x: Array, scale: Array, zero: Array, low: int, high: int) -> Array:
    """quantize_affine; scale, zero: [rows, groups]."""
    with np.errstate(all="ignore"):
        q = np.rint(x * spread(F32(1) / scale, x)) + spread(zero, x).astype(F32)
        return np.clip(q, low, high).astype(np.int64)


def torchao_dequantize_affine(q: Array, scale: Array, zero: Array) -> Array:
    return (q.astype(F32) - spread(zero, q).astype(F32)) * spread(scale, q)


def torchao_choose_qparams(x: Array, mapping: str, low: int, high: int) -> tuple[Array, Array]:
    """choose_qparams_affine over each row of x: float32 scale and zero point, [rows, 1]."""
    least = np.minimum(x.min(-1, keepdims=True), F32(0))
    most = np.maximum(x.max(-1, keepdims=True), F32(0))
    with np.errstate(over="ignore", under="ignore"):
        if mapping == "symmetric":
            scale = np.maximum(-least, most) / F32((high - low) / 2)
        elif mapping == "no_clip":
            scale = np.maximum(least / F32(low), most / F32(high))
        else:
            scale = (most - least) / F32(high - low)
        scale = np.maximum(scale, F32(2.0**-126))
        if mapping != "asymmetric":
            return scale, np.full(scale.shape, int((high + low + 1) / 2))
        return scale, np.clip(low - np.rint(least / scale), low, high).astype(np.int64)


# ----------------------------------------------------------------------------- ggml

E2M1_TIMES_2 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], F32)
MIDDLES = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


def ggml(x: Array) -> Array:
    """quantize_row_mxfp4: 17 bytes a block of 32. Inf is not defined."""
    b = np.where(np.isnan(x), 0, x).astype(np.float64)
    e = np.clip(exponent(largest(b)) + 125, 0, 254)
    v = np.ldexp(b, 127 - e)
    code = (np.abs(v)[..., None] > MIDDLES).sum(-1)  # ties toward zero
    code = np.where((v < 0) & (code > 0), code + 8, code)  # never -0
    pairs = code[:, :16] | code[:, 16:] << 4
    return np.concatenate([e, pairs], -1).astype(np.uint8)


def ggml_codes(stored: Array) -> Array:
    q = stored[:, 1:].astype(np.int64)
    return np.concatenate([q & 15, q >> 4], -1)


def ggml_values(stored: Array) -> Array:
    """dequantize_row_mxfp4."""
    with np.errstate(over="ignore"):
        values = E2M1_TIMES_2[ggml_codes(stored)].astype(np.float64)
        return np.ldexp(values, stored[:, :1].astype(np.int32) - 128).astype(F32)
