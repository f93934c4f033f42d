"""Observers: how the range of a static scale is chosen from calibration data. One class a method.

min-max and histograms obey a law: the result does not depend on the order of batches or how data is
cut into them, so that observers of parts merge into the observer of the whole.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np

from blockscale.errors import ArgumentError, CombinationError, UnknownNameError
from blockscale.numerics.arrays import NUMPY, Array
from blockscale.numerics.blocking import blocks_of
from blockscale.numerics.calibration import Batch, Calibrated, Observer
from blockscale.numerics.histograms import (
    Histogram,
    least_divergence,
    symmetric_percentile,
    two_sided_percentile,
)
from blockscale.numerics.layout import Layout
from blockscale.numerics.samples import Sample, least_squares
from blockscale.numerics.scheme import Scheme

__all__ = ["METHODS", "Calibrated", "Observer", "observer"]

MOST_COUNTS = 1 << 27  # of the histograms of one tensor: 1 GiB
MOST_SAMPLES = 1 << 20  # elements that `mse` keeps of one tensor, unless its groups are very many


def observer(method: str, where: Layout | Scheme, *, name: str = "", **options: Any) -> Observer:
    """An observer by `method` for the static parameters of `where`; `name` is for messages.

    A Layout fixes the rank and the number of scales; a Scheme is bound to the first batch. Options:

        moving_average  averaging_constant=0.01
        percentile      percentile=99.99, bins=4096
        mse             grid=80 (ranges that are tried), sample=65536 (elements kept of a group)
        entropy         bins=4096
    """
    if method not in _CLASSES:
        raise UnknownNameError("calibration method", method, METHODS)
    cls = _CLASSES[method]
    for option in options:
        if option not in cls.defaults:
            if not cls.defaults:
                raise ArgumentError(f"option of {method!r}", option, "none: this method has no options")
            raise UnknownNameError(f"option of {method!r}", option, cls.defaults)
    numbers = where.numbers
    if numbers.family == "mx":
        raise CombinationError(
            f"calibration of {name!r}: {numbers} takes each scale from its block as it quantizes; "
            "MX needs no calibration"
        )
    return cls(where, name, {**cls.defaults, **options})


class MinMax(Observer):
    """From the least to the greatest element."""

    method = "minmax"

    def __init__(self, where: Layout | Scheme, name: str, options: dict[str, Any]) -> None:
        super().__init__(where, name, options)
        self.low: Array = np.inf
        self.high: Array = -np.inf

    def _observe(self, batch: Batch) -> None:
        self.low, self.high = np.minimum(self.low, batch.low), np.maximum(self.high, batch.high)

    def _range(self) -> tuple[Array, Array]:
        return self.low, self.high

    def _absorb(self, other: Self) -> None:
        self.low, self.high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)

    _take_over = _absorb


class MovingAverage(MinMax):
    """low += c · (low of the batch - low), from the first batch's; likewise high. float64."""

    method = "moving_average"
    defaults: ClassVar[dict[str, Any]] = {"averaging_constant": 0.01}
    mergeable = "an average depends on the order of batches; let one observer see all"

    def __init__(self, where: Layout | Scheme, name: str, options: dict[str, Any]) -> None:
        super().__init__(where, name, options)
        self.constant = _number("averaging_constant", options, "above 0, at most 1", 1)

    def _observe(self, batch: Batch) -> None:
        low, high = batch.low.astype(np.float64), batch.high.astype(np.float64)
        if self.elements:
            low = self.low + self.constant * (low - self.low)
            high = self.high + self.constant * (high - self.high)
        self.low, self.high = low, high


class _Histograms(MinMax):
    """min-max, and a histogram for each group."""

    def __init__(self, where: Layout | Scheme, name: str, options: dict[str, Any]) -> None:
        super().__init__(where, name, options)
        self.bins = _integer("bins", options, 16, 1 << 16)
        if self.bins & (self.bins - 1):
            raise ArgumentError(
                "bins", self.bins, "a power of two: bins grow by becoming one with a neighbour"
            )
        self.histogram: Histogram | None = None

    @property
    def symmetric(self) -> bool:
        return self.numbers.rule != "asymmetric"

    def _observe(self, batch: Batch) -> None:
        groups = batch.low.size
        if self.histogram is None:
            if groups * self.bins > MOST_COUNTS:
                raise CombinationError(
                    f"{self._who()}: {groups} scales with {self.bins} bins each take "
                    f"{groups * self.bins >> 27} GiB; take fewer bins (at most {MOST_COUNTS // groups}), "
                    "larger blocks, or method 'minmax'"
                )
            self.histogram = Histogram(groups, self.bins)
        amax = np.maximum(-batch.low, batch.high).reshape(-1)
        values = batch.x if groups == 1 else _grouped(batch)
        self.histogram.add(values.reshape(groups, -1), amax)
        super()._observe(batch)

    def _absorb(self, other: Self) -> None:
        assert self.histogram is not None and other.histogram is not None
        self.histogram.merge(other.histogram)
        super()._absorb(other)

    def _take_over(self, other: Self) -> None:
        assert other.histogram is not None
        self.histogram = Histogram(0, self.bins)
        self.histogram.copy_of(other.histogram)
        super()._absorb(other)

    def _within(self, low: Array, high: Array) -> tuple[Array, Array]:
        """A range of bins, no wider than what was seen."""
        shape = self.low.shape
        return np.maximum(self.low, low.reshape(shape)), np.minimum(self.high, high.reshape(shape))


