"""Quantizers of other people in ONNX models: read, made ours where no bit changes, moved and combined."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from blockscale.graph.onnx import snapshot
from blockscale.graph.quant import quant_of
from blockscale.graph.view import Node
from blockscale.numerics.arrays import Array
from blockscale.numerics.moves import Permute, Reshape
from blockscale.passes.pipeline import OPTIMIZE
from passes.onnx_graphs import Builder, assert_equal, example, op_types, run
from passes.proof import proven

TYPES = {
    "int8": ir.DataType.INT8, "uint8": ir.DataType.UINT8, "int16": ir.DataType.INT16, "uint16": ir.DataType.UINT16,
    "int4": ir.DataType.INT4, "uint4": ir.DataType.UINT4, "fp8_e4m3": ir.DataType.FLOAT8E4M3FN,
    "fp8_e5m2": ir.DataType.FLOAT8E5M2, "fp4_e2m1": ir.DataType.FLOAT4E2M1,
}  # fmt: skip


def finite(*shape: int, seed: int = 0) -> Array:
    return np.nan_to_num(example(shape, seed), nan=0.0, posinf=3e38, neginf=-3e38)


class Linear:
    """A QuantizeLinear with its DequantizeLinear."""

    def __init__(self, element: str, form: str, opset: int = 21, zero: bool = True, domain: str = "") -> None:
        self.b = Builder(opset, domains=[domain] if domain else [])
        self.element, self.domain = element, domain
        self.x = self.b.given(finite(4, 6, seed=opset))
        shape = {"scalar": (), "one": (1,), "channel": (6,), "blocked": (4, 2)}[form]
        rng = np.random.default_rng(opset)
        self.scale = self.b.constant((rng.random(shape) + 0.1).astype(np.float32))
        dtype = TYPES[element].numpy()
        zeros = np.zeros(shape, np.int64)
        if zero:
            limits = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
            zeros = rng.integers(limits.min, limits.max, shape)
        given = zero or element != "uint8"
        self.zero = self.b.constant(np.asarray(zeros).astype(dtype)) if given else None
        self.settings: dict[str, Any] = {} if form in ("scalar", "one") else {"axis": 1}
        if form == "blocked":
            self.settings["block_size"] = 3

    def quantize(self, x: ir.Value) -> ir.Value:
        types = [(TYPES[self.element], self.b.sizes(x))]
        return self.b.add(
            "QuantizeLinear", (x, self.scale, self.zero), domain=self.domain, types=types, **self.settings
        )  # type: ignore[no-any-return]

    def dequantize(self, codes: ir.Value) -> ir.Value:
        types = [(ir.DataType.FLOAT, self.b.sizes(codes))]
        return self.b.add(
            "DequantizeLinear",
            (codes, self.scale, self.zero),
            domain=self.domain,
            types=types,
            **self.settings,
        )  # type: ignore[no-any-return]


def by_onnxruntime(model: ir.Model, inputs: list[Array]) -> list[Array]:
    proto = ir.to_proto(model)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = dict(zip([value.name for value in session.get_inputs()], inputs, strict=True))
    return list(session.run(None, feeds))


def the(model: ir.Model, kind: str) -> Node:
    (node,) = [node for node in snapshot(model).nodes if node.kind == kind]
    return node


INTEGERS = [
    (element, form, opset, domain)
    for element in ("int8", "uint8", "int16", "uint16", "int4", "uint4")
    for form, opset, domain in (
        ("scalar", 13, ""), ("one", 13, ""), ("channel", 13, ""), ("scalar", 21, ""), ("channel", 21, ""),
        ("blocked", 21, ""), ("blocked", 23, ""), ("scalar", 21, "com.microsoft"), ("channel", 21, "com.microsoft"),
    )
    if opset > 13 or element in ("int8", "uint8")
]  # fmt: skip


@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize(("element", "form", "opset", "domain"), INTEGERS)
def test_integers_become_ours(element: str, form: str, opset: int, domain: str, zero: bool) -> None:
    made = Linear(element, form, opset, zero, domain)
    model = made.b.done(made.dequantize(made.quantize(made.x)))
    quant = quant_of(the(model, "quantize"))
    assert quant.numbers.element == element
    assert quant.block == {"scalar": (0, 0), "one": (0, 0), "channel": (0, 1), "blocked": (1, 3)}[form]
    proof = proven(model, made.b.examples, [finite(4, 6, seed=99)], stages=("canonicalize",))
    assert op_types(proof.after) == ["Quantize", "Dequantize"], proof.log
    wraps = (
        element in ("int4", "uint4") and form == "channel"
    )  # there onnxruntime does for what is beyond int32
    x = np.clip(made.b.examples[0], -1e6, 1e6) if wraps else made.b.examples[0]
    assert_equal(run(proof.after, [x]), by_onnxruntime(model, [x]))


def test_codes_of_four_bits_that_another_scale_decodes_stay() -> None:
    """Ours lie two in a byte: only a quantize with all that reads its codes can become ours."""
    made = Linear("int4", "channel")
    q = made.quantize(made.x)
    right = made.dequantize(q)
    made.scale = made.b.constant(made.scale.const_value.numpy() * np.float32(2))  # type: ignore[union-attr]
    proof = proven(made.b.done(right, made.dequantize(q)), made.b.examples, stages=("canonicalize",))
    assert op_types(proof.after).count("DequantizeLinear") == 2
    assert "which is not its dequantize" in proof.reasons("canonicalize")


@pytest.mark.parametrize("form", ["scalar", "channel", "blocked"])
@pytest.mark.parametrize("element", ["fp8_e4m3", "fp8_e5m2"])
def test_floats_stay_for_nan_has_a_code_and_are_moved_and_combined(element: str, form: str) -> None:
    made = Linear(element, form, zero=False)
    turned = [made.b.move(made.x, Permute((0, 1))) for _ in range(2)]
    model = made.b.done(*(made.dequantize(made.quantize(x)) for x in turned))
    assert quant_of(the_first(model, "quantize")).numbers.element == element
    proof = proven(model, made.b.examples, stages=OPTIMIZE)
    assert op_types(proof.after).count("QuantizeLinear") == 1
    assert "NaN has a code of its own" in proof.reasons("canonicalize")
    assert_equal(run(proof.after, made.b.examples), by_onnxruntime(model, made.b.examples))


def the_first(model: ir.Model, kind: str) -> Node:
    return next(node for node in snapshot(model).nodes if node.kind == kind)


def test_blocks_with_scales_of_e8m0_and_codes_of_fp4() -> None:
    """MX in native types: onnxruntime has no kernels for it, onnx's evaluator has."""
    b = Builder(24)
    x = b.input(4, 64)
    scale = b.constant(np.full((4, 2), 2.0, ml_dtypes.float8_e8m0fnu))
    types = [(ir.DataType.FLOAT4E2M1, (4, 64))]
    fp32 = int(ir.DataType.FLOAT)
    q = b.add("QuantizeLinear", (x, scale), types=types, axis=1, block_size=32, precision=fp32,
              output_dtype=int(ir.DataType.FLOAT4E2M1))  # fmt: skip
    y = b.add("DequantizeLinear", (q, scale), types=[(ir.DataType.FLOAT, (4, 64))], axis=1, block_size=32,
              output_dtype=fp32)  # fmt: skip
    model = b.done(y)
    quant = quant_of(the(model, "dequantize"))
    assert (quant.numbers.element, quant.numbers.scale, quant.block) == ("fp4_e2m1", "e8m0", (1, 32))
    x1 = finite(4, 64)
    proof = proven(model, [x1], stages=OPTIMIZE)
    wanted = (np.clip(x1 / 2, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)) * 2
    assert_equal(run(proof.after, [x1]), [wanted])


