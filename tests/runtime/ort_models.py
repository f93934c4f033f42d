"""Models for the tests of the operator library, written node by node, and raw sessions with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper

import blockscale.onnxruntime
from blockscale.graph.onnx_quantizers import DOMAIN
from blockscale.numerics.arrays import Array
from blockscale.numerics.invariants import scale_dtype
from blockscale.numerics.scheme import Numbers, numbers_named
from blockscale.runtime.ort import array_of, ort_value

QUARK = (("com.amd.quark", "MXQuantizeDequantize"), ("com.vai.quantize", "MXFixNeuron"))
FLOATS = {"f32": T.FLOAT, "bf16": T.BFLOAT16, "f16": T.FLOAT16}


def value(name: str, dtype: Any, shape: Sequence[Any] | None = None) -> onnx.ValueInfoProto:
    kind = dtype if isinstance(dtype, int) else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name: str, array: Array) -> onnx.TensorProto:
    array = np.asarray(array)
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor(name, kind, array.shape, array.tobytes(), raw=True)


def node(
    op_type: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = DOMAIN, **attributes: Any
) -> Any:
    """Named by its operator and output; an empty list of integers is left out, since it has no type."""
    return helper.make_node(
        op_type, inputs, outputs, f"{op_type}_{outputs[0]}", domain=domain,
        **{key: given for key, given in attributes.items() if not (isinstance(given, list | tuple) and not given)},
    )  # fmt: skip


def model(
    nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], constants: Sequence[Any] = (),
    known: Sequence[Any] = (),
) -> onnx.ModelProto:  # fmt: skip
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants, value_info=known)
    opsets = [helper.make_opsetid(name, 1) for name in {one.domain for one in nodes if one.domain}]
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18), *opsets], ir_version=9)


def session(proto: onnx.ModelProto, threads: int = 0) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.register_custom_ops_library(blockscale.onnxruntime.library_path())
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(on: ort.InferenceSession, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs by name, bfloat16 among them."""
    names = [one.name for one in on.get_outputs()]
    found = on.run_with_ort_values(names, {name: ort_value(array) for name, array in inputs.items()})
    return {name: array_of(one) for name, one in zip(names, found, strict=True)}


def codes_dtype(numbers: Numbers) -> Any:
    return numbers.element_format.storage_dtype


def chain(
    name: str, text: str, block: Sequence[int], shape: Sequence[int], tensor_format: str, seed: int = 0
) -> Any:
    """fake-quantize, dynamic quantize, quantize with its scales, dequantize; values of the nodes by name."""
    numbers = numbers_named(text)
    place = {"numbers": text, "block": list(block)}
    kind = FLOATS[tensor_format]
    c, s, z, t, q, y, f = (f"{name}_{letter}" for letter in "csztqyf")
    nodes = [node("FakeQuantize", ["x"], [f], seed=seed, **place)]
    values = [value(f, kind)]
    if not numbers.why_no_codes:
        nodes += [
            node("DynamicQuantize", ["x"], [c, s, z, t], seed=seed, **place),
            node("Quantize", ["x", s, z, t], [q], seed=seed, **place),
            node("Dequantize", [c, s, z, t], [y], shape=list(shape), dtype=kind, **place),
        ]
        codes, scale = codes_dtype(numbers), scale_dtype(numbers)
        values += [
            value(c, codes),
            value(s, scale),
            value(z, np.int32),
            value(t, np.float32),
            value(q, codes),
            value(y, kind),
        ]
    return nodes, values
