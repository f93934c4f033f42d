"""Which tensors of an ONNX model AMD Quark 0.13 quantizes with MX, and along which axis.

Its quantizer goes through the nodes and marks tensors; a marked tensor is quantized once, for all that read it.
Nodes that only pass a tensor on mark their result where that tensor is marked already, so the order of nodes
counts, and is kept here. Axes are set afterwards: 1, but for what Gemm, MatMul and Softmax touch, where the last
of them in the order of the quantized model decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from blockscale.graph.onnx_quark_order import in_order, with_quantizers
from blockscale.graph.operands import Edge, Listing, op_type
from blockscale.graph.ops import OPS, Tensor
from blockscale.graph.overlay import Graph
from blockscale.graph.regions import nodes_between
from blockscale.graph.view import Node, Value
from blockscale.recipe import Recipe

_FLOATS = ("float32", "float16")


@dataclass(frozen=True)
class Left:
    """A tensor that is marked, but gets no quantize."""

    node: Node
    why: str


def placed(graph: Graph, recipe: Recipe) -> tuple[list[Edge], list[Left]]:
    """An edge for each tensor that is marked, where the recipe has a layout for it; and what it would be marked
    for, where it has none. Bodies of control flow are left alone, as by Quark.
    """
    marks = _Marks(graph, recipe)
    for node in in_order(graph):
        _MARKS.get(op_type(node), _nothing)(marks, node)
    axes = _axes(graph, marks)
    edges, left = [], []
    for value, mark in {**marks.asked, **marks.marked}.items():
        edge = marks.edge(mark, axes.get(value))
        shape = edge.operand.shape
        if value in marks.marked and all(n is not None for n in shape) and prod(n or 0 for n in shape) == 1:
            left.append(
                Left(mark.node, f"{value.name} is one number, which Quark's operator leaves as it is")
            )
            continue
        edges.append(edge)
    return edges, left


# ------------------------------------------------------------------------------------------ marks


@dataclass(frozen=True)
class _Mark:
    node: Node
    role: str
    index: int
    value: Value


class _Marks:
    """marked  tensors in the order in which they got a mark
    asked   marks for which the recipe has no layout, by their tensor
    shared  tensors that take the parameters of another, which only decides the order of quantizers
    """

    def __init__(self, graph: Graph, recipe: Recipe) -> None:
        within = {region: nodes_between(graph, region) for region in recipe.regions}
        self.graph = graph
        self.recipe = recipe
        self.listing = Listing(graph, True, within)
        self.marked: dict[Value, _Mark] = {}
        self.asked: dict[Value, _Mark] = {}
        self.shared: dict[Value, Value] = {}

    def has(self, node: Node, index: int) -> bool:
        return _input(node, index) in self.marked

    def input(self, node: Node, index: int, role: str = "weight") -> None:
        """Input `index`; `role` is what a constant is called there."""
        value = _input(node, index)
        if value is not None:
            self._mark(_Mark(node, role if value.const is not None else "input", index, value))

    def constant(self, node: Node, index: int, role: str) -> None:
        value = _input(node, index)
        if value is not None and value.const is not None:
            self._mark(_Mark(node, role, index, value))

    def output(self, node: Node, index: int = 0, like: int | None = None) -> None:
        """Output `index`, with the parameters of input `like`."""
        value = node.outputs[index]
        self._mark(_Mark(node, "output", index, value))
        source = None if like is None else _input(node, like)
        if value in self.marked and source is not None:
            self.shared[value] = source

    def outputs(self, node: Node, like: int | None = None) -> None:
        for index in range(len(node.outputs)):
            self.output(node, index, like)

    def _mark(self, mark: _Mark) -> None:
        value = mark.value
        if value in self.marked or value.meta is None or value.meta.dtype not in _FLOATS:
            return
        operand = self.edge(mark, None).operand
        rule = next((rule for rule in self.recipe.rules if rule.matches(operand)), None)
        if rule is None or rule.scheme is None:
            self.asked.setdefault(value, mark)
        else:
            self.marked[value] = mark

    def edge(self, mark: _Mark, axis: int | None) -> Edge:
        assert mark.value.meta is not None
        rank = len(mark.value.meta.shape)
        axis = (0 if rank < 2 else 1) if axis is None or rank < 2 else axis
        use = self.listing.use(mark.node) if mark.node.kind in OPS else "other"
        operand = self.listing.operand(mark.node, mark.index, mark.value, Tensor(mark.role, axis), use)
        return Edge(self.graph, mark.node, None, mark.value, mark.value.const is not None, operand)


def _input(node: Node, index: int) -> Value | None:
    return node.slots[index] if index < len(node.origin.inputs) else None


# ------------------------------------------------------------------------------------------ operators


def _nothing(marks: _Marks, node: Node) -> None:
    """Of operators that Quark does not quantize."""


def _every(marks: _Marks, node: Node) -> None:
    for index in range(len(node.origin.inputs)):
        marks.input(node, index)
    marks.outputs(node)


def _product(marks: _Marks, node: Node) -> None:
    marks.input(node, 0)
    marks.output(node)
    marks.input(node, 1)
    marks.constant(node, 2, "bias")


def _passes_on(marks: _Marks, node: Node) -> None:
    if marks.has(node, 0):
        marks.output(node, like=0)


def _activation(marks: _Marks, node: Node) -> None:
    if marks.has(node, 0):
        marks.output(node)


def _gather(marks: _Marks, node: Node) -> None:
    marks.constant(node, 0, "weight")
    _passes_on(marks, node)


def _split(marks: _Marks, node: Node) -> None:
    marks.input(node, 0)
    marks.outputs(node, like=0)


def _where(marks: _Marks, node: Node) -> None:
    if marks.has(node, 1) and marks.has(node, 2):
        marks.outputs(node)


def _layer_norm(marks: _Marks, node: Node) -> None:
    if marks.has(node, 0):
        marks.output(node)
        marks.input(node, 1)
        marks.input(node, 2, "bias")


def _instance_norm(marks: _Marks, node: Node) -> None:
    marks.input(node, 0)
    marks.input(node, 1)
    marks.constant(node, 2, "bias")
    marks.outputs(node)


def _prelu(marks: _Marks, node: Node) -> None:
    marks.input(node, 0)
    marks.output(node)
    marks.input(node, 1)


def _hard_sigmoid(marks: _Marks, node: Node) -> None:
    """Only that of MobileNet, x / 6 + 1/2."""
    if abs(_attribute(node, "alpha", 0.0) - 1 / 6) < 1e-6 and abs(_attribute(node, "beta", 0.5) - 0.5) < 1e-6:
        marks.input(node, 0)
        marks.output(node)


_MARKS: dict[str, Callable[[_Marks, Node], None]] = {
    **dict.fromkeys((
        "Add", "ArgMax", "AveragePool", "Concat", "DepthToSpace", "Div", "EmbedLayerNormalization", "Erf", "Gelu",
        "GlobalAveragePool", "LeakyRelu", "LpNormalization", "MatMul", "Max", "Min", "Mul", "Pad", "ReduceMean",
        "Sigmoid", "Slice", "Softmax", "SpaceToDepth", "Sub", "Tanh",
    ), _every),
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm"), _product),
    **dict.fromkeys(("MaxPool", "Reshape", "Resize", "Squeeze", "Transpose", "Unsqueeze"), _passes_on),
    "Clip": _activation, "Relu": _activation,
    "Gather": _gather, "Split": _split, "Where": _where, "PRelu": _prelu, "HardSigmoid": _hard_sigmoid,
    "LayerNormalization": _layer_norm, "InstanceNormalization": _instance_norm,
}  # fmt: skip


# ------------------------------------------------------------------------------------------ axes


def _axes(graph: Graph, marks: _Marks) -> dict[Value, int]:
    """Of the tensors whose axis is not the usual one."""
    axes: dict[Value, int] = {}
    for node in with_quantizers(graph, marks.marked, marks.shared):
        axes.update((value, axis) for value, axis in _wanted(node, marks) if value in marks.marked)
    return axes


def _wanted(node: Node, marks: _Marks) -> list[tuple[Value, int]]:
    """Axes that a node sets, in order; the result of a MatMul has that of its first operand, if that has one."""
    kind = op_type(node)
    a, b = (_input(node, index) for index in (0, 1))
    found: list[tuple[Value | None, int]] = []
    if kind == "MatMul":
        found = [(a, -1), (node.outputs[0] if a in marks.marked else None, -1), (b, -2)]
    elif kind == "Gemm":
        found = [
            (a, 0 if _attribute(node, "transA", 0) else 1),
            (b, 1 if _attribute(node, "transB", 0) else 0),
        ]
    elif kind == "Softmax":
        found = [(a, _attribute(node, "axis", -1))]
    return [(value, axis) for value, axis in found if value is not None]


def _attribute(node: Node, name: str, default: Any) -> Any:
    attribute = node.origin.attributes.get(name)
    return default if attribute is None else attribute.value
