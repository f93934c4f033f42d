"""QuantizedTensor: what it refuses to be, and that it moves as its values do or says why not."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockscale.errors import ArgumentError, AxisError, CodesError, DtypeError, MoveError, ScaleError
from blockscale.numerics import codec
from blockscale.numerics.arrays import TENSOR_DTYPES, Array
from blockscale.numerics.layout import Layout, layout_named
from blockscale.numerics.moves import Abs, Expand, Gather, Move, Neg, Pad, Relu, Repeat, Roll
from blockscale.numerics.packing import unpack
from blockscale.numerics.scheme import numbers_named
from blockscale.tensor import QuantizedTensor

NAMES = (
    "mxfp4", "mxfp6", "mxfp8", "mxint8", "nvfp4", "int8", "int4-g4", "uint4-g4", "uint2-channel",
    "int3-token", "int5-g4,scale=bf16", "int12-g4,scale=f16", "uint16",
)  # fmt: skip


def made(layout: Layout, seed: int = 0) -> QuantizedTensor:
    x = np.random.default_rng(seed).standard_normal(layout.shape).astype(np.float32)
    return QuantizedTensor.of(layout, *codec.quantize(x, layout))


def values(q: QuantizedTensor) -> Array:
    codes, params = q.unpacked()
    return codec.dequantize(codes, q.layout, params)


def assert_whole(q: QuantizedTensor) -> None:
    """All that holds of a tensor holds, which moves do not check again."""
    QuantizedTensor(
        codes=q.codes,
        scales=q.scales,
        zero_points=q.zero_points,
        tensor_scale=q.tensor_scale,
        layout=q.layout,
    )


def assert_moved(found: QuantizedTensor, expected: Array) -> None:
    assert_whole(found)
    assert found.shape == expected.shape
    np.testing.assert_array_equal(
        values(found).view(np.uint32), np.ascontiguousarray(expected).view(np.uint32)
    )


@st.composite
def tensors(draw: st.DrawFn) -> QuantizedTensor:
    shape = tuple(draw(st.lists(st.sampled_from((0, 1, 2, 3, 4, 7, 8)), max_size=3)))
    numbers = draw(st.sampled_from([layout_named(name, (4, 4)).numbers for name in NAMES]))
    block = tuple(draw(st.sampled_from((0, 1, 2, 4))) for _ in shape)
    return made(Layout(numbers, shape, block), draw(st.integers(0, 2**32)))


INDICES = st.one_of(
    st.integers(-3, 7), st.none(), st.just(...),
    st.slices(8), st.sampled_from([slice(None, None, -1), slice(4, None), slice(None), slice(0, 4)]),
)  # fmt: skip


@settings(max_examples=200)
@given(st.data(), tensors())
def test_moves_are_those_of_the_values(data: st.DataObject, q: QuantizedTensor) -> None:
    x = values(q)
    kind = data.draw(st.sampled_from(("index", "index", "permute", "reshape", "split", "transpose")))
    try:
        if kind == "index":
            key = data.draw(st.lists(INDICES, max_size=3).map(tuple))
            try:
                expected = x[key]
            except IndexError:
                with pytest.raises((ArgumentError, AxisError)):
                    q[key]
                return
            assert_moved(q[key], expected)
        elif kind == "permute":
            dims = data.draw(st.permutations(range(q.ndim)))
            assert_moved(q.permute(*dims), x.transpose(dims))
        elif kind == "reshape":
            shape = data.draw(st.permutations([*q.shape, 1]).map(tuple))
            merged = (-1, *q.shape[2:]) if q.layout.size else q.shape
            for target in (shape, merged):
                assert_moved(q.reshape(target), x.reshape(target))
        elif q.ndim:
            axis = data.draw(st.integers(-q.ndim, q.ndim - 1))
            if kind == "transpose":
                assert_moved(q.transpose(0, axis), x.swapaxes(0, axis))
                return
            size = data.draw(st.integers(1, 5))
            parts = q.split(size, axis)
            assert sum(part.shape[axis] for part in parts) == q.shape[axis]
            for part, at in zip(parts, itertools.count(0, size), strict=False):
                assert_moved(part, np.take(x, range(at, at + part.shape[axis]), axis))
            if all(part.layout.numbers == q.layout.numbers for part in parts):
                assert_moved(QuantizedTensor.cat(parts, axis), x)
    except MoveError as error:
        assert "tensor (" in str(error) and "scale (" in str(error) and "target (" in str(error)


@settings(max_examples=120)
@given(st.data(), tensors())
def test_any_other_move(data: st.DataObject, q: QuantizedTensor) -> None:
    x = values(q)
    moves: list[Move] = [Abs(), Neg(), Pad(((0, 4),) * q.ndim)]
    if q.layout.numbers.element_format.is_fixed:
        moves.append(Relu())
    if q.ndim and q.shape[-1]:
        moves += [Roll((4,), (-1,)), Repeat((2,) * q.ndim), Gather(-1, (0, 0))]
    moves.append(Expand((3, *q.shape)))
    move = data.draw(st.sampled_from(moves))
    try:
        found = q.move(move)
    except MoveError:
        return
    assert_moved(found, move.apply(x))


@pytest.mark.parametrize("name", ["mxfp4", "int4-g32", "uint2-channel"])
def test_bytes_are_moved_whole_where_they_can(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Views of the stored bytes: nothing is unpacked."""
    q = made(layout_named(name, (4, 6, 64)))

    def no_unpacking(*arguments: Any) -> Array:
        raise AssertionError("unpacked")

    monkeypatch.setattr("blockscale.tensor.unpack", no_unpacking)
    for found in (q[1:3], q[..., 32:], q.permute(1, 0, 2), *q.split(32, -1), q[None, :, 0]):
        assert np.shares_memory(found.codes, q.codes)
    assert np.shares_memory(q.reshape(4, 2, 3, 64).codes, q.codes)
    QuantizedTensor.cat([q, q], 1)


