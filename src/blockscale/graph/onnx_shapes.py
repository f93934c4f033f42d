"""Shapes that a model does not state, by onnx's shape inference, on a copy without its weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
import onnx_ir as ir

from blockscale.graph.onnx_types import tensor_dtype

# Name of a value of one graph → its type and its sizes (an int, a name, or None).
Known = dict[str, tuple[ir.DataType, list[int | str | None]]]

_SMALL = 4096  # bytes of a constant that a shape may be computed from

# Operators that inference does not know, whose output is of the type and shape of their first input.
LIKE_FIRST = frozenset((
    ("com.amd.quark", "MXQuantizeDequantize"), ("com.amd.quark", "BFPQuantizeDequantize"),
    ("com.vai.quantize", "MXFixNeuron"), ("com.vai.quantize", "BFPFixNeuron"), ("blockscale", "FakeQuantize"),
    ("com.microsoft", "Gelu"), ("com.microsoft", "FastGelu"), ("com.microsoft", "QuickGelu"),
))  # fmt: skip


def is_missing(graph: ir.Graph) -> bool:
    """Whether a node, here or in a body, has an output of unknown type or rank."""
    return any(
        value.name and (value.type is None or (tensor_dtype(value) is not None and value.shape is None))
        for node in graph.all_nodes() if node.op_type != "Constant" for value in node.outputs
    )  # fmt: skip


def inferred(model: ir.Model) -> dict[tuple[int, ...], Known]:
    """For each graph, by its path of (node, attribute number, …) from the main one; empty if it cannot be."""
    proto = ir.serde.serialize_model(without_weights(model))
    try:
        proto = onnx.shape_inference.infer_shapes(proto, check_type=False, strict_mode=False, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return {}
    return {path: _known(graph) for path, graph in _graphs(proto.graph, ())}


def _known(graph: Any) -> Known:
    found: Known = {}
    for info in (*graph.value_info, *graph.output, *graph.input):
        tensor = info.type.tensor_type
        if info.type.HasField("tensor_type") and tensor.HasField("shape") and tensor.elem_type:
            found[info.name] = ir.DataType(tensor.elem_type), [_dim(dim) for dim in tensor.shape.dim]
    return found


def _dim(dim: Any) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return str(dim.dim_param) if dim.HasField("dim_param") else None


def _graphs(graph: Any, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Any]]:
    yield path, graph
    for i, node in enumerate(graph.node):
        bodies = [a.g for a in node.attribute if a.HasField("g")]
        bodies += [body for a in node.attribute for body in a.graphs]
        for j, body in enumerate(bodies):
            yield from _graphs(body, (*path, i, j))


def without_weights(model: ir.Model) -> ir.Model:
    """A copy whose large constants are only said to lie elsewhere, and whose quantizers are Identity."""
    copy = model.clone()
    for graph in (copy.graph, *copy.graph.subgraphs()):
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _light(value.const_value)
        for node in graph:
            if (node.domain, node.op_type) in LIKE_FIRST:
                node.domain, node.op_type = "", "Identity"
                node.attributes.clear()
                node.resize_inputs(1)
            elif node.op_type == "Constant" and "value" in node.attributes:
                tensor = node.attributes["value"].as_tensor()
                node.attributes["value"] = ir.AttrTensor("value", _light(tensor))
    return copy


def _light(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if tensor.dtype == ir.DataType.STRING:
        return tensor
    if tensor.nbytes > _SMALL:
        shape = ir.Shape(tensor.shape.numpy())
        return ir.ExternalTensor(
            "elsewhere", 0, tensor.nbytes, tensor.dtype, shape=shape, name=tensor.name or ""
        )
    return ir.Tensor(tensor.numpy(), name=tensor.name) if isinstance(tensor, ir.ExternalTensor) else tensor
