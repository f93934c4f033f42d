"""Factors beside a product go into its weight: mul and div by constants before or behind linear, matmul and conv.

    product(x · k, W, b)      = product(x, W · k, b)         k by input channel
    product(x, W, b) · k      = product(x, W · k, b · k)     k by output channel
    (W · k)                   = W'                           of a weight itself

Where the weight is codes and scales, the factor goes into the scales (numerics.scaled).

`run` (the stage fuse_scale) does what changes no bit:

    into the weight itself    the product with each element is exact
    before it                 k is ±1, or a power of two and x · k is exact whatever x is (its codes or its
                              dtype bound it), and so is W · k. Each product is then that of the same numbers
    behind it                 k is a power of two, and no product or sum comes near the ends of float32. Not -1:
                              the negative of a sum that cancels is -0

`run_close` (the stage fuse_scale_close, asked for by name) does the others in float32. Each product is within
2^-21 of what it was, and sums are rounded as sums are: a result differs by at most 2^-20 of the sum of its
products' magnitudes, |b · k| among them, where these are no subnormals and are hundreds, not thousands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from blockscale.graph.bounds import decoded_constant
from blockscale.graph.exact_factors import inexact_before, inexact_behind, not_close
from blockscale.graph.ops import reads_size
from blockscale.graph.overlay import Graph
from blockscale.graph.products import KINDS, Product, product_of
from blockscale.graph.scaling import Factor, Plan, alone, factor_of, through, times
from blockscale.graph.survival import contents
from blockscale.graph.view import Node, Value
from blockscale.numerics.scaled import Nearness
from blockscale.numerics.through import PLACING
from blockscale.passes.log import Log


def run(graph: Graph, log: Log) -> None:
    _Fuser(graph, log, "exact").run()


def run_close(graph: Graph, log: Log) -> None:
    _Fuser(graph, log, "close").run()


@dataclass(frozen=True)
class _Commit:
    """What a plan changes: weights (or biases) of nodes, by slot."""

    node: Node
    slot: int
    make: Plan


class _Fuser:
    def __init__(self, graph: Graph, log: Log, near: Nearness) -> None:
        self.graph, self.log, self.near = graph, log, near
        self.stage = "fuse_scale" if near == "exact" else "fuse_scale_close"

    def run(self) -> None:
        """Before products the nearest factor first, and the farthest one last; behind them in order."""
        why: dict[Node, str] = {}
        factors = [node for node in self.graph.nodes if node.kind in ("mul", "div") and node.call.pure]
        for side, nodes in ((self._before, factors[::-1]), (self._behind, factors), (self._itself, factors)):
            for node in nodes:
                if node not in self.graph or not node.outputs[0].used:
                    continue
                factor = factor_of(self.graph, node)
                found = factor if factor is None or isinstance(factor, str) else side(factor)
                if isinstance(found, str) and (isinstance(factor, Factor) or _beside(node)):
                    why[node] = found
                elif isinstance(found, list) and isinstance(factor, Factor):
                    why.pop(node, None)
                    self._commit(factor, found)
        for node, reason in why.items():
            if node in self.graph:
                self.log.left(self.stage, node, reason)

    def _commit(self, factor: Factor, found: list[_Commit]) -> None:
        for one in found:
            self.graph.set_slot(one.node, one.slot, one.make())
        names = ", ".join(dict.fromkeys(one.node.name for one in found if one.node is not factor.node))
        self.log.did(
            self.stage, factor.node, f"went into {'the weight of ' + names if names else 'its constant'}"
        )
        if all(one.node is not factor.node for one in found):
            self.graph.replace(factor.node.outputs[0], factor.x)
        else:
            self.graph.replace(factor.node.outputs[0], self._own(factor.node, found))
        self.graph.discard([factor.node, *(v.producer for v in [factor.x] if v.producer is not None)])

    def _own(self, node: Node, found: list[_Commit]) -> Value:
        made = node.slots[found[0].slot]
        assert made is not None
        return made

    # ------------------------------------------------------------------------------ the weight itself

    def _itself(self, factor: Factor) -> list[_Commit] | str | None:
        if contents(factor.x) is None and decoded_constant(factor.x) is None:
            return None
        if not factor.exact and self.near == "exact":
            return "it divides by what is no power of two"
        array = self._along(factor.array, factor.axis, len(factor.x.meta.shape) if factor.x.meta else 0)
        plan = times(self.graph, factor.x, array, self.near)
        slot = next(i for i, v in enumerate(factor.node.slots) if v is factor.x)
        return plan if isinstance(plan, str) else [_Commit(factor.node, slot, plan)]

    def _along(self, array: Any, axis: int | None, rank: int) -> Any:
        return array if axis is None else array.reshape([-1 if i == axis else 1 for i in range(rank)])

    # ------------------------------------------------------------------------------ before products

    def _before(self, factor: Factor) -> list[_Commit] | str | None:
        """All that reads x · k must be products with weights."""
        value, axis = factor.node.outputs[0], factor.axis
        while (
            alone(value) and type((user := _users(value)[0]).params.get("move")) in PLACING and user.outputs
        ):
            assert value.meta is not None
            found = through(
                user.params["move"], axis, self.graph.alphabet.numbers(value.meta.shape), back=False
            )
            if isinstance(found, str):
                return found
            if len(user.outputs) != 1 or user.operand(0) is not value or value in self.graph.mutated:
                return f"{user.name} has several results, takes it elsewhere, or it is written to"
            value, axis = user.outputs[0], found
        users = _users(value)
        readers = [user for user in users if user.kind in KINDS and user.operand(0) is value]
        if not readers:
            return None
        if value in self.graph.mutated:
            return f"{value!r} shares memory that the graph writes to"
        if len(readers) != len(users):
            return f"{next(user.name for user in users if user not in readers)} uses its result too"
        commits = []
        for user in readers:
            product = product_of(user)
            one = product if isinstance(product, str) else self._into(factor, product, axis)
            if isinstance(one, str):
                return f"{user.name}: {one}"
            commits.append(one)
        return commits

    def _into(self, factor: Factor, product: Product, axis: int | None) -> _Commit | str:
        if axis is not None and axis != product.x_axis:
            return "the factor differs along another dimension than the one that it sums up"
        if product.weight is product.x:
            return "it multiplies its input with itself"
        why = inexact_before(self.graph, factor, product) if self.near == "exact" else not_close(factor)
        if why:
            return why
        array = factor.array if axis is None else product.inward(factor.array)
        plan = times(self.graph, product.weight, array, self.near)
        slot = product.node.call.operands[1]
        assert slot is not None
        return plan if isinstance(plan, str) else _Commit(product.node, slot, plan)

    # ------------------------------------------------------------------------------ behind products

    def _behind(self, factor: Factor) -> list[_Commit] | str | None:
        value, axis = factor.x, factor.axis
        while value.producer is not None and type(value.producer.params.get("move")) in PLACING:
            node, source = value.producer, value.producer.operand(0)
            if source is None or source.meta is None or len(node.outputs) != 1:
                return None
            found = through(
                node.params["move"], axis, self.graph.alphabet.numbers(source.meta.shape), back=True
            )
            if not alone(value) or value in self.graph.mutated:
                return None
            if isinstance(found, str):
                return found if _is_product(source) else None
            value, axis = source, found
        node_ = value.producer
        if node_ is None or node_.kind not in KINDS:
            return None
        product = product_of(node_)
        if isinstance(product, str):
            return product
        if not alone(value):
            return f"the result of {node_.name} is used elsewhere too"
        if axis is not None and axis != product.y_axis:
            return "the factor differs along another dimension than that of the output channels"
        return self._out_of(factor, product, axis)

    def _out_of(self, factor: Factor, product: Product, axis: int | None) -> list[_Commit] | str:
        why = inexact_behind(self.graph, factor, product) if self.near == "exact" else not_close(factor)
        if why:
            return why
        outward: Callable[[Any], Any] = product.outward
        slots = product.node.call.operands
        plan = times(
            self.graph, product.weight, factor.array if axis is None else outward(factor.array), self.near
        )
        if isinstance(plan, str):
            return plan
        assert slots[1] is not None
        commits = [_Commit(product.node, slots[1], plan)]
        if product.bias is not None:
            bias = times(self.graph, product.bias, factor.array, self.near)
            if isinstance(bias, str):
                return f"its bias: {bias}"
            assert slots[2] is not None
            commits.append(_Commit(product.node, slots[2], bias))
        return commits


def _users(value: Value) -> list[Node]:
    return [user for user in value.users if not reads_size(user)]


def _beside(node: Node) -> bool:
    users = [user.kind for value in node.outputs for user in value.users]
    makers = [v.producer.kind for v in node.operands if v is not None and v.producer is not None]
    return any(kind in KINDS for kind in (*users, *makers))


def _is_product(value: Value) -> bool:
    return value.producer is not None and value.producer.kind in KINDS
