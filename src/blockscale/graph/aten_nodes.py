"""Nodes that call operators of ATen by name, as a reader of a model would have found them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from blockscale.graph.args import Args
from blockscale.graph.fused_nodes import frozen
from blockscale.graph.ops import KIND_OF_ATEN
from blockscale.graph.overlay import Graph
from blockscale.graph.read_aten import READ
from blockscale.graph.view import Meta, Node, Value


def make_aten(
    graph: Graph, name: str, operands: Sequence[Value | None], metas: Sequence[Meta | None],
    settings: Mapping[str, Any], *, near: Node,
) -> Node:  # fmt: skip
    """`operands` in the order of OPS, `settings` by the operator's own names."""
    row = KIND_OF_ATEN[name]
    made = graph.make(row.kind, operands, metas, {"settings": frozen(settings)}, near=near, name=row.kind)
    slots = dict(zip(row.aten[name].split(), made.call.operands, strict=True))
    given = {n: slot for n, slot in slots.items() if slot is not None}
    args = Args(made.slots, given, dict(settings), list(metas), graph.alphabet)
    params = READ[row.kind](name, args) if row.kind in READ else {}
    made.call = replace(made.call, name=name, params={**made.params, **params})
    return made
