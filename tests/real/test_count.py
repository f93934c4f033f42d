"""The counting proof: of 14 dynamic quantizes in a Llama of two layers 8 remain by combining alone, and none
stands free once norms, products and linear layers take quantizes in.
"""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import blockscale as bs
from blockscale.passes import Log, optimize
from real.llama import FORMS, Llama, exported, formed, ids
from real.through import assert_same, quantizes

pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")

INPUTS = [(ids(),), (ids(3, 11),)]
EACH = 14  # q, k, v, o, gate, up and down, twice
LEFT = 8  # one for q, k and v, one for o, one for gate and up, one for down; twice


def before_each(model: nn.Module, layout: str) -> nn.Module:
    """A dynamic quantize before each linear layer of the decoder."""

    def quantized(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (bs.fake_quantize(args[0], layout),)

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and "layers." in name:
            module.register_forward_pre_hook(quantized)
    return model


CASES = [
    ("plain", "mxfp8"),
    ("mixed", "int8-token"),
    *(pytest.param(form, "int8-token", marks=pytest.mark.full) for form in ("plain", *FORMS[:-1])),
]


@pytest.mark.parametrize(("form", "layout"), CASES)
def test_no_more_than_8_remain_and_none_stands_free(form: str, layout: str) -> None:
    program = exported(before_each(formed(Llama(), form), layout), dynamic=True)
    assert quantizes(program) == EACH
    log = Log()
    combined = optimize(program, stages=("cse", "lift", "cse"), log=log, check=True)
    assert quantizes(combined) <= LEFT, log
    assert_same(program, combined, INPUTS)
    fused = optimize(program, log=log, check=True)
    assert quantizes(fused) == 0, log
    assert_same(program, fused, INPUTS, in_order=form in ("transpose", "mixed"))
