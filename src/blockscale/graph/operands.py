"""The tensors of a graph as a recipe sees them: each operand and output of an operator that computes.

Operators that only put elements elsewhere (reshape, cat, …), casts and quantizers have no tensors of their
own here; nor have operators of unknown kind, and what is computed from constants alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from blockscale.graph import models
from blockscale.graph.axes import Axes
from blockscale.graph.constants import Constants
from blockscale.graph.ops import OPS, SILENT, Tensor
from blockscale.graph.overlay import Graph
from blockscale.graph.regions import nodes_between
from blockscale.graph.view import Meta, Node, Value
from blockscale.recipe_rules import Operand, Region

_PRODUCTS = ("linear", "matmul", "gemm")  # of two tensors, either of which may be the weight
# What may stand between the last product and the output of a model, beside `SILENT`.
_AFTER_HEAD = frozenset(("softmax", "sigmoid", "tanh", "mul", "div", "add", "hardtanh", "raw"))

_DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64"}


@dataclass(frozen=True)
class Edge:
    """One tensor at one operator.

    slot      of `node`, for an operand; None: an output
    constant  known before the run, so that its scales are too
    operand   what rules are asked about
    """

    graph: Graph
    node: Node
    slot: int | None
    value: Value
    constant: bool
    operand: Operand


def edges(graph: Graph, regions: Sequence[Region] = ()) -> list[Edge]:
    """Of the graph and all graphs within, in the order in which they run; `regions` are looked up."""
    within = {region: nodes_between(graph, region) for region in regions}
    return [edge for one in graph.walk() for edge in Listing(one, one is graph, within).edges()]


def operands_of(model: Any, regions: Sequence[Region] = ()) -> list[Operand]:
    """Of an overlay, or of a model that has an adapter."""
    graph = model if isinstance(model, Graph) else models.snapshot(model)
    return [edge.operand for edge in edges(graph, regions)]


class Listing:
    """What rules are asked about in one graph. `within`: the nodes of each region."""

    def __init__(self, graph: Graph, outermost: bool, within: Mapping[Region, set[Node]]) -> None:
        self.graph = graph
        self.within = within
        self.constants = Constants(graph)
        self.nodes = [node for node in graph.nodes if self._computes(node)]
        self.names = _names(self.nodes)
        self.axes = Axes(graph.nodes, self._roles)
        self.heads = self._heads() if outermost else set()

    def _computes(self, node: Node) -> bool:
        row = OPS.get(node.kind)
        if row is None or not row.tensors or node.kind in SILENT:
            return False
        return any(v is not None and not self.constants.is_constant(v) for v in node.operands)

    def edges(self) -> Iterator[Edge]:
        for node in self.nodes:
            use = self.use(node)
            for index, tensor in enumerate(self._roles(node)):
                value = node.operand(index)
                if value is not None and tensor.role != "other":
                    slot = node.call.operands[index]
                    yield from self._edge(node, slot, index, value, tensor, self._use_of(index, tensor, use))
            for index, value in enumerate(node.outputs[: OPS[node.kind].outputs]):
                if value.used and value not in self.graph.mutated:
                    yield from self._edge(node, None, index, value, Tensor("output"), use)

    def _edge(
        self, node: Node, slot: int | None, index: int, value: Value, tensor: Tensor, use: str
    ) -> Iterator[Edge]:
        meta = value.meta
        if meta is None or meta.dtype not in _DTYPES:
            return
        constant = self.constants.is_constant(value)
        if constant and tensor.role == "input":
            tensor = replace(tensor, role="weight")
        if constant and not tensor.axis and _is_number(meta):
            return
        axis = self.axes.of(value) if tensor.axis is None else tensor.axis
        operand = self.operand(node, index, value, replace(tensor, axis=axis), use)
        yield Edge(self.graph, node, slot, value, constant, operand)

    def operand(self, node: Node, index: int, value: Value, tensor: Tensor, use: str) -> Operand:
        """Of a tensor of floats, whose shape is known."""
        name = self.names.get(node, node.name)
        assert value.meta is not None
        return Operand(
            node=name, kind=node.kind, role=tensor.role, index=index,
            tensor=self.constants.name(value) if self.constants.is_constant(value) else value.name,
            dtype=_DTYPES[value.meta.dtype],
            shape=tuple(n if isinstance(n, int) else None for n in value.meta.shape),
            use=use, head=node in self.heads, axis=tensor.axis, channel=tensor.channel, source=_source(node),
            op_type=op_type(node), alias=node.name if node.name != name else "",
            regions=frozenset(region for region, nodes in self.within.items() if node in nodes),
        )  # fmt: skip

    # ------------------------------------------------------------------------------ what a tensor is

    def use(self, node: Node) -> str:
        """What a recipe calls the operator, from who of its operands is a constant."""
        two = [v for v in node.operands[:2] if v is not None and not self.constants.is_constant(v)]
        several = len(two) == 2
        if node.kind == "matmul" and _is_outer(node):
            return "other"
        if OPS[node.kind].use == "linear" and several:
            return "attention"
        if node.kind == "add" and several:
            return "residual"
        return OPS[node.kind].use

    def _use_of(self, index: int, tensor: Tensor, use: str) -> str:
        """A bias that is no constant is a residual that torch adds on the way."""
        return "residual" if tensor.role == "input" and index == 2 and use == "linear" else use

    def _roles(self, node: Node) -> list[Tensor]:
        """OPS, with what the ranks, the flags and the constants of this node change."""
        tensors = list(OPS[node.kind].tensors)
        if node.kind == "gemm":
            tensors[:2] = _transposed(node, tensors)
        if node.kind == "conv" and _rank(node, 0) == _rank(node, 1) - 1:  # torch: without a batch
            tensors[0] = replace(tensors[0], axis=0)
        if node.kind == "softmax" and isinstance(node.params.get("dim"), int):
            tensors[0] = replace(tensors[0], axis=node.params["dim"])
        for i, tensor in enumerate(tensors):
            value = node.operand(i)
            if value is None:
                continue
            constant = self.constants.is_constant(value)
            if tensor.role in ("weight", "bias") and not constant:
                tensor = replace(tensor, role="input", channel=None)
            elif tensor.role == "input" and constant and node.kind in _PRODUCTS:
                other = -1 if tensor.axis == -2 else -2
                tensor = replace(tensor, role="weight", channel=other)
            tensors[i] = _within(tensor, _rank(node, i))
        return tensors

    # ------------------------------------------------------------------------------ the output head

    def _heads(self) -> set[Node]:
        """Products that lead to outputs of the model and nowhere else; a single product is no head."""
        products = [node for node in self.nodes if self.use(node) == "linear"]
        heads = {node for node in products if self._leads_out(node)}
        return heads if len(heads) < len(products) else set()

    def _leads_out(self, node: Node) -> bool:
        pending, found = [node.outputs[0]], False
        while pending:
            for user in pending.pop().users:
                if user.kind == "output":
                    found = True
                    continue
                read = user.slots if user.kind == "raw" else user.operands  # not the sizes of a reshape
                free = [v for v in read if v is not None and not self.constants.is_constant(v)]
                passes_on = user.kind in _AFTER_HEAD or user.kind in SILENT
                if not passes_on or len(free) != 1 or not user.call.pure:
                    return False
                pending += user.outputs
        return found


# ------------------------------------------------------------------------------------------ names


def _names(nodes: list[Node]) -> dict[Node, str]:
    """The path of its module; with the kind, where the module has several operators that compute.

    `mlp.up_proj`, `mlp.mul`, `layers.0.add`, `layers.0.add_1`. Outside of modules the node's own name.
    """
    in_scope = Counter(node.scope for node in nodes)
    seen: Counter[tuple[str, str]] = Counter()
    result = {}
    for node in nodes:
        path = re.sub(r"@\d+$", "", node.scope)
        if not path:
            result[node] = node.name
        elif in_scope[node.scope] == 1:
            result[node] = path
        else:
            count = seen[node.scope, node.kind]
            seen[node.scope, node.kind] += 1
            result[node] = f"{path}.{node.kind}" + (f"_{count}" if count else "")
    return result


def op_type(node: Node) -> str:
    """As the framework names it: `ai.onnx::Conv` → Conv, `aten.conv2d.default` → conv2d."""
    name = node.call.name
    return name.split("::")[-1] if "::" in name else name.split(".")[1] if name.count(".") > 1 else name


def _source(node: Node) -> str:
    return node.site.removeprefix(node.scope).removeprefix(", ") if node.scope else node.site


# ------------------------------------------------------------------------------------------ shapes


def _rank(node: Node, index: int) -> int:
    value = node.operand(index)
    return -1 if value is None or value.meta is None else len(value.meta.shape)


def _is_number(meta: Meta) -> bool:
    return all(n == 1 for n in meta.shape)


def _is_outer(node: Node) -> bool:
    """A product that adds nothing up, such as positions times frequencies, is no matmul."""
    left = node.operand(0)
    return left is not None and left.meta is not None and left.meta.shape[-1:] == (1,)


def _transposed(node: Node, tensors: list[Tensor]) -> list[Tensor]:
    a, b = tensors[:2]
    if node.params.get("trans_a"):
        a = replace(a, axis=-2)
    if node.params.get("trans_b"):
        b = replace(b, axis=-1, channel=-2)
    return [a, b]


def _within(tensor: Tensor, rank: int) -> Tensor:
    """A vector in a product has its last axis and no channels."""
    axis, channel = tensor.axis, tensor.channel
    if axis is not None and not -rank <= axis < rank:
        axis = -1 if rank else None
    if channel is not None and (not -rank <= channel < rank or _same(axis, channel, rank)):
        channel = None
    return replace(tensor, axis=axis, channel=channel)


def _same(axis: int | None, channel: int, rank: int) -> bool:
    return axis is not None and (axis - channel) % rank == 0