def test_codes_that_share_bytes_are_repacked() -> None:
    q = made(Layout(numbers_named("mxfp4"), (3, 5), (1, 32)))
    assert q.codes.shape == (3, 3)
    turned = q.transpose()
    assert turned.codes.shape == (5, 2)
    np.testing.assert_array_equal(unpack(turned.codes, q.layout.numbers.element_format, 3), q.unpacked()[0].T)


def test_move_error_shows_all_three_shapes() -> None:
    q = made(layout_named("mxfp4", (4, 64)))
    with pytest.raises(MoveError, match=r"tensor \(4, 64\), scale \(4, 2\), target \(16, 16\)"):
        q.reshape(16, 16)
    with pytest.raises(MoveError, match=r"not whole blocks of 32.*target \(4, 48\)"):
        q[:, 16:]
    with pytest.raises(MoveError, match=r"tensor \(4, 64\), \(4, 64\).*target \(8, 64\)"):
        QuantizedTensor.cat([q, made(layout_named("mxfp6", (4, 64)))])


def test_cat_needs_equal_shared_scales() -> None:
    layout = layout_named("int8", (4, 8))
    a, b = made(layout, 0), made(layout, 1)
    with pytest.raises(MoveError, match="scales of the parts differ"):
        QuantizedTensor.cat([a, b])
    both = QuantizedTensor.cat([a, a])
    np.testing.assert_array_equal(values(both), np.concatenate([values(a)] * 2))
    nv = layout_named("nvfp4", (2, 32))
    with pytest.raises(MoveError, match="tensor_scale of the parts differ"):
        QuantizedTensor.cat([made(nv, 0), made(nv, 1)])
    with pytest.raises(ArgumentError, match="at least one"):
        QuantizedTensor.cat([])


