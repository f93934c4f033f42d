"""Absorb: quantizes that undo a dequantize go, and what stands between works on codes.

    Q(f(DQ(c))) = f'(c)    f none, or it selects among its values: relu, clamp, max_pool, and for one scale
                           what only puts elements elsewhere

Both have the same static parameters, and every code survives DQ and Q (numerics.round_trip tries them), so
DQ is strictly monotone on codes and the intermediate rounding and saturation cannot be seen. A dynamic
quantize goes only where it stands directly on the dequantize of its equal, and would find its scales again.
Parameters that differ are a requantize, and stay.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from blockscale.graph import survival
from blockscale.graph.moving import Follower
from blockscale.graph.ops import reads_size
from blockscale.graph.overlay import Graph
from blockscale.graph.quant import layout_of, quant_of
from blockscale.graph.survival import contents, numbers_alike, same_contents
from blockscale.graph.view import Meta, Node, Value
from blockscale.numerics import native
from blockscale.numerics.arrays import TENSOR_DTYPES
from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import Relu, Same, Split
from blockscale.numerics.through import PLACING
from blockscale.passes.log import Log

STAGE = "absorb"
_SELECTS = ("relu", "hardtanh", "max_pool")


def run(graph: Graph, log: Log) -> None:
    absorber = _Absorber(graph, log)
    for node in graph.nodes:
        if node.kind == "quantize" and node.outputs and node in graph:
            absorber.meet(node)


class _Absorber:
    def __init__(self, graph: Graph, log: Log) -> None:
        self.graph, self.log = graph, log
        self.follower = Follower(graph)

    def meet(self, node: Node) -> None:
        path = _path(node)
        if path is None:
            return
        source, between = path
        why = self._why_not(node, source, between)
        if not why:
            why = self._dynamic(node, source, between) if node.operand(1) is None else ""
        if not why and node.operand(1) is not None:
            why = self._static(node, source, between)
        if why:
            self.log.left(STAGE, node, why)
        else:
            over = f" over {', '.join(one.name for one in between)}" if between else ""
            self.log.did(STAGE, node, f"absorbed{over}: the codes of {source.name} stay what they are")
            self.graph.discard([node])

    def _why_not(self, node: Node, source: Node, between: list[Node]) -> str:
        for one in (node, source):
            if quant_of(one).foreign is not None or not one.call.pure:
                return f"{one.call.name} is no operator of ours"
        if numbers_alike(node) != numbers_alike(source):
            return f"{source.name} decodes {quant_of(source).numbers}: a requantize"
        for one in (source, *between, node):
            values = [*one.slots, *one.outputs]
            if any(value in self.graph.mutated for value in values if value is not None):
                return f"{one.name} shares memory that the graph writes to"
        for one in between:
            if sum(not reads_size(user) for user in one.outputs[0].users) > 1:
                return f"the float result of {one.name} is used elsewhere too"
        if node.operand(0) is not None and survival.dtype_of(node.operand(0)) != survival.dtype_of(
            source.outputs[0]
        ):
            return "the dtype changes on the way"
        return (
            ""
            if survival.dtype_of(source.outputs[0]) in survival.FORMATS
            else "its floats are of an unknown dtype"
        )

    # ------------------------------------------------------------------------------ dynamic

    def _dynamic(self, node: Node, source: Node, between: list[Node]) -> str:
        """Q(DQ(Q(x))) = Q(x): its outputs are those of the quantize that came first."""
        why = survival.dynamic_loss(node, source)
        if not why and between:
            why = f"its scales are measured after {between[0].name}"
        codes = source.operand(0)
        if not why and codes is not None and codes.producer is not None:
            for mine, its in zip(node.outputs, codes.producer.outputs, strict=True):
                self.graph.replace(mine, its)
        return why

    # ------------------------------------------------------------------------------ static

    def _static(self, node: Node, source: Node, between: list[Node]) -> str:
        if quant_of(node).outputs != ("codes",):
            return "it gives more than codes"
        for i in (1, 2, 3):
            if not same_contents(node.operand(i), source.operand(i)):
                return f"{source.name} has other parameters: a requantize"
        layout = layout_of(source, self.graph.alphabet)
        if isinstance(layout, str):
            return layout
        why = survival.static_loss(node, source)
        if why:
            return why
        steps = []
        for one in between:
            step = self._step(one, layout, source)
            if isinstance(step, str):
                return f"{one.name}: {step}"
            steps.append(step)
        same_block = quant_of(node).block == quant_of(source).block
        if not same_block and not layout.per_tensor:
            return f"its blocks are {quant_of(node).block}, those of {source.name} {quant_of(source).block}"
        codes = source.operand(0)
        assert codes is not None
        for one, step in zip(between, steps, strict=True):
            codes = self._on_codes(one, step, codes)
            sizes = [use for use in one.outputs[0].uses if reads_size(use[0])]
            self.graph.replace(one.outputs[0], codes, sizes)
        self.graph.replace(node.outputs[0], codes)
        return ""

    def _step(self, one: Node, layout: Layout, source: Node) -> dict[str, Any] | str:
        """What `one` does to codes; or why it cannot."""
        element = layout.numbers.element_format
        if "move" in one.params and type(one.params["move"]) in PLACING:
            if not layout.per_tensor:
                return "the scales would have to follow it, which lift does"
            if element.packed and not isinstance(one.params["move"], Same):
                return "several codes share a byte"
            return {"move": one.params["move"]}
        if one.kind not in _SELECTS or not element.is_fixed:
            return "floats are not in the order of their codes" if one.kind in _SELECTS else "it computes"
        if element.packed:
            return "several codes share a byte"
        if str(element.storage_dtype) == "uint16":
            return "frameworks compare no codes of uint16"
        if one.kind == "max_pool":
            return self._pool(one, layout)
        low, high = (one.params["move"].value, None) if one.kind == "relu" else self._limits(one)
        if low is None and high is None:
            return "its limits are known only at run time"
        if not layout.per_tensor and (layout.numbers.zero_point or (low or 0.0, high or 0.0) != (0.0, 0.0)):
            return "the code of its limit is not one for the whole tensor"
        codes = [None if v is None else self._code_of(v, source, layout) for v in (low, high)]
        return {"low": codes[0], "high": codes[1], "numbers": layout.numbers}

    def _pool(self, one: Node, layout: Layout) -> dict[str, Any] | str:
        x, y = one.operand(0), one.outputs[0]
        if one.call.name == "aten.max_pool1d.default":
            return "torch pools no integers in one dimension"
        if any(value.used for value in one.outputs[1:]) or x is None or x.meta is None or y.meta is None:
            return "its positions are used, or its shape is not known"
        pairs = zip(x.meta.shape, y.meta.shape, layout.block, strict=True)
        if not layout.per_tensor and any(n != m and b != 0 for n, m, b in pairs):
            return "it pools elements of different scales"
        return {"pool": True}

    def _limits(self, one: Node) -> tuple[float | None, float | None]:
        """Of a clamp: numbers, None where there is no limit; both None if one is not known."""
        said = {**self.graph.settings(one), **one.params}
        names = (("min_val", "min"), ("max_val", "max"))
        found: list[float | None] = []
        for pair in names:
            value = next((said[name] for name in pair if said.get(name) is not None), None)
            if value is not None and (not isinstance(value, int | float) or math.isnan(value)):
                return None, None
            found.append(value)
        extra = len([v for v in one.slots if v is not None]) - 1  # limits that are operands of the node
        if extra > len([v for v in found if v is not None]):
            return None, None
        return found[0], found[1]

    def _code_of(self, limit: float, source: Node, layout: Layout) -> int:
        """Q(limit): Q is monotone, so it takes min and max along."""
        scale, zero = (contents(v) for v in (*source.operands[1:3], None)[:2])
        assert scale is not None
        one = Layout(layout.numbers, (1,), (0,))
        dtype = TENSOR_DTYPES[survival.FORMATS[survival.dtype_of(source.outputs[0])]]
        zeros = None if zero is None or not zero.size else np.ascontiguousarray(zero.reshape(-1)[:1])
        given = native.Stored(np.ascontiguousarray(scale.reshape(-1)[:1]), zeros)
        with np.errstate(over="ignore"):
            x = np.array([limit]).astype(np.float32).astype(dtype)
        return int(native.quantize(x, one, given)[0][0])

    def _on_codes(self, one: Node, step: dict[str, Any], codes: Value) -> Value:
        meta, old = codes.meta, one.outputs[0].meta
        assert meta is not None and old is not None
        if "move" in step:
            return self.follower.value(step["move"], [codes], 0, one, one, one.name)
        if "pool" in step:
            slots = list(one.slots)
            slot = one.call.operands[0]
            assert slot is not None
            slots[slot] = codes
            metas = [Meta(meta.dtype, old.shape), *(value.meta for value in one.outputs[1:])]
            return self.graph.clone(one, slots, metas).outputs[0]
        low, high, numbers = step["low"], step["high"], step["numbers"]
        if low is not None and low > numbers.quant_min:
            codes = self._made("relu", codes, {"move": Relu(low)}, meta, one)
        if high is not None and high < numbers.quant_max:
            codes = self._made("at_most", codes, {"value": high}, meta, one)
        return codes

    def _made(self, kind: str, codes: Value, params: dict[str, Any], meta: Meta, near: Node) -> Value:
        return self.graph.make(kind, [codes], [meta], params, near=near, name=f"{near.name}_codes").outputs[0]


def _path(node: Node) -> tuple[Node, list[Node]] | None:
    """The dequantize that `node` gets its values from, and what stands between, the first first."""
    between: list[Node] = []
    x = node.operand(0)
    while x is not None and x.producer is not None:
        one = x.producer
        if one.kind == "dequantize":
            return one, between[::-1]
        places = type(one.params.get("move")) in PLACING and not isinstance(one.params["move"], Split)
        if not one.call.pure or x.index or not (places or one.kind in _SELECTS):
            return None
        between.append(one)
        x = one.operand(0)
    return None
