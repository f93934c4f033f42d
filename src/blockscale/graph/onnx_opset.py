"""An ONNX model brought to a newer version of the standard operators, by onnx's own converter.

The converter takes a whole file, forgets functions and metadata, and does not look into bodies of control flow: so
it gets the graph without its large weights, what it forgets is put back, and a body or function with an operator
that means something else by then is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx
import onnx_ir as ir
from onnx import version_converter

from blockscale.errors import CombinationError
from blockscale.graph.onnx_shapes import inline, is_large

_STANDARD = ("", "ai.onnx")
_OTHER_MEANING = frozenset(("GridSample", "Resize"))  # the same arguments, and other results in some version


def to_opset(model: ir.Model, version: int) -> ir.Model:
    """A model whose standard operators are of `version`; the given one where they are of that or a later one.

    CombinationError: an operator has no way there; it and its version are named.
    """
    have = model.opset_imports.get("", version)
    if have >= version:
        return model
    changed = [node for node in _inside(model) if _changes(node, have, version)]
    if changed:
        raise CombinationError(
            f"{_told(changed[0], have)} lies in a body of control flow or in a function, where operators cannot be "
            f"brought to opset {version}: export the model with opset {version} or later"
        )
    known = model.clone()
    if any(_changes(node, have, version) for node in model.graph):
        known = _converted(known, have, version)
    known.opset_imports[""] = version
    for function in known.functions.values():
        if "" in function.opset_imports:
            function.opset_imports[""] = version
    return known


def _inside(model: ir.Model) -> Iterator[ir.Node]:
    """Nodes of bodies and of functions."""
    for body in model.graph.subgraphs():
        yield from body
    for function in model.functions.values():
        yield from function.all_nodes()


def _changes(node: ir.Node, old: int, new: int) -> bool:
    """Whether the operator, as it is written, may mean something else; that it takes more types does not matter."""
    if node.domain not in _STANDARD:
        return False
    try:
        before, after = (onnx.defs.get_schema(node.op_type, version, "") for version in (old, new))
    except onnx.defs.SchemaError:
        return True
    if before.since_version == after.since_version:
        return False
    names = [[(one.name, one.option) for one in schema.inputs] for schema in (before, after)]
    kept = names[1][: len(names[0])] == names[0] and len(before.outputs) == len(after.outputs)
    return not kept or node.op_type in _OTHER_MEANING or any(
        name not in after.attributes or _default(after.attributes[name]) != _default(attribute)
        for name, attribute in before.attributes.items()
    )  # fmt: skip


def _default(attribute: onnx.defs.OpSchema.Attribute) -> tuple[bool, bytes]:
    return attribute.required, attribute.default_value.SerializeToString()


def _told(node: ir.Node, version: int) -> str:
    return f"operator {node.op_type} ({node.name or 'without a name'}) of opset {version}"


def _converted(model: ir.Model, have: int, version: int) -> ir.Model:
    """`model` is taken apart."""
    functions, metadata = dict(model.functions), dict(model.metadata_props)
    weights = _taken_out(model)
    model.functions.clear()
    try:
        proto = version_converter.convert_version(ir.serde.serialize_model(model), version)
    except Exception as error:  # the converter's own, of protobuf, of shape inference
        raise _refused(model, have, version, error) from error
    made = ir.from_proto(proto)
    _put_back(made.graph, weights)
    made.functions.update(functions)
    made.metadata_props.update(metadata)
    made.opset_imports.update(model.opset_imports)
    return made


def _refused(model: ir.Model, have: int, version: int, error: Exception) -> CombinationError:
    """With the first operator that cannot be converted on its own: the converter rarely names one."""
    what, why = f"the model, which is of opset {have},", error
    for node in model.graph:
        if _changes(node, have, version):
            alone = _alone(node, have, version)
            if alone is not None:
                what, why = _told(node, have), alone
                break
    reason = re.sub(r"^\S+:\d+: ", "", str(why).strip())  # the line in the source of onnx
    return CombinationError(
        f"{what} cannot be brought to opset {version}: {reason}. Export the model with opset {version} or later, or "
        "replace the operator"
    )


def _alone(node: ir.Node, have: int, version: int) -> Exception | None:
    """What the converter says of a model of this one node."""
    proto = onnx.ModelProto(ir_version=8)
    proto.opset_import.append(onnx.helper.make_opsetid("", have))
    proto.graph.name = "one"
    proto.graph.node.append(ir.serde.serialize_node(node))
    for value in filter(None, node.inputs):
        if value.const_value is None:
            proto.graph.input.append(ir.serde.serialize_value(value))
        elif value.name not in [one.name for one in proto.graph.initializer]:
            proto.graph.initializer.append(ir.serde.serialize_tensor(value.const_value))
    proto.graph.output.extend(ir.serde.serialize_value(value) for value in node.outputs)
    try:
        version_converter.convert_version(proto, version)
    except Exception as error:
        return error
    return None


def _taken_out(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """Large weights become inputs of the same names, small ones lie in the graph: conversion reads their values."""
    weights = {}
    graph = model.graph
    given = set(graph.inputs)
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None:
            continue
        if value in given or not is_large(tensor):
            value.const_value = inline(tensor)
            continue
        weights[name] = tensor
        del graph.initializers[name]
        value.const_value = None
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        graph.inputs.append(value)
    return weights


def _put_back(graph: ir.Graph, weights: dict[str, ir.TensorProtocol]) -> None:
    values = {value.name: value for value in graph.inputs}
    graph.inputs[:] = [value for value in graph.inputs if value.name not in weights]
    for name, tensor in weights.items():
        values[name].const_value = tensor
        graph.register_initializer(values[name])
