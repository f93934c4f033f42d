"""A Llama quantized by operators of tensor_cast comes back from lift_combine as one: fewer, and the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import graph.foreign  # noqa: F401  the operators, by name and semantics
from blockscale.passes import Log, lift_combine
from real.llama import FORMS, Llama, exported, formed, ids
from real.through import assert_same

pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")

EACH, LEFT = 14, 8  # before each linear layer; one for each tensor that some read
INPUTS = [(ids(),), (ids(3, 11),)]
tensor_cast = torch.ops.tensor_cast


def symmetric(x: Tensor) -> Tensor:
    codes, scale = tensor_cast.dynamic_quantize_symmetric(x, [-1])
    return codes.to(x.dtype) * scale


def symmetric_from_the_front(x: Tensor) -> Tensor:
    """The same dimension, counted from the front: another argument for each rank."""
    codes, scale = tensor_cast.dynamic_quantize_symmetric(x, [x.dim() - 1])
    return codes.to(x.dtype) * scale


def asymmetric(x: Tensor) -> Tensor:
    codes, scale, offset = tensor_cast.dynamic_quantize_asymmetric(x, [-1])
    return (codes.to(x.dtype) - offset) * scale


def mxfp4(x: Tensor) -> Tensor:
    codes, scale = tensor_cast.dynamic_quantize_mxfp4(x, 32)
    return codes.to(x.dtype) * scale.to(x.dtype).repeat_interleave(32, -1)


QUANTIZERS = {f.__name__: f for f in (symmetric, symmetric_from_the_front, asymmetric, mxfp4)}
CASES = list(zip(("plain", *FORMS), ("mxfp4", *QUANTIZERS), strict=True))


def quantized(model: nn.Module, quantizer: str) -> nn.Module:
    def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (QUANTIZERS[quantizer](args[0]),)

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and "layers." in name:
            module.register_forward_pre_hook(before)
    return model


def operators(module: fx.GraphModule) -> Counter[str]:
    return Counter(str(n.target) for n in module.graph.nodes if "tensor_cast" in str(n.target))


@pytest.mark.parametrize(("form", "quantizer"), CASES)
def test_they_stay_what_they_are(form: str, quantizer: str) -> None:
    program = exported(quantized(formed(Llama(), form), quantizer), dynamic=True)
    module = program.module()
    assert isinstance(module, fx.GraphModule)
    before = operators(module)
    assert before.total() == EACH
    log = Log()
    assert lift_combine(module, log=log, check=True) is module
    after = operators(module)
    assert set(after) == set(before)
    assert after.total() <= LEFT, log
    assert not [n for n in module.graph.nodes if "blockscale" in str(n.target)]
    assert_same(program, module, INPUTS)
