"""ResNet as an ONNX model of operators that onnx's helper makes: 50 layers and 25.6 M random weights, or fewer."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]
CLASSES = 1000


class _Net:
    """Nodes in order. Weights are as He has them, so that activations keep their size through all layers, and those
    of a filter sum to 0, so that what all pictures have in common does not outgrow what tells them apart.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def op(self, op_type: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        return name

    def weight(self, array: Array, name: str) -> str:
        self.weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def normal(self, shape: Sequence[int], name: str) -> str:
        spread = np.float32((2 / prod(shape[1:])) ** 0.5)
        drawn = self.rng.standard_normal(shape, np.float32)
        centred = drawn - drawn.mean(tuple(range(1, len(shape))), keepdims=True)
        return self.weight(centred * spread, name)

    def conv(self, x: str, sizes: tuple[int, int, int], name: str, stride: int = 1, gain: float = 1.0) -> str:
        """A convolution and its BatchNormalization; `sizes` are those of input, output and kernel."""
        inputs, outputs, kernel = sizes
        weight = self.normal((outputs, inputs, kernel, kernel), f"{name}.weight")
        pads, strides = [kernel // 2] * 4, [stride, stride]
        x = self.op("Conv", [x, weight], f"{name}.conv", pads=pads, strides=strides)
        uniform = self.rng.uniform
        statistics = [
            self.weight(uniform(0.8, 1.2, outputs) * gain, f"{name}.gamma"),
            self.weight(uniform(-0.1, 0.1, outputs), f"{name}.beta"),
            self.weight(uniform(-0.1, 0.1, outputs), f"{name}.mean"),
            self.weight(uniform(0.8, 1.2, outputs), f"{name}.var"),
        ]
        return self.op("BatchNormalization", [x, *statistics], f"{name}.norm")

    def relu(self, x: str, name: str) -> str:
        return self.op("Relu", [x], f"{name}.relu")

    def bottleneck(self, x: str, inputs: int, width: int, stride: int, name: str) -> str:
        y = self.relu(self.conv(x, (inputs, width, 1), f"{name}.1"), f"{name}.1")
        y = self.relu(self.conv(y, (width, width, 3), f"{name}.2", stride), f"{name}.2")
        y = self.conv(y, (width, 4 * width, 1), f"{name}.3", gain=0.25)
        if inputs != 4 * width or stride != 1:
            x = self.conv(x, (inputs, 4 * width, 1), f"{name}.short", stride)
        return self.relu(self.op("Add", [x, y], f"{name}.add"), f"{name}.add")


def resnet(
    blocks: Sequence[int] = (3, 4, 6, 3), width: int = 64, size: int = 224, classes: int = CLASSES, seed: int = 0
) -> onnx.ModelProto:  # fmt: skip
    """[n, 3, size, size] → [n, classes]. As it stands, ResNet-50."""
    net = _Net(seed)
    x = net.relu(net.conv("x", (3, width, 7), "stem", 2), "stem")
    x = net.op("MaxPool", [x], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    inputs = width
    for i, count in enumerate(blocks):
        for j in range(count):
            stride = 2 if i and not j else 1
            x = net.bottleneck(x, inputs, width << i, stride, f"stage{i + 1}.{j}")
            inputs = 4 * (width << i)
    x = net.op("Flatten", [net.op("GlobalAveragePool", [x], "average")], "flat")
    bias = net.weight(np.zeros(classes), "head.bias")
    net.op("Gemm", [x, net.normal((classes, inputs), "head.weight"), bias], "y", transB=1)
    shapes = [("x", ["n", 3, size, size]), ("y", ["n", classes])]
    inputs_, outputs = ([helper.make_tensor_value_info(n, TensorProto.FLOAT, s)] for n, s in shapes)
    graph = helper.make_graph(net.nodes, "resnet", inputs_, outputs, net.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def pictures(count: int, size: int = 224, seed: int = 0) -> Array:
    """Random, with large patches and small: noise of several scales, each colour of its own."""
    rng = np.random.default_rng(seed)
    total = np.zeros((count, 3, size, size), np.float32)
    for cells in (2, 4, 8, 32):
        cells = min(cells, size)
        noise = rng.standard_normal((count, 3, cells, cells), np.float32)
        repeat = -(-size // cells)
        total += noise.repeat(repeat, 2).repeat(repeat, 3)[:, :, :size, :size]
    made: Array = total / 2
    return made