def test_sizes() -> None:
    q = made(layout_named("mxfp4", (4, 64)))
    assert (q.shape, q.ndim, q.nbytes, q.bits_per_element) == ((4, 64), 2, 128 + 8, 4.25)
    assert "mxfp4" in repr(q) and "4.25 bits" in repr(q)
    assert made(layout_named("mxfp4", (0, 64))).bits_per_element == 0
    assert made(layout_named("nvfp4", (2, 32))).nbytes == 32 + 4 + 4
    assert [row.shape for row in q] == [(64,)] * 4


def test_dequantize_is_the_reference() -> None:
    pytest.importorskip("blockscale._core")
    q = made(layout_named("mxfp4", (4, 40)))
    np.testing.assert_array_equal(q.dequantize(), values(q))
    np.testing.assert_array_equal(q[1:3, 32:].dequantize(), values(q)[1:3, 32:])


def test_torch_moves_like_numpy() -> None:
    torch = pytest.importorskip("torch")
    for name in ("mxfp4", "mxfp6", "int8-channel", "uint4-g4", "nvfp4"):
        q = made(layout_named(name, (4, 3, 32)))
        given_arrays = (q.zero_points, q.tensor_scale)
        zeros, t = (None if a is None else torch.from_numpy(np.array(a)) for a in given_arrays)
        tq = QuantizedTensor(
            codes=torch.from_numpy(q.codes), scales=torch.from_numpy(q.scales), zero_points=zeros,
            tensor_scale=t, layout=q.layout,
        )  # fmt: skip
        assert tq.nbytes == q.nbytes
        for move in (lambda a: a[1:, 2], lambda a: a.transpose(0, 2), lambda a: a.reshape(4, 1, 3, 32),
                     lambda a: QuantizedTensor.cat(a.split(2, 0), 0)):  # fmt: skip
            try:
                expected = move(q)
            except MoveError:
                continue
            found = move(tq)
            assert isinstance(found.codes, torch.Tensor)
            np.testing.assert_array_equal(found.codes.numpy(), expected.codes)
            np.testing.assert_array_equal(found.scales.numpy(), expected.scales)


# ---------------------------------------------------------------------------------- invariants


def rebuilt(q: QuantizedTensor, **changes: Any) -> QuantizedTensor:
    return replace(q, **changes)


def test_a_single_element_without_dimensions() -> None:
    for name in ("mxfp4", "mxfp6", "nvfp4", "int8-token", "uint4-g4"):
        q = made(layout_named(name, (1,)))
        for one in (q[0], q.reshape(())):
            assert one.shape == () and one.codes.shape == ()
            assert values(one) == values(q)[0]
            assert one.dequantize() == values(one)


def test_wrong_libraries() -> None:
    q = made(layout_named("mxfp4", (2, 32)))
    parts: dict[str, Any] = {"codes": q.codes, "scales": q.scales, "layout": q.layout}
    for name, wrong in (("codes", [0]), ("codes", None), ("scales", [127]), ("scales", None),
                        ("tensor_scale", 1.0), ("zero_points", [0])):  # fmt: skip
        with pytest.raises(DtypeError, match=name):
            QuantizedTensor(**parts | {name: wrong})
    with pytest.raises(ArgumentError, match="layout = 'mxfp4'"):
        QuantizedTensor(**parts | {"layout": "mxfp4"})


