"""What quantizing did to a model, as data that goes with it: the recipe, every tensor, the passes, the size."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict, dataclass, fields
from typing import Any

from blockscale.errors import FileError
from blockscale.graph.overlay import Graph
from blockscale.passes.log import Log
from blockscale.recipe import Explanation

# Bytes of an element; int4 and the like are stored packed, as uint8.
_SIZES = {"float64": 8, "int64": 8, "uint64": 8, "float32": 4, "int32": 4, "uint32": 4, "float16": 2,
          "bfloat16": 2, "int16": 2, "uint16": 2}  # fmt: skip


@dataclass(frozen=True)
class Report:
    """Plain data: what `to_json` writes, `from_json` reads.

    tensors     one entry for each operand: node, role, shape, rule, layout, …; as `Recipe.explain` lists them
    entries     what each pass did, and what it left alone, and why
    before, after           operators by kind
    bytes_before, bytes_after   of all constants
    """

    recipe: str
    rules: list[str]
    tensors: list[dict[str, Any]]
    entries: list[dict[str, Any]]
    before: dict[str, int]
    after: dict[str, int]
    bytes_before: int
    bytes_after: int

    @staticmethod
    def of(explanation: Explanation | None, log: Log, bytes_before: int, bytes_after: int) -> Report:
        told: dict[str, Any] = {} if explanation is None else explanation.to_dict()
        passes = log.to_dict()
        return Report(
            told.get("recipe", "as the model was given"), told.get("rules", []), told.get("tensors", []),
            passes["entries"], passes["before"], passes["after"], bytes_before, bytes_after,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    @staticmethod
    def from_json(text: str, where: str = "report") -> Report:
        try:
            data = json.loads(text)
            return Report(**{field.name: data[field.name] for field in fields(Report)})
        except (ValueError, KeyError, TypeError) as error:
            raise FileError(f"{where}: no report of blockscale: {error!r}") from None

    def __str__(self) -> str:
        lines = [f"recipe    {self.recipe}"]
        layouts = Counter((row["role"], row["layout"]) for row in self.tensors if row["layout"] != "float")
        for (role, layout), count in sorted(layouts.items()):
            lines.append(f"{role + 's':9} {count} × {layout}")
        ratio = f" ({self.bytes_after / self.bytes_before:.3f} of float)" if self.bytes_before else ""
        lines.append(f"constants {_size(self.bytes_before)} → {_size(self.bytes_after)}{ratio}")
        changed = sorted(
            kind for kind in self.before.keys() | self.after.keys()
            if self.before.get(kind, 0) != self.after.get(kind, 0)
        )  # fmt: skip
        lines += [
            f"operators {kind}: {self.before.get(kind, 0)} → {self.after.get(kind, 0)}" for kind in changed
        ]
        left = Counter((entry["stage"], entry["left"]) for entry in self.entries if entry.get("left"))
        lines += [f"left      {count} × {stage}: {why}" for (stage, why), count in left.most_common(5)]
        return "\n".join(lines)


def constant_bytes(graph: Graph) -> int:
    """Of the constants that something reads, bodies included; what several names share counts once."""
    found: dict[object, int] = {}
    for one in graph.walk():
        for value in one.constants:
            if value.used and value.const is not None and value.meta is not None:
                sizes = [n if isinstance(n, int) else 1 for n in value.meta.shape]
                found[value.const.name or value] = math.prod(sizes) * _SIZES.get(value.meta.dtype, 1)
    return sum(found.values())


def _size(count: int) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e5 else f"{count} bytes"
