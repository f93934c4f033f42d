"""BERT for sentences: MiniLM with its own weights and tokenizer, and a small one with random weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from blockscale.report.demo import find_model


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


def tokens(sentences: Sequence[str]) -> tuple[Tensor, Tensor]:
    """What MiniLM takes: ids and mask, padded to the longest."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(find_model().parent / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    found = tokenizer.encode_batch(list(sentences))
    return torch.tensor([one.ids for one in found]), torch.tensor([one.attention_mask for one in found])


def text(batch: int = 2, length: int = 12, seed: int = 0, vocabulary: int = 96) -> tuple[Tensor, Tensor]:
    """Random words, each line one shorter than the one before it."""
    words = torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(length) < length - torch.arange(batch).unsqueeze(1)
    return words * mask, mask.long()
