"""An ONNX model in int8 and in MXINT8: calibrate, quantize, compare, save in three forms, load. torch is not needed.

python examples/quantize_onnx.py [model.onnx]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import blockscale as bs


def small_cnn() -> onnx.ModelProto:
    """conv → relu → conv → pool → gemm, with random weights."""
    random = np.random.default_rng(0)
    weights = {"w1": (32, 3, 3, 3), "w2": (64, 32, 3, 3), "w3": (10, 64), "b3": (10,)}
    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["c1"], "first", strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "second", strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c2"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["logits"], "classify", transB=1),
    ]
    graph = helper.make_graph(
        nodes, "cnn",
        [helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, ["batch", 3, 32, 32])],
        [helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(random.standard_normal(shape, np.float32) / 8, name)
         for name, shape in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def run(path: Path, inputs: dict[str, Any], *, library: bool) -> list[Any]:
    """Without graph optimizations, which may sum up products in another order in another form."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if library:
        options.register_custom_ops_library(bs.onnxruntime.library_path())
    return list(onnxruntime.InferenceSession(path, options).run(None, inputs))


def main() -> None:
    model = onnx.load(sys.argv[1]) if len(sys.argv) > 1 else small_cnn()
    random = np.random.default_rng(1)
    name, shape = (
        model.graph.input[0].name,
        [d.dim_value or 4 for d in model.graph.input[0].type.tensor_type.shape.dim],
    )
    batches = [{name: random.standard_normal(shape, np.float32)} for _ in range(8)]

    # int8 has one static scale for each input of an operator, so it is calibrated; onnxruntime runs the model.
    static = bs.quantize_model(
        model, "int8", calibration=batches[:6], method=("percentile", {"percentile": 99.99})
    )
    # MX scales come from the values themselves.
    blocks = bs.quantize_model(model, "mxint8")
    print(static.report)

    for title, quantized in (("int8", static), ("mxint8", blocks)):
        print(f"\n{title}, against float on two other batches")
        print(bs.compare(model, quantized, batches[6:]))

    print("\nmxint8 in each form of file, on onnxruntime")
    size = len(model.SerializeToString())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        results = []
        for form, runtime in (("portable", None), ("native", "onnxruntime"), ("custom", None)):
            blocks.save(path, form=form, runtime=runtime)
            results.append(run(path, batches[0], library=form == "custom"))
            same = all(map(np.array_equal, results[0], results[-1]))
            with_what = "our library" if form == "custom" else "as it comes"
            shown = f"{form:9}{path.stat().st_size / 1e3:4.0f} kB of {size / 1e3:.0f}, {with_what}"
            print(f"{shown}, the same results: {same}")
        loaded = bs.load(path)
        print(f"loaded with the same results: {np.array_equal(loaded(batches[0]), blocks(batches[0]))}")


if __name__ == "__main__":
    main()
