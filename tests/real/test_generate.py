"""transformers' models on packed weights: generate with a KV cache, and graphs with any length of text."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.runtime import torch_products
from real.llama import Llama, ids
from real.test_bert import small, text

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture(autouse=True)
def decoded() -> None:
    """Kernels, unlike in the other tests here."""


def fake(model: nn.Module, quantized: nn.Module) -> nn.Module:
    """The float model with the values of the quantized weights, and inputs of linear layers as they are decoded."""
    made = copy.deepcopy(model)
    for path, child in made.named_modules():
        of_codes: Any = quantized.get_submodule(path)
        if isinstance(child, nn.Linear | nn.Embedding):
            child.weight = nn.Parameter(of_codes.weight)
        if isinstance(child, nn.Linear) and of_codes.input is not None:
            numbers, block = str(of_codes.input.numbers), (of_codes._lead, of_codes._last)
            child.register_forward_pre_hook(
                lambda _, args, numbers=numbers, block=block: torch.ops.blockscale.fake_quantize(
                    args[0], numbers, [*(block[0],) * (args[0].dim() - 1), block[1]]
                )
            )
    return made


@pytest.mark.parametrize("recipe", ["mxfp4-mxint8", "mxfp4-float", "int4-g32-int8-token"])
def test_generate(recipe: str) -> None:
    model: Any = Llama().model
    model.config.use_cache = True
    quantized: Any = bs.quantize_model(model, recipe)
    assert type(quantized) is type(model)
    reference: Any = fake(model, quantized)
    prompt = ids(2, 6)
    settings = {
        "max_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True, "output_logits": True,
        "pad_token_id": 0, "use_cache": True,
    }  # fmt: skip
    with torch.inference_mode():
        got, want = quantized.generate(prompt, **settings), reference.generate(prompt, **settings)
        for one, other in zip(got.logits, want.logits, strict=True):
            assert torch.allclose(one, other, rtol=2e-2, atol=2e-2)
        assert torch.equal(got.sequences, want.sequences)
        with torch_products.decoding():
            exact = quantized.generate(prompt, **settings)
        for one, other in zip(exact.logits, want.logits, strict=True):  # BLAS adds up in an order of its own
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)
        assert torch.equal(copy.deepcopy(quantized).generate(prompt, **settings).sequences, got.sequences)


def test_a_graph_of_llama_of_any_length() -> None:
    model = Llama()
    sizes = {0: torch.export.Dim("batch", max=16), 1: torch.export.Dim("sequence", max=32)}
    graph = bs.quantize_model(model, "mxfp4-mxint8", example_inputs=ids(), dynamic_shapes=(sizes,))
    for given in (ids(), ids(3, 11), ids(1, 2)):
        _close(graph, given)


def test_a_graph_of_bert_of_any_length() -> None:
    model = small("sdpa")
    sizes = {0: torch.export.Dim("batch", max=16), 1: torch.export.Dim("sequence", max=32)}
    graph = bs.quantize_model(model, "mxfp4-mxint8", example_inputs=text(), dynamic_shapes=(sizes, sizes))
    module = bs.quantize_model(model, "mxfp4-mxint8")
    for given in (text(), text(3, 9)):
        _close(graph, *given)
        _close(module, *given)


def _close(model: Any, *given: Tensor) -> None:
    """The kernels' result is near that of decoded weights, and not for want of kernels the same everywhere."""
    with torch.inference_mode():
        got = model(*given)
        with torch_products.decoding():
            want = model(*given)
    assert torch.allclose(got, want, rtol=2e-2, atol=2e-2)
