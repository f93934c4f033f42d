"""Codes that are decoded and quantized again: what `lost` and `drifts` promise, tried on every code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from blockscale.numerics import native
from blockscale.numerics.formats import MX_ELEMENTS
from blockscale.numerics.layout import Layout
from blockscale.numerics.packing import pack
from blockscale.numerics.round_trip import drifts, lost
from blockscale.numerics.scheme import numbers_named

STATIC = "int8,dynamic=false"


def stored(*scales: float, zero: int | None = None, dtype: type = np.float32) -> native.Stored:
    zeros = None if zero is None else np.full(len(scales), zero, np.int32)
    return native.Stored(np.array(scales, dtype), zeros)


INTEGERS = ("int8", "uint8", "int4", "uint3", "int16", "uint12")


@pytest.mark.parametrize("name", [*INTEGERS, "fp8_e4m3", "fp4_e2m1"])
@pytest.mark.parametrize("scale", [1.0, 0.1, 1e-30, 2.0**-149, 3.3e-44, 1e30])
def test_codes_survive_in_float32(name: str, scale: float) -> None:
    numbers = numbers_named(f"{name},dynamic=false")
    zero = 3 if numbers.zero_point else None
    why = lost(numbers, stored(scale, scale * 1.3, zero=zero), "f32", made=True)
    assert not why or (scale < 1e-40 and name not in INTEGERS)  # fractions of a subnormal


def mantissas(step: int) -> np.ndarray:
    bits = np.uint32(127 << 23) + np.arange(0, 1 << 23, step, dtype=np.uint32)
    return bits.view(np.float32)


def divided_again(scales: np.ndarray, n: int) -> np.ndarray:
    x = np.float32(n) * scales
    return np.rint(x / scales)


def test_integers_survive_every_scale_in_float32() -> None:
    """A power of two changes nothing, so a mantissa stands for all exponents without overflow."""
    scales = mantissas(1009)
    for n in (*range(1, 256), 32767, 32768, 65535):
        assert (divided_again(scales, n) == n).all()


@pytest.mark.full
def test_integers_survive_every_mantissa_in_float32() -> None:
    scales = mantissas(1)
    for n in range(1, 256):
        assert (divided_again(scales, n) == n).all()


@pytest.mark.parametrize(
    ("name", "given", "tensor_format", "why"),
    [
        ("int8,dynamic=false", stored(3e36), "f32", "int8"),  # 127 · s is beyond float32
        ("uint8,dynamic=false,rule=symmetric", stored(300.0, zero=0), "f16", "f16"),  # beyond float16
        ("int8,dynamic=false", stored(1e-8), "f16", "f16"),  # below it
        ("int16,dynamic=false", stored(0.1), "bf16", "bf16"),
        ("int8,dynamic=false,rounding=toward_zero", stored(0.1, 0.3, 0.7, 1e-3), "f32", "survives"),
        ("int8,dynamic=false,rounding=stochastic", stored(0.5), "f32", "anew"),
        ("int16,dynamic=false", stored(*np.linspace(1, 2, 300)), "f32", "too many"),
    ],
)
def test_codes_that_do_not_survive(name: str, given: native.Stored, tensor_format: str, why: str) -> None:
    assert why in lost(numbers_named(name), given, tensor_format, made=True)


def test_bfloat16_holds_eight_bits() -> None:
    assert not lost(numbers_named(STATIC), stored(0.1, 0.37, 1.9), "bf16", made=True)


def test_what_is_stored_may_be_what_no_quantize_gives() -> None:
    narrow = numbers_named("int8,dynamic=false,quant_min=-127")
    assert not lost(narrow, stored(0.5), "f32", made=True)
    assert lost(narrow, stored(0.5), "f32", made=False)
    nan = numbers_named("fp8_e4m3,dynamic=false")
    assert not lost(nan, stored(0.5), "f32", made=True)
    assert lost(nan, stored(0.5), "f32", made=False)


@pytest.mark.parametrize("element", MX_ELEMENTS)
def test_given_mx_scales(element: str) -> None:
    numbers = next(n for n in map(numbers_named, ("mxfp4", "mxint8", "mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp6_e3m2"))
                   if n.element == element)  # fmt: skip
    every = native.Stored(np.arange(256, dtype=np.uint8))
    safe = native.Stored(np.arange(0, 227, dtype=np.uint8))
    assert bool(lost(numbers, every, "f32", made=True)) == (element != "mxint8")  # large values saturate
    assert not lost(numbers, safe, "f32", made=True)
    assert lost(numbers, native.Stored(np.array([255], np.uint8)), "f32", made=False)


# -------------------------------------------------------------------------- measured again


def blocks_of_two(name: str, tensor_format: str = "f32") -> tuple[np.ndarray, Layout]:
    """Every pair of magnitudes on a fine grid, at the ends of float32's range and in its middle."""
    steps = np.concatenate([[0.0], np.arange(256, 512) / 256.0])
    few = steps[::8]
    pairs = np.stack(np.meshgrid([*steps, *-steps], np.concatenate([-few, few * 2.0**-3, few * 2.0**-9])), -1)
    exponents = (-149, -140, -128, -127, -126, -120, -60, 0, 60, 120, 124, 126)
    with np.errstate(over="ignore"):
        x = np.concatenate([pairs.reshape(-1, 2) * 2.0**e for e in exponents]).astype(np.float32)
    x = x.astype(native.tensor_dtype(tensor_format))
    return x, Layout(numbers_named(name), x.shape, (1, 2))


@pytest.mark.parametrize("base", ["mxfp4", "mxint8", "mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp6_e3m2"])
@pytest.mark.parametrize("rounding", ["half_even", "half_away", "half_up", "toward_zero"])
@pytest.mark.parametrize("rule", ["floor", "even", "ceil", "rceil"])
def test_measured_again(base: str, rule: str, rounding: str) -> None:
    if rule in ("ceil", "rceil"):
        assert drifts(numbers_named(f"{base},rule={rule},rounding={rounding}"), "f32")
        return
    x, layout = blocks_of_two(f"{base},rule={rule},rounding={rounding}")
    codes, given = native.quantize(x, layout)
    again, found = native.quantize(native.dequantize(codes, layout, given), layout)
    same = np.array_equal(again, codes) and np.array_equal(found.scales, given.scales)
    promised = not drifts(layout.numbers, "f32")
    assert promised == (rule == "floor" or rounding in ("half_even", "half_away"))
    assert same or not promised


@pytest.mark.parametrize(
    "name", ["int8", "uint8", "nvfp4", "mxfp4,rounding=stochastic", "mxfp4,dialect=torchao"]
)
def test_measured_again_is_not_promised(name: str) -> None:
    assert drifts(numbers_named(name), "f32")


def test_a_rule_that_drifts_is_seen_to_drift() -> None:
    x, layout = blocks_of_two("mxfp4,rule=ceil")
    codes, given = native.quantize(x, layout)
    again, _ = native.quantize(native.dequantize(codes, layout, given), layout)
    assert not np.array_equal(again, codes)


def test_packed_rows_are_compared_whole() -> None:
    numbers = replace(numbers_named("int4"), dynamic=False)
    layout = Layout(numbers, (1, 16), (0, 0))
    codes = pack(np.arange(-8, 8)[None], numbers.element_format)
    given = stored(0.3)
    given = native.Stored(given.scales.reshape(1, 1))
    assert np.array_equal(native.quantize(native.dequantize(codes, layout, given), layout, given)[0], codes)
    assert not lost(numbers, given, "f32", made=False)
