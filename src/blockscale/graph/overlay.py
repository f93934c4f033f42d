"""The overlay: a snapshot of a graph on which passes work. Dropping it is the rollback.

Edits are cheap and order-free: new nodes stand nowhere until `sorted` puts each right before the first
node that needs it, so a rewrite never has to find an insertion point. The adapter's `commit` replays
what is live onto the model, once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from blockscale.graph.dims import Alphabet
from blockscale.graph.view import NOTHING, Call, Const, Made, Meta, Node, Value


class Graph:
    """Values and nodes of one graph. Bodies of control flow are graphs of their own, in `bodies`."""

    def __init__(self, name: str = "", alphabet: Alphabet | None = None) -> None:
        self.name = name
        self.prefix = ""  # of the names of values, where a body may repeat those of the graph around it
        self.alphabet = alphabet or Alphabet()
        self.inputs: list[Value] = []
        self.constants: list[Value] = []
        self.bodies: list[tuple[Node, Graph]] = []
        self.mutated: set[Value] = set()  # written to in place, under some name, while the graph runs
        self.arguments: Callable[[Node], Hashable] = lambda node: node  # all that a node says beside operands
        self.written: Callable[[Node], Mapping[str, Any]] = lambda node: NOTHING  # see `settings`
        self.fusible: Collection[str] = ()  # fused operators (rows of `fused`) that the adapter can write
        self.stand_for: Callable[[Node, Any], None] = lambda made, core: None  # see fused_nodes.Core
        self.lacks: Callable[[str, str], bool] = lambda kind, dtype: False  # no kernel of a move for a dtype
        self.takes: Callable[[str, str], bool] = lambda kind, dtype: True  # whether its own does this dtype
        self.notes: dict[Value, Any] = {}  # quantization metadata; arrays, so a mention is not a use
        self._nodes: list[Node] = []
        self._all: dict[Node, None] = {}  # also new nodes, which `_nodes` has only once they are sorted
        self._stale = False  # whether `_nodes` may be out of date
        self._suspects: dict[Node, None] = {}  # which may not be live any more, or never were
        self._made = 0
        self.changed = False
        self.origin: Any = None  # the adapter's own

    # ------------------------------------------------------------------------------ reading

    @property
    def nodes(self) -> list[Node]:
        """The live nodes in an order in which they can run."""
        if self._stale:
            self._nodes, self._stale = self.sorted(), False
        return self._nodes

    def walk(self) -> Iterator[Graph]:
        """This graph and all graphs within."""
        yield self
        for _, body in self.bodies:
            yield from body.walk()

    def __contains__(self, node: Node) -> bool:
        """Whether it has not been removed."""
        return node in self._all

    def numbers(self, value: Value) -> tuple[int, ...] | None:
        """The shape with primes for what is known only at run time; None where the rank is not known."""
        return None if value.meta is None else self.alphabet.numbers(value.meta.shape)

    def settings(self, node: Node) -> Mapping[str, Any]:
        """Arguments beside operands, by the operator's own names, defaults included."""
        made = node.made_by
        if made is None:
            return self.written(node)
        if made.like is None:
            return dict(node.params.get("settings", ()))
        return {**self.written(made.like), **made.changes}

    def sorted(self) -> list[Node]:
        """Nodes of the model in their order; a new node, or one needed earlier, before its first user."""
        done: set[Node] = set()
        result: list[Node] = []
        every, swept = self._all, not self._suspects
        for root in self._nodes:
            if root in done or root not in every or not (swept or root.live):
                continue
            if all([v is None or (made := v.producer) is None or made in done for v in root.slots]):
                done.add(root)
                result.append(root)
                continue
            stack: list[tuple[Node, Iterator[Value | None]]] = [(root, iter(root.slots))]
            open_nodes = {root}
            while stack:
                node, rest = stack[-1]
                for value in rest:
                    needed = value.producer if value is not None else None
                    if needed is None or needed in done:
                        continue
                    if needed in open_nodes:
                        raise AssertionError(f"the graph has a cycle through {needed.where()}")
                    stack.append((needed, iter(needed.slots)))
                    open_nodes.add(needed)
                    break
                else:
                    stack.pop()
                    open_nodes.discard(node)
                    done.add(node)
                    result.append(node)
        return result

    # ------------------------------------------------------------------------------ building (adapters)

    def add_input(self, value: Value) -> Value:
        self.inputs.append(value)
        return value

    def add_constant(self, value: Value) -> Value:
        self.constants.append(value)
        return value

    def add_node(self, node: Node) -> Node:
        """Append a node of the model; its slots become uses."""
        self._nodes.append(node)
        self._all[node] = None
        self._stale = True
        self._suspects[node] = None
        _use(node)
        return node

    # ------------------------------------------------------------------------------ editing (passes)

    def constant(self, array: Any, name: str, meta: Meta) -> Value:
        """A new constant: an array, or a function that makes it when it is needed. `name` is a hint."""
        self.changed = True
        fetch = array if callable(array) else lambda: array
        return self.add_constant(Value(name, meta, const=Const(fetch, name)))

    def make(
        self, kind: str, operands: Sequence[Value | None], metas: Sequence[Meta | None],
        params: Mapping[str, Any] = NOTHING, *, near: Node, name: str = "",
    ) -> Node:  # fmt: skip
        """A new node of a kind that the adapter can write; `near` lends its site to messages."""
        present = [v for v in operands if v is not None]
        slots = {id(v): i for i, v in reversed(list(enumerate(present)))}
        call = Call(
            kind, f"blockscale.{kind}", tuple(None if v is None else slots[id(v)] for v in operands), params
        )
        return self._add_made(Node(call, list(present), "", -1, None, near.site, Made()), metas, name or kind)

    def clone(
        self, like: Node, slots: Sequence[Value | None], metas: Sequence[Meta | None],
        changes: Mapping[str, Any] = NOTHING, call: Call | None = None,
    ) -> Node:  # fmt: skip
        """The same operator on other operands; `changes` are arguments by the operator's own names."""
        template = like
        if like.made_by is not None and like.made_by.like is not None:
            template, changes = like.made_by.like, {**like.made_by.changes, **changes}
        made = Made(None if like.made_by and not like.made_by.like else template, changes)
        node = Node(call or like.call, list(slots), "", -1, None, like.site, made)
        return self._add_made(node, metas, template.name)

    def _add_made(self, node: Node, metas: Sequence[Meta | None], name: str) -> Node:
        self._made += 1
        node.name = f"{name}_bs{self._made}"
        node.outputs = [
            Value(node.name if i == 0 else f"{node.name}_{i}", meta, node, i) for i, meta in enumerate(metas)
        ]
        self._all[node] = None
        self._suspects[node] = None
        _use(node)
        self.changed = self._stale = True
        return node

    def replace(self, old: Value, new: Value, users: Iterable[tuple[Node, int]] | None = None) -> None:
        """Let the given uses of `old` (all of them if None) use `new`."""
        for node, slot in list(old.uses if users is None else users):
            self.set_slot(node, slot, new)

    def set_slot(self, node: Node, slot: int, new: Value | None) -> None:
        old = node.slots[slot]
        if old is new:
            return
        if old is not None:
            old.uses.pop((node, slot), None)
            if old.producer is not None:
                self._suspects[old.producer] = None
        if node.call.kind == "assert":  # it lives as long as what it checks
            self._suspects[node] = None
        node.slots[slot] = new
        if new is not None:
            new.uses[(node, slot)] = None
        node.dirty = self.changed = True
        if (old is not None and old.producer) or (new is not None and new.producer):
            self._stale = True

    def sweep(self) -> int:
        """Remove nodes that are not live; how many."""
        suspects, self._suspects = self._suspects, {}
        return self.discard(suspects)

    def discard(self, candidates: Iterable[Node]) -> int:
        """Remove those of the candidates that are not live, and what only they kept alive; how many."""
        pending = list(candidates)
        removed = 0
        while pending:
            node = pending.pop()
            if node not in self._all or node.live:
                continue
            del self._all[node]
            removed += 1
            for slot, value in enumerate(node.slots):
                if value is not None:
                    value.uses.pop((node, slot), None)
                    if value.producer is not None:
                        pending.append(value.producer)
            pending += [user for value in node.outputs for user, _ in value.uses]  # its checks
        if removed:
            self.changed = self._stale = True
        return removed


def _use(node: Node) -> None:
    for slot, value in enumerate(node.slots):
        if value is not None:
            value.uses[(node, slot)] = None
