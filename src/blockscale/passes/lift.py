"""Lift: quantizes go up over what only puts elements elsewhere, until equal ones meet and become one.

A lift that quantizes no more elements than before is done at once. One that would (over a slice, a split,
a gather) waits for its equals on other pieces of the same tensor, and is done where together they quantize
as much as the tensor has, or where an equal one stands there already. A cat is crossed only where every
branch gains: an equal one stands on it, it is a constant, or what makes it can quantize its own result.
Where no lift can gain anything it stays at its reader, which may take quantized operands.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field

from blockscale.graph.carry import Crossing, Crossings, output_metas
from blockscale.graph.fused_said import Said, said
from blockscale.graph.moving import Follower
from blockscale.graph.ops import OPS
from blockscale.graph.overlay import Graph
from blockscale.graph.quant import is_empty, quant_of
from blockscale.graph.view import Call, Node, Value
from blockscale.numerics.moves import Cat, Same, Split
from blockscale.passes.log import Log

STAGE = "lift"
KINDS = ("quantize", "fake_quantize")
_Place = tuple[Value, tuple[Hashable, ...]]


def run(graph: Graph, log: Log) -> None:
    lifter = _Lifter(graph, log)
    for node in graph.nodes:
        if node.kind in KINDS:
            lifter.meet(node)
    pending = [_Climb(node) for node in graph.nodes if node.kind in KINDS and node.call.pure]
    while pending:
        for climb in pending:
            lifter.climb(climb)
        pending = lifter.lift_waiting()


@dataclass
class _Climb:
    """A quantize on its way up: where it is now, and what it has crossed."""

    node: Node
    crossed: list[str] = field(default_factory=list)


@dataclass
class _Waiting:
    climb: _Climb
    crossing: Crossing


class _Lifter:
    def __init__(self, graph: Graph, log: Log) -> None:
        self.graph, self.log = graph, log
        self.follower = Follower(graph)
        self.crossings = Crossings(graph, self.follower)
        self.standing: dict[Hashable, Node] = {}  # by what it does to which value
        self.gone: dict[
            Hashable, list[Value | None]
        ] = {}  # what became of the results of those that stood there
        self.waiting: dict[_Place, list[_Waiting]] = {}

    # ------------------------------------------------------------------------------ one at a time

    def meet(self, node: Node) -> Node:
        """The equal quantize on the same value, which takes over; else the node itself, which now stands."""
        key = _key(self.graph, node)
        if key is None:
            return node
        twin = self.standing.get(key)
        if twin is None or twin is node or twin not in self.graph:
            if not self._follows_gone(node, key):
                self.standing[key] = node
            return node
        if [v.meta for v in twin.outputs] != [v.meta for v in node.outputs]:
            return node
        for mine, its in zip(node.outputs, twin.outputs, strict=True):
            self.graph.replace(mine, its)
        self.log.did(STAGE, node, f"combined with {twin.name}")
        self.graph.discard([node])
        return twin

    def _follows_gone(self, node: Node, key: Hashable) -> bool:
        """Whether an equal stood here and was lifted: `node`, which is then gone too, need not climb after it."""
        pairs = list(zip(node.outputs, self.gone.get(key, ()), strict=False))
        for mine, its in pairs:
            if mine.uses and (
                its is None
                or its.meta != mine.meta
                or (its.producer is not None and its.producer not in self.graph)
            ):
                return False
        if not pairs:
            return False
        for mine, its in pairs:
            if its is not None:
                self.graph.replace(mine, its)
        self.log.did(STAGE, node, "combined with an equal that was lifted")
        self.graph.discard([node])
        return node not in self.graph

    def climb(self, climb: _Climb) -> None:
        """As far up as it goes at once."""
        if not climb.crossed and climb.node in self.graph:
            top = self._top(climb.node)
            if top is not None:
                self._end(climb, f"not lifted: {top.call.name}, where it would stand, cannot take it in")
                return
        while climb.node in self.graph:
            node = climb.node
            x = node.operand(0)
            over = x.producer if x is not None else None
            if x is None or over is None or "move" not in over.params:
                self._end(climb, _unread(over))
                return
            crossing = self.crossings.lifted(node, over)
            if isinstance(crossing, str):
                self._end(climb, f"not lifted over {over.name}: {crossing}")
                return
            move = over.params["move"]
            if isinstance(move, Cat):
                why = self._branches_gain(node, over, crossing)
                if why:
                    self._end(climb, f"not lifted over {over.name}: {why}")
                    return
                self._over_cat(climb, crossing)
                return
            if isinstance(crossing.given, Cat):
                self._end(
                    climb, f"not lifted over {over.name}: each of its parts has static scales of its own"
                )
                return
            if self._size(over.operand(0)) > self._size(x):
                source = over.operand(0)
                assert source is not None
                self.waiting.setdefault((source, _at(node, crossing)), []).append(_Waiting(climb, crossing))
                return
            if self._lift(climb, crossing):
                break
        self._end(climb, "")

    def _top(self, node: Node) -> Node | None:
        """The operator below which it would end up in vain: no equal one can be met on the way, nothing is
        made smaller, and the operator has no fused form. A product takes it from where it is.
        """
        x = node.operand(0)
        value, producer = x, x.producer if x is not None else None
        crossed = False
        while value is not None and producer is not None and "move" in producer.params:
            if len(value.users) > 1 or isinstance(producer.params["move"], Cat | Split):
                return None
            value, crossed = producer.operand(0), True
            producer = value.producer if value is not None else None
        if not crossed or value is None or producer is None or len(value.users) > 1:
            return None
        known = producer.kind in OPS and OPS[producer.kind].use not in _ABSORB
        if not known or self._size(value) < self._size(x):
            return None
        return None if isinstance(said(self.graph, producer, quantized=True), Said) else producer

    def _end(self, climb: _Climb, why: str) -> None:
        if climb.crossed:
            self.log.did(STAGE, climb.node, f"lifted over {', '.join(climb.crossed)}")
        if why:
            self.log.left(STAGE, climb.node, why)
        climb.crossed = []

    def _lift(self, climb: _Climb, crossing: Crossing) -> bool:
        """Lift over one move; whether an equal quantize stood there already."""
        over, node = crossing.over, climb.node
        x, source = node.operand(0), over.operand(0)
        assert x is not None and source is not None
        key = _key(self.graph, node)
        above = self._above(node, crossing, source, 0)
        followed = self._follow(node, crossing, [above], x.index)
        if key is not None:
            self.gone[key] = followed
        climb.crossed.append(over.name)
        met = self.meet(above)
        climb.node = met
        return met is not above or met not in self.graph

    def _above(self, node: Node, crossing: Crossing, source: Value, part: int) -> Node:
        """The quantize on the other side of the move, on `source`."""
        quant, call = crossing.quants[part], node.call
        slots = list(node.slots)
        given = crossing.given
        for position in (0, 1, 2):
            slot = call.operands[position] if position < len(call.operands) else None
            if slot is None:
                continue
            value = slots[slot]
            assert value is not None
            if position == 0:
                slots[slot] = source
            elif given is not None and not isinstance(given, Same):
                slots[slot] = self.follower.value(given, [value], part, None, node, value.name)
        assert source.meta is not None
        metas = output_metas(node, quant, source.meta.shape)
        above = Call(call.kind, call.name, call.operands, {**call.params, "quant": quant}, call.pure)
        return self.graph.clone(node, slots, metas, crossing.changes[part], above)

    def _follow(self, node: Node, crossing: Crossing, above: list[Node], index: int) -> list[Value | None]:
        """Let the users of `node` use what its results become when they follow the move; those, if used."""
        over = crossing.over
        names = quant_of(node).outputs if node.kind == "quantize" else ("codes",)
        became: list[Value | None] = [None] * len(node.outputs)
        for i, old in enumerate(node.outputs):
            if not old.uses:
                continue
            name = names[i] if i < len(names) else ""
            move = crossing.codes if name == "codes" else crossing.scales
            if name == "tensor_scale" or is_empty(quant_of(node), name, old.meta):
                move = Same()
            sources = [one.outputs[i] for one in above]
            became[i] = new = self.follower.value(move, sources, index, over, node, f"{over.name}_{name}")
            self.graph.replace(old, new)
        self.graph.discard([node])
        return became

    # ------------------------------------------------------------------------------ over slices

    def lift_waiting(self) -> list[_Climb]:
        """Groups for which lifting pays; those that go on from there."""
        going: list[_Climb] = []
        for (source, at), group in list(self.waiting.items()):
            live = [w for w in group if w.climb.node in self.graph]
            key = (source, *at)
            standing = self.standing.get(key)
            there = standing is not None and standing in self.graph
            pieces = {w.climb.node.operand(0): w for w in live}
            if not live or (not there and self._size(source) > sum(map(self._size, pieces))):
                continue
            del self.waiting[source, at]
            for waiting in live:
                if not self._lift(waiting.climb, waiting.crossing):
                    going.append(waiting.climb)
                else:
                    self._end(waiting.climb, "")
        if not going:
            for (source, _), group in self.waiting.items():
                for waiting in group:
                    over = waiting.crossing.over
                    self._end(
                        waiting.climb,
                        f"not lifted over {over.name}: that would quantize all of {source!r}, "
                        f"{self._shape(source)}, for {self._shape(over.outputs[0])}",
                    )
            self.waiting = {}
        return going

    # ------------------------------------------------------------------------------ over cats

    def _branches_gain(self, node: Node, over: Node, crossing: Crossing) -> str:
        """Why it should not be lifted over a cat; empty if each branch gains."""
        users = {part: part.users for part in over.operands if part is not None}
        for i, part in enumerate(over.operands):
            assert part is not None
            if part.const is not None or self._stands(node, part, crossing, i):
                continue
            producer = part.producer
            if producer is None or len(users[part]) > 1 or OPS.get(producer.kind, _NONE).use not in _ABSORB:
                return f"nothing is gained on {part!r}"
        return ""

    def _stands(self, node: Node, part: Value, crossing: Crossing, index: int) -> bool:
        if not isinstance(crossing.given, Same):
            return False
        standing = self.standing.get((part, *_at(node, crossing, index)))
        return standing is not None and standing in self.graph

    def _over_cat(self, climb: _Climb, crossing: Crossing) -> None:
        node, over = climb.node, crossing.over
        above = []
        for i, part in enumerate(over.operands):
            assert part is not None
            above.append(self._above(node, crossing, part, i))
        self._follow(node, crossing, above, 0)
        self.log.did(STAGE, node, f"lifted over {', '.join([*climb.crossed, over.name])}, a branch each")
        for one in above:
            self.climb(_Climb(self.meet(one)))

    # ------------------------------------------------------------------------------ sizes

    def _shape(self, value: Value) -> str:
        return "×".join(map(str, value.meta.shape)) if value.meta is not None else "?"

    def _size(self, value: Value | None) -> int:
        shape = None if value is None else self.graph.numbers(value)
        return 0 if shape is None else math.prod(shape)


def _unread(over: Node | None) -> str:
    """Why an operator that might be a move is none, as far as it could be read."""
    if over is None or over.kind != "raw":
        return ""
    why = over.params.get("why") or "it is not known"
    return f"not lifted over {over.name} ({over.call.name}): {why}"


_NONE = OPS["assert"]
_ABSORB = ("linear", "norm", "embedding")


def _at(node: Node, crossing: Crossing, part: int = 0) -> tuple[Hashable, ...]:
    """The key of the quantize that `node` becomes on the other side, but for the value it stands on."""
    return _does(node, crossing.quants[part])


def _does(node: Node, quant: Hashable) -> tuple[Hashable, ...]:
    params = tuple((name, value) for name, value in sorted(node.params.items()) if name != "quant")
    return node.call.name, quant, tuple(node.operands[1:]), params


def _key(graph: Graph, node: Node) -> Hashable | None:
    """What it does to which value; None where two such nodes may differ."""
    quant = quant_of(node)
    if not node.call.pure or quant.numbers.rounding == "stochastic" or node.operand(0) is None:
        return None
    if graph.mutated and any(v in graph.mutated for v in (*node.slots, *node.outputs)):
        return None
    return (node.operand(0), *_does(node, quant))
