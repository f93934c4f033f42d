"""Linear layers of others, of the same shape: those that are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from _limits import Array
from _measure import Run

Layer = Callable[[Array], Run]  # x [M, K] to what runs it


def _session(graph: Any, threads: int) -> Any:
    import onnx
    import onnxruntime

    domains = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=domains, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _onnx_layer(op: str, attributes: dict[str, int], constants: dict[str, Array], threads: int) -> Layer:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    node = helper.make_node(op, ["x", *constants], ["y"], domain="com.microsoft", **attributes)
    graph = helper.make_graph(
        [node], op,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", "k"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    assert onnx.__version__
    session = _session(graph, threads)
    return lambda x: lambda: session.run(["y"], {"x": x})


def ort_dynamic_int8(w: Array, threads: int) -> Layer:
    """8-bit weights a column, x to uint8 as a whole: no blocks."""
    scale = np.abs(w).max(1) / 127
    q = np.rint(w / scale[:, None]).astype(np.int8)
    constants = {"w": np.ascontiguousarray(q.T), "s": scale.astype(np.float32)}
    return _onnx_layer("DynamicQuantizeMatMul", {}, constants, threads)


def ort_int4(w: Array, threads: int) -> Layer:
    """MatMulNBits, groups of 32, x in int8 (accuracy level 4)."""
    n, k = w.shape
    groups = w.reshape(n, k // 32, 32)
    scale = (np.abs(groups).max(2) / 7).astype(np.float32)
    q = (np.rint(groups / scale[:, :, None]) + 8).astype(np.uint8)
    constants = {"w": q[..., ::2] | q[..., 1::2] << 4, "s": scale.reshape(-1)}
    attributes = {"K": k, "N": n, "bits": 4, "block_size": 32, "accuracy_level": 4}
    return _onnx_layer("MatMulNBits", attributes, constants, threads)


def torch_bf16(w: Array, threads: int) -> Layer:
    import torch

    weight = torch.from_numpy(w).to(torch.bfloat16)

    def layer(x: Array) -> Run:
        tensor = torch.from_numpy(x).to(torch.bfloat16)

        def run() -> object:
            torch.set_num_threads(threads)
            with torch.inference_mode():
                return torch.nn.functional.linear(tensor, weight)

        return run

    return layer


def torch_int4(w: Array, threads: int) -> Layer:
    """_weight_int4pack_mm_for_cpu, groups of 32, x in bfloat16."""
    import torch

    n, k = w.shape
    codes = torch.randint(0, 16, (n, k), dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    scales = torch.rand(k // 32, n, 2).to(torch.bfloat16)

    def layer(x: Array) -> Run:
        tensor = torch.from_numpy(x).to(torch.bfloat16)

        def run() -> object:
            torch.set_num_threads(threads)
            with torch.inference_mode():
                return torch.ops.aten._weight_int4pack_mm_for_cpu(tensor, packed, 32, scales)

        return run

    return layer


def openvino_int4(w: Array, threads: int) -> Layer:
    """u4 weights in groups of 32 (float16 scales), x quantized on the fly."""
    import openvino
    from openvino import opset13 as ops

    n, k = w.shape
    groups = w.reshape(n, k // 32, 32)
    scale = (np.abs(groups).max(2, keepdims=True) / 7).astype(np.float16)
    q = np.clip(np.rint(groups / scale.astype(np.float32)) + 8, 0, 15).astype(np.uint8)
    x = ops.parameter([-1, k], openvino.Type.f32, "x")
    tensor = openvino.Tensor(openvino.Type.u4, list(q.shape))
    flat = q.reshape(-1)
    tensor.data.reshape(-1)[:] = flat[::2] | flat[1::2] << 4
    codes = ops.convert(openvino.op.Constant(tensor), "f16")
    shifted = ops.subtract(codes, ops.constant(np.array(8, np.float16)))
    weight = ops.reshape(ops.multiply(shifted, ops.constant(scale)), [n, k], False)
    product = ops.matmul(x, ops.convert(weight, "f32"), False, True)
    compiled = openvino.Core().compile_model(
        openvino.Model([product], [x]), "CPU",
        {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "DYNAMIC_QUANTIZATION_GROUP_SIZE": 32,
         "PERFORMANCE_HINT": "LATENCY"},
    )  # fmt: skip
    request = compiled.create_infer_request()
    return lambda values: lambda: request.infer([values], share_inputs=True, share_outputs=True)


PEERS: dict[str, tuple[str, Callable[[Array, int], Layer]]] = {
    "ONNX Runtime dynamic int8": ("onnxruntime", ort_dynamic_int8),
    "ONNX Runtime MatMulNBits int4 g32": ("onnxruntime", ort_int4),
    "OpenVINO int4 g32, dynamic int8": ("openvino", openvino_int4),
    "torch bfloat16": ("torch", torch_bf16),
    "torch int4pack g32": ("torch", torch_int4),
}


def peers() -> dict[str, Callable[[Array, int], Layer]]:
    return {name: make for name, (package, make) in PEERS.items() if importlib.util.find_spec(package)}
