"""Small models for AMD Quark's quantizer, with what decides where it puts its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = Sequence[int | str]


class Maker:
    """A graph that grows; tensors are known by their names."""

    def __init__(self, opset: int = 17, seed: int = 0) -> None:
        self.opset = opset
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, *shape: int, scale: float = 0.2) -> str:
        array = (self.random.standard_normal(shape) * scale).astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def ints(self, name: str, *numbers: int) -> str:
        self.weights.append(numpy_helper.from_array(np.array(numbers, np.int64), name))
        return name

    def node(self, op_type: str, inputs: Sequence[str], *outputs: str, **attributes: Any) -> str:
        self.nodes.append(
            helper.make_node(op_type, inputs, outputs, name=f"{op_type}_{outputs[0]}", **attributes)
        )
        return outputs[0]

    def model(
        self, inputs: dict[str, tuple[Shape, int]], outputs: dict[str, tuple[Shape, int]]
    ) -> onnx.ModelProto:
        edges = [
            [helper.make_tensor_value_info(name, dtype, shape) for name, (shape, dtype) in some.items()]
            for some in (inputs, outputs)
        ]
        graph = helper.make_graph(self.nodes, "graph", *edges, self.weights)
        opsets = [helper.make_opsetid("", self.opset)]
        model = onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=opsets, ir_version=9), strict_mode=True
        )
        onnx.checker.check_model(model)
        return model


FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def cnn() -> onnx.ModelProto:
    """Convolutions (one in groups), pools, a residual, a gate, a transposed convolution, a head."""
    m = Maker()
    m.node("Conv", ["x", m.weight("w1", 64, 3, 3, 3), m.weight("b1", 64)], "c1", pads=[1, 1, 1, 1])
    m.node("Relu", ["c1"], "r1")
    m.node("MaxPool", ["r1"], "p1", kernel_shape=[2, 2], strides=[2, 2])
    m.node("Conv", ["p1", m.weight("w2", 64, 32, 3, 3), m.weight("b2", 64)], "c2", pads=[1, 1, 1, 1], group=2)
    m.node("Clip", ["c2", m.weight("low"), ""], "k2")
    m.node("Add", ["k2", "p1"], "a1")
    m.node("HardSigmoid", ["a1"], "h1", alpha=1 / 6)
    m.node("Mul", ["a1", "h1"], "m1")
    m.node("ConvTranspose", ["m1", m.weight("w3", 64, 40, 2, 2)], "t1", strides=[2, 2])
    m.node("LeakyRelu", ["t1"], "l1", alpha=0.1)
    m.node("Concat", ["l1", "c1"], "cat", axis=1)
    m.node("AveragePool", ["cat"], "v1", kernel_shape=[2, 2], strides=[2, 2])
    m.node("GlobalAveragePool", ["v1"], "g1")
    m.node("Flatten", ["g1"], "f1", axis=1)
    m.node("Gemm", ["f1", m.weight("w4", 10, 104), m.weight("b4", 10)], "logits", transB=1)
    m.node("Softmax", ["logits"], "y", axis=-1)
    return m.model({"x": (("N", 3, 8, 8), FLOAT)}, {"y": (("N", 10), FLOAT)})


def transformer() -> onnx.ModelProto:
    """A block with attention over heads, norms, a feed-forward part with Gelu from Erf, a table, two outputs."""
    m, size, heads, half = Maker(), 64, 4, 16
    m.node("Gather", [m.weight("table", 50, size, scale=1.0), "ids"], "e")
    for name in ("g1", "n1", "g2", "n2"):
        m.weight(name, size)
    m.node("LayerNormalization", ["e", "g1", "n1"], "ln1", axis=-1)
    for name in "qkv":
        m.node("MatMul", ["ln1", m.weight(f"w{name}", size, size)], name)
        m.node("Add", [name, m.weight(f"b{name}", size)], f"{name}a")
        m.node("Reshape", [f"{name}a", m.ints(f"{name}_shape", 0, 0, heads, half)], f"{name}r")
        perm = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        m.node("Transpose", [f"{name}r"], f"{name}t", perm=perm)
    m.node("MatMul", ["qt", "kt"], "s")
    m.node("Mul", ["s", m.weight("scaling")], "sm")
    m.node("Softmax", ["sm"], "p", axis=-1)
    m.node("MatMul", ["p", "vt"], "o")
    m.node("Transpose", ["o"], "ot", perm=[0, 2, 1, 3])
    m.node("Reshape", ["ot", m.ints("o_shape", 0, 0, size)], "or")
    m.node("MatMul", ["or", m.weight("wo", size, size)], "proj")
    m.node("Add", ["proj", "e"], "res1")
    m.node("LayerNormalization", ["res1", "g2", "n2"], "ln2", axis=-1)
    m.node("MatMul", ["ln2", m.weight("up", size, 96)], "u")
    m.node("Erf", ["u"], "erf")
    m.node("Mul", ["u", "erf"], "gate")
    m.node("Split", ["gate"], "left", "right", axis=-1)
    m.node("Sub", ["left", "right"], "diff")
    m.node("Slice", ["diff", m.ints("s0", 0), m.ints("s1", 48), m.ints("s2", 2)], "cut")
    m.node("MatMul", ["cut", m.weight("down", 48, size)], "d")
    m.node("Add", ["d", "res1"], "res2")
    m.node("Unsqueeze", ["res2", m.ints("u_axes", 1)], "wide")
    m.node("Squeeze", ["wide", m.ints("s_axes", 1)], "hidden")
    m.node("ReduceMean", ["hidden"], "mean", axes=[1], keepdims=0)
    m.node("Tanh", ["mean"], "pooled")
    outputs: dict[str, tuple[Shape, int]] = {
        "hidden": (("N", "T", size), FLOAT),
        "pooled": (("N", size), FLOAT),
    }
    return m.model({"ids": (("N", "T"), INT64)}, outputs)


def tangled() -> onnx.ModelProto:
    """What depends on order: a weight that two products want along different axes, a result that a product and a
    Softmax want, an input that is passed on before and after it is marked, an operator that is not quantized.
    """
    m = Maker(seed=3)
    m.node("Relu", ["x"], "early")
    m.node("Exp", ["early"], "e")
    m.node("MatMul", ["x", m.weight("w", 64, 64)], "a")
    m.node("Gemm", ["x", "w", m.weight("c", 64)], "b", transA=1, transB=1, alpha=0.5)
    m.node("MatMul", ["a", "b"], "ab")
    m.node("Softmax", ["ab"], "soft", axis=0)
    m.node("MatMul", ["ab", "e"], "abe")
    m.node("Where", ["mask", "abe", "ab"], "chosen")
    m.node("PRelu", ["chosen", m.weight("slope", 64)], "z_relu")
    m.node("Transpose", ["x"], "late", perm=[1, 0])
    m.node("Max", ["late", "z_relu"], "most")
    m.node("Min", ["most", m.weight("one")], "least")
    m.node("Div", ["least", "soft"], "y")
    inputs: dict[str, tuple[Shape, int]] = {
        "x": ((64, 64), FLOAT),
        "mask": ((64, 64), TensorProto.BOOL),
    }
    return m.model(inputs, {"y": ((64, 64), FLOAT), "a": ((64, 64), FLOAT)})


MODELS = {"cnn": cnn, "transformer": transformer, "tangled": tangled}


def inputs_of(name: str) -> dict[str, Any]:
    random = np.random.default_rng(1)
    if name == "cnn":
        return {"x": random.standard_normal((2, 3, 8, 8)).astype(np.float32)}
    if name == "transformer":
        return {"ids": random.integers(0, 50, (2, 7))}
    return {"x": random.standard_normal((64, 64)).astype(np.float32), "mask": random.random((64, 64)) < 0.5}


UNARY = ("Relu", "Sigmoid", "Tanh", "Erf", "Softmax", "Exp", "LeakyRelu", "Clip", "Transpose", "Neg")
BINARY = ("MatMul", "Gemm", "Add", "Mul", "Sub", "Max", "Concat", "Where")


def tangle(seed: int, count: int = 14) -> onnx.ModelProto:
    """A random graph over squares, where any node reads anything that is there."""
    m = Maker(seed=seed)
    pick = m.random
    there = ["x", "z", m.weight("w1", 64, 64), m.weight("w2", 64, 64)]
    for number in range(count):
        op = str(pick.choice(UNARY if pick.random() < 0.5 else BINARY))
        name, a, b = f"{pick.choice(list('tmfa'))}{number}", *pick.choice(there, 2)
        if op in UNARY:
            more = {"Softmax": {"axis": int(pick.choice([0, 1, -1]))}, "Transpose": {"perm": [1, 0]}}.get(
                op, {}
            )
            m.node(op, [a], name, **more)
        elif op == "Gemm":
            bias = [m.weight(f"c{number}", 64)] if pick.random() < 0.5 else []
            transA, transB = (int(n) for n in pick.integers(0, 2, 2))
            m.node(op, [a, b, *bias], name, transA=transA, transB=transB)
        elif op == "Concat":
            m.node(op, [a, b], f"{name}_wide", axis=1)
            m.node("Slice", [f"{name}_wide", *_half(m, number)], name)
        else:
            m.node(op, ["mask", a, b] if op == "Where" else [a, b], name)
        there.append(name)
    square: Shape = (64, 64)
    read = {name for node in m.nodes for name in node.input}
    outputs = {n: (square, FLOAT) for n in there[4:] if n not in read or pick.random() < 0.2}
    inputs = {"x": (square, FLOAT), "z": (square, FLOAT), "mask": (square, TensorProto.BOOL)}
    m.weights = [weight for weight in m.weights if weight.name in read]
    return m.model({n: edge for n, edge in inputs.items() if n in read}, outputs)


def _half(m: Maker, number: int) -> list[str]:
    return [m.ints(f"{part}{number}", value) for part, value in (("from", 0), ("to", 64), ("axis", 1))]
