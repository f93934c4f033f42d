"""Linear layers of the core against the canonical dot product, bit for bit, and against float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.errors import ArgumentError, BlockscaleError, ShapeError, UnknownNameError
from blockscale.numerics import native
from blockscale.numerics.arrays import Array
from blockscale.numerics.dot import dot
from blockscale.numerics.layout import Layout, bind, layout_named
from blockscale.numerics.native_linear import ACTIVATIONS, Activation, PackedWeight
from blockscale.numerics.packing import pack, unpack
from blockscale.numerics.scheme import scheme_named

CORE: Any = native._core
ISAS = CORE.available_isas().split()
EXACT = ("mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxint8")
WEIGHTS = (
    *EXACT, "mxfp8_e4m3", "mxfp8_e5m2", "nvfp4", "int8", "int8-channel", "uint8-channel", "int6-channel",
    "uint5-g64", "int4-g32", "int4-g64", "int4-g128", "int4-g96,scale=f16", "uint4-g32,scale=bf16",
    "int3-g32", "uint2-channel", "fp8_e4m3-channel", "int8-g2048",
)  # fmt: skip
INPUTS = (None, "bf16", "f16", *EXACT, "mxfp8_e4m3", "nvfp4", "int8", "int8-token", "uint8-token", "int8-g32")


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = CORE.isa()
    assert CORE.choose_isa(request.param)
    yield request.param
    CORE.choose_isa(before)


def bits(a: Array) -> Array:
    a = np.asarray(a, np.float32)
    return np.where(np.isnan(a), np.uint32(0x7FC00000), a.view(np.uint32))


def values(shape: tuple[int, int], seed: int) -> Array:
    """Blocks of very different magnitudes, some all zero."""
    rng = np.random.default_rng(seed)
    spread = np.exp2(rng.integers(-12, 12, (shape[0], -(-shape[1] // 32)))).repeat(32, 1)[:, : shape[1]]
    spread[rng.random(spread.shape) < 0.02] = 0
    return (rng.standard_normal(shape) * spread).astype(np.float32)


def quantized(name: str, x: Array) -> tuple[Array, Layout, native.Stored]:
    layout = layout_named(name, x.shape)
    codes, stored = native.quantize(x, layout)
    return codes, layout, stored


def decoded(name: str, x: Array) -> Array:
    codes, layout, stored = quantized(name, x)
    return native.dequantize(codes, layout, stored).astype(np.float64)


def weight(name: str, w: Array) -> PackedWeight:
    codes, layout, stored = quantized(name, w)
    return PackedWeight(codes, layout, stored)


def canonical(x: tuple[Array, Layout, native.Stored], w: tuple[Array, Layout, native.Stored]) -> Array:
    operands: list[Any] = []
    for codes, layout, stored in (x, w):
        plain = unpack(codes, layout.numbers.element_format, layout.shape[-1])
        operands += [plain, stored.scales, layout]
    return dot(*operands)


# ---------------------------------------------------------------------------- the canonical dot product


@pytest.mark.parametrize(("x_name", "w_name"), list(itertools.product(EXACT, EXACT)))
def test_equals_the_canonical_dot_product(isa: str, x_name: str, w_name: str) -> None:
    for rows, n, k in ((1, 5, 40), (2, 130, 96), (9, 33, 64), (31, 64, 1500)):
        x, w = values((rows, k), 1), values((n, k), 2)
        xq, wq = quantized(x_name, x), quantized(w_name, w)
        expected = bits(canonical(xq, wq))
        packed = PackedWeight(*wq)
        np.testing.assert_array_equal(bits(packed.linear(x, scheme=scheme_named(x_name))), expected)
        np.testing.assert_array_equal(bits(packed.linear(xq[0], stored=xq[1:])), expected)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(EXACT), st.sampled_from(EXACT), st.integers(0, 20), st.integers(0, 70), st.integers(0, 130),
    st.sampled_from(((0, 255), (110, 140), (0, 60), (200, 254))), st.integers(0, 2**32), st.integers(1, 3),
)  # fmt: skip
def test_any_codes_and_scales(
    x_name: str, w_name: str, rows: int, n: int, k: int, scales: tuple[int, int], seed: int, threads: int
) -> None:
    rng = np.random.default_rng(seed)

    def operand(name: str, shape: tuple[int, int]) -> tuple[Array, Layout, native.Stored]:
        layout = layout_named(name, shape)
        element = layout.numbers.element_format
        codes = rng.integers(0, 1 << element.bits, shape) - (128 if element.is_fixed else 0)
        stored = rng.integers(scales[0], scales[1] + 1, layout.scale_shape).astype(np.uint8)
        return np.asarray(pack(codes, element), order="C"), layout, native.Stored(stored)

    x, w = operand(x_name, (rows, k)), operand(w_name, (n, k))
    found = PackedWeight(*w).linear(x[0], stored=x[1:], threads=threads)
    np.testing.assert_array_equal(bits(found), bits(canonical(x, w)))


@pytest.mark.parametrize("name", EXACT)
def test_stored_as_k_by_n(isa: str, name: str) -> None:
    """The weight of an ONNX MatMul: blocks along axis 0, packed along N."""
    w, x = values((70, 100), 3), values((5, 100), 4)
    layout = Layout(layout_named(name, (1,)).numbers, (100, 70), (32, 1))
    codes, stored = native.quantize(np.ascontiguousarray(w.T), layout)
    packed = PackedWeight(codes, layout, stored, transposed=True)
    expected = weight(name, w).linear(x, scheme=scheme_named("mxint8"))
    np.testing.assert_array_equal(bits(packed.linear(x, scheme=scheme_named("mxint8"))), bits(expected))


def test_nan_and_infinity_of_x() -> None:
    x, w = values((8, 96), 5), values((40, 96), 6)
    x[2, 40], x[5, 0] = np.nan, np.inf
    found = weight("mxfp4", w).linear(x, scheme=scheme_named("mxint8"))
    assert np.isnan(found[[2, 5]]).all() and np.isfinite(found[[0, 1, 3, 4, 6, 7]]).all()
    found = weight("mxfp4", w).linear(x)
    assert np.isnan(found[2]).all() and not np.isfinite(found[5]).any()


# ------------------------------------------------------------------------------- every weight, every x


@pytest.mark.parametrize("w_name", WEIGHTS)
@pytest.mark.parametrize("x_name", INPUTS)
def test_near_float64(isa: str, w_name: str, x_name: str | None) -> None:
    for rows, n, k in ((1, 20, 40), (3, 70, 96), (14, 33, 700)):
        rng = np.random.default_rng(k)
        x, w = rng.standard_normal((rows, k)).astype(np.float32), values((n, k), 8)
        extra = np.zeros((rows, 1))
        arguments: dict[str, Any] = {}
        if x_name in ("bf16", "f16"):
            x = x.astype(native.tensor_dtype(x_name))
            wide = x.astype(np.float64)
        elif x_name is None:
            wide = x.astype(np.float64)
        else:
            arguments["scheme"] = scheme_named(x_name)
            wide = decoded(x_name, x)
            if x_name.startswith("uint8"):  # a zero point: terms up to the whole range
                extra = np.ptp(wide, axis=1, keepdims=True)
        found = weight(w_name, w).linear(x, **arguments)
        w64 = decoded(w_name, w)
        bound = (34 + k / 32) * 2.0**-24 * ((np.abs(wide) + extra) @ np.abs(w64).T) + 1e-30
        assert (np.abs(found - wide @ w64.T) <= bound).all()
        alone = np.concatenate([weight(w_name, w).linear(x[i : i + 1], **arguments) for i in range(rows)])
        if x_name not in ("nvfp4", "int8"):  # whose scale is that of all rows
            np.testing.assert_array_equal(bits(alone), bits(found))


@pytest.mark.parametrize("x_name", ["int8", "uint8"])
def test_static_scale(isa: str, x_name: str) -> None:
    x, w = values((6, 100), 1), values((30, 100), 2)
    codes, layout, stored = quantized(x_name, x)
    wide = native.dequantize(codes, layout, stored).astype(np.float64)
    packed = weight("int8-channel", w)
    found = packed.linear(x, scheme=scheme_named(x_name), params=stored)
    w64 = decoded("int8-channel", w)
    bound = 40 * 2.0**-24 * ((np.abs(wide) + np.ptp(wide)) @ np.abs(w64).T)
    assert (np.abs(found - wide @ w64.T) <= bound).all()
    np.testing.assert_array_equal(found, packed.linear(codes, stored=(layout, stored)))


# ------------------------------------------------------------------------------------ what surrounds it

_ACTIVATIONS: dict[Activation, Callable[[float], float]] = {
    "none": lambda v: v,
    "relu": lambda v: max(v, 0.0),
    "gelu": lambda v: 0.5 * v * math.erfc(-v / math.sqrt(2)),
    "gelu_tanh": lambda v: 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))),
    "silu": lambda v: v / (1 + math.exp(-v)) if v > -700 else 0.0,
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_bias_and_activation(isa: str, activation: Activation, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((7, 64)).astype(np.float32), rng.standard_normal((90, 64)).astype(np.float32)
    bias = rng.standard_normal(90).astype(np.float32) * 4
    packed = weight("mxint8", w)
    plain = packed.linear(x, scheme=scheme_named("mxint8")) + bias
    found = packed.linear(
        x, bias, scheme=scheme_named("mxint8"), activation=activation, out_dtype=dtype
    ).astype(np.float64)
    expected = np.vectorize(_ACTIVATIONS[activation], otypes=[float])(plain.astype(np.float64))
    step = {"f32": 2.0**-21, "bf16": 2.0**-8, "f16": 2.0**-10}[dtype]
    np.testing.assert_allclose(found, expected, rtol=step, atol=2e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_of_extreme_sums(activation: Activation) -> None:
    w = np.eye(32, dtype=np.float32)
    far = np.array([0, -0.0, 1e-30, -1e-30, 88, -88, 200, -200, 3e38, -3e38, np.inf, -np.inf, np.nan])
    found = weight("mxint8", w).linear(np.zeros((1, 32), np.float32), np.resize(far, 32).astype(np.float32),
                                       activation=activation)[0, :13]  # fmt: skip
    expected = [_ACTIVATIONS[activation](v) if abs(v) < 1e9 else max(v, 0.0) for v in far[:10]]
    if activation == "none":
        expected[9] = -3e38
    np.testing.assert_allclose(found[:10], np.float32(expected), rtol=1e-6, atol=1e-30)
    assert found[10] == np.inf and np.isnan(found[12])
    assert found[11] == (-np.inf if activation == "none" else 0)


def test_a_result_beyond_float16_becomes_the_largest() -> None:
    w = np.full((3, 32), 100, np.float32)
    found = weight("mxint8", w).linear(np.full((2, 32), 100, np.float32), out_dtype="f16")
    assert (found == np.float16(65504)).all()


def test_strided_memory_and_out() -> None:
    w, room = values((40, 64), 1), values((10, 200), 2)
    packed = weight("mxfp4", w)
    scheme = scheme_named("mxint8")
    for x in (room[:, :64], room[::2, 3:67], room[:, :128:2], room[::-1, :64], room.T[:64, :9].T):
        expected = packed.linear(np.ascontiguousarray(x), scheme=scheme)
        np.testing.assert_array_equal(packed.linear(x, scheme=scheme), expected)
        np.testing.assert_array_equal(
            packed.linear(x), packed.linear(np.ascontiguousarray(x)), err_msg=str(x.strides)
        )
        out = np.full((len(x), 60), 7, np.float32)
        assert packed.linear(x, scheme=scheme, out=out[:, :40]).base is out
        np.testing.assert_array_equal(out[:, :40], expected)
        assert (out[:, 40:] == 7).all()


@pytest.mark.parametrize(("rows", "n", "k"), [(0, 5, 40), (3, 0, 40), (3, 5, 0)])
@pytest.mark.parametrize("name", ["mxfp4", "int8-channel", "int4-g32", "nvfp4"])
def test_nothing_to_add_up(name: str, rows: int, n: int, k: int) -> None:
    packed = weight(name, np.zeros((n, k), np.float32))
    bias = np.arange(n, dtype=np.float32)
    for scheme in (None, "mxint8", "int8-token"):
        x = np.zeros((rows, k), np.float32)
        found = packed.linear(x, bias, scheme=scheme_named(scheme) if scheme else None)
        np.testing.assert_array_equal(found, np.broadcast_to(bias, (rows, n)))


def test_threads_and_batches_change_nothing() -> None:
    x, w = values((150, 320), 1), values((200, 320), 2)
    for w_name, x_name in (("mxfp4", "mxint8"), ("int4-g32", "int8-token"), ("mxfp8_e4m3", None)):
        packed = weight(w_name, w)
        scheme = scheme_named(x_name) if x_name else None
        whole = packed.linear(x, scheme=scheme, threads=1)
        for threads in (2, 5):
            np.testing.assert_array_equal(whole, packed.linear(x, scheme=scheme, threads=threads))
        for rows in (1, 2, 3, 5, 7, 16, 26, 60):
            np.testing.assert_array_equal(whole[:rows], packed.linear(x[:rows], scheme=scheme))


def test_a_packed_weight_knows_its_bytes() -> None:
    packed = weight("mxfp4", values((64, 1024), 1))
    assert packed.shape == (64, 1024)
    assert 64 * 1024 * 4.25 / 8 <= packed.nbytes <= 64 * 1024 * 4.25 / 8 + 1024


# ------------------------------------------------------------------------------------------- refusals


def refused(call: Callable[[], object], kind: type[BlockscaleError], match: str) -> None:
    with pytest.raises(kind, match=match):
        call()


def test_errors() -> None:
    packed = weight("mxfp4", values((40, 64), 1))
    x = values((3, 64), 2)
    refused(lambda: packed.linear(x[:, :32]), ShapeError, "K of the weight")
    refused(lambda: packed.linear(x, np.zeros(3, np.float32)), ShapeError, "bias")
    refused(lambda: packed.linear(x.astype(np.float64)), BlockscaleError, "cast it first")
    refused(lambda: packed.linear(x, np.zeros(40)), BlockscaleError, "float32")
    refused(lambda: packed.linear(x, activation="tanh"), UnknownNameError, "gelu")  # type: ignore[arg-type]
    refused(lambda: packed.linear(x, scheme=scheme_named("int16-token")), ArgumentError, "8 bits")
    refused(lambda: weight("int16-channel", x), ArgumentError, "8 bits")
    refused(lambda: weight("int4-g20", x), ArgumentError, "multiple of 32")
    two = Layout(layout_named("mxfp4", (1,)).numbers, x.shape, (2, 32))
    refused(
        lambda: packed.linear(native.quantize(x, two)[0], stored=(two, native.quantize(x, two)[1])),
        BlockscaleError, "rows",
    )  # fmt: skip
    cube = bind(scheme_named("mxfp4"), (2, 3, 64))
    codes, stored = native.quantize(np.zeros((2, 3, 64), np.float32), cube)
    refused(lambda: PackedWeight(codes, cube, stored), ShapeError, "two dimensions")


def test_the_core_checks_sizes_once_more() -> None:
    packed = weight("mxfp4", values((40, 64), 1))
    x, y = values((3, 64), 2), np.zeros((3, 40), np.float32)
    form = CORE.InputForm()
    good = [3, form, x.ctypes.data, x.nbytes, 0, 64, y.ctypes.data, y.nbytes, 0, 40, 0, 0, 0, 2, 0]
    packed._core.linear(*good)
    for at, bad in ((0, -1), (0, 4), (3, x.nbytes - 1), (4, 7), (5, 63), (7, y.nbytes - 1), (9, 39), (12, 9),
                    (2, x.ctypes.data + 1), (5, 1 << 60)):  # fmt: skip
        arguments = list(good)
        arguments[at] = bad
        with pytest.raises(ArgumentError):
            packed._core.linear(*arguments)
