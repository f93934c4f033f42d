"""What a pass did, and for each candidate left alone the reason: text and data."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from blockscale.graph.overlay import Graph
from blockscale.graph.view import Node


@dataclass(frozen=True)
class Entry:
    """One node: what was done to it, or why it was left alone."""

    stage: str
    node: str
    did: str = ""
    left: str = ""
    site: str = ""


@dataclass
class Log:
    """Entries in order, and how many operators of each kind there were before and after."""

    entries: list[Entry] = field(default_factory=list)
    before: Counter[str] = field(default_factory=Counter)
    after: Counter[str] = field(default_factory=Counter)

    def did(self, stage: str, node: Node, what: str) -> None:
        self.entries.append(Entry(stage, node.name, did=what, site=node.site))

    def left(self, stage: str, node: Node, why: str) -> None:
        self.entries.append(Entry(stage, node.name, left=why, site=node.site))

    def note(self, stage: str, name: str, did: str = "", left: str = "") -> None:
        """Of what is no node of an overlay, or none any more."""
        self.entries.append(Entry(stage, name, did, left))

    def count(self, stage: str) -> int:
        """How many things a stage did."""
        return sum(1 for entry in self.entries if entry.stage == stage and entry.did)

    def reasons(self, stage: str = "") -> list[Entry]:
        return [entry for entry in self.entries if entry.left and stage in ("", entry.stage)]

    def to_dict(self) -> dict[str, Any]:
        rows = [{name: value for name, value in vars(entry).items() if value} for entry in self.entries]
        return {"entries": rows, "before": dict(self.before), "after": dict(self.after)}

    def __str__(self) -> str:
        lines = []
        for entry in self.entries:
            site = f"  [{entry.site}]" if entry.site else ""
            lines.append(f"{entry.stage:13} {entry.node}: {entry.did or 'left alone: ' + entry.left}{site}")
        changed = sorted(kind for kind in self.before | self.after if self.before[kind] != self.after[kind])
        lines += [f"{kind:28} {self.before[kind]:6} → {self.after[kind]}" for kind in changed]
        return "\n".join(lines)


def counts(graph: Graph) -> Counter[str]:
    """Operators by kind, those of unknown kind by name; bodies included."""
    return Counter(
        node.call.name if node.kind == "raw" else node.kind
        for body in graph.walk() for node in body.nodes if node.kind != "output"
    )  # fmt: skip
