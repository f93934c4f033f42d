"""What stands around an operator that is to be fused: dequantizes that make its operands, the quantize that
takes its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from blockscale.graph.fused import OUT, RESULTS, Fused, takes
from blockscale.graph.fused_inside import inside
from blockscale.graph.fused_nodes import FLOATS, Edge, Port, edge_of, is_plain_quantize
from blockscale.graph.overlay import Graph
from blockscale.graph.quant import quant_of
from blockscale.graph.view import Meta, Node, Value
from blockscale.numerics.moves import MulPow2, Same

FLOAT_DTYPES = ("float32", "bfloat16", "float16")


_LIES_ANEW = frozenset(("aten.contiguous.default", "aten.clone.default", "aten.lift_fresh_copy.default"))


def source_of(value: Value | None, *, as_it_lies: bool = False) -> Value | None:
    """Behind whatever gives it on as it is.

    as_it_lies  also in memory: sums of what lies in another order may round elsewhere
    """
    while value is not None and value.producer is not None and _gives_on(value.producer, as_it_lies):
        value = value.producer.operand(0)
    return value


def _gives_on(node: Node, as_it_lies: bool) -> bool:
    """Whether its result is its operand, bit for bit and in the same shape."""
    move = node.params.get("move")
    if not node.call.pure or (as_it_lies and node.call.name in _LIES_ANEW):
        return False
    return isinstance(move, Same) or (isinstance(move, MulPow2) and move.k == 0 and not as_it_lies)


@dataclass
class Edges:
    """Of one row; what could not be an edge of it is told in `left`, by the node that quantizes.

    measures  whether the operator may itself quantize what nobody else quantizes so
    """

    graph: Graph
    row: Fused
    dtype: str
    measures: bool = True

    def __post_init__(self) -> None:
        self.left: list[tuple[Node, str]] = []

    def operands(self, values: Sequence[Value | None]) -> list[Edge]:
        return [self._operand(one.name, value) for one, value in zip(self.row.operands, values, strict=True)]

    def _operand(self, name: str, value: Value | None) -> Edge:
        node = value.producer if value is not None else None
        if value is None or node is None or "quant" not in node.params:
            return FLOATS if value is None else Edge(value)
        edge: Edge | str = f"{node.kind} is no operand"
        if node.kind == "dequantize":
            edge = (self._inside(name, node) if self.measures else None) or self._codes(name, node)
        elif node.kind == "fake_quantize" and self.measures:
            edge = self._measured(name, node, node)
        if isinstance(edge, str):
            self.left.append((node, edge))
            return Edge(value)
        return edge

    def _codes(self, name: str, node: Node) -> Edge | str:
        allowed = takes(self.row.name, name, quant_of(node).numbers)
        return edge_of(self.graph, node) if allowed is True else allowed

    def _inside(self, name: str, node: Node) -> Edge | None:
        """Floats that are quantized by nobody else than here: the operator does it itself."""
        found, meta = inside(self.graph, node), node.outputs[0].meta
        edge = None if found is None else self._measured(name, found.q, node)
        if found is None or meta is None or not isinstance(edge, Edge) or edge.port is None:
            return None
        port = Port(edge.port.numbers, found.layout.block, meta.shape)
        return replace(edge, value=found.floats(self.graph, node), port=port)

    def _measured(self, name: str, node: Node, last: Node) -> Edge | str:
        """`node` quantizes floats by a scale of its own; `last` gives the values of that."""
        if len(last.outputs[0].uses) != 1:
            return "its result is used several times"
        if node.operand(1) is not None:
            return "it has no codes, and its scale is given"
        x = node.operand(0)
        if x is None or x.meta is None or x.meta.dtype != self.dtype:
            return f"its operand is not {self.dtype}"
        allowed = takes(self.row.name, name, quant_of(node).numbers, dynamic=True)
        edge = edge_of(self.graph, node) if allowed is True else allowed
        if isinstance(edge, str):
            return edge
        return Edge(x, edge.port, None, None, edge.tensor_scale)

    def output(self, node: Node | None) -> tuple[Edge, list[Meta | None]] | str:
        """Of the quantize that takes the result."""
        assert node is not None
        allowed = takes(self.row.name, OUT, quant_of(node).numbers, dynamic=node.operand(1) is None)
        edge = edge_of(self.graph, node) if allowed is True else allowed
        if isinstance(edge, str):
            return edge
        return edge, [value.meta for value in node.outputs]


def quantized_by(graph: Graph, value: Value) -> Node | str | None:
    """The quantize that is all that uses a value, None where none uses it, or why it is not the only one."""
    uses = [(node, slot) for node, slot in value.uses if node.kind != "assert"]
    found = [node for node, _ in uses if node.kind == "quantize" and node.operand(0) is value]
    if not found:
        return None
    node = found[0]
    if len(uses) > 1:
        others = {n for n, _ in uses if n not in found}
        if not others:
            return f"{len(found)} different quantizes take {value!r}"
        return f"{value!r} is used as floats too, by {', '.join(sorted(n.name for n in others))}"
    if quant_of(node).foreign is not None:
        return f"{node.call.name} is no operator of ours"
    if not is_plain_quantize(quant_of(node)) or (quant_of(node).outputs == RESULTS) != (
        node.operand(1) is None
    ):
        return f"it gives {', '.join(quant_of(node).outputs)}"
    return node if node.call.pure else "it has an effect"


def arithmetic_of(values: Sequence[Value | None], result: Value) -> str | None:
    """The dtype of float operands and their result, where it is one that fused operators have."""
    dtypes = {v.meta.dtype if v.meta is not None else "" for v in values if v is not None}
    dtypes.add(result.meta.dtype if result.meta is not None else "")
    (dtype, *others) = dtypes
    return dtype if not others and dtype in FLOAT_DTYPES else None
