"""The passes alone, on a graph with quantizes: what they did, what they left alone, and why.

python examples/passes.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.passes import Log, lift_combine


class Heads(nn.Module):
    """Three products of one tensor, each behind a view and a quantize of its own; two views are equal."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        def quantized(y: Tensor) -> Tensor:
            return bs.fake_quantize(y, "mxfp8")

        q = self.q(quantized(x.view(8, 64)))
        k = self.k(quantized(x.view(8, 64)))
        v = self.v(quantized(x).view(8, 64))
        return torch.relu(q + k) * quantized(v.view(8, 2, 32).transpose(0, 1)).transpose(0, 1).reshape(8, 64)


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 64)
    program = torch.export.export(Heads().eval(), (x,))
    expected = program.module()(x)

    # Equal quantizes become one: lifted over views and permutes where they meet. Operators keep their names.
    module = program.module()
    log = Log()
    lift_combine(module, log=log)
    print(log)
    print(f"the same bits: {torch.equal(module(x), expected)}\n")

    # Everything: explicit codes, constants folded, operators that take codes.
    log = Log()
    done = bs.optimize(program, log=log)
    print(log)
    print(f"the same bits: {torch.equal(done.module()(x), expected)}")


if __name__ == "__main__":
    main()
