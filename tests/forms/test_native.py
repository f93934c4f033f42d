"""Quantizers as QuantizeLinear and DequantizeLinear: the bits of the core, on onnx's evaluator and ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from blockscale.errors import CombinationError, UnknownNameError
from blockscale.forms import native as form
from blockscale.numerics import native
from blockscale.numerics.native import Stored
from blockscale.numerics.scheme import numbers_named
from forms.one_node import TYPES, layout_of, model, on_onnxruntime, patterns, same

NAMES = (
    "mxfp4", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8", "nvfp4", "mxfp4,rule=ceil",
    "mxfp8,rule=rceil", "mxint8,rule=even", "int8", "uint8", "int4", "uint4", "int5", "int8,rule=no_clip",
    "uint8,rule=symmetric", "int8,quant_min=-127", "bfp16", "bfp12", "bfp20,rule=even",
)  # fmt: skip
SHAPES = (
    ((4, 64), (1, 32)), ((5, 70), (1, 32)), ((70, 3), (32, 1)), ((2, 3, 40), (0, 0, 0)), ((2, 6), (0, 1)),
    ((2, 3, 40), (1, 1, 0)), ((7,), (0,)), ((0, 64), (1, 32)), ((2, 3, 2, 3, 9), (1, 1, 1, 1, 4)),
)  # fmt: skip
OPSETS = {"onnx": 28, "onnxruntime": 21}
runtimes = pytest.mark.parametrize("runtime", OPSETS)


def run(runtime: str, written: ir.Model, feeds: dict[str, Any]) -> Any:
    proto = ir.to_proto(written)
    if runtime == "onnxruntime":
        return on_onnxruntime(proto, feeds)[0]
    with np.errstate(all="ignore"):
        (found,) = ReferenceEvaluator(proto).run(None, feeds)
    return np.asarray(found)


def constants(of: ir.Model, arrays: dict[str, Any]) -> ir.Model:
    """The inputs named by `arrays` are initializers."""
    for value in list(of.graph.inputs):
        if value.name in arrays:
            array = arrays[value.name]
            value.const_value = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), name=value.name)
            of.graph.inputs.remove(value)
            of.graph.register_initializer(value)
    return of


def parameters(stored: Stored) -> dict[str, Any]:
    t = None if stored.tensor_scale is None else np.asarray(stored.tensor_scale)
    return {"scale": stored.scales, "zero_point": stored.zero_points, "tensor_scale": t}


@pytest.mark.parametrize(
    ("runtime", "kind"),
    [(runtime, kind) for runtime in OPSETS for kind in TYPES if (runtime, kind) != ("onnx", "bf16")],
)
@pytest.mark.parametrize("name", NAMES)
def test_activations(name: str, kind: str, runtime: str) -> None:
    numbers = numbers_named(name)
    for seed, (shape, block) in enumerate(SHAPES):
        x = patterns(shape, kind, seed)
        one = model("FakeQuantize", {"x": x}, 1, numbers, block, opset=OPSETS[runtime])
        found = run(runtime, form.written(one, runtime), {"x": x})
        same(found, native.fake_quantize(x, layout_of(numbers, shape, block)))


@runtimes
@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("name", NAMES)
def test_weights(name: str, kind: str, runtime: str) -> None:
    numbers = numbers_named(name)
    for seed, (shape, block) in enumerate(SHAPES):
        x = np.nan_to_num(patterns(shape, kind, seed) * TYPES[kind][0].type(0.25), posinf=3, neginf=-3)
        layout = layout_of(numbers, shape, block)
        codes, stored = native.quantize(x, layout)
        arrays = {"codes": codes, **parameters(stored)}
        expected = native.dequantize(codes, layout, stored, kind)
        dtype = int(TYPES[kind][1])
        one = model("Dequantize", arrays, 1, numbers, block, opset=OPSETS[runtime], like=(expected,),
                    shape=list(shape), dtype=dtype)  # fmt: skip
        written = form.written(constants(one, arrays), runtime)
        same(run(runtime, written, {}), expected)
        assert {node.domain for node in written.graph} == {""}


@runtimes
@pytest.mark.parametrize("name", ["int8", "uint8", "int4", "int16", "int8,quant_min=-127", "int3"])
def test_static_activations(name: str, runtime: str) -> None:
    """The usual pair of nodes, where the type has the range of the element."""
    numbers = replace(numbers_named(name), dynamic=False)
    x = patterns((6, 20), "f32", 3) * np.float32(1e-3)
    x = np.clip(np.nan_to_num(x), -100, 100)
    for block in ((0, 0), (1, 0)):
        layout = layout_of(numbers, x.shape, block)
        stored = native.choose_params(np.abs(x) * np.float32(0.5), layout)
        zeros = None if stored.zero_points is None else stored.zero_points
        arrays = {"scale": stored.scales, "zero_point": zeros}
        one = model("FakeQuantize", {"x": x, **arrays}, 1, numbers, block, opset=OPSETS[runtime])
        written = form.written(constants(one, {k: v for k, v in arrays.items() if v is not None}), runtime)
        same(run(runtime, written, {"x": x}), native.fake_quantize(x, layout, stored))
        plain = name in ("int8", "uint8", "int4", "int16")
        kinds = [node.op_type for node in written.graph]
        assert (kinds == ["QuantizeLinear", "DequantizeLinear"]) == plain


def test_bytes() -> None:
    """Codes and scales of MXFP4 take 4.25 bits an element in types of ONNX."""
    numbers, shape = numbers_named("mxfp4"), (64, 256)
    codes, stored = native.quantize(patterns(shape, "f32"), layout_of(numbers, shape, (1, 32)))
    arrays = {"codes": codes, "scale": stored.scales}
    for runtime, least in (("onnx", 4.25), ("onnxruntime", 9)):
        one = model("Dequantize", arrays, 1, numbers, (1, 32), opset=28, shape=list(shape), dtype=1)
        written = form.written(constants(one, arrays), runtime)
        total = sum(value.const_value.nbytes for value in written.graph.initializers.values())
        assert total * 8 == least * 64 * 256


@pytest.mark.parametrize(
    ("name", "block", "reason"),
    [
        ("mxfp4,rounding=half_away", (1, 32), "rounds half to even, not half_away"),
        ("mxfp4,dialect=quark", (1, 32), "arithmetic of dialect 'quark'"),
        ("mxint8,rule=mse", (1, 32), "squares"),
        ("mxfp4", (2, 32), "blocks along one axis only"),
    ],
)
def test_what_it_cannot_hold_is_refused(name: str, block: tuple[int, ...], reason: str) -> None:
    x = patterns((4, 64), "f32")
    one = model("FakeQuantize", {"x": x}, 1, numbers_named(name), block, opset=28)
    with pytest.raises(CombinationError, match=f"FakeQuantize 'q'.*native.*{reason}.*form='custom'"):
        form.written(one)


def test_whole_rows_of_unknown_length_are_refused() -> None:
    x = patterns((2, 4, 64), "f32")
    one = model("FakeQuantize", {"x": x}, 1, numbers_named("int8"), (1, 1, 0), opset=28, shapes=False)
    with pytest.raises(CombinationError, match="whose size is known only at run time"):
        form.written(one)


def test_weights_that_overflow_are_refused() -> None:
    numbers = numbers_named("mxfp4")
    codes, scales = np.full((1, 16), 0x77, np.uint8), np.full((1, 1), 254, np.uint8)
    arrays = {"codes": codes, "scale": scales}
    one = model("Dequantize", arrays, 1, numbers, (1, 32), opset=28, shape=[1, 32], dtype=1)
    with pytest.raises(CombinationError, match="beyond the largest of its dtype"):
        form.written(constants(one, arrays))


def test_codes_that_are_no_constants_are_refused() -> None:
    numbers = numbers_named("mxfp4")
    codes, stored = native.quantize(patterns((4, 64), "f32"), layout_of(numbers, (4, 64), (1, 32)))
    one = model("Dequantize", {"codes": codes, "scale": stored.scales}, 1, numbers, (1, 32), opset=28,
                shape=[4, 64], dtype=1)  # fmt: skip
    with pytest.raises(CombinationError, match="is no constant, and ONNX has no type"):
        ir.to_proto(form.written(one))
    one = model("DynamicQuantize", {"x": patterns((4, 64), "f32")}, 4, numbers, (1, 32), opset=28)
    with pytest.raises(CombinationError, match="packed bytes that the graph moves"):
        form.written(one)


def test_an_old_opset_or_another_runtime_is_refused() -> None:
    x = patterns((4, 64), "f32")
    with pytest.raises(CombinationError, match="opset 23, and the model is of opset 21"):
        form.written(model("FakeQuantize", {"x": x}, 1, numbers_named("mxfp4"), (1, 32), opset=21))
    with pytest.raises(UnknownNameError, match="onnxruntim"):
        form.written(model("FakeQuantize", {"x": x}, 1, numbers_named("mxfp4"), (1, 32)), "onnxruntim")
