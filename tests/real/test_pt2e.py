"""Graphs that PT2E quantizes, with the quantizers of XNNPACK and of X86Inductor, keep every bit.

XNNPACK's quantizer belongs to executorch; torchao has a copy for its own tests, which is used here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.export import Dim

from blockscale.passes import Log, lift_combine, optimize
from real.llama import Block, hidden
from real.through import assert_same, quantizes
from real.vision import Mobilenet, Resnet, images, network

pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")

CASES: dict[str, tuple[Callable[[], nn.Module], list[tuple[Any, ...]]]] = {
    "resnet": (lambda: network(Resnet), [(images(),), (images(5),)]),
    "mobilenet": (lambda: network(Mobilenet), [(images(),), (images(5),)]),
    "llama": (Block, [hidden(), hidden(5)]),
}


def xnnpack(dynamic: bool, channels: bool = True) -> Any:
    from torchao.testing.pt2e._xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

    return XNNPACKQuantizer().set_global(
        get_symmetric_quantization_config(is_per_channel=channels, is_dynamic=dynamic)
    )


def x86(dynamic: bool) -> Any:
    from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
        X86InductorQuantizer,
        get_default_x86_inductor_quantization_config,
    )

    return X86InductorQuantizer().set_global(get_default_x86_inductor_quantization_config(is_dynamic=dynamic))


QUANTIZERS: dict[str, Callable[[], Any]] = {
    "xnnpack static, per channel": lambda: xnnpack(dynamic=False),
    "xnnpack static, per tensor": lambda: xnnpack(dynamic=False, channels=False),
    "xnnpack dynamic, per channel": lambda: xnnpack(dynamic=True),
    "xnnpack dynamic, per tensor": lambda: xnnpack(dynamic=True, channels=False),
    "x86 static": lambda: x86(dynamic=False),
    "x86 dynamic": lambda: x86(dynamic=True),
}


def converted(case: str, quantizer: str) -> tuple[fx.GraphModule, list[tuple[Any, ...]]]:
    """Calibrated on the first inputs; the batch is known only at run time."""
    make, inputs = CASES[case]
    sizes = ({0: Dim("batch", max=64)},) * len(inputs[0])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchao and torch call functions that torch has deprecated
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

        module = torch.export.export(make(), inputs[0], dynamic_shapes=sizes).module()
        prepared = prepare_pt2e(module, QUANTIZERS[quantizer]())
        prepared(*inputs[0])
        return convert_pt2e(prepared), inputs


@pytest.mark.parametrize("quantizer", QUANTIZERS)
@pytest.mark.parametrize("case", CASES)
def test_every_bit_is_kept(case: str, quantizer: str) -> None:
    model, inputs = converted(case, quantizer)
    assert quantizes(model) > 0
    log = Log()
    canonical = optimize(model, stages=["canonicalize"], log=log, check=True)
    assert_same(model, canonical, inputs)
    foreign = [n for n in canonical.graph.nodes if "quantized_decomposed" in str(n.target)]
    if "static" in quantizer:
        assert not foreign, log
    else:  # scales are measured by an operator of their own
        assert {entry.node for entry in log.reasons()} >= {n.name for n in foreign}
    assert_same(model, optimize(model, check=True), inputs)
    before = quantizes(model)
    assert_same(canonical, lift_combine(model, check=True), inputs)
    assert quantizes(model) <= before
    assert {str(n.target) for n in model.graph.nodes if "quantize" in str(n.target)} <= OPERATORS


OPERATORS = {
    f"quantized_decomposed.{name}"
    for name in (
        "quantize_per_tensor.default", "quantize_per_tensor.tensor", "quantize_per_channel.default",
        "dequantize_per_tensor.default", "dequantize_per_tensor.tensor", "dequantize_per_channel.default",
        "choose_qparams.tensor", "choose_qparams_symmetric.tensor",
    )
}  # fmt: skip