def test_wrong_codes() -> None:
    q = made(layout_named("mxfp4", (4, 5)))
    with pytest.raises(CodesError, match=r"\(4, 3\) for shape \(4, 5\)"):
        rebuilt(q, codes=q.codes[:, :2])
    with pytest.raises(DtypeError, match="uint8"):
        rebuilt(q, codes=q.codes.astype(np.int8))
    with pytest.raises(CodesError, match="padding"):
        rebuilt(q, codes=q.codes | 0xF0)
    narrow = made(layout_named("int8,quant_min=-127", (4,)))
    with pytest.raises(CodesError, match="-127"):
        rebuilt(narrow, codes=np.full(4, -128, np.int8))
    nibbles = made(layout_named("int4,quant_min=-7", (4,)))
    with pytest.raises(CodesError, match="-7"):
        rebuilt(nibbles, codes=np.full(2, 0x88, np.uint8))
    wide = made(layout_named("int12", (4,)))
    with pytest.raises(CodesError, match="2047"):
        rebuilt(wide, codes=np.full(4, 2048, np.int16))
    scalar = made(layout_named("mxfp4", ()))
    with pytest.raises(CodesError, match="padding"):
        rebuilt(scalar, codes=np.array(0x10, np.uint8))


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, -0.0, 1e-60])
@pytest.mark.parametrize("scale", ["f32", "f16", "bf16"])
def test_wrong_affine_scales(bad: float, scale: str) -> None:
    q = made(layout_named(f"int8-channel,scale={scale}", (4, 8)))
    scales = q.scales.copy()
    scales[2] = np.float32(bad).astype(TENSOR_DTYPES[scale])
    with pytest.raises(ScaleError, match="positive and finite"):
        rebuilt(q, scales=scales)


def test_wrong_scales_and_zero_points() -> None:
    q = made(layout_named("uint4-g4", (4, 8)))
    with pytest.raises(ScaleError, match=r"\(4, 2\) for shape \(4, 8\)"):
        rebuilt(q, scales=q.scales.T)
    with pytest.raises(DtypeError, match="float32"):
        rebuilt(q, scales=q.scales.astype(np.float64))
    assert q.zero_points is not None
    for zeros in (q.zero_points + 16, q.zero_points - 16):
        with pytest.raises(ScaleError, match="from 0 to 15"):
            rebuilt(q, zero_points=zeros)
    with pytest.raises(DtypeError, match="int32"):
        rebuilt(q, zero_points=q.zero_points.astype(np.int8))
    with pytest.raises(ScaleError, match="zero point shape"):
        rebuilt(q, zero_points=q.zero_points[:, :1])
    with pytest.raises(ScaleError, match="given for uint4"):
        rebuilt(q, zero_points=None)
    mx = made(layout_named("mxfp4", (4, 8)))
    with pytest.raises(ScaleError, match="has none"):
        rebuilt(mx, zero_points=np.zeros((4, 1), np.int32))
    with pytest.raises(ScaleError, match="has none"):
        rebuilt(mx, tensor_scale=np.float32(1))


def test_wrong_tensor_scales() -> None:
    q = made(layout_named("nvfp4", (2, 32)))
    for bad in (0, -1, np.nan, np.inf):
        with pytest.raises(ScaleError, match="positive and finite"):
            rebuilt(q, tensor_scale=np.float32(bad))
    with pytest.raises(ScaleError, match="given for nvfp4"):
        rebuilt(q, tensor_scale=None)
    with pytest.raises(ScaleError, match=r"\(\)"):
        rebuilt(q, tensor_scale=np.ones(1, np.float32))
    with pytest.raises(ScaleError, match="negative"):
        rebuilt(q, scales=q.scales | np.uint8(0x80))


def test_wrong_indices() -> None:
    q = made(layout_named("mxfp4", (4, 64)))
    for key in (4, -5, (0, 0, 0), (..., ...), "a", [0, 1], True, np.array([0])):
        with pytest.raises((ArgumentError, AxisError)):
            q[key]
    with pytest.raises(ArgumentError, match="integers"):
        q.reshape(2.0, 32)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="positive size"):
        q.split(0)


@given(st.integers(0, 2**32))
@settings(max_examples=5)
def test_unpacked_and_of_are_inverse(seed: int) -> None:
    for name in NAMES:
        layout = layout_named(name, (3, 7))
        q = made(layout, seed)
        again = QuantizedTensor.of(layout, *q.unpacked())
        np.testing.assert_array_equal(again.codes, q.codes)
        np.testing.assert_array_equal(again.scales, q.scales)
        assert (again.zero_points is None) == (q.zero_points is None)
        if q.zero_points is not None:
            np.testing.assert_array_equal(again.zero_points, q.zero_points)
