"""Codes and scales times a factor: decoded they are the product, or there is a reason for none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockscale.numerics import native
from blockscale.numerics.layout import Layout, bind
from blockscale.numerics.scaled import by_block, differs, scaled
from blockscale.numerics.scheme import scheme_named
from numerics.moving import tensor

SHAPE = (6, 40)
SCHEMES = ("mxfp4", "mxfp6", "mxfp8", "mxint8", "nvfp4", "int8", "int8-channel", "uint8-channel", "int4-g16",
           "uint3-token", "int16", "fp8_e4m3-channel", "int8-channel,scale=bf16", "uint8,quant_min=3")  # fmt: skip
ROWS = np.array([[1.0], [2.0], [0.5], [4.0], [1.0], [0.125]])


def quantized(scheme: str, shape: tuple[int, ...] = SHAPE) -> tuple[Layout, Any, native.Stored]:
    layout = bind(scheme_named(scheme), shape)
    x = np.nan_to_num(tensor(3, shape), nan=1.0, posinf=2.0, neginf=-2.0).clip(-50, 50).astype(np.float32)
    return (layout, *native.quantize(x, layout))


def times(scheme: str, factor: Any) -> tuple[Any, Any] | str:
    """Decoded values before and after."""
    layout, codes, stored = quantized(scheme)
    made = scaled(layout, codes, stored, np.asarray(factor, np.float64))
    if isinstance(made, str):
        return made
    return native.dequantize(codes, layout, stored), native.dequantize(made[0], layout, made[1])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("factor", [1.0, 2.0, 0.25, 2.0**-9])
def test_powers_of_two_are_exact(scheme: str, factor: float) -> None:
    found = times(scheme, factor)
    assert not isinstance(found, str)
    assert not differs(*found, np.float64(factor), "exact")


@pytest.mark.parametrize(
    "scheme", ["mxfp4", "mxint8", "int8-channel", "uint8-channel", "int4-g16", "uint3-token"]
)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_factor_for_each_row(scheme: str, sign: int) -> None:
    found = times(scheme, ROWS * sign)
    if isinstance(found, str):
        assert "no counterpart" in found and sign < 0
        return
    assert not differs(*found, ROWS * sign, "exact" if sign > 0 else "close")


@pytest.mark.parametrize(
    "scheme", ["int8", "int8-channel", "uint8-channel", "nvfp4", "fp8_e4m3-channel", "int16"]
)
@pytest.mark.parametrize("factor", [0.1, 3.0, 1e-5])
def test_other_factors_are_close(scheme: str, factor: float) -> None:
    found = times(scheme, factor)
    assert not isinstance(found, str)
    assert differs(*found, np.float64(factor), "exact")
    assert not differs(*found, np.float64(factor), "close")


def test_a_scale_of_few_bits_is_not_close() -> None:
    found = times("int8-channel,scale=bf16", 0.1)
    assert not isinstance(found, str)
    assert differs(*found, np.float64(0.1), "close")


@pytest.mark.parametrize("scheme", ["uint8-channel", "uint3-token", "uint8,quant_min=3", "uint4-g32"])
def test_a_negative_factor_reflects_codes_and_zero_points(scheme: str) -> None:
    layout, codes, stored = quantized(scheme)
    made = scaled(layout, codes, stored, np.float64(-2.0))
    assert not isinstance(made, str)
    assert stored.zero_points is not None and made[1].zero_points is not None
    low, high = layout.numbers.quant_min, layout.numbers.quant_max
    np.testing.assert_array_equal(made[1].zero_points, low + high - stored.zero_points)
    native.check_params(made[1], layout)
    before, after = native.dequantize(codes, layout, stored), native.dequantize(*_swap(made, layout))
    np.testing.assert_array_equal(after, before * -2.0)


def _swap(made: tuple[Any, native.Stored], layout: Layout) -> tuple[Any, Layout, native.Stored]:
    return made[0], layout, made[1]


@pytest.mark.parametrize("scheme", ["mxfp4", "mxfp6", "mxfp8", "nvfp4", "fp8_e4m3-channel"])
def test_floats_have_a_sign_bit(scheme: str) -> None:
    found = times(scheme, -1.0)
    assert not isinstance(found, str)
    assert not differs(*found, np.float64(-1.0), "exact")


def test_a_code_without_a_counterpart() -> None:
    layout = bind(scheme_named("int8,dynamic=false"), (1, 3))
    codes, stored = np.array([[-128, 0, 127]], np.int8), native.Stored(np.ones((1, 1), np.float32))
    assert "no counterpart" in str(scaled(layout, codes, stored, np.float64(-1.0)))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_factor_of_zero_leaves_the_code_of_zero(scheme: str) -> None:
    factor = (
        ROWS * [[1], [0], [1], [1], [1], [1]] if "nvfp4" not in scheme and by_rows(scheme) else np.zeros(())
    )
    found = times(scheme, factor)
    assert not isinstance(found, str)
    before, after = found
    np.testing.assert_array_equal(after, before * factor)


def by_rows(scheme: str) -> bool:
    return not isinstance(by_block(bind(scheme_named(scheme), SHAPE), ROWS), str)


def test_a_factor_within_blocks_is_refused() -> None:
    """Error 12: a factor [K] against scales [N, 1] must not make scales [N, K]."""
    layout, codes, stored = quantized("int8-channel")
    made = scaled(layout, codes, stored, np.linspace(1, 2, 40))
    assert "differs within blocks" in str(made)
    same = scaled(layout, codes, stored, np.full(40, 2.0))
    assert not isinstance(same, str) and same[1].scales.shape == (6, 1)


def test_a_factor_for_each_group() -> None:
    layout, codes, stored = quantized("int4-g16")
    factor = np.repeat([1.0, 2.0, 4.0], [16, 16, 8])
    made = scaled(layout, codes, stored, factor)
    assert not isinstance(made, str) and made[1].scales.shape == (6, 3)
    before, after = native.dequantize(codes, layout, stored), native.dequantize(*_swap(made, layout))
    assert not differs(before, after, factor, "exact")


@pytest.mark.parametrize(("scheme", "factor", "why"), [
    ("mxfp4", 3.0, "none"), ("mxfp4", 2.0**200, "E8M0"), ("mxfp4", 2.0**-200, "E8M0"), ("nvfp4", ROWS, "coarse"),
    ("int8", 1e-40, "range"), ("int8", 1e39, "range"), ("int8", np.inf, "finite"), ("nvfp4", 1e-45, "range"),
])  # fmt: skip
def test_factors_beyond_the_scales(scheme: str, factor: Any, why: str) -> None:
    assert why in str(times(scheme, factor))


def test_nan_blocks_stay_nan() -> None:
    layout = bind(scheme_named("mxfp4"), (1, 64))
    x = np.ones((1, 64), np.float32)
    x[0, 3] = np.nan
    codes, stored = native.quantize(x, layout)
    made = scaled(layout, codes, stored, np.float64(8.0))
    assert not isinstance(made, str)
    np.testing.assert_array_equal(made[1].scales, [[255, 128]])
