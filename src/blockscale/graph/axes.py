"""Along which axis blocks run in tensors that no operator reduces there: that of the neighbours.

An activation then has one layout for all that read it: the one of the product that comes next, else the one
of the product that it came from, else the last axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blockscale.graph.ops import OPS, SILENT, Tensor
from blockscale.graph.view import Node, Value


class Axes:
    """Of the values of one graph; nodes in the order in which they run, and what their operands are."""

    def __init__(self, nodes: Sequence[Node], tensors_of: Callable[[Node], Sequence[Tensor]]) -> None:
        self._wanted: dict[Value, int] = {}
        keeping = [(node, tensors_of(node)) for node in nodes if _keeps_axes(node)]
        for node, tensors in reversed(keeping):
            self._ask(node, tensors)
        for node, tensors in keeping:
            self._tell(node, tensors)

    def of(self, value: Value) -> int:
        return self._wanted.get(value, -1)

    def _ask(self, node: Node, tensors: Sequence[Tensor]) -> None:
        """What the first reader wants; one that reduces nothing wants what is wanted of its result."""
        result = node.outputs[0]
        for tensor, value in reversed(list(zip(tensors, node.operands, strict=False))):
            if value is None or tensor.role == "other":
                continue
            if tensor.axis is not None:
                self._wanted[value] = tensor.axis
            elif result in self._wanted and _same_rank(value, result):
                self._wanted[value] = self._wanted[result]

    def _tell(self, node: Node, tensors: Sequence[Tensor]) -> None:
        """Of results that nobody asks for."""
        source = node.operand(0)
        for result in node.outputs:
            if source is None or result in self._wanted or not _same_rank(source, result):
                continue
            if tensors[0].axis is not None:
                self._wanted[result] = tensors[0].axis
            elif source in self._wanted:
                self._wanted[result] = self._wanted[source]


def _keeps_axes(node: Node) -> bool:
    row = OPS.get(node.kind)
    if row is None or not row.tensors or not node.outputs:
        return False
    return node.kind not in SILENT or node.kind in ("identity", "cast")


def _same_rank(a: Value, b: Value) -> bool:
    return a.meta is not None and b.meta is not None and len(a.meta.shape) == len(b.meta.shape)
