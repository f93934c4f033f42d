"""What the forms share: our nodes in a model, what is put in their place, functions, the opset that they need."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from blockscale.errors import CombinationError
from blockscale.graph.onnx_names import Names
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
    for node in _all_nodes(model):
        if node.domain == DOMAIN and node.op_type in OURS:
            yield node


def _all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    roots: list[Any] = [model.graph, *(function.graph for function in model.functions.values())]
    for root in roots:
        yield from list(ir.traversal.RecursiveGraphIterator(root))


class Edit:
    """Our nodes with others in their place, functions that those call, and new constants."""

    def __init__(self, model: ir.Model, domain: str) -> None:
        self.model, self.domain = model, domain
        self.names = Names(model)
        self._functions: dict[Hashable, ir.Function] = {}
        self._gone: list[ir.Node] = []
        self._constants: dict[Hashable, ir.Value] = {}

    def replace(self, node: ir.Node, *made: ir.Node) -> None:
        """`made` in order; the last one gives the outputs of `node`, under their names."""
        graph, last = node.graph, made[-1]
        assert graph is not None
        graph.insert_before(node, made)
        for one in made[:-1]:
            one.name = self.names.node(f"{node.name}_{one.op_type}")
            for value in one.outputs:
                value.name = self.names.value(f"{node.outputs[0].name}_{one.op_type}")
        last.name = node.name
        for old, new in zip(node.outputs, last.outputs, strict=False):  # the rest is not read
            new.shape, new.type, name = old.shape, old.type, old.name
            old.name = None
            new.name = name
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        self._gone.append(node)

    def call(
        self, key: Hashable, base: str, make: Any, inputs: Sequence[ir.Value | None], count: int
    ) -> ir.Node:
        """Of the function for `key`, made by `make(domain, name)` when it is first asked for."""
        if key not in self._functions:
            base = re.sub(r"\W+", "_", base).strip("_")
            taken = {one.name for one in self._functions.values()}
            name, number = base, 1
            while name in taken:
                number += 1
                name = f"{base}_{number}"
            made = self._functions[key] = make(self.domain, name)
            made.opset_imports[""] = self.model.opset_imports[""]
        return ir.node(self._functions[key].name, list(inputs), domain=self.domain, num_outputs=count)

    def constant(self, graph: Any, tensor: ir.TensorProtocol, hint: str, key: Hashable) -> ir.Value:
        """An initializer of the main graph, one for each key; in a function's graph a node of its own."""
        if isinstance(graph, ir.Graph) and not self._in_function(graph):
            if key not in self._constants:
                name = self.names.value(hint)
                value = ir.Value(
                    name=name,
                    shape=ir.Shape(tensor.shape.numpy()),
                    type=ir.TensorType(tensor.dtype),
                    const_value=tensor,
                )
                self.model.graph.register_initializer(value)
                self._constants[key] = value
            return self._constants[key]
        raise CombinationError(
            f"{hint}: a constant that is quantized inside a function of the model; inline the function first"
        )

    def _in_function(self, graph: ir.Graph) -> bool:
        return graph is not self.model.graph and graph not in list(self.model.graph.subgraphs())

    def done(self) -> None:
        """Nodes and constants that nothing reads any more go; functions come."""
        for node in self._gone:
            assert node.graph is not None
            node.graph.remove(node, safe=True)
        for graph in (self.model.graph, *self.model.graph.subgraphs()):
            for name, value in list(graph.initializers.items()):
                if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
                    del graph.initializers[name]
        for function in self._functions.values():
            self.model.functions[function.identifier()] = function
        if self._functions:
            self.model.opset_imports[self.domain] = 1
        if not any(node.domain == DOMAIN for node in _all_nodes(self.model)):
            self.model.opset_imports.pop(DOMAIN, None)


def require_opset(model: ir.Model, oldest: int, what: str) -> None:
    version = int(model.opset_imports.get("", 1))
    if version < oldest:
        raise CombinationError(
            f"{what} takes operators of opset {oldest}, and the model is of opset {version}; convert it first, "
            f"with onnx.version_converter.convert_version(model, {oldest})"
        )
