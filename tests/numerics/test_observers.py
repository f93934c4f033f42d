"""Observers against brute force, against `choose_params`, and against the calibrators of others."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conformance.data import assert_same
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from blockscale.errors import (
    ArgumentError,
    CalibrationError,
    CombinationError,
    DtypeError,
    UnknownNameError,
)
from blockscale.numerics import codec, native
from blockscale.numerics.arrays import TENSOR_DTYPES
from blockscale.numerics.calibration import parameters
from blockscale.numerics.histograms import Histogram, divergences, least_divergence
from blockscale.numerics.layout import Layout, bind
from blockscale.numerics.observers import METHODS, observer
from blockscale.numerics.scheme import Scheme, numbers_named, scheme_named

Array = Any
F32 = np.float32
TINY, LEAST, LARGEST = F32(2.0**-126), F32(2.0**-149), np.finfo(F32).max

NUMBERS = (
    "int8", "int4", "uint8", "uint4", "int8,quant_min=-127", "int8,rule=no_clip", "uint8,rule=symmetric",
    "int8,zero_point=true", "int16", "int8,scale=bf16", "uint8,scale=f16", "fp8_e4m3,scale=f32",
    "int8,dialect=torchao", "uint8,dialect=torchao",
)  # fmt: skip
BLOCKS = ((0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 1, 4), (1, 0, 3), (2, 2, 2), (0, 5, 0), (1, 1, 1), (9, 1, 0))


def seen(method: str, where: Layout | Scheme, *batches: Array, **options: Any) -> Any:
    o = observer(method, where, name="x", **options)
    for x in batches:
        o.update(x)
    return o


def params(method: str, where: Layout | Scheme, *batches: Array, **options: Any) -> Any:
    return seen(method, where, *batches, **options).finish()


def assert_same_params(ours: Any, theirs: Any) -> None:
    for field in ("scales", "zero_points", "tensor_scale"):
        a, b = getattr(ours, field), getattr(theirs, field)
        assert (a is None) == (b is None), field
        if a is not None:
            assert a.dtype == b.dtype, field
            assert_same(a, b, message=field)


def data(kind: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    r = np.random.default_rng(seed)
    x = r.standard_normal(shape)
    with np.errstate(over="ignore"):
        return {
            "normal": lambda: x,
            "positive": lambda: np.abs(x) + 1,
            "negative": lambda: -np.abs(x) - 1,
            "relu": lambda: np.maximum(x, 0),
            "heavy": lambda: x * np.exp2(r.normal(0, 6, shape)),
            "zero": lambda: x * 0,
            "constant": lambda: x * 0 - 2.5,
            "subnormal": lambda: r.integers(-9, 9, shape) * 2.0**-149,
            "huge": lambda: np.clip(x * 2.0**127, -LARGEST, LARGEST),
        }[kind]().astype(F32)


KINDS = ("normal", "positive", "negative", "relu", "heavy", "zero", "constant", "subnormal", "huge")


def as_dtype(x: Array, name: str) -> Array:
    top = float(ml_dtypes.finfo(TENSOR_DTYPES[name]).max)
    return np.clip(x, -top, top).astype(TENSOR_DTYPES[name])


# --------------------------------------------------------------------------------------- min-max


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("numbers", NUMBERS)
def test_minmax_is_choose_params(numbers: str, block: tuple[int, ...]) -> None:
    layout = Layout(numbers_named(numbers), (4, 5, 7), block)
    for kind in KINDS:
        for dtype in TENSOR_DTYPES:
            x = as_dtype(data(kind, layout.shape), dtype)
            assert_same_params(params("minmax", layout, x), native.choose_params(x, layout))


@pytest.mark.parametrize("kind", KINDS)
def test_minmax_is_choose_params_nvfp4(kind: str) -> None:
    for shape in ((3, 40), (16,), (1,), (2, 3, 5)):
        x = data(kind, shape)
        found = params("minmax", scheme_named("nvfp4"), x)
        chosen = native.choose_params(x, bind(scheme_named("nvfp4"), shape))
        assert found.scales is None
        assert_same(found.tensor_scale, chosen.tensor_scale)


def test_minmax_of_batches_is_that_of_all() -> None:
    x = data("heavy", (6, 50))
    per_channel = Layout(numbers_named("uint8"), (6, 1), (1, 0))  # the second dimension is whole: any size
    batches = np.split(x, [3, 4, 20, 20], axis=1)
    assert batches[3].size == 0
    whole = native.choose_params(x, per_channel.with_shape(x.shape))
    assert_same_params(params("minmax", per_channel, *batches), whole)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -3.0, LEAST, -TINY, LARGEST, -LARGEST])
def test_single_elements_and_constants_are_their_own_range(method: str, value: float) -> None:
    for shape in ((), (1,), (2, 3)):
        x = np.full(shape, value, F32)
        for name in ("int8", "uint8"):
            found = params(method, scheme_named(name), x, x)
            chosen = native.choose_params(x, bind(scheme_named(name), shape))
            if method == "mse":  # a smaller range may round better, never worse
                layout = bind(scheme_named(name), shape)
                errors = [
                    np.abs(native.fake_quantize(x, layout, native.Stored(p.scales, p.zero_points)) - x).max()
                    for p in (found, chosen)
                ]
                assert errors[0] <= errors[1]
            else:
                assert_same_params(found, chosen)


@pytest.mark.parametrize("method", METHODS)
def test_parameters_decode(method: str) -> None:
    """Whatever was seen, the result is taken as static parameters and gives finite values."""
    for kind in KINDS:
        for dtype in TENSOR_DTYPES:
            x = as_dtype(data(kind, (3, 64)), dtype)
            for name in ("int8", "uint8-channel", "int4-g32,rule=no_clip", "int8,scale=f16"):
                layout = bind(scheme_named(name), x.shape)
                found = params(method, scheme_named(name), x)
                y = native.fake_quantize(x, layout, native.Stored(found.scales, found.zero_points))
                assert np.isfinite(y.astype(F32)).all()


def test_float16_is_widened_before_it_is_compared() -> None:
    x = np.array([[65504, -65504, 6e-8]], np.float16)
    for method in METHODS:
        found = params(method, scheme_named("uint8"), x, percentile=100) if method == "percentile" else params(
            method, scheme_named("uint8"), x)  # fmt: skip
        assert 0 < found.high <= 65504
    assert params("minmax", scheme_named("uint8"), x).high == 65504


# ------------------------------------------------------------------------------- moving average


def test_moving_average_is_the_recurrence() -> None:
    batches = [data("normal", (3, n), n) + F32(n / 10) for n in (5, 8, 40, 3)]
    low, high = batches[0].min(1).astype(float), batches[0].max(1).astype(float)
    for x in batches[1:]:
        low, high = low + 0.3 * (x.min(1) - low), high + 0.3 * (x.max(1) - high)
    found = params("moving_average", scheme_named("uint8-channel"), *batches, averaging_constant=0.3)
    assert_same(found.low[:, 0], np.minimum(low, 0).astype(F32))
    assert_same(found.high[:, 0], np.maximum(high, 0).astype(F32))


def test_moving_average_and_minmax_are_torchs() -> None:
    """torch averages in float32; its affine range includes 0 as ours does, its eps is given it."""
    torch = pytest.importorskip("torch")
    ao = torch.ao.quantization
    batches = [data("normal", (2, 3, 20), s) * F32(1 + s) for s in range(6)]
    for ours, theirs in (
        ("minmax", ao.MinMaxObserver(dtype=torch.quint8, qscheme=torch.per_tensor_affine, eps=2.0**-126)),
        ("moving_average", ao.MovingAverageMinMaxObserver(dtype=torch.quint8, averaging_constant=0.05)),
    ):
        for x in batches:
            theirs(torch.from_numpy(x))
        options = {"averaging_constant": 0.05} if ours == "moving_average" else {}
        o = seen(ours, scheme_named("uint8"), *batches, **options)
        found = o.finish()
        close = {"rtol": 0 if ours == "minmax" else 2e-6}
        np.testing.assert_allclose(found.low.item(), theirs.min_val.item(), **close)
        np.testing.assert_allclose(found.high.item(), theirs.max_val.item(), **close)
        scale, zero = theirs.calculate_qparams()
        np.testing.assert_allclose(found.scales.item(), scale.item(), **close)
        assert found.zero_points.item() == zero.item()


def test_per_channel_minmax_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.ao.quantization.PerChannelMinMaxObserver(
        ch_axis=1, dtype=torch.qint8, qscheme=torch.per_channel_symmetric, eps=2.0**-126
    )
    batches = [data("heavy", (4, 3, 5), s) for s in range(3)]
    for x in batches:
        theirs(torch.from_numpy(x))
    found = params("minmax", Scheme(element="int8", scale="f32", axis=1, block=1, others=0), *batches)
    assert_same(found.scales.reshape(-1), theirs.calculate_qparams()[0].numpy())


# ---------------------------------------------------------------------------------- percentile


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


# ------------------------------------------------------------------------------------- entropy


def naive_divergence(counts: Array, a: int, b: int, levels: int) -> float:
    """The definition in the docs, bin by bin."""
    p = [float(c) for c in counts[a:b]]
    kept = list(p)
    p[0] += float(counts[:a].sum())
    p[-1] += float(counts[b:].sum())
    m = b - a
    level = [j * levels // m for j in range(m)]
    q = []
    for j in range(m):
        inside = [i for i in range(m) if level[i] == level[j]]
        filled = sum(p[i] > 0 for i in inside)
        q.append(sum(kept[i] for i in inside) / filled if p[j] > 0 else 0.0)
    if any(x > 0 and y == 0 for x, y in zip(p, q, strict=True)):
        return math.inf
    return sum(x / sum(p) * math.log((x / sum(p)) / (y / sum(q))) for x, y in zip(p, q, strict=True) if x > 0)


@given(
    hnp.arrays(np.int64, st.integers(4, 40), elements=st.integers(0, 50) | st.just(0)).filter(lambda c: c.any()),
    st.integers(1, 9), st.integers(0, 40),
)  # fmt: skip
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
        if w[1] - w[0] >= max(levels, 2):
            candidates[i] = naive_divergence(counts, *w, levels)
    if candidates:
        best = min(candidates.values())
        chosen = least_divergence(counts, center, levels)
        assert chosen == max(i for i, kl in candidates.items() if kl <= best + 1e-9)


def test_entropy_is_brute_force_over_its_bins() -> None:
    """From data to range with a histogram of its own, small enough for the definition."""
    x = data("heavy", (1, 4000), 3).clip(-40, 40)
    bins, levels = 64, 8
    amax = float(np.abs(x).max())
    width = 2.0 ** (math.floor(math.log2(amax)) + 1) / (bins // 2)
    counts = np.histogram(np.abs(x), np.arange(bins // 2 + 1) * width)[0]
    last = int(np.flatnonzero(counts)[-1]) + 1
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


# ----------------------------------------------------------------------------------------- mse


@pytest.mark.parametrize("name", ["int4", "uint4", "int4-channel", "int4-g32", "uint4-channel", "int8"])
@pytest.mark.parametrize("dtype", TENSOR_DTYPES)
def test_mse_is_brute_force_over_its_grid(name: str, dtype: str) -> None:
    """While the sample holds all data. The reference codec fake-quantizes, one group at a time."""
    x = as_dtype(data("heavy", (3, 80)).clip(-20, 20), dtype)
    scheme = scheme_named(name)
    layout = bind(scheme, x.shape)
    found = params("mse", scheme, x, grid=40)
    extents = [n if b == 0 else b for n, b in zip(x.shape, layout.block, strict=True)]
    for at in np.ndindex(layout.scale_shape):
        piece = x[tuple(slice(i * e, (i + 1) * e) for i, e in zip(at, extents, strict=True))].reshape(1, -1)
        wide = piece.astype(np.float64)
        whole = Layout(layout.numbers, piece.shape, (0, 0))
        errors = []
        for k in range(40):
            low, high = min(wide.min(), 0) * 2 ** (-k / 16), max(wide.max(), 0) * 2 ** (-k / 16)
            p = parameters(layout.numbers, np.full((1, 1), low), np.full((1, 1), high), dtype)
            zeros = None if p.zero_points is None else p.zero_points.astype(np.int64)
            reference = codec.Params(p.scales.astype(np.float64), zeros)
            y = codec.fake_quantize(piece, whole, reference, tensor_format=dtype)
            errors.append((((y.astype(np.float64) - wide) ** 2).sum(), p.scales.item()))
        chosen = [e for e, scale in errors if F32(scale) == F32(found.scales[at])]
        assert min(chosen) <= min(e for e, _ in errors) * (1 + 1e-12)


def test_mse_beats_minmax_on_outliers_and_is_deterministic() -> None:
    x = data("normal", (64, 4096))
    x[0, 0] = 30
    scheme, layout = scheme_named("int4"), bind(scheme_named("int4"), x.shape)
    found = params("mse", scheme, *np.split(x, 8))
    wide = params("minmax", scheme, x)
    errors = [
        float(np.square(native.fake_quantize(x, layout, native.Stored(p.scales)) - x).mean())
        for p in (found, wide)
    ]
    assert errors[0] < errors[1] / 5
    assert_same_params(found, params("mse", scheme, *np.split(x, 8)))


def test_mse_keeps_a_bounded_uniform_sample() -> None:
    o = seen("mse", scheme_named("int8"), *np.split(np.arange(100_000, dtype=F32), 10), sample=1000)
    kept = o.sample.values.reshape(-1)
    assert kept.shape == (1000,)
    assert len(np.unique(kept)) == 1000
    assert abs(kept.mean() - 50_000) < 4 * 100_000 / math.sqrt(12 * 1000)
    assert abs((kept < 10_000).sum() - 100) < 40  # the first batch has its share


@pytest.mark.parametrize("widths", [(64, 64), (64, 40, 8)])
def test_mse_of_nvfp4_is_brute_force_over_its_grid(widths: tuple[int, ...]) -> None:
    scheme = scheme_named("nvfp4")
    batches = [data("heavy", (4, w), w) for w in widths]
    amax = max(np.abs(x).max() for x in batches)
    errors = {}
    for k in range(80):
        t = parameters(scheme.numbers, np.float64(0), np.float64(amax) * 2 ** (-k / 16), "f32").tensor_scale
        ys = [native.fake_quantize(x, bind(scheme, x.shape), tensor_scale=float(t)) for x in batches]
        pairs = zip(ys, batches, strict=True)
        errors[float(t)] = sum(np.square(y.astype(float) - x).sum() for y, x in pairs)
    found = float(params("mse", scheme, *batches).tensor_scale)
    assert errors[found] <= min(errors.values()) * (1 + 1e-12)


# --------------------------------------------------------------------------- laws of merging

finite = st.floats(-(2.0**120), 2.0**120, width=32) | st.floats(-1, 1, width=32) | st.just(0.0)
rows = st.integers(1, 12).flatmap(lambda n: hnp.arrays(F32, (3, n), elements=finite))
batches_of = st.lists(rows, min_size=0, max_size=4)


@given(batches_of, batches_of, st.sampled_from(["minmax", "percentile", "entropy"]), st.booleans())
def test_merged_parts_are_the_whole(a: list[Array], b: list[Array], method: str, symmetric: bool) -> None:
    scheme = scheme_named("int4-channel" if symmetric else "uint4-channel")
    options: dict[str, Any] = {} if method == "minmax" else {"bins": 64}
    if method == "percentile":
        options["percentile"] = 80
    merged = seen(method, scheme, *a, **options)
    other = seen(method, scheme, *b, **options)
    merged.merge(other)
    whole = seen(method, scheme, *b, *a, **options)  # in another order, too
    if not a + b:
        with pytest.raises(CalibrationError):
            merged.finish()
        return
    assert_same_params(merged.finish(), whole.finish())
    if method != "minmax":
        assert_same(merged.histogram.counts, whole.histogram.counts)
        assert_same(merged.histogram.exponent, whole.histogram.exponent)
    if b:
        before = other.finish()
        merged.update(np.full((3, 2), 2.0**121, F32))
        assert_same_params(other.finish(), before)  # nothing is shared


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


# -------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", TENSOR_DTYPES)
def test_not_finite_names_tensor_batch_and_place(method: str, bad: float, dtype: str) -> None:
    for name in ("int8", "uint8-channel", "nvfp4", "int4-g32"):
        if (method, name) == ("entropy", "nvfp4"):
            continue
        o = observer(method, scheme_named(name), name="layers.0.q_proj.input")
        good = as_dtype(data("normal", (4, 70)), dtype)
        o.update(good)
        x = good.copy()
        x[2, 69] = bad
        with pytest.raises(CalibrationError, match=r"'layers\.0\.q_proj\.input', batch 2.*at \(2, 69\)"):
            o.update(x)
        assert_same_params(o.finish(), params(method, scheme_named(name), good))  # as if it had not been


@pytest.mark.parametrize("method", METHODS)
def test_nothing_seen(method: str) -> None:
    with pytest.raises(CalibrationError, match="'x' has seen no batch.*calibration set.*MX"):
        params(method, scheme_named("int8"))
    with pytest.raises(CalibrationError, match="2 batches without elements"):
        params(method, scheme_named("int8"), np.ones((0, 3), F32), np.ones((2, 0), F32))


def test_wrong_names() -> None:
    int8 = scheme_named("int8")
    with pytest.raises(UnknownNameError, match="did you mean 'percentile'"):
        observer("percentil", int8)
    with pytest.raises(UnknownNameError, match="did you mean 'averaging_constant'"):
        observer("moving_average", int8, averaging_const=0.1)
    with pytest.raises(ArgumentError, match="no options"):
        observer("minmax", int8, bins=64)
    with pytest.raises(CombinationError, match="'w'.*MX needs no calibration"):
        observer("minmax", scheme_named("mxfp4"), name="w")
    for method, option, values in (
        ("percentile", "percentile", (0, -1, 100.5, "99", True, math.nan)),
        ("percentile", "bins", (100, 8, 1 << 17, 64.0, True)),
        ("moving_average", "averaging_constant", (0, 1.5, math.nan)),
        ("mse", "grid", (0, 5000, 2.5)),
        ("mse", "sample", (0, 1 << 30)),
    ):
        for value in values:
            with pytest.raises(ArgumentError, match=option):
                observer(method, int8, **{option: value})


def test_entropy_refuses_what_has_no_levels() -> None:
    with pytest.raises(CombinationError, match="equal levels, which fp8_e4m3 has not"):
        observer("entropy", scheme_named("fp8_e4m3"))
    with pytest.raises(CombinationError, match="fp4_e2m1"):
        observer("entropy", scheme_named("nvfp4"))
    with pytest.raises(CombinationError, match="at least 8192 for 2048 levels"):
        observer("entropy", scheme_named("int12"))
    observer("entropy", scheme_named("int12"), bins=8192)


def test_shapes_that_do_not_fit() -> None:
    o = seen("minmax", scheme_named("int8-token"), np.ones((4, 8), F32))
    with pytest.raises(
        CalibrationError, match=r"'x', batch 2 .*\(5, 8\).*each index of dimension 0 has 4 of them"
    ):
        o.update(np.ones((5, 8), F32))
    o.update(np.ones((4, 9), F32))
    o = seen("minmax", scheme_named("int8-g32"), np.ones((4, 64), F32))
    o.update(np.ones((4, 40), F32))  # two groups as before
    with pytest.raises(CalibrationError, match="each 32 indices of dimension 1"):
        o.update(np.ones((4, 65), F32))
    with pytest.raises(CalibrationError, match="2 dimensions are wanted"):
        o.update(np.ones((1, 4, 64), F32))
    layout = Layout(numbers_named("int8"), (4, 8), (1, 0))
    with pytest.raises(CalibrationError, match="batch 1 .*dimension 0"):
        seen("minmax", layout, np.ones((3, 8), F32))
    with pytest.raises(CalibrationError, match="2 dimensions are wanted"):
        seen("minmax", layout, np.ones((4,), F32))
    with pytest.raises(CalibrationError, match="batch 1: axis"):
        seen("minmax", scheme_named("int4-g32,zero_point=true"), np.ones((), F32), np.ones((), F32)) and seen(
            "minmax", Scheme(element="int8", scale="f32", axis=2, block=1, others=0), np.ones((3, 3), F32))  # fmt: skip
    nvfp4 = seen("minmax", scheme_named("nvfp4"), np.ones((4, 8), F32), np.ones((2, 3, 32), F32) * 2)
    assert nvfp4.finish().tensor_scale == F32(2 / 2688)  # one scale for any shape


def test_wrong_arrays() -> None:
    for x in (np.ones(3), np.ones(3, np.int32), [1.0]):
        with pytest.raises(DtypeError, match="cast it first"):
            seen("minmax", scheme_named("int8"), x)
    with pytest.raises(DtypeError, match="as in the batches before"):
        seen("minmax", scheme_named("int8"), np.ones(3, F32), np.ones(3, np.float16))


def test_too_many_bins() -> None:
    x = np.ones((1 << 14, 8), F32)
    with pytest.raises(CombinationError, match="fewer bins"):
        seen("percentile", scheme_named("int8-channel"), x, bins=1 << 14)


def test_merges_that_have_no_law() -> None:
    x = np.ones((2, 3), F32)
    int8 = scheme_named("int8")
    for method in ("moving_average", "mse"):
        with pytest.raises(CombinationError, match="do not merge"):
            seen(method, int8, x).merge(seen(method, int8, x))
    a = seen("percentile", int8, x)
    for other in (seen("minmax", int8, x), seen("percentile", int8, x, bins=64), seen(
            "percentile", scheme_named("int8-channel"), x)):  # fmt: skip
        with pytest.raises(CombinationError, match="one method, scheme and options"):
            a.merge(other)
    channel = scheme_named("int8-channel")
    with pytest.raises(CalibrationError, match="do not fit"):
        seen("minmax", channel, x).merge(seen("minmax", channel, np.ones((3, 3), F32)))
    with pytest.raises(DtypeError):
        seen("minmax", int8, x).merge(seen("minmax", int8, x.astype(np.float16)))
