"""What the compiled core is compared on: every valid `Numbers`, layouts, and data that looks for trouble.

Used by test_core.py (numpy entry points) and by tools/vectors.py (the core without Python).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from blockscale.errors import ArgumentError, BlockError, CombinationError
from blockscale.numerics.arrays import TENSOR_DTYPES
from blockscale.numerics.dialects import DIALECTS, ROUNDINGS, RULES
from blockscale.numerics.formats import BFP_ELEMENTS, ELEMENTS, FORMATS, SCALES
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import Numbers

Array = np.ndarray[Any, np.dtype[Any]]

# Ranges narrower than the element's, for a few of the integers.
RANGES = {"int8": [(-127, 127), (-5, 1)], "int4": [(-7, 7)], "uint4": [(3, 12)], "uint8": [(0, 127)],
          "int16": [(-9, 2)]}  # fmt: skip
# Where not every width can be had, these are: below a byte, a byte, above.
WIDTHS = ("int2", "int4", "int8", "int12", "int16", "uint3", "uint4", "uint8", "uint16",
          "bfp10", "bfp11", "bfp13", "bfp16", "bfp20", "bfp24")  # fmt: skip
# sub_block, sub_shift
SUB_BLOCKS = ((2, 1), (2, 3), (4, 2), (8, 0))


@lru_cache(maxsize=1)
def all_numbers() -> tuple[Numbers, ...]:
    """Every valid combination of element, scale, rule, rounding, dialect and zero point; some of sub-blocks."""
    found: dict[Numbers, None] = {}
    for dialect in DIALECTS:
        for i, element in enumerate(BFP_ELEMENTS):
            for j, rounding in enumerate(ROUNDINGS):
                size, shift = SUB_BLOCKS[(i + j) % len(SUB_BLOCKS)]
                numbers = valid(
                    element=element, rounding=rounding, dialect=dialect, sub_block=size, sub_shift=shift
                )
                if numbers is not None:
                    found[numbers] = None
    for dialect in DIALECTS:
        for element in ELEMENTS:
            for scale in SCALES:
                for rule in RULES:
                    for rounding in ROUNDINGS:
                        for zero_point in (False, True):
                            for low, high in [(None, None), *RANGES.get(element, [])]:
                                numbers = valid(
                                    element=element, scale=scale, rule=rule, rounding=rounding,
                                    dialect=dialect, zero_point=zero_point,
                                    tensor_scale=scale == "fp8_e4m3", quant_min=low, quant_max=high,
                                )  # fmt: skip
                                if numbers is not None:
                                    found[numbers] = None
    return tuple(found)


def thinned(numbers: tuple[Numbers, ...]) -> tuple[Numbers, ...]:
    """All float elements, and the integers of WIDTHS with the ranges of their own or a float32 scale."""
    return tuple(
        n for n in numbers
        if n.element == "mxint8" or n.element_format.is_float
        or (n.family == "mx" and n.element in WIDTHS)
        or (n.element in WIDTHS and (n.scale == "f32" or n.quant_max == n.element_format.max_code))
    )  # fmt: skip


def valid(**fields: Any) -> Numbers | None:
    try:
        return Numbers(**fields)
    except (CombinationError, ArgumentError):
        return None


# shape, block: last axis, ragged, another axis, several axes, whole dimensions, degenerate
PLACES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((3, 70), (1, 32)), ((4, 64), (1, 16)), ((70, 5), (32, 1)), ((4, 33), (0, 0)), ((4, 33), (0, 1)),
    ((9, 17), (1, 0)), ((2, 3, 35), (1, 2, 8)), ((2, 40, 3), (1, 7, 1)), ((5,), (1,)), ((3, 9), (2, 5)),
    ((1, 1), (1, 32)), ((0, 4), (1, 32)), ((4, 0), (1, 32)), ((4, 0), (1, 0)), ((), ()), ((129,), (128,)),
    ((2, 2, 2, 2, 2, 3), (1, 2, 1, 0, 2, 3)), ((7, 13), (1, 1)), ((40, 9), (3, 0)), ((6, 1, 50), (0, 4, 24)),
)  # fmt: skip


# ------------------------------------------------------------------------------------------- data


def placed(numbers: Numbers, shape: tuple[int, ...], block: tuple[int, ...]) -> Layout:
    """The layout; where sub-blocks do not go into these blocks, with blocks into which they do."""
    try:
        return Layout(numbers, shape, block)
    except BlockError:
        wide = [i for i, b in enumerate(block) if b != 1][:1]
        size = 2 * numbers.sub_block
        return Layout(numbers, shape, tuple(size if i in wide else 1 for i in range(len(block))))


def float_bits(x: Array) -> Array:
    return x.view({2: np.uint16, 4: np.uint32}[x.dtype.itemsize])


def steps_away(x: Array, steps: Array) -> Array:
    """Float32 values moved by whole ulps in magnitude, kept finite."""
    magnitude = np.abs(x).view(np.int32).astype(np.int64) + steps
    return np.copysign(np.clip(magnitude, 0, 0x7F7FFFFF).astype(np.int32).view(np.float32), x)


def grid_of(numbers: Numbers) -> Array:
    """Magnitudes that elements can have: all of a small format, some of a wide one."""
    element = numbers.element_format
    if element.is_fixed:
        low, high = (
            (numbers.quant_min, numbers.quant_max) if numbers.family == "affine" else (0, element.max_code)
        )
        reach = max(abs(low or 127), abs(high or 127)) + 1
        if numbers.zero_point:
            reach = (numbers.quant_max or 0) - (numbers.quant_min or 0)
        some = np.arange(reach + 1) if reach <= 256 else np.unique(np.geomspace(1, reach, 256).astype(int))
        return np.asarray(some * 2.0**-element.mantissa_bits)
    values = element.decode(np.arange(1 << (element.bits - 1)))
    return np.asarray(np.sort(values[np.isfinite(values)]))


def with_midpoints(grid: Array) -> Array:
    """Grid, midpoints, and where saturation and the first step begin."""
    middle = (grid[1:] + grid[:-1]) / 2
    beyond = grid[-1] + (grid[-1] - grid[-2]) * np.array([0.5, 1, 1.5])
    return np.concatenate([grid, middle, beyond, grid[1:3] / 4, (grid[1:4] + grid[:3]) / 2])


def leads(numbers: Numbers) -> Array:
    """Block maxima that make the scale a power of two, and others around a binade."""
    element = numbers.element_format
    low, high = numbers.quant_min, numbers.quant_max
    top = element.max if high is None else float(high)
    bottom = -top if low is None else float(low)
    return np.array([2.0**element.emax, top, (top - bottom) / 2, top * 1.03, 2.0**element.emax * 1.9])


class Trouble:
    """Blocks of `width` values for `numbers` in a tensor format; deterministic by seed.

    window: the binades that block maxima are drawn from (all that the format has if None).
    """

    def __init__(
        self, numbers: Numbers, tensor_format: str, width: int, seed: int,
        window: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.numbers, self.format, self.width = numbers, FORMATS[tensor_format], width
        self.rng = np.random.default_rng([seed, 17])
        smallest = self.format.emin - self.format.mantissa_bits
        self.low, self.high = window or (smallest, self.format.emax)
        self.points = with_midpoints(grid_of(numbers))

    @np.errstate(all="ignore")
    def blocks(self, count: int) -> Array:
        """[count, width] in the tensor format: all kinds in turn, every kind if count ≥ 10."""
        kinds = (
            self.points_of_the_grid, self.points_of_the_grid, self.random_bits, self.binade_edges,
            self.normal, self.tiny_mixed, self.spoilt, self.extremes, self.subnormals, self.one_sided,
        )  # fmt: skip
        shares = [len(range(i, count, len(kinds))) for i in range(min(count, len(kinds)))]
        parts = [kind(n) for kind, n in zip(kinds, shares, strict=False)]
        rows = np.concatenate(parts) if parts else np.zeros((0, self.width), np.float32)
        self.rng.shuffle(rows)
        return np.asarray(rows.astype(TENSOR_DTYPES[self.format.name]))

    def _exponents(self, n: int) -> Array:
        """One a row, the ends of the range often."""
        e = self.rng.integers(self.low, self.high + 1, n)
        ends = np.array([self.low, self.low + 1, -127, -126, -125, -14, 125, 126, 127, self.high])
        ends = np.clip(ends, self.low, self.high)
        return np.where(self.rng.random(n) < 0.3, self.rng.choice(ends, n), e)

    def _signs(self, shape: tuple[int, ...]) -> Array:
        return np.where(self.rng.random(shape) < 0.5, np.float32(-1), np.float32(1))

    def _ldexp(self, x: Array, e: Array) -> Array:
        return np.ldexp(np.asarray(x, np.float64), e.astype(np.int32)).astype(np.float32)

    def points_of_the_grid(self, n: int) -> Array:
        """Grid points and midpoints, and their neighbours in the tensor format."""
        rng, numbers = self.rng, self.numbers
        scale = self._exponents(n) - (numbers.element_format.emax if numbers.family == "mx" else 0)
        x = self._ldexp(rng.choice(self.points, (n, self.width)), scale[:, None])
        lead = self._ldexp(rng.choice(leads(numbers), n), scale)
        ulp = 1 << (23 - self.format.mantissa_bits)
        x = steps_away(x, rng.choice([0, 0, 0, -1, 1, -2, 2], x.shape) * ulp)
        x = np.where(np.abs(x) <= np.abs(lead)[:, None] * 1.5, x, np.float32(0)) * self._signs(x.shape)
        x[np.arange(n), rng.integers(0, self.width, n)] = lead * self._signs((n,))
        if numbers.rule == "asymmetric" and numbers.quant_min is not None and numbers.quant_max is not None:
            x[:, 0] = self._ldexp(np.full(n, float(numbers.quant_min)), scale)
            x[:, -1] = self._ldexp(np.full(n, float(numbers.quant_max)), scale)
        return x

    def random_bits(self, n: int) -> Array:
        if self.format.bits == 16:
            bits = self.rng.integers(0, 1 << 16, (n, self.width)).astype(np.uint16)
            return np.asarray(bits.view(TENSOR_DTYPES[self.format.name]).astype(np.float32))
        bits = self.rng.integers(0, 1 << 32, (n, self.width)).astype(np.uint32)
        return bits.view(np.float32)

    def binade_edges(self, n: int) -> Array:
        """Maxima at and near the mantissas where scale rules change their minds."""
        rng, element = self.rng, self.numbers.element_format
        top = element.max * 2.0**-element.emax
        edge = rng.choice([1, 2 - 2.0 ** -(element.fraction_bits + 1), top, 1.5, 1.75, 2], n)
        ulp = 1 << (23 - self.format.mantissa_bits)
        lead = steps_away(self._ldexp(edge, self._exponents(n)), rng.integers(-2, 3, n) * ulp)
        x = (lead[:, None] * rng.random((n, self.width)) ** 3).astype(np.float32)
        x[np.arange(n), rng.integers(0, self.width, n)] = lead
        return x * self._signs(x.shape)

    def normal(self, n: int) -> Array:
        return self._ldexp(self.rng.standard_normal((n, self.width)), self._exponents(n)[:, None])

    def tiny_mixed(self, n: int) -> Array:
        """Elements far below their block's maximum: zeros of either sign, underflow in x / scale."""
        e = self._exponents(n)[:, None] - self.rng.choice([0, 1, 5, 12, 40, 160], (n, self.width))
        x = self._ldexp(self.rng.standard_normal((n, self.width)), e)
        return np.where(self.rng.random(x.shape) < 0.1, np.copysign(np.float32(0), x), x)

    def spoilt(self, n: int) -> Array:
        """NaN and Inf: one, several or nothing else in a block; some among zeros or subnormals."""
        x = self.normal(n) * self.rng.choice(np.array([0, 1, 1, 1], np.float32), (n, 1))
        bad = self.rng.choice(np.array([np.nan, np.inf, -np.inf], np.float32), x.shape)
        rate = self.rng.choice([0.02, 0.05, 0.5, 1.0], (n, 1))
        return np.where(self.rng.random(x.shape) < rate, bad, x)

    def extremes(self, n: int) -> Array:
        """Near the greatest finite value: the output may overflow."""
        top = np.float32(self.format.max)
        ulp = 1 << (23 - self.format.mantissa_bits)
        down = np.minimum(self.rng.geometric(0.1, (n, self.width)) - 1, 64) * ulp
        x = steps_away(np.full((n, self.width), top), -down)
        return x * self.rng.choice(np.array([1, 0.5, 0.999, 0], np.float32), x.shape) * self._signs(x.shape)

    def subnormals(self, n: int) -> Array:
        least = self.format.emin - self.format.mantissa_bits
        counts = self.rng.integers(-40, 41, (n, self.width)) * self.rng.choice([0, 1, 1, 100], (n, 1))
        return self._ldexp(counts, np.full((n, 1), least))

    def one_sided(self, n: int) -> Array:
        """All of a sign, or all of one value."""
        x = np.abs(self.normal(n)) * self._signs((n, 1))
        return np.where(self.rng.random((n, 1)) < 0.3, x[:, :1], x)


