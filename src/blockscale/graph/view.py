"""What a graph is to the passes: values, nodes, and one canonical `Call` a node.

A node keeps its operands in `slots`, in the order of the operator it came from; `Call.operands` says which
slot is which canonical operand. Nothing here names a framework: an adapter fills these in (`snapshot`)
and writes edits back (`commit`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from blockscale.graph.dims import Dims

NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Meta:
    """What is known of a tensor before the run. dtype as numpy and torch both write it: "float32", …"""

    dtype: str
    shape: Dims


@dataclass(frozen=True, slots=True)
class Const:
    """What a constant holds: a numpy array (of ml_dtypes where numpy has no type), fetched when asked for."""

    fetch: Callable[[], Any]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """What a node does.

    kind      a kind of ops.py; "raw" where it is unknown, then `name` and `params` tell what is called
    name      the operator, qualified: "aten.view.default", "ai.onnx::Reshape"
    operands  for each canonical operand the slot that holds it, or None where it is absent
    params    canonical arguments; hashable values
    pure      same inputs, same outputs, no effect
    """

    kind: str
    name: str
    operands: tuple[int | None, ...]
    params: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    pure: bool = True


class Value:
    """One tensor (or size): a graph input, a constant, or one output of a node."""

    __slots__ = ("const", "index", "meta", "name", "origin", "producer", "uses")

    def __init__(
        self, name: str, meta: Meta | None, producer: Node | None = None, index: int = 0,
        const: Const | None = None, origin: Any = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.meta = meta
        self.producer = producer
        self.index = index
        self.const = const
        self.origin = origin  # the adapter's own
        self.uses: dict[tuple[Node, int], None] = {}  # (node, slot): a consumer with many inputs stays cheap

    @property
    def users(self) -> list[Node]:
        """Nodes that use it, each once; checks of its shape or dtype do not count."""
        return list(dict.fromkeys(node for node, _ in self.uses if node.call.kind != "assert"))

    @property
    def used(self) -> bool:
        for node, _ in self.uses:  # noqa: SIM110  asked of every value again and again
            if node.call.kind != "assert":
                return True
        return False

    def __repr__(self) -> str:
        return f"%{self.name}"


class Node:
    """A call with its operands. `made_by` is None for nodes of the model; see `Made`."""

    __slots__ = ("call", "dirty", "made_by", "name", "order", "origin", "outputs", "scope", "site", "slots")

    def __init__(
        self, call: Call, slots: list[Value | None], name: str, order: int, origin: Any = None,
        site: str = "", made_by: Made | None = None,
    ) -> None:  # fmt: skip
        self.call = call
        self.slots = slots
        self.outputs: list[Value] = []
        self.name = name
        self.order = order
        self.origin = origin
        self.site = site  # "model.layers.0.mlp, file.py:12": for messages
        self.scope = ""  # "model.layers.0.mlp": the module it is in; "mlp@1" in the module's second call
        self.made_by = made_by
        self.dirty = False

    @property
    def kind(self) -> str:
        return self.call.kind

    @property
    def params(self) -> Mapping[str, Any]:
        return self.call.params

    def operand(self, index: int) -> Value | None:
        """The canonical operand `index`, None where it is absent."""
        operands = self.call.operands
        slot = operands[index] if index < len(operands) else None
        return None if slot is None else self.slots[slot]

    @property
    def operands(self) -> list[Value | None]:
        return [None if slot is None else self.slots[slot] for slot in self.call.operands]

    @property
    def live(self) -> bool:
        """Whether it has an effect, or an output that is used. A check lives as long as what it checks."""
        if self.call.kind == "assert":
            return all(v is None or v.producer is None or v.producer.live for v in self.slots)
        return not self.call.pure or any([value.used for value in self.outputs])

    def where(self) -> str:
        return f"{self.name} ({self.call.name}{', ' + self.site if self.site else ''})"

    def __repr__(self) -> str:
        outs = ", ".join(map(repr, self.outputs))
        return f"{outs} = {self.call.kind}:{self.call.name}({', '.join(map(repr, self.slots))})"


@dataclass(frozen=True, slots=True)
class Made:
    """How a node of ours is written into the model.

    like     a node whose operator and arguments it takes, with other operands ...
    changes  ... and these arguments changed, by the operator's own names
    Without `like`, the adapter writes `call` itself: see its table of makers.
    """

    like: Node | None = None
    changes: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
