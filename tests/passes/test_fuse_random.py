"""All stages on graphs at random: sums, products, norms, activations and views with quantizers between them."""

from __future__ import annotations

import random

import pytest
import torch
from torch import fx

from blockscale.graph.quant import layout_of
from blockscale.passes.pipeline import OPTIMIZE
from passes.fx_graphs import Builder, aten
from passes.norms import LAYER, RMS
from passes.proof import proven

FAMILIES = ("mxfp8", "mxfp4", "mxfp6", "mxint8", "nvfp4", "int8-token", "uint8-token", "int4-g16", "int8")
DTYPES = (torch.float32, torch.bfloat16)
H = 32


class Grower:
    """A graph of tensors [2, n, H] that grows at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        torch.manual_seed(seed)
        self.b = Builder()
        self.dtype = self.random.choice(DTYPES)
        dynamic = self.random.choice([(), (1,)])
        self.pool = [self.b.given(torch.randn(2, 3, H).to(self.dtype), dynamic) for _ in range(2)]

    def weight(self, *shape: int) -> fx.Node:
        return self.b.constant(torch.randn(*shape).to(self.dtype))

    def some(self) -> fx.Node:
        """A tensor of before, the newest ones more often; quantized as often as not."""
        x = self.pool[-1 - min(int(self.random.expovariate(0.8)), len(self.pool) - 1)]
        return self.b.fake(x, self.random.choice(FAMILIES)) if self.random.random() < 0.6 else x

    def linear(self) -> fx.Node:
        weight = self.b.fake(self.weight(H, H), self.random.choice(FAMILIES))
        bias = [self.weight(H)] if self.random.random() < 0.5 else []
        x = self.some()
        if self.random.random() < 0.3:
            flat = self.b.call(aten.view.default, x, [-1, H])
            y = self.b.call(aten.mm.default, flat, self.b.call(aten.permute.default, weight, [1, 0]))
            return self.b.call(aten.view.default, y, [2, -1, H])
        return self.b.call(aten.linear.default, x, weight, *bias)

    def pair(self) -> fx.Node:
        target = self.random.choice([aten.add.Tensor, aten.mul.Tensor, aten.sub.Tensor])
        return self.b.call(target, self.some(), self.some())

    def activation(self) -> fx.Node:
        names = ("relu", "silu", "gelu", "tanh", "sigmoid", "exp", "neg")
        return self.b.call(
            getattr(aten, self.random.choice(names)).default, self.b.call(aten.tanh.default, self.some())
        )

    def norm(self) -> fx.Node:
        name = self.random.choice([*RMS, *LAYER])
        weight = self.weight(H)
        x = self.some()
        if self.random.random() < 0.5:
            x = self.b.call(aten.add.Tensor, x, self.some())
        return RMS[name](self.b, x, weight) if name in RMS else LAYER[name](self.b, x, weight, self.weight(H))

    def grown(self, steps: int) -> fx.GraphModule:
        for _ in range(steps):
            make = self.random.choice(
                [self.linear, self.pair, self.pair, self.activation, self.norm, self.norm]
            )
            self.pool.append(self.b.call(aten.tanh.default, make()) if self.random.random() < 0.3 else make())
        return self.b.done(self.b.fake(self.pool[-1], "mxfp8"), self.some())


@pytest.mark.parametrize("seed", range(30))
def test_not_a_bit_changes(seed: int) -> None:
    grower = Grower(seed)
    module = grower.grown(8)
    proof = proven(module, grower.b.examples, stages=OPTIMIZE, more=True)
    for node in proof.graph.nodes:
        if "quant" in node.params:
            assert not isinstance(layout_of(node, proof.graph.alphabet), str)


def test_they_do_fuse() -> None:
    """What the graphs above are made of, or they would prove nothing."""
    kinds = set[str]()
    for seed in range(10):
        grower = Grower(seed)
        kinds |= set(proven(grower.grown(8), stages=OPTIMIZE, more=True).kinds)
    assert {"fused.linear", "fused.add", "fused.mul"} <= kinds
    assert {"fused.rms_norm_quantize", "fused.layer_norm_quantize"} <= kinds
    assert any(kind.startswith("fused.add_") for kind in kinds)
