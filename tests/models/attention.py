"""One attention block with embedding and head, as a torch program and as an ONNX model."""

from __future__ import annotations

from functools import cache

import onnx
import onnx.parser
import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from models.onnx_nets import random

AUTO = torch.export.Dim.AUTO


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.norm = nn.RMSNorm(64)
        self.q = nn.Linear(64, 64, bias=False)
        self.kv = nn.Linear(64, 128)
        self.out = nn.Linear(64, 64)
        self.head = nn.Linear(64, 100)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        h = self.norm(x)
        q = self.q(h)
        k, v = self.kv(h).chunk(2, -1)
        p = (q @ k.transpose(1, 2) / 8).softmax(-1)
        x = x + self.out(p @ v)
        return self.head(x)


IDS = torch.randint(0, 100, (2, 6), generator=torch.Generator().manual_seed(0))


@cache
def program(dynamic: bool = True) -> ExportedProgram:
    torch.manual_seed(0)
    return torch.export.export(
        Block().eval(), (IDS,), dynamic_shapes=({0: AUTO, 1: AUTO},) if dynamic else None
    )


_TEXT = """<ir_version: 10, opset_import: ["" : 23]>
g (int64[b, s] ids) => (float[b, s, 100] y) {
    embed = Gather (E, ids)
    norm = RMSNormalization <axis = -1> (embed, G)
    q = MatMul (norm, Q)
    k = MatMul (norm, K)
    v = MatMul (norm, V)
    t = Transpose <perm = [0, 2, 1]> (k)
    scores = MatMul (q, t)
    p = Softmax <axis = -1> (scores)
    o = MatMul (p, v)
    out = MatMul (o, O)
    add = Add (embed, out)
    y = MatMul (add, H)
}"""


def onnx_model() -> ir.Model:
    proto = onnx.parser.parse_model(_TEXT)
    shapes = {"E": (100, 64), "G": (64,), "H": (64, 100)} | dict.fromkeys("QKVO", (64, 64))
    for name, shape in shapes.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(random(*shape, seed=ord(name)), name))
    for node in proto.graph.node:
        node.name = node.output[0]
    return ir.from_proto(proto)
