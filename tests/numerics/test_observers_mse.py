"""MSE against brute force over its grid, with the reference codec."""

from __future__ import annotations

import math

import numpy as np
import pytest

from blockscale.numerics import codec, native
from blockscale.numerics.arrays import TENSOR_DTYPES
from blockscale.numerics.calibration import parameters
from blockscale.numerics.layout import Layout, bind
from blockscale.numerics.scheme import scheme_named
from numerics.observing import (
    F32,
    as_dtype,
    assert_same_params,
    data,
    params,
    seen,
)


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