def test_blocked_quantizes_are_lifted_and_combined_as_what_they_are() -> None:
    made = Linear("int8", "blocked")
    b = made.b
    views = [b.move(made.x, Reshape((4, 6, 1))) for _ in range(2)]
    scale, zero = (
        b.constant(np.asarray(v.const_value.numpy()).reshape(4, 2, 1)) for v in (made.scale, made.zero)
    )  # type: ignore
    qs = [b.call("QuantizeLinear", v, scale, zero, axis=1, block_size=3) for v in views]
    outs = [b.call("DequantizeLinear", q, scale, zero, axis=1, block_size=3) for q in qs]
    outs.append(made.dequantize(made.quantize(made.x)))
    proof = proven(b.done(*outs), b.examples, stages=("cse", "lift", "cse"))
    kinds = op_types(proof.after)
    assert kinds.count("QuantizeLinear") < 3 and "Quantize" not in kinds, proof.log


def test_dynamic_quantize_linear_stays_and_is_combined() -> None:
    b = Builder()
    x = b.given(np.nan_to_num(example((4, 6)), posinf=9, neginf=-9))
    view = b.move(x, Permute((1, 0)))
    outs = []
    for source in (x, x, view):
        q, s, z = b.add("DynamicQuantizeLinear", (source,), outputs=3)
        outs.append(b.call("DequantizeLinear", q, s, z))
    model = b.done(*outs)
    proof = proven(model, b.examples, stages=OPTIMIZE)
    assert op_types(proof.after).count("DynamicQuantizeLinear") == 1, proof.log
    assert "tensor of zeros" in proof.reasons("canonicalize")
    assert_equal(run(proof.after, b.examples), by_onnxruntime(model, b.examples))


