"""A bounded sample of a stream, and the shrunken range that serves it best.

The sample keeps the elements with the smallest random keys: a uniform sample without replacement of
all that was seen, and everything as long as it fits. All groups keep the same places, so
choosing costs one key a place, not one an element. The keys are those of a fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from blockscale.numerics import native
from blockscale.numerics.arrays import Array
from blockscale.numerics.calibration import Calibrated, parameters
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import Numbers

SEED = 0x5EED
OCTAVE = 16  # ranges of the grid to a factor of two


class Sample:
    """values [groups, places, unit]: at most `size` places of the stream, in its order."""

    def __init__(self, groups: int, size: int, unit: int, dtype: object) -> None:
        self.size = size
        self.values = np.empty((groups, 0, unit), dtype)  # type: ignore[call-overload]
        self.keys = np.empty(0)
        self.random = np.random.default_rng(SEED)

    def add(self, values: Array) -> None:
        """values [groups, n, unit], NaN where a short block has no element."""
        old = len(self.keys)
        keys = np.concatenate([self.keys, self.random.random(values.shape[1])])
        kept = np.arange(len(keys))
        if len(keys) > self.size:
            kept = np.sort(np.argpartition(keys, self.size - 1)[: self.size])
        before, new = kept[kept < old], kept[kept >= old] - old
        self.values = np.concatenate([self.values[:, before], values[:, new]], 1)
        self.keys = keys[kept]


def shrinks(count: int) -> Array:
    """Factors 1, 2^(-1/16), 2^(-2/16), … of the range."""
    return np.exp2(-np.arange(count) / OCTAVE)


def best_shrink(errors: Callable[[float], Array], count: int) -> Array:
    """For each group the factor of least error; of equal ones the largest."""
    best = least = None
    for factor in shrinks(count):
        error = errors(float(factor))
        if best is None or least is None:
            best, least = np.full(error.shape, factor), error
        else:
            better = error < least
            best, least = np.where(better, factor, best), np.where(better, error, least)
    assert best is not None
    return best


def squared_errors(values: Array, numbers: Numbers, params: Calibrated) -> Array:
    """[groups]: sum of (fake_quantize(x) - x)² over values [groups, places, unit], in float64.

    affine: one scale a group. NVFP4: one group, whose units are blocks.
    """
    if numbers.rounding == "stochastic":
        numbers = replace(numbers, rounding="half_even")  # the noise is the same for every range
    groups, places, unit = values.shape
    if params.tensor_scale is not None:
        layout = Layout(numbers, (groups * places, unit), (1, 0))
        y = native.fake_quantize(
            values.reshape(layout.shape), layout, tensor_scale=float(params.tensor_scale)
        )
    else:
        layout = Layout(numbers, (groups, places * unit), (1, 0))
        zeros = None if params.zero_points is None else params.zero_points.reshape(-1, 1)
        stored = native.Stored(params.scales.reshape(-1, 1), zeros)
        y = native.fake_quantize(values.reshape(layout.shape), layout, stored)
    x = values.reshape(groups, -1).astype(np.float64)
    error = y.reshape(groups, -1).astype(np.float64) - x
    error[np.isnan(x)] = 0
    return np.einsum("gn,gn->g", error, error)


def least_squares(
    sample: Sample, numbers: Numbers, low: Array, high: Array, tensor_format: str, count: int
) -> Array:
    """Factor of (low, high), of shape low.shape, with the least squared error over the sample."""

    def errors(factor: float) -> Array:
        params = parameters(numbers, low * factor, high * factor, tensor_format)
        return squared_errors(sample.values, numbers, params)

    return best_shrink(errors, count).reshape(low.shape)
