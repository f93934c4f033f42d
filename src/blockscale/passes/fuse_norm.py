"""A norm with the quantize of its result becomes one operator, and so does the residual sum before it.

    q = quantize(rms_norm(x + r, w))   →   q, sum = blockscale.add_rms_norm_quantize(x, r, w, …)

The norm is one operator of the model, or spelled out in any of the forms of `fused_forms`. It stays where its
result, or something inside it, is used as floats too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from blockscale.graph.constants import Constants
from blockscale.graph.fused import Fused, row_named
from blockscale.graph.fused_edges import Edges, arithmetic_of, quantized_by, source_of
from blockscale.graph.fused_forms import LAYER_FORMS, RMS_FORMS
from blockscale.graph.fused_match import Found, ends_with, match, pattern_of
from blockscale.graph.fused_nodes import Core, make
from blockscale.graph.fused_said import said
from blockscale.graph.overlay import Graph
from blockscale.graph.view import Meta, Node, Value
from blockscale.passes.log import Log

STAGE = "fuse_norm"
_ENDS = ("mul", "div", "add", "cast")  # kinds of the last node of a norm that is spelled out
# What is more special comes first: a layer norm is an rms norm of centred values, (1 + weight) a weight.
_TEMPLATES = [
    *(("layer_norm_quantize", form, ("input", *rest))
      for form in LAYER_FORMS[1:] for rest in (("weight", "bias"), ("weight",), ("bias",), ())),
    *(("rms_norm_quantize", form, ("input", "weight")) for form in reversed(RMS_FORMS[1:])),
    ("rms_norm_quantize", "weight_first", ("input",)),
]  # fmt: skip


@dataclass(frozen=True)
class _Norm:
    """operands by the names of the form; `nodes` are gone when it is fused."""

    row: Fused
    operands: dict[str, Value]
    settings: dict[str, Any]
    nodes: tuple[Node, ...]


def run(graph: Graph, log: Log) -> None:
    fuser = _Fuser(graph, log)
    for node in graph.nodes:
        if node.kind == "quantize" and node in graph:
            fuser.meet(node)


class _Fuser:
    def __init__(self, graph: Graph, log: Log) -> None:
        self.graph, self.log = graph, log
        self.constants = Constants(graph)

    def meet(self, q: Node) -> None:
        x = q.operand(0)
        norm = None if x is None else self._norm(x)
        if x is None or norm is None:
            return
        why = norm if isinstance(norm, str) else self._fuse(q, x, norm)
        if why:
            self.log.left(STAGE, q, why)

    # ------------------------------------------------------------------------------ finding

    def _norm(self, x: Value) -> _Norm | str | None:
        """That `x` is the result of, why it cannot be fused, or None: there is no norm."""
        end = source_of(x)
        node = end.producer if end is not None else None
        if end is None or node is None:
            return None
        if node.kind in ("rms_norm", "layer_norm"):
            return self._one(end, node)
        if node.kind not in _ENDS:
            return None
        before = source_of(node.operand(0)) if node.kind == "cast" else None
        kinds = (node.kind, "" if before is None or before.producer is None else before.producer.kind)
        for name, form, present in _TEMPLATES:
            pattern = pattern_of(name, form, present)
            for found in match(pattern, x) if ends_with(pattern) in kinds else ():
                return self._spelled(x, row_named(name), form, found)
        return None

    def _one(self, end: Value, node: Node) -> _Norm | str:
        found = said(self.graph, node, quantized=True)
        if isinstance(found, str):
            return found
        if end.index or any(value.used for value in node.outputs[1:]):
            return f"other results of {node.name} are used"
        pairs = zip(found.row.operands, found.operands, strict=True)
        operands = {one.aten: value for one, value in pairs if value is not None}
        return _Norm(found.row, operands, dict(found.settings), (node,))

    def _spelled(self, x: Value, row: Fused, form: str, found: Found) -> _Norm | str:
        if row.name not in self.graph.fusible:
            return f"blockscale.{row.name} cannot be written into this model"
        inside = set(found.nodes)
        for node in inside:
            for value in node.outputs:
                if value is not x and any(user not in inside for user in value.users):
                    return f"{value!r}, inside the norm, is used elsewhere too"
        meta, features = found.leaves["input"].meta, found.features
        assert meta is not None and features is not None
        shape = meta.shape[len(meta.shape) - features :]
        for name in ("weight", "bias"):
            one = found.leaves.get(name)
            if one is not None and (one.meta is None or one.meta.shape != shape):
                return f"{name} is not of shape {shape}"
        if not all(isinstance(n, int) for n in shape):
            return f"the shape that it normalizes, {shape}, is known only at run time"
        settings = {"normalized_shape": shape, "eps": found.eps, "form": form}
        return _Norm(row, dict(found.leaves), settings, found.nodes)

    # ------------------------------------------------------------------------------ fusing

    def _fuse(self, q: Node, x: Value, norm: _Norm) -> str:
        """Why not; empty where it was done."""
        sole = quantized_by(self.graph, x)
        if sole is not q:
            return sole if isinstance(sole, str) else f"{x!r} is not quantized by it alone"
        touched = [v for node in norm.nodes for v in (*node.slots, *node.outputs)]
        if any(v in self.graph.mutated for v in touched if v is not None):
            return "the norm shares memory that the graph writes to"
        dtype = arithmetic_of(list(norm.operands.values()), x)
        if dtype is None:
            return "its operands and its result are not of one float dtype that fused operators take"
        norm, total = self._with_sum(q, norm)
        values = [norm.operands.get(one.aten) for one in norm.row.operands]
        edges = Edges(self.graph, norm.row, dtype)
        operands, out = edges.operands(values), edges.output(q)
        if isinstance(out, str):
            return out
        for node, reason in edges.left:
            self.log.left(STAGE, node, f"not an operand of {norm.row.name}: {reason}")
        metas: list[Meta | None] = [*out[1], *([total.meta] if total is not None else [])]
        core = Core(norm.nodes, tuple(values), (x,) if total is None else (x, total))
        made = make(
            self.graph, norm.row.name, operands, out[0], metas, norm.settings, core, compute=dtype,
            near=norm.nodes[0],
        )  # fmt: skip
        old: Sequence[Value] = [*q.outputs, *([total] if total is not None else [])]
        for before, after in zip(old, made.outputs, strict=True):
            self.graph.replace(before, after)
        self.log.did(STAGE, q, f"became the output of {norm.row.kind}")
        self.graph.discard([q, *norm.nodes])
        return ""

    def _with_sum(self, q: Node, norm: _Norm) -> tuple[_Norm, Value | None]:
        """With the sum of two tensors that it normalizes, where there is one."""
        total = source_of(norm.operands["input"])
        add = total.producer if total is not None else None
        name = f"add_{norm.row.name}"
        if total is None or add is None or add.kind != "add" or name not in self.graph.fusible:
            return norm, None
        found = said(self.graph, add, quantized=False)
        if isinstance(found, str) or len(found.operands) != 2 or found.settings.get("alpha", 1) != 1:
            return norm, None
        first, second = found.operands
        if first is None or second is None or not first.meta == second.meta == total.meta:
            return norm, None
        others = [*(v for n, v in norm.operands.items() if n != "input"), *q.operands[1:]]
        if not all(v is None or v.producer is None or self.constants.is_constant(v) for v in others):
            self.log.left(STAGE, q, f"the sum {add.name} stays: its parameters may be computed from it")
            return norm, None
        operands = {**norm.operands, "input": first, "residual": second}
        made = replace(norm, row=row_named(name), operands=operands, nodes=(*norm.nodes, add))
        return made, total
