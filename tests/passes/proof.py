"""A model before and after passes: the same bits, a sound graph, invariants held; and what became of it.

Models are seen through the overlay, so a test says the same of torch.fx and of ONNX.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from torch import fx

from blockscale.graph import models
from blockscale.graph.dims import Sym
from blockscale.graph.overlay import Graph
from blockscale.graph.quant import quant_of
from blockscale.graph.view import Node, Value
from blockscale.passes.log import Log, counts
from blockscale.passes.pipeline import optimize
from passes import fx_graphs, onnx_graphs

MOTION = ("cse", "lift", "cse", "sink", "cse")
KINDS = ("quantize", "fake_quantize")


@dataclass(frozen=True)
class Proof:
    """What passes did to a model, after they were found to have done no harm."""

    before: Any
    after: Any
    log: Log

    @property
    def graph(self) -> Graph:
        return models.snapshot(self.after)

    @property
    def kinds(self) -> Counter[str]:
        return counts(self.graph)

    def nodes(self, kind: str) -> list[Node]:
        return [node for node in self.graph.nodes if node.kind == kind]

    def the(self, kind: str) -> Node:
        """The only node of a kind."""
        (node,) = self.nodes(kind)
        return node

    def block(self, kind: str) -> tuple[int, ...]:
        return quant_of(self.the(kind)).block

    def reasons(self, stage: str = "") -> str:
        return "\n".join(entry.left for entry in self.log.reasons(stage))


def proven(
    model: Any,
    *inputs: Sequence[Any],
    stages: Sequence[str] = MOTION,
    more: bool = False,
) -> Proof:
    """`model` after `stages`, which change no bit on any of `inputs` and keep every invariant.

    `more`: it may quantize more elements than it did.
    """
    log = Log()
    after = optimize(model, stages=stages, log=log, check=True)
    if isinstance(after, fx.GraphModule):
        fx_graphs.assert_sound(after)
    elif isinstance(after, ir.Model):
        onnx_graphs.assert_sound(after, *inputs)
    for given in inputs:
        assert_same(model, after, given)
    if not more:
        assert elements(after) <= elements(model), f"{log}"
    return Proof(model, after, log)


def assert_same(before: Any, after: Any, inputs: Sequence[Any]) -> None:
    of: Any = onnx_graphs if isinstance(before, ir.Model) else fx_graphs
    of.assert_equal(of.run(before, inputs), of.run(after, inputs))


def elements(model: Any, size: Callable[[Any], int] = lambda dim: 7 if isinstance(dim, Sym) else dim) -> int:
    """How many elements a run quantizes, sizes known only at run time being 7."""
    total = 0
    for node in models.snapshot(model).nodes:
        if node.kind in KINDS:
            x = node.operand(0)
            assert x is not None and x.meta is not None
            total += math.prod(map(size, x.meta.shape))
    return total


def shape(value: Value | None) -> tuple[Any, ...]:
    assert value is not None and value.meta is not None
    return value.meta.shape


def is_input(value: Value | None) -> bool:
    """Whether nothing of the graph makes it."""
    return value is not None and value.producer is None and value.const is None
