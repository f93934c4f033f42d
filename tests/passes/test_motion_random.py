"""Motion, combining, folding and canonicalizing on graphs at random: not a bit changes, nothing more is quantized."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from torch import Tensor, fx

from blockscale.graph.fx import snapshot
from blockscale.passes.pipeline import COMBINE
from passes.proof import MOTION, proven
from passes.random_graphs import graphs

STAGES = {
    "motion": MOTION,
    "combine": COMBINE,
    "sink": ("sink",),
    "canonical": ("canonicalize", *MOTION),
    "all": ("cse", "lift", "cse", "fold", "sink", "cse"),
}
Drawn = tuple[fx.GraphModule, list[Tensor]]


@pytest.mark.parametrize("stages", STAGES)
@settings(max_examples=60)
@given(graphs(foreign=False))
def test_ours(stages: str, drawn: Drawn) -> None:
    model, inputs = drawn
    proven(model, inputs, stages=STAGES[stages])


@pytest.mark.parametrize("stages", STAGES)
@settings(max_examples=60)
@given(graphs(foreign=True))
def test_foreign(stages: str, drawn: Drawn) -> None:
    model, inputs = drawn
    proof = proven(model, inputs, stages=STAGES[stages])
    if stages == "combine":
        assert operators(proof.after) <= operators(model)


def operators(model: fx.GraphModule) -> set[str]:
    """Names of quantizers: combining invents none."""
    return {node.call.name for node in snapshot(model).nodes if "quant" in node.params}
