"""Fused operators of ONNX models are functions of the model that hold the nodes they replaced."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from blockscale.graph.onnx import snapshot
from blockscale.graph.onnx_quantizers import DOMAIN
from blockscale.passes.pipeline import OPTIMIZE, optimize
from passes.onnx_graphs import Builder, assert_equal, example, op_types, run
from passes.proof import Proof, proven

HIDDEN = 64


def finite(*shape: int, seed: int = 0) -> np.ndarray:
    return np.clip(np.nan_to_num(example(shape, seed), nan=0.0), -100, 100)


def weight(b: Builder, *shape: int, seed: int = 5) -> ir.Value:
    return b.constant(finite(*shape, seed=seed))


def functions(model: ir.Model) -> dict[str, list[str]]:
    """Our functions with the operators in them."""
    return {
        key[1]: [node.op_type for node in one] for key, one in model.functions.items() if key[0] == DOMAIN
    }


def rms_norm(b: Builder, x: ir.Value, w: ir.Value, spelling: str = "pow") -> ir.Value:
    """As torch's exporter writes Llama's."""
    if spelling == "operator":
        return b.call("RMSNormalization", x, w)  # type: ignore[no-any-return]
    square = b.call("Mul", x, x) if spelling == "mul" else b.call("Pow", x, b.constant(np.float32(2)))
    axes = {"axes": [-1]} if b.opset < 18 else {}
    mean = b.call("ReduceMean", square, *([] if axes else [b.ints([-1])]), keepdims=1, **axes)
    root = b.call("Sqrt", b.call("Add", mean, b.constant(np.float32(1e-6))))
    one = b.call("Div", b.constant(np.float32(1)), root) if spelling == "div" else b.call("Reciprocal", root)
    return b.call("Mul", w, b.call("Mul", x, one))  # type: ignore[no-any-return]


def assert_whole(proof: Proof) -> None:
    """What is written can be read, checked and optimized again."""
    proto = ir.to_proto(proof.after)
    onnx.checker.check_model(proto)
    again = optimize(proof.after, check=True)
    assert op_types(again) == op_types(proof.after)


def test_a_product_with_quantized_operands() -> None:
    b = Builder()
    x = b.given(finite(2, 5, HIDDEN), dynamic=(0, 1))
    y = b.call("MatMul", b.fake(x, "mxfp8"), b.fake(weight(b, HIDDEN, 32), "mxint8", (32, 1)))
    proof = proven(b.done(y), b.examples, [finite(3, 1, HIDDEN, seed=2)], stages=OPTIMIZE)
    assert functions(proof.after) == {"matmul": ["FakeQuantize", "Dequantize", "MatMul"]}
    assert op_types(proof.after) == ["matmul"], proof.log
    assert_whole(proof)


@pytest.mark.parametrize("scheme", ["mxfp4", "mxfp6", "mxint8", "nvfp4", "int8-token", "uint8-g32", "int8"])
def test_a_norm_quantizes_its_result(scheme: str) -> None:
    b = Builder()
    x = b.given(finite(2, 5, HIDDEN))
    y = rms_norm(b, x, weight(b, HIDDEN))
    proof = proven(b.done(b.dequantize([v if b.sizes(v) != [0] else None for v in b.measure(y, scheme)], y, scheme)),
                   b.examples, stages=OPTIMIZE)  # fmt: skip
    assert list(functions(proof.after)) == ["rms_norm_quantize"], proof.log
    assert proof.kinds["quantize"] == 0
    assert_whole(proof)


@pytest.mark.parametrize(("spelling", "opset"), [
    ("pow", 13), ("pow", 18), ("mul", 18), ("div", 18), ("operator", 23),
])  # fmt: skip
def test_spellings_of_a_norm(spelling: str, opset: int) -> None:
    b = Builder(opset)
    x, r = b.given(finite(2, 5, HIDDEN)), b.given(finite(2, 5, HIDDEN, seed=1))
    total = b.call("Add", x, r)
    y = rms_norm(b, total, weight(b, HIDDEN), spelling)
    outs = [
        b.call("MatMul", b.fake(y, "mxfp8"), b.fake(weight(b, HIDDEN, n, seed=n), "mxfp8", (32, 1)))
        for n in (8, 32)
    ]
    proof = proven(b.done(*outs, total), b.examples, stages=OPTIMIZE)
    made = functions(proof.after)
    assert "add_rms_norm_quantize" in made, proof.log
    assert proof.kinds["quantize"] == proof.kinds["dequantize"] == 0, proof.log
    inside = made["add_rms_norm_quantize"]
    assert inside[-1] == "DynamicQuantize" and ("Pow" in inside) == (spelling in ("pow", "div"))
    assert_whole(proof)


def test_layers_that_are_equal_call_one_function() -> None:
    b = Builder()
    x = b.given(finite(4, HIDDEN))
    for layer in range(3):
        y = rms_norm(b, x, weight(b, HIDDEN, seed=layer))
        x = b.call(
            "MatMul", b.fake(y, "mxfp8"), b.fake(weight(b, HIDDEN, HIDDEN, seed=layer), "mxfp8", (32, 1))
        )
    z = b.call("MatMul", b.fake(x, "mxfp4"), b.fake(weight(b, HIDDEN, 8), "mxfp8", (32, 1)))
    proof = proven(b.done(z), b.examples, stages=OPTIMIZE)
    assert sorted(functions(proof.after)) == ["matmul", "matmul_2", "matmul_3", "rms_norm_quantize"]
    assert op_types(proof.after).count("rms_norm_quantize") == 3
    said = (
        "matmul(x: mxfp8 in blocks of 1×32, y: mxfp8 in blocks of 32×1) → mxfp4 in blocks of 1×32, in float32"
    )
    assert proof.after.functions[DOMAIN, "matmul_2", ""].doc_string == said  # the last layer's result
    assert_whole(proof)


def test_gemm_conv_and_requantize() -> None:
    b = Builder()
    x, image = b.given(finite(4, HIDDEN)), b.given(finite(1, 8, 6, 6))
    gemm = b.call("Gemm", b.fake(x, "mxfp8"), b.fake(weight(b, 16, HIDDEN), "mxfp8"), weight(b, 16), transB=1)
    w = b.fake(weight(b, 4, 8, 3, 3), "int8-channel")
    scale = b.constant(np.full((1, 1, 1, 1), 0.25, np.float32))
    q = b.quantize(image, "int8", None, scale)
    values = b.dequantize([q, scale], image, "int8")
    conv = b.call("Conv", values, w, pads=[1, 1, 1, 1])
    other = b.measure(values, "mxint8", (1, 8, 1, 1))
    again = b.dequantize(other[:2], image, "mxint8", (1, 8, 1, 1))
    proof = proven(b.done(gemm, conv, again), b.examples, stages=OPTIMIZE)
    made = functions(proof.after)
    assert {"linear", "conv2d", "requantize"} <= set(made), proof.log
    assert made["requantize"] == ["Dequantize", "DynamicQuantize"]
    assert_whole(proof)


def test_fused_nodes_in_bodies() -> None:
    b = Builder()
    x, which = b.given(finite(4, HIDDEN)), b.given(np.array(True))
    bodies = []
    for name in ("then", "other"):
        inner = b.body(name)
        y = inner.call(
            "MatMul", inner.fake(x, "mxfp8"), inner.fake(weight(inner, HIDDEN, 8), "mxfp8", (32, 1))
        )
        bodies.append(inner.finish(y))
    proof = proven(
        b.done(b.branch(which, *bodies)), b.examples, [b.examples[0], np.array(False)], stages=OPTIMIZE
    )
    assert list(functions(proof.after)) == ["matmul"]
    assert op_types(proof.after).count("matmul") == 2
    assert_whole(proof)


def test_models_that_are_too_old_for_functions_are_not_fused() -> None:
    b = Builder(13)
    x = b.given(finite(4, HIDDEN))
    model = b.done(b.call("MatMul", b.fake(x, "mxfp8"), b.fake(weight(b, HIDDEN, 8), "mxfp8", (32, 1))))
    model.ir_version = 7
    proof = proven(model, b.examples, stages=OPTIMIZE)
    assert not proof.after.functions and proof.kinds["matmul"] == 1
    assert "cannot be written into this model" in proof.reasons("fuse_operands")


def test_names_of_functions_that_the_model_has_are_not_taken() -> None:
    b = Builder()
    x = b.given(finite(4, HIDDEN))
    model = b.done(b.call("MatMul", b.fake(x, "mxfp8"), b.fake(weight(b, HIDDEN, 8), "mxfp8", (32, 1))))
    once = optimize(model)
    assert sorted(functions(once)) == ["matmul"]
    inner = Builder()
    y = inner.given(finite(4, 8))
    more = inner.call(
        "MatMul", inner.fake(y, "mxfp4", (1, 8)), inner.fake(weight(inner, 8, 8), "mxfp8", (8, 1))
    )
    second = inner.done(more)
    second.functions.update(once.functions)
    after = optimize(second, check=True)
    assert sorted(functions(after)) == ["matmul", "matmul_2"]
    assert_equal(run(after, inner.examples), run(second, inner.examples))


def test_a_call_of_ours_is_pure() -> None:
    b = Builder()
    x = b.given(finite(4, HIDDEN))
    model = optimize(
        b.done(b.call("MatMul", b.fake(x, "mxfp8"), b.fake(weight(b, HIDDEN, 8), "mxfp8", (32, 1))))
    )
    (node, _) = snapshot(model).nodes
    assert node.call.name == "blockscale::matmul" and node.call.pure
