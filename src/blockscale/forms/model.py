"""What the forms share: our nodes in a model, nodes put in their place, the opset that they need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from blockscale.errors import CombinationError
from blockscale.graph.onnx_quantizers import DOMAIN

OURS = ("FakeQuantize", "Quantize", "DynamicQuantize", "Dequantize")


def inlined(model: ir.Model) -> ir.Model:
    """A copy whose fused nodes, which are functions of our domain, are the nodes that they hold."""
    model = model.clone()
    if any(function.domain == DOMAIN for function in model.functions.values()):
        InlinePass(lambda function: function.domain == DOMAIN)(model)
    return model


def our_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Also in the bodies of control flow, and in functions of the user's."""
    roots: list[Any] = [model.graph, *(function.graph for function in model.functions.values())]
    for root in roots:
        for node in list(ir.traversal.RecursiveGraphIterator(root)):
            if node.domain == DOMAIN and node.op_type in OURS:
                yield node


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    found = node.attributes.get(name)
    if found is None:
        return default
    return found.as_string() if found.type == ir.AttributeType.STRING else found.value


class Replaced:
    """Nodes with others in their place; outputs keep their names and types."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self._gone: list[ir.Node] = []

    def by(self, node: ir.Node, *made: ir.Node) -> None:
        """`made` in order; the last one gives the outputs of `node`."""
        last = made[-1]
        graph = node.graph
        assert graph is not None
        graph.insert_before(node, made)
        last.name = node.name
        for old, new in zip(node.outputs, last.outputs, strict=True):
            new.shape, new.type, name = old.shape, old.type, old.name
            old.name = None
            new.name = name
            _take_over(graph, old, new)
        self._gone.append(node)

    def done(self) -> None:
        for node in self._gone:
            graph = node.graph
            assert graph is not None
            graph.remove(node, safe=True)


def _take_over(graph: Any, old: ir.Value, new: ir.Value) -> None:
    old.replace_all_uses_with(new, replace_graph_outputs=True)


def require_opset(model: ir.Model, oldest: int, what: str) -> None:
    version = int(model.opset_imports.get("", 1))
    if version < oldest:
        raise CombinationError(
            f"{what} takes operators of opset {oldest}, and the model is of opset {version}; convert it first, "
            f"with onnx.version_converter.convert_version(model, {oldest})"
        )