class Percentile(_Histograms):
    """The least range of whole bins that holds `percentile` % of the elements."""

    method = "percentile"
    defaults: ClassVar[dict[str, Any]] = {"percentile": 99.99, "bins": 4096}

    def __init__(self, where: Layout | Scheme, name: str, options: dict[str, Any]) -> None:
        super().__init__(where, name, options)
        self.percentile = _number("percentile", options, "above 0, at most 100 (a percentage)", 100)

    def _range(self) -> tuple[Array, Array]:
        assert self.histogram is not None
        if not self.symmetric:
            return self._within(*two_sided_percentile(self.histogram, self.percentile))
        t = symmetric_percentile(self.histogram, self.percentile)
        return self._within(-t, t)


class Entropy(_Histograms):
    """The range whose histogram loses least (Kullback-Leibler) when cut to the levels of the element."""

    method = "entropy"
    defaults: ClassVar[dict[str, Any]] = {"bins": 4096}

    def __init__(self, where: Layout | Scheme, name: str, options: dict[str, Any]) -> None:
        super().__init__(where, name, options)
        numbers = self.numbers
        if numbers.quant_min is None or numbers.quant_max is None:
            raise CombinationError(
                f"calibration of {name!r}: 'entropy' compares equal levels, which {numbers.element} has "
                "not; take 'mse' or 'percentile'"
            )
        levels = numbers.quant_max - numbers.quant_min + 1
        self.levels = levels // 2 if self.symmetric else levels
        if self.bins < 4 * self.levels:
            raise CombinationError(
                f"calibration of {name!r}: 'entropy' needs several bins a level, at least "
                f"{4 << (self.levels - 1).bit_length()} for {self.levels} levels of {numbers.element} "
                f"(of at most 65536); bins = {self.bins}. Take more bins, or 'mse'"
            )

    def _range(self) -> tuple[Array, Array]:
        histogram = self.histogram
        assert histogram is not None
        rows, center = (histogram.magnitudes(), 0) if self.symmetric else (histogram.counts, histogram.half)
        reach = np.array([least_divergence(row, center, self.levels) for row in rows])
        t = reach * histogram.width
        return self._within(-t, t)


class MeanSquaredError(MinMax):
    """Of ranges shrunk step by step the one that fake-quantizes a sample with the least squared error."""

    method = "mse"
    defaults: ClassVar[dict[str, Any]] = {"grid": 80, "sample": 1 << 16}
    mergeable = "its samples are drawn from the whole stream; let one observer see all"

    def __init__(self, where: Layout | Scheme, name: str, options: dict[str, Any]) -> None:
        super().__init__(where, name, options)
        self.count = _integer("grid", options, 1, 1024)
        self.most = _integer("sample", options, 64, 1 << 24)
        self.sample: Sample | None = None

    def _observe(self, batch: Batch) -> None:
        values = _grouped(batch)
        groups, _, unit = values.shape
        if self.sample is None:
            size = min(self.most, max(512, MOST_SAMPLES // groups))
            self.sample = Sample(groups, max(1, size // max(unit, 1)), unit, batch.x.dtype)
        elif unit != self.sample.values.shape[2]:
            values, self.sample.values = _same_unit(values, self.sample.values)
        self.sample.add(values)
        super()._observe(batch)

    def _range(self) -> tuple[Array, Array]:
        assert self.sample is not None
        low, high = (
            np.minimum(self.low, 0.0).astype(np.float64),
            np.maximum(self.high, 0.0).astype(np.float64),
        )
        factor = least_squares(self.sample, self.numbers, low, high, self._format(), self.count)
        return low * factor, high * factor


_CLASSES: dict[str, type[Observer]] = {
    cls.method: cls for cls in (MinMax, MovingAverage, Percentile, MeanSquaredError, Entropy)
}
METHODS = tuple(_CLASSES)


# ------------------------------------------------------------------------------------- details


def _grouped(batch: Batch) -> Array:
    """[groups, places, unit] elements of each group.

    affine: [blocks, elements of a block, 1], NaN where a short block has none.
    NVFP4:  [1, blocks, elements of a block], 0 where a short block has none: its amax stays what it is.
    """
    layout = batch.layout
    blocks = blocks_of(NUMPY, batch.x, layout)
    n = blocks.shape[-1]
    if layout.numbers.family == "tensor_scaled":
        return blocks.reshape(1, -1, n)
    if blocks.size != batch.x.size:
        present = blocks_of(NUMPY, np.ones(batch.x.shape, bool), layout)
        blocks = np.where(present, blocks, np.array(np.nan, blocks.dtype))
    return blocks.reshape(-1, n, 1)


def _same_unit(a: Array, b: Array) -> tuple[Array, Array]:
    """Blocks of different length (of a short dimension), padded with zeros to one: no other values."""
    unit = max(a.shape[2], b.shape[2])
    padded = [np.pad(x, [(0, 0), (0, 0), (0, unit - x.shape[2])]) for x in (a, b)]
    return padded[0], padded[1]


def _integer(name: str, options: dict[str, Any], low: int, high: int) -> int:
    value = options[name]
    if not hasattr(value, "__index__") or isinstance(value, bool) or not low <= value < high + 1:
        raise ArgumentError(name, value, f"an integer from {low} to {high}")
    return int(value)


def _number(name: str, options: dict[str, Any], allowed: str, most: float) -> float:
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        raise ArgumentError(name, value, allowed)
    return float(value)
