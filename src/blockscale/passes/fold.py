"""Fold: what is quantized and known now becomes codes and scales; nobody keeps the float constant alive.

Contents are made when the model is written, or when a later pass asks for them: a graph can be optimized
without touching a weight.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from blockscale.graph.constants import placed
from blockscale.graph.overlay import Graph
from blockscale.graph.quant import layout_of, quant_of
from blockscale.graph.view import Const, Node, Value
from blockscale.numerics import native
from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import Cat, Move, Split
from blockscale.passes.log import Log

STAGE = "fold"


def run(graph: Graph, log: Log) -> None:
    folder = _Folder(graph, log)
    for node in graph.nodes:
        if node.kind in ("quantize", "fake_quantize"):
            folder.quantizer(node)
        elif "move" in node.params:
            folder.move(node)


class _Folder:
    def __init__(self, graph: Graph, log: Log) -> None:
        self.graph, self.log = graph, log
        self.folded: set[Value] = set()

    def quantizer(self, node: Node) -> None:
        x = node.operand(0)
        known = None if x is None else placed(self.graph, x)
        if x is None or known is None:
            return
        why = self._why_not(node)
        layout = why if why else layout_of(node, self.graph.alphabet)
        if isinstance(layout, str):
            self.log.left(STAGE, node, layout)
            return
        arrays = _quantized(node, known, layout) if node.kind == "quantize" else _faked(node, known, layout)
        names = quant_of(node).outputs if node.kind == "quantize" else ("values",)
        for i, value in enumerate(node.outputs):
            if value.uses:
                fetch = _item(arrays, i)
                self._replace(value, fetch, f"{known.name or x.name}_{names[i]}")
        self.log.did(STAGE, node, f"{known.name or x.name} became {layout.numbers}")
        self.graph.discard([node])

    def _why_not(self, node: Node) -> str:
        if quant_of(node).foreign is not None:
            return f"{node.call.name} is not an operator of ours"
        for operand in node.operands[1:]:
            if operand is None:
                continue
            if operand.const is None:
                return f"{operand!r} is known only at run time"
            if operand in self.graph.mutated:
                return f"{operand!r} is written to"
        return ""

    def move(self, node: Node) -> None:
        """What moves folded codes and scales moves them now."""
        sources = [operand for operand in node.operands if operand is not None]
        if node.kind == "gather":
            sources = sources[:1]
        if not sources or not all(source in self.folded for source in sources):
            return
        if any(
            value.meta is None or not all(isinstance(n, int) for n in value.meta.shape)
            for value in node.outputs
        ):
            return
        move: Move = node.params["move"]
        constants = [source.const for source in sources if source.const is not None]

        @cache
        def moved() -> Any:
            parts = [const.fetch() for const in constants]
            return move.apply(parts if isinstance(move, Cat) else parts[0])

        for i, value in enumerate(node.outputs):
            if value.uses:
                fetch = _item(moved, i) if isinstance(move, Split) else moved
                self._replace(value, fetch, sources[0].name)
        self.graph.discard([node])

    def _replace(self, value: Value, fetch: Callable[[], Any], name: str) -> None:
        assert value.meta is not None
        constant = self.graph.constant(lambda: np.asarray(fetch(), order="C"), name, value.meta)
        self.folded.add(constant)
        self.graph.replace(value, constant)


def _item(arrays: Callable[[], Any], index: int) -> Callable[[], Any]:
    return lambda: arrays()[index]


def _quantized(node: Node, x: Const, layout: Layout) -> Callable[[], list[Any]]:
    """The outputs of a quantize, made once."""
    params, tensor_scale = _inputs(node)
    names, seed = quant_of(node).outputs, _seed(node)

    @cache
    def made() -> list[Any]:
        given = params()
        codes, stored = native.quantize(
            _fetched(x), layout, given, tensor_scale=None if given is not None else tensor_scale(), seed=seed
        )
        found = {
            "codes": codes, "scale": stored.scales, "zero_point": stored.zero_points,
            "tensor_scale": stored.tensor_scale,
        }  # fmt: skip
        empty = {"zero_point": np.int32, "tensor_scale": np.float32}
        return [np.empty(0, empty[n]) if found[n] is None else found[n] for n in names]

    return made


def _faked(node: Node, x: Const, layout: Layout) -> Callable[[], list[Any]]:
    params, tensor_scale = _inputs(node)
    seed = _seed(node)

    @cache
    def made() -> list[Any]:
        given = params()
        t = None if given is not None else tensor_scale()
        return [native.fake_quantize(_fetched(x), layout, given, tensor_scale=t, seed=seed)]

    return made


def _inputs(node: Node) -> tuple[Callable[[], native.Stored | None], Callable[[], float | None]]:
    constants = [None if v is None else v.const for v in (*node.operands, None, None, None)]
    scale, zero, t = constants[1:4]

    def tensor_scale() -> float | None:
        return None if t is None else float(np.asarray(t.fetch()).reshape(()))

    def params() -> native.Stored | None:
        if scale is None:
            return None
        zeros = None if zero is None else np.asarray(zero.fetch(), order="C")
        if zeros is not None and zeros.shape == (0,):
            zeros = None
        return native.Stored(
            np.asarray(scale.fetch(), order="C"), zeros, None if t is None else np.asarray(t.fetch())
        )

    return params, tensor_scale


def _fetched(x: Const) -> Any:
    return np.asarray(x.fetch(), order="C")


def _seed(node: Node) -> int:
    identity = quant_of(node).identity
    return int(node.params.get("seed", identity[0] if identity else 0)) % (1 << 64)
