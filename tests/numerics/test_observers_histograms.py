"""Percentile against order statistics, entropy bin by bin, and both against onnxruntime's calibrators."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from blockscale.numerics.histograms import Histogram, divergences, least_divergence
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import numbers_named, scheme_named
from numerics.observing import (
    F32,
    KINDS,
    Array,
    assert_same_params,
    data,
    params,
)


@given(hnp.arrays(F32, (2, 30), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_histogram_counts_are_exact_after_growth(x: Array) -> None:
    grown = Histogram(2, 32)
    for column in range(30):
        part = x[:, column : column + 1]
        grown.add(part, np.abs(part[:, 0]))
    for row, counts, width in zip(x, grown.counts, grown.width, strict=True):
        amax = Fraction(float(np.abs(row).max()))
        w = Fraction(float(width))
        expected = [0] * 32
        for value in row:
            expected[math.floor(Fraction(float(value)) / w) + 16] += 1
        assert counts.tolist() == expected
        assert amax < 16 * w
        assert amax >= 8 * w or amax <= Fraction(2) ** -149


def rank(n: int, share: Fraction) -> int:
    return max(1, math.ceil(n * share))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("percent", [0.1, 50, 90, 99, 99.99, 100])
def test_percentile_is_the_order_statistic_within_a_bin(kind: str, percent: float) -> None:
    """Never below the element that must be held, and above it by at most the width of a bin."""
    x = data(kind, (3, 2000))
    width = np.abs(x).max(1).astype(float) / 1024
    share = Fraction(str(percent)) / 100
    found = params("percentile", scheme_named("int8-channel"), x[:, :700], x[:, 700:], percentile=percent)
    for row, low, high, w in zip(x.astype(float), found.low[:, 0], found.high[:, 0], width, strict=True):
        t = np.sort(np.abs(row))[rank(2000, share) - 1]
        for side, most in ((high, row.max()), (-low, -row.min())):
            assert min(t, max(most, 0)) <= side <= min(t + w, max(most, 0))
    found = params("percentile", scheme_named("uint8-channel"), x, percentile=percent)
    k = rank(2000, (1 + share) / 2)
    for row, low, high, w in zip(x.astype(float), found.low[:, 0], found.high[:, 0], width, strict=True):
        for side, data_of in ((high, np.sort(row)), (-low, np.sort(-row))):
            assert max(data_of[k - 1], 0) <= side <= max(min(data_of[k - 1] + w, data_of[-1]), 0)


def test_percentile_100_is_minmax() -> None:
    for kind in KINDS:
        x = data(kind, (5, 33))
        for name in ("int8-channel", "uint8", "int8-channel,rule=no_clip", "int4-g32"):
            scheme = scheme_named(name)
            assert_same_params(params("percentile", scheme, x, percentile=100), params("minmax", scheme, x))


@pytest.mark.parametrize("method", ["percentile", "entropy"])
@pytest.mark.parametrize("numbers", ["int4", "uint4"])
def test_each_group_has_a_histogram_of_its_own(method: str, numbers: str) -> None:
    x = data("heavy", (2, 330))
    layout = Layout(numbers_named(numbers), x.shape, (1, 100))  # the last group holds 30
    found = params(method, layout, x, bins=256)
    for row in range(2):
        for group, columns in enumerate(np.split(x[row], [100, 200, 300])):
            alone = params(method, scheme_named(numbers), columns, bins=256)
            assert found.scales[row, group] == alone.scales
            assert found.low[row, group] == alone.low
            assert found.high[row, group] == alone.high


def test_percentile_rank_is_exact() -> None:
    """99.99 % of 10 000 is 9 999 elements, though 99.99 / 100 · 10000 is more in floating point."""
    x = np.ones((10_000,), F32)
    x[0] = 1000
    assert params("percentile", scheme_named("int8"), x).high < 2
    assert params("percentile", scheme_named("int8"), x[:9_999]).high == 1000


def test_nvfp4_percentile_bounds_the_tensor_scale() -> None:
    x = np.ones((100, 32), F32)
    x[0, 0] = 1000
    t = params("percentile", scheme_named("nvfp4"), x, percentile=99.9).tensor_scale
    assert 1 / 2688 <= t <= (1 + 1000 / 1024) / 2688
    assert params("percentile", scheme_named("nvfp4"), x).tensor_scale == F32(1000 / 2688)


def naive_divergence(counts: Array, a: int, b: int, levels: int) -> float:
    """The definition in the docs, bin by bin."""
    kept = [float(c) for c in counts[a:b]]
    p = list(kept)
    p[0] += float(counts[:a].sum())
    p[-1] += float(counts[b:].sum())
    bins_of: dict[int, list[int]] = {}
    for j in range(b - a):
        if p[j] > 0:
            bins_of.setdefault(j * levels // (b - a), []).append(j)
    q = [0.0] * (b - a)
    for bins in bins_of.values():
        for j in bins:
            q[j] = max(sum(kept[i] for i in bins), 1) / len(bins)
    pairs = [(x / sum(p), y / sum(q)) for x, y in zip(p, q, strict=True) if x > 0]
    return sum(x * math.log(x / y) for x, y in pairs)


@given(
    hnp.arrays(np.int64, st.integers(4, 40), elements=st.integers(0, 50) | st.just(0)).filter(np.any),
    st.integers(1, 9),
    st.integers(0, 40),
)
def test_divergences_are_the_definition(counts: Array, levels: int, center: int) -> None:
    windows = [(a, b) for a in range(len(counts)) for b in range(a + max(2, levels), len(counts) + 1)]
    if windows:
        a, b = np.array(windows).T
        expected = [naive_divergence(counts, *w, levels) for w in windows]
        np.testing.assert_allclose(divergences(counts, a, b, levels), expected, atol=1e-12)
    center = min(center, len(counts))
    used = np.flatnonzero(counts)
    first, last = min(used[0], center), max(used[-1] + 1, center)
    candidates = {}
    for i in range(1, max(center - first, last - center) + 1):
        w = max(center - i, first), min(center + i, last)
        if w[1] - w[0] >= max(levels, 2) and 2 * counts[slice(*w)].sum() >= counts.sum():
            candidates[i] = naive_divergence(counts, *w, levels)
    if candidates:
        best = min(candidates.values())
        chosen = least_divergence(counts, center, levels)
        assert chosen == max(i for i, kl in candidates.items() if kl <= best + 1e-9)


def test_entropy_is_brute_force_over_its_bins() -> None:
    """From data to range with a histogram of its own, small enough for the definition."""
    x = data("heavy", (1, 4000), 3).clip(-39, 39)
    bins, levels = 64, 8
    amax = float(np.abs(x).max())
    width = 2.0 ** (math.floor(math.log2(amax)) + 1) / (bins // 2)
    counts = np.histogram(np.abs(x), np.arange(bins // 2 + 1) * width)[0]
    last = int(np.flatnonzero(counts)[-1]) + 1
    assert 2 * counts[:levels].sum() >= counts.sum()  # every window may be taken
    kl = [naive_divergence(counts, 0, i, levels) for i in range(levels, last + 1)]
    t = (levels + max(i for i, v in enumerate(kl) if v <= min(kl) + 1e-9)) * width
    found = params("entropy", scheme_named("int4"), x, bins=bins)
    assert found.high == F32(min(t, x.max()))
    assert found.low == F32(max(-t, x.min()))
    assert found.high < amax  # it does clip


def test_entropy_clips_outliers_and_keeps_uniform_data() -> None:
    r = np.random.default_rng(0)
    normal = r.standard_normal(200_000).astype(F32)
    normal[:3] = [60, -60, 55]
    for name in ("int8", "uint8"):
        assert 3 < params("entropy", scheme_named(name), normal).high < 30
    uniform = r.uniform(-1, 1, 1_000_000).astype(F32)
    assert params("entropy", scheme_named("int8"), uniform).high > 0.95
    relu = params("entropy", scheme_named("uint8"), np.maximum(normal, 0))
    assert relu.low == 0
    assert relu.high < 30


def test_percentile_and_entropy_are_near_onnxruntimes() -> None:
    """onnxruntime takes the lower edge of the percentile's bin, ours is the upper one: two bins apart.

    Its entropy has 128 levels whatever the type, cuts m // 128 bins a level and leaves the rest to the
    last, smooths zeros and truncates q to integers: near for much and smooth data, not equal.
    """
    calibrate = pytest.importorskip("onnxruntime.quantization.calibrate")
    x = np.random.default_rng(1).standard_t(4, 400_000).astype(F32)
    batches = np.split(x, 4)
    for symmetric, name in ((True, "int8"), (False, "uint8")):
        theirs = calibrate.HistogramCollector("percentile", symmetric, 2048, 128, 99.9, "same")
        for batch in batches:
            theirs.collect({"x": batch})
        low, high = theirs.compute_collection_result()["x"][:2]
        ours = params("percentile", scheme_named(name), *batches, percentile=99.9)
        bin_widths = float(np.abs(x).max()) * (1 / 1024 + 1 / 1024)
        assert abs(ours.high.item() - high) <= bin_widths
        assert abs(ours.low.item() - low) <= bin_widths
    theirs = calibrate.HistogramCollector("entropy", True, 2048, 128, 99.9, "same")
    theirs.collect({"x": x})
    high = theirs.compute_collection_result()["x"][1]
    assert params("entropy", scheme_named("int8"), x).high.item() == pytest.approx(high, rel=0.5)
