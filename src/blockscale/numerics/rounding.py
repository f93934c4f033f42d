"""Rounding to an element grid, and the random numbers of stochastic rounding. Reference, float64."""

from __future__ import annotations

from blockscale.numerics.arrays import Array, Arrays
from blockscale.numerics.formats import Format


def quantum(xp: Arrays, magnitude: Array, element: Format) -> Array:
    """Spacing of the element grid at `magnitude` (its subnormals keep that of the first binade)."""
    exponent = xp.frexp(magnitude)[1] - 1
    smallest = xp.zeros_like(exponent) + element.emin
    exponent = xp.maximum(exponent, smallest) if element.is_float else smallest
    return xp.ldexp(xp.zeros_like(magnitude) + 1, exponent - element.mantissa_bits)


def round_to_grid(
    xp: Arrays,
    v: Array,
    element: Format,
    rounding: str,
    noise: Array | None = None,
    nearly_half: bool = False,
) -> Array:
    """`v` on the grid of `element`, neither saturated nor freed of -0.

    v = (k + f) · quantum with k an integer and 0 ≤ f < 1. All steps are exact in float64 for v with
    24 significant bits. `noise` are uniform 32-bit integers for `stochastic`:
    up if and only if noise < floor(f · 2^32).
    """
    magnitude = xp.abs(v)
    q = quantum(xp, magnitude, element)
    steps = magnitude / q
    k = xp.floor(steps)
    f = steps - k
    if rounding == "half_even":
        up = (f > 0.5) | ((f == 0.5) & (k - 2 * xp.floor(k / 2) == 1))
    elif rounding == "half_away":
        up = f >= 0.5
    elif rounding == "half_up":
        up = (f > 0.5) | ((f == 0.5) & (v > 0))
    elif rounding == "half_zero":
        up = f > 0.5
    elif rounding == "toward_zero":
        up = f > 1
    else:
        assert rounding == "stochastic" and noise is not None
        up = xp.f64(noise) < xp.floor(f * 2.0**32)
    if nearly_half and rounding != "toward_zero":
        up = up | (steps == 0.5 - 2.0**-25)
    return xp.copysign((k + up) * q, v)


_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF


def philox(xp: Arrays, seed: int, index: Array) -> Array:
    """Uniform 32-bit integers (as int64), one for each flat element index.

    Philox 4×32-10, counter = (index // 4 as 64 bits, 0, 0), key = seed; lane index % 4 is taken.
    """
    counter, lane = index >> 2, index & 3
    c = [counter & _WORD, (counter >> 32) & _WORD, counter * 0, counter * 0]
    key = [seed & _WORD, (seed >> 32) & _WORD]
    for _ in range(10):
        product = [c[0] * _MULTIPLIERS[0], c[2] * _MULTIPLIERS[1]]  # wraps modulo 2^64, as wanted
        high = [(p >> 32) & _WORD for p in product]
        low = [p & _WORD for p in product]
        c = [high[1] ^ c[1] ^ key[0], low[1], high[0] ^ c[3] ^ key[1], low[0]]
        key = [(k + w) & _WORD for k, w in zip(key, _WEYL, strict=True)]
    first, second = xp.where(lane == 0, c[0], c[1]), xp.where(lane == 2, c[2], c[3])
    return xp.where(lane < 2, first, second)