@pytest.mark.parametrize(("domain", "op_type"), [
    ("com.amd.quark", "MXQuantizeDequantize"), ("com.vai.quantize", "MXFixNeuron"),
])  # fmt: skip
@pytest.mark.parametrize("element", ["int8", "fp8_e4m3", "fp8_e5m2", "fp6_e2m3", "fp6_e3m2", "fp4_e2m1"])
def test_nodes_of_quark(domain: str, op_type: str, element: str) -> None:
    b = Builder(domains=[domain])
    x = b.input(2, 64, 4)
    turned = b.move(x, Permute((0, 2, 1)))

    def node(x: ir.Value, axis: int) -> ir.Value:
        types = [(ir.DataType.FLOAT, b.sizes(x))]
        more = {"element_dtype": element, "axis": axis, "rounding_mode": 2}
        return b.add(op_type, (x,), domain=domain, types=types, **more)  # type: ignore[no-any-return]

    model = b.done(node(x, 1), node(x, 1), node(x, -2), node(turned, 2))
    quant = quant_of(the_first(model, "fake_quantize"))
    assert (quant.numbers.dialect, quant.block) == ("quark", (1, 32, 1))
    assert quant.numbers.element == ("mxint8" if element == "int8" else element)
    proof = proven(model, b.examples, stages=OPTIMIZE)
    assert proof.kinds["fake_quantize"] == 1, proof.log
    kept = proven(model, b.examples, stages=("cse", "lift", "cse"))
    assert op_types(kept.after).count(op_type) == 1


def test_defaults_of_quark_are_read() -> None:
    b = Builder(domains=["com.amd.quark"])
    x = b.input(2, 64)
    types = [(ir.DataType.FLOAT, (2, 64))]
    model = b.done(b.add("MXQuantizeDequantize", (x,), domain="com.amd.quark", types=types))
    numbers = quant_of(the(model, "fake_quantize")).numbers
    assert (numbers.element, numbers.rounding, numbers.dialect) == ("mxint8", "half_away", "quark")
    assert quant_of(the(model, "fake_quantize")).block == (1, 32)
    proven(model, b.examples, stages=OPTIMIZE)


UNREADABLE = [
    ("it does not saturate", {"saturate": 0}),
    ("scales of shape (4, 2) for blocks that need (4, 3)", {"block_size": 2}),
]


@pytest.mark.parametrize(("why", "settings"), UNREADABLE)
def test_what_is_no_layout_stays_raw_with_a_reason(why: str, settings: dict[str, Any]) -> None:
    b = Builder(21)
    x = b.input(4, 6)
    scale = b.constant(np.ones((4, 2), np.float32))
    zero = b.constant(np.zeros((4, 2), ml_dtypes.float8_e4m3fn))
    arguments = {"axis": 1, "block_size": 3} | settings
    types = [(ir.DataType.FLOAT8E4M3FN, (4, 6))]
    q = b.add("QuantizeLinear", (x, scale, zero), types=types, **arguments)
    (node,) = [n for n in snapshot(b.done(q)).nodes if n.kind == "raw"]
    assert node.params["why"].startswith(why), node.params


def test_float16_is_left_what_it_is() -> None:
    b = Builder(21)
    x = b.input(4, 6, dtype=np.float16)
    scale = b.constant(np.float16(0.1))
    q = [b.call("QuantizeLinear", x, scale, b.constant(np.int8(3))) for _ in range(2)]
    proof = proven(
        b.done(*(b.call("DequantizeLinear", v, scale, b.constant(np.int8(3))) for v in q)),
        b.examples,
        stages=OPTIMIZE,
    )
    assert op_types(proof.after).count("QuantizeLinear") == 1
    assert "float16" in proof.reasons("canonicalize")
