"""What the peer tests leave out and count. docs/dialects.md says why; masks are [blocks, 1] or [blocks, n].

microxcaling, torchao's RCEIL and ggml take exponents through a float32 log2. It is the true one rounded to
float32 (checked on every positive float32), hence off by one within at most 44 ulps of a power of two.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blockscale.numerics.formats import format_named
from conformance.data import F32

Array = Any


def _exponent(a: Array) -> Array:
    return np.frexp(np.asarray(a, np.float64))[1] - 1


def log2_rounds_up(a: Array) -> Array:
    """Where floor of the float32 log2 is one above the exact one; never for 0, Inf, NaN."""
    a = np.where(np.isfinite(a) & (a > 0), a, 1).astype(np.float64)
    return np.floor(np.log2(a).astype(F32)) != _exponent(a)


def finite_amax(x: Array) -> Array:
    return np.where(np.isfinite(x), np.abs(x), 0).max(-1, keepdims=True)


def log2_of_element_rounds_up(x: Array, element: str) -> Array:
    """microxcaling truncates on a grid that it finds through log2 of x / 2^s."""
    with np.errstate(all="ignore"):
        amax = finite_amax(x)
        s = np.maximum(_exponent(amax) - format_named(element).emax, -127)
        return log2_rounds_up(np.ldexp(np.abs(x).astype(np.float64), -s).astype(F32))


def rceil_differs(x: Array, element: str) -> Array:
    """Where ceil(log2(f32(amax / max))) in float32 is below the exact exponent."""
    top = format_named(element).max
    amax = finite_amax(x)
    a = np.where(amax > 0, amax, 1).astype(np.float64)
    with np.errstate(under="ignore"):
        quotient = (amax.astype(F32) / F32(top)).astype(np.float64)
    quotient = np.where(quotient > 0, quotient, 2.0**-149)
    found = np.maximum(np.ceil(np.log2(quotient).astype(F32)), -127)
    exact = np.maximum(_exponent(a) - format_named(element).emax, -140)
    exact = np.maximum(exact + (a > np.ldexp(top, exact)), -127)
    return (found != exact) & (amax > 0)
