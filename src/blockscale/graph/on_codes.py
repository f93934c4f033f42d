"""Operators that select among values, or put them elsewhere, on codes in place of the values: one scale for all.

Q(f(DQ(c))) = f'(c) where codes survive, so that DQ is strictly monotone on integers, and Q is monotone.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from blockscale.graph.moving import Follower
from blockscale.graph.overlay import Graph
from blockscale.graph.survival import FORMATS, contents, dtype_of
from blockscale.graph.view import Meta, Node, Value
from blockscale.numerics import native
from blockscale.numerics.arrays import TENSOR_DTYPES
from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import Cat, Relu, Same, Split
from blockscale.numerics.through import PLACING

SELECTS = ("relu", "hardtanh", "max_pool")
PLACED = tuple(kind for kind in (*PLACING, Cat) if kind is not Split)


class OnCodes:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.follower = graph, Follower(graph)

    def step(self, one: Node, layout: Layout, source: Node) -> dict[str, Any] | str:
        """What `one` does to codes that `source` decodes; or why it cannot."""
        element = layout.numbers.element_format
        move = one.params.get("move")
        if type(move) in PLACED:
            if not layout.per_tensor and not isinstance(move, Same):
                return "the scales would have to follow it, which lift does"
            if element.packed and not isinstance(move, Same):
                return "several codes share a byte"
            return {"move": move}
        if one.kind not in SELECTS or not element.is_fixed:
            return "floats are not in the order of their codes" if one.kind in SELECTS else "it computes"
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
        dtype = TENSOR_DTYPES[FORMATS[dtype_of(source.outputs[0])]]
        zeros = None if zero is None or not zero.size else np.ascontiguousarray(zero.reshape(-1)[:1])
        given = native.Stored(np.ascontiguousarray(scale.reshape(-1)[:1]), zeros)
        with np.errstate(over="ignore"):
            x = np.array([limit]).astype(np.float32).astype(dtype)
        return int(native.quantize(x, one, given)[0][0])

    def apply(self, one: Node, step: dict[str, Any], sources: list[Value]) -> Value:
        """`one` on codes, by the step that was found."""
        codes = sources[0]
        meta, old = codes.meta, one.outputs[0].meta
        assert meta is not None and old is not None
        if "move" in step:
            return self.follower.value(step["move"], sources, 0, one, one, one.name)
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
