"""Sink: dequantizes go down below what only puts elements elsewhere, towards what takes quantized operands.

A dequantize goes below all its users at once, or stays. It does not decode more elements than before,
unless every end of the way is an operator that can take the codes themselves. A cat is crossed where all
its parts are dequantizes alike; nothing else is decoded twice for it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from blockscale.graph.carry import Crossing, Crossings, output_metas
from blockscale.graph.fused_said import reads_transposed
from blockscale.graph.moving import Follower
from blockscale.graph.ops import OPS
from blockscale.graph.overlay import Graph
from blockscale.graph.quant import is_empty, quant_of
from blockscale.graph.view import Call, Node, Value
from blockscale.numerics.moves import Cat, Same
from blockscale.passes.log import Log

STAGE = "sink"
_TAKES = ("linear", "embedding")


def run(graph: Graph, log: Log) -> None:
    sinker = _Sinker(graph, log)
    pending = deque(node for node in graph.nodes if node.kind == "dequantize")
    while pending:
        node = pending.popleft()
        if node in graph:
            pending += sinker.sink(node)


class _Sinker:
    def __init__(self, graph: Graph, log: Log) -> None:
        self.graph, self.log = graph, log
        self.follower = Follower(graph)
        self.crossings = Crossings(graph, self.follower)
        self._refused: dict[
            Node, str
        ] = {}  # cats that stay as long as their parts do: asked once for all parts

    def sink(self, node: Node) -> list[Node]:
        """Below all users of `node`, if that is possible; the dequantizes that this makes."""
        value = node.outputs[0]
        users = value.users
        raw = next((user for user in users if user.kind == "raw"), None)
        if raw is not None:
            why = raw.params.get("why") or "it is not known"
            self.log.left(STAGE, node, f"not sunk below {raw.name} ({raw.call.name}): {why}")
        if not users or not node.call.pure or any("move" not in user.params for user in users):
            return []
        if any(reads_transposed(self.graph, user) for user in users):
            self.log.left(STAGE, node, "not sunk: a product takes it transposed")
            return []
        crossings: list[tuple[Crossing, list[Node]]] = []
        for user in users:
            found = self._crossing(node, user)
            if isinstance(found, str):
                self.log.left(STAGE, node, f"not sunk below {user.name}: {found}")
                return []
            crossings.append(found)
        made = sum(self._size(v) for user in users for v in user.outputs if v.used)
        had = sum(self._size(part.outputs[0]) for part in dict.fromkeys(p for _, ps in crossings for p in ps))
        if made > had and not all(self._taken(v) for user in users for v in user.outputs):
            self.log.left(STAGE, node, f"not sunk: {made} elements would be decoded in place of {had}")
            return []
        below = [new for crossing, parts in crossings for new in self._below(crossing, parts)]
        self.log.did(STAGE, node, f"sunk below {', '.join(user.name for user in users)}")
        self.graph.discard(user for user in users)
        return below

    def _crossing(self, node: Node, user: Node) -> tuple[Crossing, list[Node]] | str:
        """With the dequantizes that make the operands of `user` in order, `node` among them."""
        if not isinstance(user.params["move"], Cat):
            alone = self.crossings.sunk(node, user)
            return alone if isinstance(alone, str) else (alone, [node])
        if user in self._refused:
            return self._refused[user]
        parts = _parts(user)
        crossing = parts if isinstance(parts, str) else self.crossings.sunk(parts[0], user, parts[1:])
        if isinstance(crossing, str):
            self._refused[user] = crossing
            return crossing
        assert not isinstance(parts, str)
        return crossing, parts

    def _below(self, crossing: Crossing, parts: Sequence[Node]) -> list[Node]:
        node, over = parts[0], crossing.over
        made = []
        for i, old in enumerate(over.outputs):
            if not old.used:
                continue
            slots = list(node.slots)
            for position, slot in enumerate(node.call.operands):
                move = (crossing.codes, crossing.scales, crossing.scales, Same())[position]
                if slot is None:
                    continue
                sources = [v for part in parts if (v := part.operand(position)) is not None]
                if position == 2 and is_empty(quant_of(node), "zero_point", sources[0].meta):
                    move = Same()
                slots[slot] = self.follower.value(move, sources, i, over, node, f"{over.name}_{i}")
            quant = crossing.quants[i]
            assert old.meta is not None
            call = node.call
            moved = Call(call.kind, call.name, call.operands, {**call.params, "quant": quant}, call.pure)
            below = self.graph.clone(
                node, slots, output_metas(node, quant, old.meta.shape), crossing.changes[i], moved
            )
            self.graph.replace(old, below.outputs[0])
            for user in below.outputs[0].users:
                self._refused.pop(user, None)
            made.append(below)
        return made

    def _taken(self, value: Value) -> bool:
        """Whether all that the value reaches through moves takes codes."""
        pending, seen = [value], {value}
        while pending:
            for user in pending.pop().users:
                if OPS.get(user.kind, _NONE).use in _TAKES:
                    continue
                if "move" not in user.params:
                    return False
                pending += [v for v in user.outputs if v not in seen]
                seen.update(user.outputs)
        return True

    def _size(self, value: Value) -> int:
        shape = self.graph.numbers(value)
        return 0 if shape is None else math.prod(shape)


def _parts(user: Node) -> list[Node] | str:
    """The dequantizes that make the operands of a cat, all alike and for it alone."""
    parts: list[Node] = []
    alone: set[Node] = set()
    for operand in user.operands:
        producer = operand.producer if operand is not None else None
        if operand is None or producer is None or producer.kind != "dequantize":
            return f"{operand!r} is not dequantized"
        if producer not in alone and any(one is not user and one.kind != "assert" for one, _ in operand.uses):
            return f"{operand!r} is used elsewhere too"
        alone.add(producer)
        parts.append(producer)
    if len({(one.call.name, one.params["quant"].identity) for one in alone}) > 1:
        return "its parts are dequantized by different operators"
    return parts


_NONE = OPS["assert"]
