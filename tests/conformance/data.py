"""Float32 data that finds rounding mistakes: every exponent, every tie and its neighbours, specials.

Deterministic. Arrays are [blocks, n] with the blocks of n along the last axis.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blockscale.numerics.formats import format_named

Array = Any
F32 = np.float32
LARGEST = 0x7F7FFFFF  # bits of the largest finite float32


def same(a: Any, b: Any) -> Array:
    """Where two arrays are equal, to the bit for floats; any NaN equals any NaN, -0 is not +0."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind in "iu":
        return a == b
    assert a.dtype == b.dtype, (a.dtype, b.dtype)
    words = np.dtype(f"i{a.dtype.itemsize}")
    nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    return (a.view(words) == b.view(words)) | nan


def assert_same(ours: Any, theirs: Any, x: Any = None, message: str = "") -> None:
    """Fails with the first differences."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape, (message, ours.shape, theirs.shape)
    different = np.argwhere(~same(ours, theirs))
    lines = [
        f"{tuple(map(int, at))}: ours {ours[tuple(at)]!r}, theirs {theirs[tuple(at)]!r}"
        + ("" if x is None else f", x {x[tuple(at)]!r}")
        for at in different[:5]
    ]
    assert not len(different), f"{message}: {len(different)} of {ours.size} differ\n" + "\n".join(lines)


def grid(element: str) -> Array:
    """The finite magnitudes of an element that quantizing produces, ascending, float64."""
    form = format_named(element)
    values = np.abs(form.decode(np.arange(1 << form.bits)))
    return np.unique(values[values <= form.max])


def neighbours(x: Array, steps: Any) -> Array:
    """float32 `steps` ulps up in magnitude, sign kept; stops at 0 and at the largest finite one."""
    bits = np.abs(x).astype(F32).view(np.int32).astype(np.int64) + np.asarray(steps)
    return np.copysign(np.clip(bits, 0, LARGEST).astype(np.int32).view(F32), x)


def signed(r: np.random.Generator, x: Array) -> Array:
    return x * np.where(r.random(x.shape) < 0.5, F32(-1), F32(1))


def finite_f32(x: Any) -> Array:
    """Rounded to float32, what overflows left out."""
    with np.errstate(over="ignore", under="ignore"):
        x = np.asarray(x, np.float64).astype(F32)
    return x[np.isfinite(x)]


def adversarial(
    element: str, n: int = 32, *, thorough: bool = False, specials: bool = True, seed: int = 0
) -> Array:
    """What a block format of `element` can get wrong. Thorough: at least 1.9 million values."""
    r = np.random.default_rng(seed)
    parts = [
        every_maximum(r, n, thorough),
        ties(r, element, n, thorough),
        random_bits(r, n, 6000 if thorough else 300),
        normal(r, n, 12000 if thorough else 600),
        np.zeros((3, n), F32),
        -np.zeros((3, n), F32),
    ]
    x = np.concatenate(parts)
    zero = r.random(x.shape) < 0.004
    x[zero] = np.copysign(F32(0), r.standard_normal(int(zero.sum()))).astype(F32)
    return np.concatenate([x, with_specials(r, x, 4000 if thorough else 400)]) if specials else x


def every_maximum(r: np.random.Generator, n: int, thorough: bool) -> Array:
    """Blocks whose greatest magnitude has each exponent 2^-149 … 2^127 and telling mantissas."""
    eighths = np.arange(32 if thorough else 8) << (18 if thorough else 20)
    edges = [0, 1, 2, 3, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFE, 0x7FFFFF]
    near = np.concatenate([eighths, eighths + 1, np.maximum(eighths - 1, 0)])
    last = 0x7FFFFF - np.arange(0, 90, 3 if thorough else 29)  # where a float32 log2 rounds up
    free = r.integers(0, 1 << 23, 40 if thorough else 3)
    mantissas = np.unique(np.concatenate([edges, near, last, free]))
    maxima = []
    for exponent in range(-149, 128):
        if exponent >= -126:
            bits = ((exponent + 127) << 23) + mantissas
        else:
            leading = 1 << (exponent + 149)
            bits = leading + (mantissas & (leading - 1))
        maxima.append(np.unique(bits).astype(np.int32).view(F32))
    maximum = np.concatenate(maxima)[:, None].astype(np.float64)
    spread = r.choice([1, 3, 8, 20, 30, 140], maximum.shape)
    x = (maximum * np.exp2(-r.random((len(maximum), n)) * spread)).astype(F32)
    x[r.random(x.shape) < 0.03] = 0
    x[np.arange(len(x)), r.integers(0, n, len(x))] = maximum[:, 0]
    return signed(r, x)


def ties(r: np.random.Generator, element: str, n: int, thorough: bool) -> Array:
    """Grid points, midpoints and their neighbours under many scales, led by a maximum that fixes it."""
    g = grid(element)
    step = g[-1] - g[-2]
    middles = np.concatenate([(g[1:] + g[:-1]) / 2, [g[-1] + step / 2, g[-1] + 1.5 * step]])
    points = np.concatenate([g, middles, g / 2, g / 4])
    scales = {*range(-149, 128, 7 if thorough else 37)}
    scales |= {*range(-149, -100), *range(100, 128)} if thorough else {-149, -128, -127, -126, 127}
    parts = []
    for s in sorted(scales):
        v = finite_f32(np.ldexp(points, s))
        v = np.unique(np.concatenate([neighbours(v, k) for k in (-2, -1, 0, 1, 2)]))
        r.shuffle(v)
        v = np.resize(v, (-(-len(v) // (n - 1)), n - 1))
        for lead in finite_f32(np.ldexp([2.0 ** format_named(element).emax, g[-1]], s)):
            rest = np.where(v.astype(np.float64) < 2 * float(lead), v, F32(0))
            parts.append(np.concatenate([np.full((len(v), 1), lead), rest], 1))
    return signed(r, np.concatenate(parts))


def random_bits(r: np.random.Generator, n: int, blocks: int) -> Array:
    x = r.integers(0, 1 << 32, (blocks, n), dtype=np.uint64).astype(np.uint32).view(F32)
    return np.where(np.isfinite(x), x, F32(1))


def normal(r: np.random.Generator, n: int, blocks: int) -> Array:
    x = r.standard_normal((blocks, n)) * np.exp2(r.integers(-40, 40, (blocks, 1)))
    return x.astype(F32)


def with_specials(r: np.random.Generator, x: Array, blocks: int) -> Array:
    """Blocks of x with a few NaN and Inf of either sign, and blocks of almost nothing else."""
    x = x[r.integers(0, len(x), blocks)].copy()
    values = [np.nan, -np.nan, np.inf, -np.inf]
    for value in values:
        x[r.random(x.shape) < 0.012] = value
    x[:4] = np.array(values, F32)[:, None]
    coin = r.random((3, 32, x.shape[1])) < 0.5
    x[4:36] = np.where(coin[0], F32(np.inf), F32(np.nan))
    x[36:68] = np.where(coin[1], F32(-np.inf), F32(-1e-45))
    x[68:100] = np.where(coin[2], F32(np.nan), F32(-0.0))
    return x


def least_ranges(n: int = 32, blocks: int = 4000) -> Array:
    """Blocks whose affine scale is near the least one, 2^-126, and whose halves are not exact."""
    r = np.random.default_rng(11)
    x = r.standard_normal((blocks, n)) * np.exp2(r.integers(-128, -108, (blocks, 1)))
    keep = r.random((blocks, n)) < 0.1
    return np.where(keep, x, np.ldexp(x, -20)).astype(F32)


def affine_ties(
    r: np.random.Generator, shape: tuple[int, int], group: int, low: int, high: int
) -> tuple[Array, Array, Array]:
    """x near ties of the integer grid low … high, with its scales and zero points, groups along axis 1."""
    groups = (shape[0], shape[1] // group)
    scale = np.exp2(r.uniform(-12, 12, groups)).astype(F32)
    zero = r.integers(low, high + 1, groups)
    steps = np.minimum(r.integers(low, high, shape) + 0.5, 3000) * np.repeat(scale, group, 1)
    return neighbours(steps.astype(F32), r.integers(-2, 3, shape)), scale, zero
