"""Motion, combining, folding and canonicalizing on graphs at random: not a bit changes, nothing more is quantized."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from torch import Tensor, fx

from blockscale.graph.fx import snapshot
from blockscale.passes.pipeline import COMBINE, OPTIMIZE
from passes.proof import MOTION, proven
from passes.random_graphs import graphs

STAGES = {
    "motion": MOTION,
    "combine": COMBINE,
    "sink": ("sink",),
    "canonical": ("canonicalize", *MOTION),
    "optimize": OPTIMIZE,
    "all": ("cse", "lift", "cse", "fold", "sink", "cse"),
}
Drawn = tuple[fx.GraphModule, list[Tensor]]


@pytest.mark.parametrize("stages", STAGES)
@settings(max_examples=30)
@given(graphs(foreign=False))
def test_ours(stages: str, drawn: Drawn) -> None:
    model, inputs = drawn
    proven(model, inputs, stages=STAGES[stages], more=stages == "optimize")


@pytest.mark.parametrize("stages", STAGES)
@settings(max_examples=30)
@given(graphs(foreign=True))
def test_foreign(stages: str, drawn: Drawn) -> None:
    model, inputs = drawn
    proof = proven(model, inputs, stages=STAGES[stages], more=stages == "optimize")
    if stages == "combine":
        assert operators(proof.after) <= operators(model)


def operators(model: fx.GraphModule) -> set[str]:
    """Names of quantizers: combining invents none."""
    return {node.call.name for node in snapshot(model).nodes if "quant" in node.params}
