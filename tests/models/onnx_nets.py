"""Small ONNX models for tests of whole flows, as text with weights beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.parser


def random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


def ids(*shape: int) -> Any:
    return np.random.default_rng(shape).integers(0, 50, shape)


@dataclass(frozen=True)
class Net:
    """`body` is a graph as onnx.parser reads it; `weights` are its initializers."""

    body: str
    inputs: Mapping[str, Any]
    weights: Mapping[str, Any]
    recipe: str
    opset: int = 18
    other: Mapping[str, Any] = field(default_factory=dict)  # inputs of other sizes

    def proto(self) -> onnx.ModelProto:
        model = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["" : {self.opset}, "other" : 1]>\n{self.body}'
        )
        for name, array in self.weights.items():
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        return model


_LANGUAGE = """
g (int64[b, s] ids) => (float[b, s, 50] y) {
    e = Gather (E, ids)
    n = LayerNormalization <axis = -1> (e, G, B)
    u = MatMul (n, U)
    v = Add (u, UB)
    r = Relu (v)
    d = MatMul (r, D)
    x = Add (e, d)
    y = MatMul (x, H)
}"""
_LANGUAGE_WEIGHTS = {
    "E": random(50, 64), "G": random(64, seed=1), "B": random(64, seed=2), "U": random(64, 128), "UB": random(128),
    "D": random(128, 64), "H": random(64, 50, seed=1),
}  # fmt: skip
_IDS = {"ids": ids(2, 5)}

_CNN = """
g (float[n, 3, 8, 8] x) => (float[n, 10] y) {
    a = Conv <pads = [1, 1, 1, 1]> (x, W, WB)
    b = Relu (a)
    c = Conv <group = 16> (b, V)
    m = GlobalAveragePool (c)
    f = Flatten (m)
    y = Gemm <transB = 1> (f, L, LB)
}"""
_CNN_WEIGHTS = {
    "W": random(16, 3, 3, 3), "WB": random(16), "V": random(16, 1, 3, 3), "L": random(10, 16), "LB": random(10),
}  # fmt: skip

_ATTENTION = """
g (float[2, 6, 32] x) => (float[2, 6, 32] y) {
    q = MatMul (x, Q)
    k = MatMul (x, K)
    t = Transpose <perm = [0, 2, 1]> (k)
    s = MatMul (q, t)
    p = Softmax <axis = -1> (s)
    o = MatMul (p, x)
    y = Add (o, x)
}"""

_HEADS = {"Q": random(32, 32) / 16, "K": random(32, 32, seed=1) / 16}

_GELU = """
g (float[b, 32] x) => (float[b, 32] y) {
    a = MatMul (x, Q)
    g = Gelu (a)
    h = Gelu <approximate = "tanh"> (g)
    y = Add (x, h)
}"""

_BODIES = """
g (bool c, float[4, 32] x) => (float[4, 16] y) {
    h = MatMul (x, W)
    y = If (c) <
        then_branch = t () => (float[4, 16] a) { a = MatMul (h, V) },
        else_branch = e () => (float[4, 16] b) { r = Relu (h) b = MatMul (r, V) }
    >
}"""
_BODIES_WEIGHTS = {"W": random(32, 32), "V": random(32, 16)}
_C = {"c": np.array(True), "x": random(4, 32, seed=5)}

CASES = {
    "language model": Net(_LANGUAGE, _IDS, _LANGUAGE_WEIGHTS, "mxfp4", other={"ids": ids(3, 9)}),
    "static scales": Net(_LANGUAGE, _IDS, _LANGUAGE_WEIGHTS, "int8", other={"ids": ids(1, 2)}),
    "every activation": Net(_LANGUAGE, _IDS, _LANGUAGE_WEIGHTS, "mxfp4-mxint8-all", other={"ids": ids(3, 9)}),
    "static scales everywhere": Net(_LANGUAGE, _IDS, _LANGUAGE_WEIGHTS, "uint8-all"),
    "tensor scales": Net(_LANGUAGE, _IDS, _LANGUAGE_WEIGHTS, "nvfp4"),
    "weights alone": Net(_LANGUAGE, _IDS, _LANGUAGE_WEIGHTS, "int4-g32-float"),
    "convolutions": Net(_CNN, {"x": random(2, 3, 8, 8)}, _CNN_WEIGHTS, "int8", other={"x": random(1, 3, 8, 8)}),
    "convolutions in blocks": Net(_CNN, {"x": random(2, 3, 8, 8)}, _CNN_WEIGHTS, "mxfp6"),
    "attention": Net(_ATTENTION, {"x": random(2, 6, 32)}, _HEADS,
                     "mxfp8-all"),
    "bodies": Net(_BODIES, _C, _BODIES_WEIGHTS, "mxfp4", other={**_C, "c": np.array(False)}),
    "gelu": Net(_GELU, {"x": random(4, 32)}, {"Q": random(32, 32) / 4}, "mxfp8-all", opset=20),
    "an old opset": Net(_ATTENTION, {"x": random(2, 6, 32)}, _HEADS,
                        "mxint8", opset=13),
}  # fmt: skip