@np.errstate(all="ignore")
def data_for(numbers: Numbers, shape: tuple[int, ...], tensor_format: str, seed: int) -> Array:
    """A tensor of troublesome values, whatever its blocks; NVFP4 gets values around one magnitude."""
    size = math.prod(shape)
    width = min(32, max(size, 1))
    rows = -(-size // width)
    if not numbers.tensor_scale:
        return Trouble(numbers, tensor_format, width, seed).blocks(rows).reshape(-1)[:size].reshape(shape)
    limits = FORMATS[tensor_format]
    top = int(np.random.default_rng([seed, 5]).integers(limits.emin, limits.emax))
    window = (max(top - 18, limits.emin), top)
    flat = Trouble(numbers, tensor_format, width, seed, window).blocks(rows).reshape(-1)[:size]
    if seed % 4:  # few tensors keep all the range: the largest magnitude sets the scale of all
        magnitude = np.abs(flat.astype(np.float64))
        near = (magnitude < 2.0 ** (top + 1)) & (magnitude > 2.0 ** (top - 48))
        keep = ~np.isfinite(magnitude) | near | (magnitude == 0)
        flat = np.where(keep, flat, np.asarray(2.0**top, flat.dtype))
    return flat.reshape(shape)


def sweep(numbers: Numbers, tensor_format: str, count: int, seed: int) -> Iterator[tuple[Layout, Array]]:
    """At least `count` values in layouts of several forms: rows, columns, odd blocks, both at once."""
    width = 16 if numbers.tensor_scale else 32
    pieces = 12 if numbers.tensor_scale else 4
    each = -(-count // pieces)
    for i in range(pieces):
        rows = -(-each // (width * 3))
        shape, block = [
            ((rows, width * 3), (1, width)), ((width, rows * 3), (width, 1)),
            ((rows, width * 3), (1, width - 5)), ((rows, 3, width), (2, 1, 0)),
        ][i % 4]  # fmt: skip
        layout = placed(numbers, shape, block)
        x = data_for(numbers, shape if i % 4 != 1 else shape[::-1], tensor_format, seed + i)
        yield layout, np.ascontiguousarray(x.T) if i % 4 == 1 else x


# ------------------------------------------------------------------------------------- comparison


def same_bits(a: Array, b: Array) -> Array:
    """Elementwise equality of bits, except that any NaN equals any other."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return np.zeros(1, bool)
    if a.dtype.kind in "iu":
        return np.asarray(a == b)
    nan = np.isnan(a) & np.isnan(b)
    return np.asarray((float_bits(np.ascontiguousarray(a)) == float_bits(np.ascontiguousarray(b))) | nan)
