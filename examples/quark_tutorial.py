"""AMD Quark's tutorial, without Quark: a CNN in each of its six MX types, run on ONNX Runtime, and on a stock one.

python examples/quark_tutorial.py [model.onnx]

Quantizes go where Quark puts them and have its bits (compat="quark"). Each model is saved twice: with Quark's
operators, which ONNX Runtime runs with our library, and in the portable form, which it runs alone.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import blockscale as bs

# Quark's element_dtype, and our name for it.
TYPES = {
    "int8": "mxint8", "fp8_e4m3": "mxfp8_e4m3", "fp8_e5m2": "mxfp8_e5m2", "fp6_e3m2": "mxfp6_e3m2",
    "fp6_e2m3": "mxfp6_e2m3", "fp4_e2m1": "mxfp4",
}  # fmt: skip


def small_cnn() -> onnx.ModelProto:
    """A residual network of three convolutions and a classifier, with random weights."""
    random = np.random.default_rng(0)
    weights = {
        "w1": (64, 3, 3, 3), "b1": (64,), "w2": (128, 64, 3, 3), "b2": (128,), "w3": (128, 128, 3, 3), "b3": (128,),
        "w4": (10, 128), "b4": (10,),
    }  # fmt: skip
    scales = {name: np.float32(np.sqrt(2 / np.prod(shape[1:]))) for name, shape in weights.items()}
    nodes = [
        helper.make_node("Conv", ["image", "w1", "b1"], ["c1"], "stem", strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "stem_relu"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "down", strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"], "down_relu"),
        helper.make_node("Conv", ["r2", "w3", "b3"], ["c3"], "body", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["r2", "c3"], ["a3"], "skip"),
        helper.make_node("Relu", ["a3"], ["r3"], "body_relu"),
        helper.make_node("GlobalAveragePool", ["r3"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w4", "b4"], ["logits"], "classify", transB=1),
    ]
    graph = helper.make_graph(
        nodes, "cnn",
        [helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, ["batch", 3, 32, 32])],
        [helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(random.standard_normal(shape, np.float32) * scales[name], name)
         for name, shape in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def session(path: Path, *, library: bool) -> onnxruntime.InferenceSession:
    """Graph optimizations are off, so that both forms do the same float operations in the same order."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if library:
        options.register_custom_ops_library(bs.onnxruntime.library_path())
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def main() -> None:
    model = onnx.load(sys.argv[1]) if len(sys.argv) > 1 else small_cnn()
    name = model.graph.input[0].name
    shape = [d.dim_value or 4 for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = {name: np.random.default_rng(1).standard_normal(shape, np.float32)}
    float_bytes = len(model.SerializeToString())
    print(
        f"float: {float_bytes / 1e3:.0f} kB; Quark keeps the float weights, so its files are larger than that\n"
    )
    print("element_dtype  custom   of float  portable  of float  SQNR dB  custom = portable")

    with tempfile.TemporaryDirectory() as folder:
        for element, recipe in TYPES.items():
            quantized = bs.quantize_model(model, recipe, compat="quark")  # no data reader: MX takes none
            custom, portable = Path(folder) / f"{recipe}.onnx", Path(folder) / f"{recipe}.portable.onnx"
            quantized.save(custom)
            quantized.save(portable, form="portable")

            outputs = session(custom, library=True).run(None, x)
            alone = session(portable, library=False).run(None, x)
            same = all(np.array_equal(a, b) for a, b in zip(outputs, alone, strict=True))
            worst = bs.compare(model, quantized, [x]).outputs[0]
            sizes = [path.stat().st_size for path in (custom, portable)]
            shown = "  ".join(f"{size / 1e3:4.0f} kB  {size / float_bytes:8.3f}" for size in sizes)
            print(f"{element:13}  {shown}  {worst.sqnr:7.1f}  {same}")


if __name__ == "__main__":
    main()
