"""Shapes that a model does not state, by onnx's shape inference, on a copy without its weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
import onnx_ir as ir

from blockscale.graph.onnx_names import Names
from blockscale.graph.onnx_types import NAMELESS, NO_NAMES, array_of, is_nameless, tensor_dtype

# Name of a value of one graph → its type and its sizes (an int, a name, or None).
Known = dict[str, tuple[ir.DataType, list[int | str | None]]]

_MADE_UP = "unk__"  # begins the names that inference gives
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


def is_vague(graph: ir.Graph) -> bool:
    """Whether, besides, a size has no name: inference may know which one it is."""
    return is_missing(graph) or any(
        is_nameless(dim) for node in graph.all_nodes() for value in node.outputs for dim in value.shape or ()
    )


def inferred(model: ir.Model) -> dict[tuple[int, ...], Known]:
    """For each graph, by its path of (node, attribute number, …) from the main one; empty if it cannot be."""
    proto = ir.serde.serialize_model(without_weights(model))
    for i, value in enumerate(proto.graph.input):
        for j, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value") and dim.dim_param in NO_NAMES:
                dim.dim_param = f"{NAMELESS}{i}_{j}"
    try:
        proto = onnx.shape_inference.infer_shapes(proto, check_type=False, strict_mode=False, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return {}
    return {path: _known(graph) for path, graph in _graphs(proto.graph, ())}


def state(model: ir.Model, shapes: dict[tuple[int, ...], Known]) -> int:
    """Write what was inferred onto the values that lack it, also sizes that only inference knows; how many."""
    count = 0
    for path, graph in _paths(model.graph, ()):
        known = shapes.get(path, {})
        for value in (value for node in graph for value in node.outputs):
            if (
                value.name in known
                and value.name
                and (value.type is None or isinstance(value.type, ir.TensorType))
            ):
                dtype, sizes = known[value.name]
                if tensor_dtype(value) is None:
                    value.type = ir.TensorType(dtype)
                shape = _stated(value.shape, sizes)
                count += shape != value.shape
                value.shape = shape
    return count


def _stated(shape: ir.Shape | None, sizes: list[int | str | None]) -> ir.Shape:
    """The model's own sizes, those that it lacks, and no names that inference made up."""
    named = [None if isinstance(n, str) and n.startswith(NAMELESS) else n for n in sizes]
    if shape is None or len(shape) != len(named):
        return ir.Shape(named) if shape is None else shape
    return ir.Shape([new if is_nameless(old) else old for old, new in zip(shape, named, strict=True)])


def _paths(graph: ir.Graph, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ir.Graph]]:
    """As `_graphs`, of a graph of onnx_ir."""
    yield path, graph
    for i, node in enumerate(graph):
        for j, body in enumerate(bodies_of(node)):
            yield from _paths(body, (*path, i, j))


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
    if not dim.HasField("dim_param"):
        return None
    name = str(dim.dim_param)
    return f"{NAMELESS}{name}" if name.startswith(_MADE_UP) else name


def bodies_of(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def _graphs(graph: Any, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Any]]:
    yield path, graph
    for i, node in enumerate(graph.node):
        bodies = [a.g for a in node.attribute if a.HasField("g")]
        bodies += [body for a in node.attribute for body in a.graphs]
        for j, body in enumerate(bodies):
            yield from _graphs(body, (*path, i, j))


def without_weights(model: ir.Model) -> ir.Model:
    """A copy whose large constants are inputs, and whose quantizers are Identity; nodes keep their places."""
    copy = model.clone()
    names = Names(copy)
    for graph in (copy.graph, *copy.graph.subgraphs()):
        for value in list(graph.initializers.values()):
            tensor = value.const_value
            if tensor is None or not is_large(tensor):
                value.const_value = None if tensor is None else inline(tensor)
                continue
            given = _given(copy, tensor, names)
            value.replace_all_uses_with(given, replace_graph_outputs=True)
            del graph.initializers[str(value.name)]
    for graph in (copy.graph, *copy.graph.subgraphs()):
        for node in graph:
            if node.op_type == "Constant" and "value" in node.attributes:
                tensor = node.attributes["value"].as_tensor()
                if is_large(tensor):
                    _become_identity(node, _given(copy, tensor, names))
                else:
                    node.attributes["value"] = ir.AttrTensor("value", inline(tensor))
    for nodes in (copy.graph.all_nodes(), *(function.all_nodes() for function in copy.functions.values())):
        for node in nodes:
            if (node.domain, node.op_type) in LIKE_FIRST:
                _become_identity(node, node.inputs[0])
    return copy


def is_large(tensor: ir.TensorProtocol) -> bool:
    return tensor.dtype != ir.DataType.STRING and tensor.nbytes > _SMALL


def inline(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.Tensor(array_of(tensor), name=tensor.name) if isinstance(tensor, ir.ExternalTensor) else tensor


def _given(model: ir.Model, tensor: ir.TensorProtocol, names: Names) -> ir.Value:
    """A new input in the place of a tensor."""
    shape = ir.Shape(tensor.shape.numpy())
    value = ir.Value(
        name=names.value(f"{tensor.name or 'constant'}_given"), shape=shape, type=ir.TensorType(tensor.dtype)
    )
    model.graph.inputs.append(value)
    return value


def _become_identity(node: ir.Node, source: ir.Value | None) -> None:
    node.domain, node.op_type = "", "Identity"
    node.attributes.clear()
    node.resize_inputs(1)
    node.replace_input_with(0, source)
