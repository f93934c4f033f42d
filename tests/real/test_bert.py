"""BERT through export → fake-quantize → optimize: MiniLM with its own weights, and a small one."""

from __future__ import annotations

import pytest
from torch import nn

from real.bert import minilm, small, text
from real.by_hand import MEANING, by_hand
from real.llama import exported
from real.through import assert_same, run, through

pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")

# Embeddings of positions and of segments, where the sizes are known when the model is exported.
CONSTANT = ("position_embeddings", "token_type_embeddings")


@pytest.mark.parametrize(("attention", "dynamic"), [("sdpa", True), ("eager", False)])
def test_a_small_one_is_what_it_is_by_hand(attention: str, dynamic: bool) -> None:
    model = small(attention)
    inputs = [text(), text(seed=1), *[text(3, 9)] * dynamic]
    program = exported(model, dynamic=dynamic, args=inputs[0])
    for preset in MEANING if dynamic else ("mxfp4", "int8"):
        quantized, _ = through(program, preset, inputs, inputs[:2])
        constant = () if dynamic else CONSTANT
        assert_same(quantized, by_hand(model, preset, inputs[:2], constant=constant), inputs)
    through(program, "mxint8-all", inputs)


def test_minilm_keeps_its_meaning() -> None:
    model = minilm()
    inputs = [text(2, 16, vocabulary=30_000)]
    program = exported(model, args=inputs[0])
    (expected,) = run(model, inputs[0])
    for preset, least in (("mxint8", 0.99), ("mxfp8", 0.98), ("mxfp4-mxint8", 0.9), ("int8", 0.9)):
        quantized, _ = through(program, preset, inputs, inputs)
        assert_same(quantized, by_hand(model, preset, inputs, constant=CONSTANT), inputs)
        (found,) = run(quantized, inputs[0])
        cosines = nn.functional.cosine_similarity(expected, found)
        assert cosines.min() > least, f"{preset}: {cosines}"
