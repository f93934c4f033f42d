"""FORMATS and the `ocp` dialect against ml_dtypes, exact rationals and rounding by search."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from blockscale.numerics import codec
from blockscale.numerics.arrays import NUMPY
from blockscale.numerics.codec import Params
from blockscale.numerics.formats import FLOAT_ELEMENTS, FORMATS, MX_ELEMENTS, Format
from blockscale.numerics.layout import bind
from blockscale.numerics.rounding import philox
from blockscale.numerics.scheme import scheme_named
from conformance import cases
from conformance.data import F32, adversarial, affine_ties, assert_same, neighbours, normal
from models import ocp

BITS_DTYPES = {8: np.uint8, 16: np.uint16, 32: np.uint32}
IN_ML_DTYPES = [row for row in FORMATS.values() if row.ml_dtype]
FLOATS = [row for row in IN_ML_DTYPES if row.is_float]


def foreign(row: Format) -> Any:
    return np.dtype(getattr(ml_dtypes, str(row.ml_dtype), row.ml_dtype))


def every_code(row: Format) -> Any:
    if row.bits <= 16:
        return np.arange(1 << row.bits, dtype=np.uint32)
    return np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint64).astype(np.uint32)


@pytest.mark.parametrize("row", IN_ML_DTYPES, ids=lambda row: row.name)
def test_every_code_decodes_as_in_ml_dtypes(row: Format) -> None:
    codes = every_code(row)
    stored = codes.astype(BITS_DTYPES[max(row.bits, 8)])
    dtype = foreign(row)
    if row.is_fixed and row.bits < 8:  # ml_dtypes keeps small integers as a byte with the value
        values = codes.astype(np.int64)
        wraps = (values >> (row.bits - 1) == 1) & row.signed
        expected = np.where(wraps, values - (1 << row.bits), values).astype(dtype).astype(np.float64)
    else:
        with np.errstate(invalid="ignore"):  # signalling NaNs
            expected = stored.view(dtype).astype(np.float64)
    assert_same(row.decode(codes), expected)


@pytest.mark.parametrize("row", FLOATS, ids=lambda row: row.name)
def test_limits_are_those_of_ml_dtypes(row: Format) -> None:
    info = ocp.info(foreign(row))
    assert row.max == float(info.max)
    assert row.smallest == float(info.smallest_subnormal)
    assert (row.mantissa_bits, row.emin) == (info.nmant, info.minexp)
    assert row.emax == int(np.floor(np.log2(float(info.max))))


@pytest.mark.parametrize("row", [FORMATS[name] for name in FLOAT_ELEMENTS], ids=lambda row: row.name)
def test_values_on_the_grid_encode_to_their_codes(row: Format) -> None:
    codes = np.arange(1 << row.bits)
    values = row.decode(codes)
    finite = np.isfinite(values) & (np.abs(values) <= row.max)
    assert_same(codec.float_codes(NUMPY, values[finite], row.name), codes[finite])


@pytest.mark.parametrize("rounding", cases.ROUNDINGS)
@pytest.mark.parametrize("element", MX_ELEMENTS)
def test_every_midpoint_and_its_neighbours(element: str, rounding: str) -> None:
    """With scale 1: grid points, midpoints, the last point and beyond, each ± 0, 1, 2 ulps."""
    grid = ocp.magnitudes(element)
    points = np.concatenate([grid, (grid[1:] + grid[:-1]) / 2, grid[-1:] * 1.5, [3e38, np.inf]])
    x = np.concatenate([neighbours(points, k) for k in (-2, -1, 0, 1, 2)] + [points.astype(F32)])
    x = np.concatenate([x, -x])[None]
    layout = bind(cases.mx(element, rounding=rounding), x.shape)
    one = Params(np.full(layout.scale_shape, 127))
    expected = ocp.nearest(x.astype(np.float64), element, rounding).astype(F32)
    codes, _ = codec.quantize(x, layout, one)
    assert_same(codec.dequantize(codes, layout, one), expected, x)
    assert_same(codec.fake_quantize(x, layout, one), expected, x)
    if rounding == "half_even":
        assert_same(ocp.cast(x.astype(np.float64), element).astype(F32), expected, x)


@pytest.mark.parametrize("output", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("rule", cases.MX_RULES)
@pytest.mark.parametrize("element", MX_ELEMENTS)
def test_ocp_mx_is_a_cast_of_ml_dtypes(element: str, rule: str, output: str) -> None:
    with np.errstate(over="ignore", under="ignore"):
        x = adversarial(element).astype(ocp.OUTPUTS[output])
    layout = bind(cases.mx(element, rule=rule), x.shape)
    codes, params = codec.quantize(x, layout, tensor_format=output)
    finite = np.isfinite(x).all(-1, keepdims=True)
    assert_same(params.scales == 255, ~finite)
    assert not codes[~finite[:, 0]].any()
    expected = ocp.mx(x, element, np.where(finite, params.scales - 127, 0), "half_even", output)
    assert_same(codec.dequantize(codes, layout, params, output), expected, x)
    assert_same(codec.fake_quantize(x, layout, tensor_format=output), expected, x)


@pytest.mark.parametrize("rounding", cases.ROUNDINGS[1:])
@pytest.mark.parametrize("element", MX_ELEMENTS)
def test_ocp_roundings(element: str, rounding: str) -> None:
    x = adversarial(element)
    layout = bind(cases.mx(element, rounding=rounding), x.shape)
    codes, params = codec.quantize(x, layout)
    s = np.where(np.isfinite(x).all(-1, keepdims=True), params.scales - 127, 0)
    expected = ocp.mx(x, element, s, rounding)
    assert_same(codec.dequantize(codes, layout, params), expected, x)
    assert_same(codec.fake_quantize(x, layout), expected, x)


@pytest.mark.parametrize("rule", cases.MX_RULES)
@pytest.mark.parametrize("element", MX_ELEMENTS)
def test_scale_exponents_in_rational_arithmetic(element: str, rule: str) -> None:
    x = adversarial(element, specials=False)[::4]
    maxima = np.unique(np.abs(x).max(-1))
    scales = codec.choose_params(maxima[:, None], bind(cases.mx(element, rule=rule), (maxima.size, 1))).scales
    exact = [ocp.scale_exponent(float(a), element, rule) if a else -127 for a in maxima]
    assert_same(scales[:, 0], np.clip(exact, -127, 127).astype(np.int64) + 127)


@pytest.mark.parametrize("element", MX_ELEMENTS)
def test_rule_mse_by_trying(element: str) -> None:
    x = adversarial(element, specials=False)[::120]
    x = np.concatenate([x, normal(np.random.default_rng(5), 32, 60)])
    scales = codec.choose_params(x, bind(cases.mx(element, rule="mse"), x.shape)).scales
    expected = [ocp.mse_exponent(block, element) + 127 for block in x]
    assert_same(scales[:, 0], np.array(expected, np.int64), message=element)


@pytest.mark.parametrize("tensor_scale", [None, 1.0, 0.37, 1e-3, 2.0**-126, 1e-44, 1e30])
def test_ocp_nvfp4(tensor_scale: float | None) -> None:
    x = adversarial("fp4_e2m1", 16)
    layout = bind(cases.nvfp4(), x.shape)
    given = None if tensor_scale is None else F32(tensor_scale)
    codes, params = codec.quantize(x, layout, tensor_scale=given)
    if given is None:
        given = F32(np.abs(x[np.isfinite(x)]).max() / F32(448 * 6))
        assert params.tensor_scale == given
    scales, values = ocp.nvfp4(x, given)
    assert_same(params.scales, scales.astype(np.int64))
    assert_same(codec.dequantize(codes, layout, params), values, x)
    assert_same(codec.fake_quantize(x, layout, tensor_scale=given), values, x)


@pytest.mark.parametrize(("name", "limits"), cases.AFFINE.items())
def test_ocp_affine(name: str, limits: tuple[int, int]) -> None:
    x, scale, zero = affine_ties(np.random.default_rng(6), (2048, 128), 128, *limits)
    x[:, ::37] = np.nan
    x[:, 1::37] = -np.inf
    base, _, rest = name.partition(",")
    layout = bind(scheme_named(f"{base}-g128,zero_point=true" + (rest and "," + rest)), x.shape)
    codes, values = ocp.affine(x, scale, zero, *limits)
    ours, _ = codec.quantize(x, layout, Params(scale, zero))
    assert_same(ours, codes, x)
    assert_same(codec.dequantize(ours, layout, Params(scale, zero)), values, x)
    assert_same(codec.fake_quantize(x, layout, Params(scale, zero)), values, x)


def test_philox_known_answers() -> None:
    """Random123's published vector, then our lanes of counter = index // 4 under a 64-bit key."""
    assert ocp.philox(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert ocp.philox((1 << 128) - 1, (1 << 64) - 1) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    for seed in (0, 1, 0xDEADBEEF12345678, (1 << 64) - 1):
        for start in (0, 1 << 20, (1 << 34) - 8, (1 << 40) + 4):
            words = philox(NUMPY, seed, start + np.arange(16, dtype=np.int64))
            expected = [word for block in range(4) for word in ocp.philox(start // 4 + block, seed)]
            assert words.tolist() == expected


@pytest.mark.parametrize("element", MX_ELEMENTS)
def test_stochastic_goes_up_when_the_noise_is_below_the_fraction(element: str) -> None:
    x = adversarial(element, specials=False)[::16]
    layout = bind(cases.mx(element, rounding="stochastic"), x.shape)
    params = codec.choose_params(x, layout)
    v = np.ldexp(x.astype(np.float64), 127 - params.scales)
    grid = ocp.magnitudes(element)
    a = np.minimum(np.abs(v), grid[-1])
    below = np.clip(np.searchsorted(grid, a, side="right") - 1, 0, len(grid) - 2)
    low, high = grid[below], grid[below + 1]
    noise = np.array([ocp.philox(i, 7) for i in range(-(-x.size // 4))]).reshape(-1)[: x.size]
    up = noise.reshape(x.shape) < np.floor((a - low) / (high - low) * 2.0**32)
    r = np.copysign(np.where(up | (a >= high), high, low), v)
    expected = np.ldexp(r + 0.0 if element == "mxint8" else r, params.scales - 127).astype(F32)
    assert_same(codec.fake_quantize(x, layout, seed=7), expected, x)
