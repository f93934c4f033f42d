"""min-max and moving average against `choose_params`, their definition and torch; what all methods share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from blockscale.errors import (
    CalibrationError,
)
from blockscale.numerics import native
from blockscale.numerics.arrays import TENSOR_DTYPES
from blockscale.numerics.layout import Layout, bind
from blockscale.numerics.observers import METHODS
from blockscale.numerics.scheme import Scheme, numbers_named, scheme_named
from conformance.data import assert_same
from numerics.observing import (
    F32,
    KINDS,
    LARGEST,
    LEAST,
    TINY,
    Array,
    as_dtype,
    assert_same_params,
    data,
    params,
    seen,
)

NUMBERS = (
    "int8", "int4", "uint8", "uint4", "int8,quant_min=-127", "int8,rule=no_clip", "uint8,rule=symmetric",
    "int8,zero_point=true", "int16", "int8,scale=bf16", "uint8,scale=f16", "fp8_e4m3,scale=f32",
    "int8,dialect=torchao", "uint8,dialect=torchao",
)  # fmt: skip
BLOCKS = ((0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 1, 4), (1, 0, 3), (2, 2, 2), (0, 5, 0), (1, 1, 1), (9, 1, 0))


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
        options = {"percentile": 100} if method == "percentile" else {}
        assert 0 < params(method, scheme_named("uint8"), x, **options).high <= 65504
    assert params("minmax", scheme_named("uint8"), x).high == 65504


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
