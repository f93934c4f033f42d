"""Quantizers as functions of standard operators: the bits of the core, on stock ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from blockscale.errors import CombinationError
from blockscale.forms import portable
from blockscale.numerics import native
from blockscale.numerics.formats import MX_ELEMENTS
from blockscale.numerics.native import Stored
from blockscale.numerics.scheme import Numbers, numbers_named
from forms.one_node import TYPES, layout_of, model, on_onnxruntime, patterns, same

SIX = ("mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8")
MX = (*SIX, "bfp16", "bfp13", "bfp20")
ROUNDINGS = ("half_even", "half_away", "half_up", "toward_zero")
DIALECTS = (
    *(f"{name},dialect=quark" for name in MX), "mxint8,rounding=half_up,dialect=quark",
    "mxint8,rounding=half_away,dialect=quark", *(f"{name},dialect=microxcaling" for name in SIX),
    "mxfp4,rounding=half_even,dialect=microxcaling", "mxint8,rounding=toward_zero,dialect=microxcaling",
    "mxfp4,dialect=ggml", "int8,dialect=torchao",
)  # fmt: skip
AFFINE = (
    "int8", "int8,rule=no_clip", "uint8", "uint8,rule=symmetric", "int4", "uint4", "int3", "int16", "int5", "uint7",
    "fp8_e4m3", "fp4_e2m1", "int8,scale=bf16", "uint8,scale=f16", "int8,quant_min=-127",
)  # fmt: skip
SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((4, 64), (1, 32)), ((5, 70), (1, 32)), ((70, 3), (32, 1)), ((2, 3, 40), (0, 1, 16)), ((7,), (0,)), ((), ()),
    ((0, 64), (1, 32)), ((3, 0), (1, 32)), ((2, 0), (0, 0)), ((2, 3, 2, 3, 9), (1, 2, 1, 1, 4)), ((1, 1), (1, 8)),
    ((33,), (1,)), ((2, 5, 35, 2), (1, 1, 8, 1)),
)  # fmt: skip


def made(
    op_type: str, inputs: dict[str, Any], outputs: int, numbers: Numbers, block: Any, **more: Any
) -> Any:
    return ir.to_proto(portable.written(model(op_type, inputs, outputs, numbers, block, **more)))


def fake_quantized(x: Any, numbers: Numbers, block: tuple[int, ...], kind: str, **more: Any) -> Any:
    """By ONNX Runtime, plain and optimized, and with shapes that are not known before the run."""
    expected = native.fake_quantize(x, layout_of(numbers, x.shape, block))
    for shapes, plain in ((True, True), (False, True), (False, False)):
        proto = made("FakeQuantize", {"x": x}, 1, numbers, block, shapes=shapes, **more)
        (found,) = on_onnxruntime(proto, {"x": x}, plain=plain)
        same(found, expected)
    return proto, expected


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", [*MX, *DIALECTS, *AFFINE, "nvfp4"])
def test_fake_quantize(name: str, kind: str) -> None:
    for seed, (shape, block) in enumerate(SHAPES):
        fake_quantized(patterns(shape, kind, seed), numbers_named(name), block, kind)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("rule", ["floor", "ceil", "even", "rceil"])
@pytest.mark.parametrize("name", MX)
def test_rules_and_roundings(name: str, rule: str, rounding: str) -> None:
    numbers = numbers_named(f"{name},rule={rule},rounding={rounding}")
    for seed, (shape, block) in enumerate(SHAPES[:4]):
        fake_quantized(patterns(shape, "f32", seed + 50), numbers, block, "f32")


@settings(max_examples=60)
@given(st.data())
def test_any_shape(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=5)))
    block = tuple(data.draw(st.sampled_from((0, 1, 1, 2, 3, 8, 32))) for _ in shape)
    name = data.draw(st.sampled_from((*MX, *AFFINE, "nvfp4")))
    x = patterns(shape, "f32", data.draw(st.integers(0, 1000)))
    expected = native.fake_quantize(x, layout_of(numbers_named(name), shape, block))
    proto = made("FakeQuantize", {"x": x}, 1, numbers_named(name), block, shapes=data.draw(st.booleans()))
    (found,) = on_onnxruntime(proto, {"x": x})
    same(found, expected)


@pytest.mark.parametrize("name", [*MX, "nvfp4", "int8", "uint4"])
def test_the_reference_evaluator_agrees(name: str) -> None:
    for seed, (shape, block) in enumerate(SHAPES[:6]):
        x = patterns(shape, "f32", seed)
        proto = made("FakeQuantize", {"x": x}, 1, numbers_named(name), block)
        onnx.checker.check_model(proto, full_check=True)
        with np.errstate(all="ignore"):
            (found,) = ReferenceEvaluator(proto).run(None, {"x": x})
        same(np.asarray(found), native.fake_quantize(x, layout_of(numbers_named(name), shape, block)))


@pytest.mark.parametrize("name", [*MX, *AFFINE, "nvfp4", "mxfp4,rule=ceil"])
@pytest.mark.parametrize("kind", TYPES)
def test_codes_there_and_back(name: str, kind: str) -> None:
    numbers = numbers_named(name)
    for seed, (shape, block) in enumerate(SHAPES):
        x = patterns(shape, kind, seed)
        layout = layout_of(numbers, shape, block)
        codes, stored = native.quantize(x, layout)
        zeros = np.empty(0, np.int32) if stored.zero_points is None else stored.zero_points
        t = np.empty(0, np.float32) if stored.tensor_scale is None else np.asarray(stored.tensor_scale)
        like = (codes, stored.scales, zeros, t)
        proto = made("DynamicQuantize", {"x": x}, 4, numbers, block, names=_NAMES, like=like)
        found = on_onnxruntime(proto, {"x": x})
        for mine, its in zip(found, like, strict=True):
            same(mine, its)
        params = _inputs(stored)
        (again,) = on_onnxruntime(made("Quantize", {"x": x, **params}, 1, numbers, block, like=(codes,)),
                                  {"x": x, **params})  # fmt: skip
        same(again, native.quantize(x, layout, stored)[0])
        back = made("Dequantize", {"codes": codes, **params}, 1, numbers, block, like=(x,),
                    shape=list(shape), dtype=int(TYPES[kind][1]))  # fmt: skip
        (y,) = on_onnxruntime(back, {"codes": codes, **params})
        same(y, native.dequantize(codes, layout, stored, kind))


_NAMES = ("codes", "scale", "zero_point", "tensor_scale")


def _inputs(stored: Stored) -> dict[str, Any]:
    t = None if stored.tensor_scale is None else np.asarray(stored.tensor_scale)
    return {"scale": stored.scales, "zero_point": stored.zero_points, "tensor_scale": t}


@pytest.mark.parametrize("name", [*MX_ELEMENTS, "int2", "int3", "uint5", "int6", "int7", "uint16"])
def test_every_code(name: str) -> None:
    scale = "e8m0" if name == "mxint8" else "f32"
    numbers = Numbers(element=name, scale=scale)
    element = numbers.element_format
    every = np.arange(1 << element.bits)
    raw = ((every[:, None] >> np.arange(element.bits)) & 1).astype(np.uint8).reshape(-1)
    codes = (
        np.packbits(raw, bitorder="little") if element.packed
        else every.astype(f"u{element.storage_dtype.itemsize}")
    ).view(element.storage_dtype)  # fmt: skip
    layout = layout_of(numbers, (len(every),), (1,))
    scales = np.full(len(every), 129, np.uint8) if scale == "e8m0" else np.full(len(every), 4, np.float32)
    given = {"codes": codes, "scale": scales}
    expected = native.dequantize(codes, layout, Stored(scales))
    proto = made("Dequantize", given, 1, numbers, (1,), like=(expected,), shape=[len(every)], dtype=1)
    (found,) = on_onnxruntime(proto, given)
    same(found, expected)
    np.testing.assert_array_equal(found, element.decode(every) * 4)


def test_every_scale() -> None:
    scales = np.arange(256, dtype=np.uint8)
    for name, code in (("mxfp4", 7), ("mxfp8_e5m2", 0x7B), ("mxint8", 127), ("mxfp8_e4m3", 1)):
        numbers = numbers_named(name)
        layout = layout_of(numbers, (256, 2), (1, 2))
        codes = np.full(layout.codes_shape, code | code << 4 if name == "mxfp4" else code).astype(
            numbers.element_format.storage_dtype
        )
        given = {"codes": codes, "scale": scales[:, None]}
        expected = native.dequantize(codes, layout, Stored(scales[:, None]))
        proto = made("Dequantize", given, 1, numbers, (1, 2), like=(expected,), shape=[256, 2], dtype=1)
        (found,) = on_onnxruntime(proto, given)
        same(found, expected)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mxfp4,rounding=stochastic", "Philox"),
        ("mxint8,rule=mse", "squares"),
        ("mxfp4,dialect=torchao", "Inf counts"),
        ("mx9", "sub-blocks"),
        ("bfp16,dialect=quark_compiler", "sign"),
    ],
)
def test_what_it_cannot_hold_is_refused(name: str, reason: str) -> None:
    x = patterns((4, 64), "f32")
    with pytest.raises(CombinationError, match=f"FakeQuantize 'q'.*portable.*{reason}.*form='custom'"):
        made("FakeQuantize", {"x": x}, 1, numbers_named(name), (1, 32))


def test_an_old_opset_is_refused() -> None:
    x = patterns((4, 64), "f32")
    with pytest.raises(CombinationError, match="opset 18, and the model is of opset 17; convert it"):
        made("FakeQuantize", {"x": x}, 1, numbers_named("mxfp4"), (1, 32), opset=17)


def test_newer_opsets_run() -> None:
    x = patterns((5, 70), "f32")
    for opset in (19, 21, 23, 24):
        fake_quantized(x, numbers_named("mxfp6"), (1, 32), "f32", opset=opset)
