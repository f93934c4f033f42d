"""A ModelProto that somebody gave → an onnx_ir.Model, if it is one: what nothing after this asks again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from blockscale.errors import FileError
from blockscale.graph.onnx_shapes import bodies_of

_SHOWN = 300  # characters of what a library says


def sound_model(proto: onnx.ModelProto, where: str) -> ir.Model:
    """Nodes are put in an order in which they can run. FileError: `where`, and what is not sound."""
    if not proto.HasField("graph"):
        raise FileError(f"{where}: not an ONNX model that can be read (it holds no graph)")
    for graph in _graphs(proto.graph):
        _check_names(graph, where)
        _check_tensors(graph, where)
    try:
        model = ir.serde.deserialize_model(proto)
    except Exception as error:  # of many kinds, each wrapped in others
        raise FileError(f"{where}: not an ONNX model that can be read ({_innermost(error)})") from error
    _check_values(model, where)
    _check_version(model, where)
    if not _is_in_order(model.graph, set()):
        try:
            model.graph.sort()
        except ValueError:
            raise FileError(f"{where}: nodes of the graph wait for one another in a circle") from None
    return model


def _is_in_order(graph: ir.Graph, made: set[ir.Node]) -> bool:
    """Whether every node, in bodies too, reads what is made before it."""
    for node in graph:
        producers = (None if value is None else value.producer() for value in node.inputs)
        if any(producer is not None and producer not in made for producer in producers):
            return False
        if not all(_is_in_order(body, made) for body in bodies_of(node)):
            return False
        made.add(node)
    return True


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                yield from _graphs(body)


def _check_names(graph: onnx.GraphProto, where: str) -> None:
    """A name is given to one tensor; an initializer may be the default of an input."""
    made = [name for node in graph.node for name in node.output if name]
    inputs = [value.name for value in graph.input]
    for names, others in ((made + inputs, ()), ([one.name for one in graph.initializer], made)):
        counts = Counter(names)
        twice = next((n for n in counts if counts[n] > 1 or n in others), None)
        if twice is not None:
            raise FileError(f"{where}: the graph gives the name {twice!r} to more than one tensor")


def _check_tensors(graph: onnx.GraphProto, where: str) -> None:
    if graph.sparse_initializer:
        names = ", ".join(repr(one.values.name) for one in graph.sparse_initializer[:3])
        raise FileError(f"{where}: sparse initializers ({names}) are not taken: store them as dense ones")
    for tensor in graph.initializer:
        if any(size < 0 for size in tensor.dims):
            raise FileError(f"{where}: weight {tensor.name!r} has the shape {list(tensor.dims)}")
        for entry in tensor.external_data:
            if entry.key in ("offset", "length") and not entry.value.isdecimal():
                raise FileError(
                    f"{where}: weight {tensor.name!r} has {entry.key} {entry.value!r} in its file"
                )


def _check_values(model: ir.Model, where: str) -> None:
    """onnx_ir makes up values that nothing gives."""
    for graph in (model.graph, *model.graph.subgraphs()):
        read = [(value, f"operator {node.name or node.op_type!r}") for node in graph for value in node.inputs]
        read += [(value, "an output of the graph") for value in graph.outputs]
        for value, reader in read:
            if (
                value is None
                or value.producer() is not None
                or value.is_graph_input()
                or value.is_initializer()
            ):
                continue
            raise FileError(f"{where}: {reader} reads {value.name!r}, which nothing gives")


def _check_version(model: ir.Model, where: str) -> None:
    if "" not in model.opset_imports and any(node.domain == "" for node in model.graph.all_nodes()):
        raise FileError(
            f"{where}: it has operators of the standard, and does not say of which version (opset)"
        )


def _innermost(error: BaseException) -> str:
    """onnx_ir tells where it was in the model, and beneath it what was wrong."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(str(error).split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + " …"
