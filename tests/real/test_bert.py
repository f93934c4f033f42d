"""BERT through export → fake-quantize → optimize: MiniLM with its own weights, and a small one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from blockscale.report.demo import find_model
from real.by_hand import MEANING, by_hand
from real.llama import exported
from real.through import assert_same, run, through

pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")

# Embeddings of positions and of segments, where the sizes are known when the model is exported.
CONSTANT = ("position_embeddings", "token_type_embeddings")


class Bert(nn.Module):
    """ids, mask → mean of the last states over what the mask has, of length 1."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.eval()

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        states: Tensor = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(states.dtype)
        return nn.functional.normalize((states * weights).sum(1) / weights.sum(1), dim=-1)


def small(attention: str) -> Bert:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=96, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=64, attn_implementation=attention,
    )  # fmt: skip
    return Bert(BertModel(config, add_pooling_layer=False))


def minilm() -> Bert:
    from transformers import BertModel

    return Bert(BertModel.from_pretrained(find_model().parent, add_pooling_layer=False))


def text(batch: int = 2, length: int = 12, seed: int = 0, vocabulary: int = 96) -> tuple[Tensor, Tensor]:
    """Random words, each line one shorter than the one before it."""
    words = torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(length) < length - torch.arange(batch).unsqueeze(1)
    return words * mask, mask.long()


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
