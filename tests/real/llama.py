"""A Llama of transformers with random weights, tiny, in every form in which exporters and frameworks write it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

VOCABULARY = 96
HEAD = "model.lm_head"


class Llama(nn.Module):
    """Two layers: ids → logits."""

    def __init__(
        self, attention: str = "sdpa", dtype: torch.dtype = torch.float32, layers: int = 2, wider: int = 1
    ) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        super().__init__()
        torch.manual_seed(0)
        config = LlamaConfig(
            hidden_size=64 * wider, intermediate_size=96 * wider, num_hidden_layers=layers, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=VOCABULARY, max_position_embeddings=64,
            attn_implementation=attention, use_cache=False,
        )  # fmt: skip
        self.model = LlamaForCausalLM(config).to(dtype)
        self.eval()

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.model(ids, use_cache=False).logits
        return logits


def ids(batch: int = 2, sequence: int = 8, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCABULARY, (batch, sequence), generator=torch.Generator().manual_seed(seed))


def exported(
    model: nn.Module, *, dynamic: bool = False, decomposed: bool = False, args: tuple[Any, ...] | None = None
) -> ExportedProgram:
    """`dynamic`: batch and sequence are known only at run time."""
    args = (ids(),) if args is None else args
    sizes = {0: Dim("batch", max=16), 1: Dim("sequence", max=32)}
    with torch.no_grad():
        program = torch.export.export(model, args, dynamic_shapes=(sizes,) * len(args) if dynamic else None)
    return program.run_decompositions() if decomposed else program


# -------------------------------------------------------------------------- forms of linear layers

FORMS = ("view", "reshape", "transpose", "mixed")


class Formed(nn.Module):
    """A linear layer that takes its input in another form, as frameworks write it for their kernels."""

    def __init__(self, linear: nn.Linear, form: str) -> None:
        super().__init__()
        self.linear = linear
        self.form = form

    def forward(self, x: Tensor) -> Tensor:
        *lead, features = x.shape
        if self.form == "view":
            return self.linear(x.view(-1, features)).view(*lead, -1)
        if self.form == "reshape":
            return self.linear(x.unsqueeze(0).reshape(-1, features)).reshape(*lead, -1)
        if self.form == "transpose":
            return self.linear(x.transpose(0, 1)).transpose(0, 1)
        assert self.form == "plain"
        return self.linear(x)


def formed(model: nn.Module, form: str) -> nn.Module:
    """All linear layers but the head in `form`; `mixed`: each of the readers of one tensor in another."""
    kinds = ("view", "transpose", "plain", "reshape") if form == "mixed" else (form,)
    found = [
        (module, name, child)
        for path, module in model.named_modules() if "layers." in path
        for name, child in module.named_children() if isinstance(child, nn.Linear)
    ]  # fmt: skip
    for i, (parent, name, child) in enumerate(found):
        setattr(parent, name, Formed(child, kinds[i % len(kinds)]))
    return model


class Block(nn.Module):
    """One decoder layer: hidden states, cosines and sines of the rotary embedding → hidden states."""

    def __init__(
        self, form: str = "plain", attention: str = "sdpa", dtype: torch.dtype = torch.float32, wider: int = 1
    ) -> None:
        super().__init__()
        self.layers = Llama(attention, dtype, layers=1, wider=wider).model.model.layers
        formed(self, form)
        self.eval()

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        made: Tensor = self.layers[0](hidden, position_embeddings=(cos, sin))
        return made


def hidden(
    batch: int = 2, sequence: int = 8, seed: int = 0, dtype: torch.dtype = torch.float32, wider: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    angles = torch.arange(sequence)[:, None] * 0.5 ** torch.arange(8.0 * wider)
    turn = torch.cat([angles, angles], -1).expand(batch, -1, -1)
    states = torch.randn(batch, sequence, 64 * wider, generator=generator)
    return states.to(dtype), turn.cos().to(dtype), turn.sin().to(dtype)
