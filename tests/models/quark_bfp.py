"""AMD Quark's block floating point, an element at a time in exact rationals, from what its operator does.

Written from the facts of BFPQuantizeDequantize (Quark 0.13), no line of it or of blockscale: a block is a list
of Python floats, each of them a float32; the result is one too. What is padded is left out: zeros change nothing.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

MODES = {"half_away": 0, "half_up": 1, "half_even": 2}
NOT_FINITE = 255


def _field(x: float) -> int:
    """The exponent field of a float32."""
    return int(np.float32(x).view(np.uint32)) >> 23 & 255


def _power(e: int) -> Fraction:
    return Fraction(2) ** e


def _rounded(q: Fraction, mode: int) -> int:
    whole = math.floor(q)
    rest = q - whole
    if rest != Fraction(1, 2):
        return whole + (rest > Fraction(1, 2))
    away = q > 0 if mode == 0 else mode == 1 or whole % 2 == 1
    return whole + away


def _float(n: int, step: Fraction, negative: bool) -> float:
    """n steps as a float32, Inf beyond it; 0 with a sign."""
    value = Fraction(n) * step
    if value == 0:
        return -0.0 if negative else 0.0
    if abs(value) >= 2**128:
        return math.copysign(math.inf, value)
    return float(np.float32(float(value)))


def _negative_zero(x: float, step: Fraction, mode: int) -> bool:
    """Whether what became 0 is -0: not where floor + 1 made it, which the quotient in float32 decides."""
    if math.copysign(1, x) > 0:
        return False
    underflows = abs(Fraction(x)) / step <= Fraction(1, 2**150)
    return mode != 2 or x == 0 or underflows


def to_bfp(block: list[float], bit_width: int, mode: int, compiler: bool = False) -> list[float]:
    """NaN and Inf stay, and do not count; a field of 0 (0, subnormals) is the exponent -127."""
    bits = bit_width - 9
    finite = [x for x in block if _field(x) != NOT_FINITE]
    e = max((_field(x) for x in finite), default=0) - 127
    low = high = (1 << bits) - 1
    if compiler:
        assert bits == 7
        low = 128
        step = _power(e - 6)
        if any(_rounded(Fraction(x) / step, mode) > 127 for x in finite):
            e += 1
    step = _power(e - bits + 1)
    result = []
    for x in block:
        if _field(x) == NOT_FINITE:
            result.append(x)
            continue
        n = min(max(_rounded(Fraction(x) / step, mode), -low), high)
        result.append(_float(n, step, _negative_zero(x, step, mode)))
    return result


def to_bfp_prime(
    block: list[float], bit_width: int, mode: int, sub_block: int = 2, sub_shift: int = 1
) -> list[float]:
    """One NaN or Inf makes all NaN; subnormals are 0; a run of `sub_block` has a step of its own."""
    bits = bit_width - 9
    shared = max(_field(x) for x in block)
    if shared == NOT_FINITE:
        return [math.nan] * len(block)
    result = []
    for start in range(0, len(block), sub_block):
        run = block[start : start + sub_block]
        shift = min(shared - max(_field(x) for x in run), (1 << sub_shift) - 1)
        step = _power(shared - 127 - shift - bits + 1)
        for x in run:
            q = Fraction(0) if _field(x) == 0 else Fraction(x) / step
            n = min(max(_rounded(q, mode), -(1 << bits) + 1), (1 << bits) - 1)
            result.append(_float(n, step, math.copysign(1, x) < 0))
    return result


def bfloat16(x: float) -> float:
    """Half to even on the bits, whatever they mean: of some NaN nothing is left but a zero or an Inf."""
    bits = int(np.float32(x).view(np.uint32))
    low, odd = bits & 0xFFFF, bits >> 16 & 1
    bits += 0x10000 if low > 0x8000 or (low == 0x8000 and odd) else 0
    return float(np.uint32(bits & 0xFFFF0000).view(np.float32))
