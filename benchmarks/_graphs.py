"""Large models for passes.py: transformer layers as torch.export and the ONNX exporter write them.

Every seventh node quantizes or dequantizes. Nodes carry what an exporter leaves on them: fake tensors (equal
ones shared, so that a large graph is built in little time), the stack of modules, a stack trace.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

import blockscale.runtime.torch_ops  # noqa: F401  the operators exist

aten, ours = torch.ops.aten, torch.ops.blockscale
B, T, H, HEADS = 2, 16, 64, 4
STATIC = "int8,dynamic=false"
_TRACE = """  File "/home/user/model.py", line {}, in forward
    return self.layers(x)
  File "/usr/lib/python3/site-packages/torch/nn/modules/module.py", line 1780, in _call_impl
    return forward_call(*args, **kwargs)
"""


class Builder:
    """An fx.Graph that grows; every node knows its metadata."""

    def __init__(self) -> None:
        from blockscale.numerics.layout import bind
        from blockscale.numerics.scheme import scheme_named

        self.graph, self.root, self.mode = fx.Graph(), torch.nn.Module(), FakeTensorMode()
        self.module = "model"
        self._known: dict[Any, Any] = {}
        self._place: Callable[[str, int], tuple[str, list[int]]] = lambda scheme, rank: (
            str(scheme_named(scheme).numbers), list(bind(scheme_named(scheme), (32,) * rank).block)
        )  # fmt: skip
        self._places: dict[tuple[str, int], tuple[str, list[int]]] = {}

    def _described(self, node: fx.Node, value: Any) -> fx.Node:
        node.meta["val"] = value
        node.meta["nn_module_stack"] = {self.module: (f"L['self'].{self.module}", "Layer")}
        node.meta["stack_trace"] = _TRACE.format(len(self.module))
        return node

    def input(self, *shape: int) -> fx.Node:
        with self.mode:
            return self._described(self.graph.placeholder("x"), torch.empty(shape))

    def constant(self, tensor: torch.Tensor, name: str) -> fx.Node:
        if not hasattr(self.root, name):
            self.root.register_buffer(name, tensor)
        key = tensor.dtype, tuple(tensor.shape)
        if key not in self._known:
            self._known[key] = self.mode.from_tensor(tensor, static_shapes=True)
        return self._described(self.graph.get_attr(name), self._known[key])

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        key = target, _frozen(args), _frozen(kwargs)
        if key not in self._known:
            with self.mode:
                values = fx.map_arg((args, kwargs), lambda node: node.meta["val"])
                self._known[key] = target(*values[0], **values[1])
        return self._described(self.graph.call_function(target, args, kwargs), self._known[key])

    # ------------------------------------------------------------------------------ quantizers

    def place(self, scheme: str, rank: int) -> tuple[str, list[int]]:
        key = scheme, rank
        if key not in self._places:
            self._places[key] = self._place(scheme, rank)
        numbers, block = self._places[key]
        return numbers, list(block)

    def dynamic(self, x: fx.Node, scheme: str = "mxfp4") -> fx.Node:
        """A dynamic quantize and its dequantize."""
        like = x.meta["val"]
        numbers, block = self.place(scheme, like.dim())
        q = self.call(ours.dynamic_quantize.default, x, numbers, block)
        codes, scale = (self.call(operator.getitem, q, i) for i in (0, 1))
        return self.dequantize(codes, scale, numbers, like, block)

    def static(self, x: fx.Node, name: str = "scale") -> fx.Node:
        like = x.meta["val"]
        numbers, block = self.place(STATIC, like.dim())
        scale = self.constant(torch.full((1,) * like.dim(), 0.5), f"{name}_{like.dim()}")
        q = self.call(ours.quantize.default, x, numbers, block, scale)
        return self.dequantize(q, scale, numbers, like, block)

    def dequantize(
        self, codes: fx.Node, scale: fx.Node, numbers: str, like: torch.Tensor, block: list[int]
    ) -> fx.Node:
        shape = list(like.shape)
        return self.call(
            ours.dequantize.default, codes, scale, None, None, numbers, shape, block, dtype=like.dtype
        )

    def weight(self, rows: int, columns: int, name: str) -> fx.Node:
        """Codes and scales of mxfp4, dequantized."""
        like = torch.empty(rows, columns, device="meta")
        numbers, block = self.place("mxfp4", 2)
        seed = len(self.graph.nodes)
        codes = torch.arange(rows * columns // 2).add_(seed).to(torch.uint8).reshape(rows, columns // 2)
        scale = torch.full((rows, columns // 32), 120, dtype=torch.uint8)
        return self.dequantize(
            self.constant(codes, f"{name}_codes"), self.constant(scale, f"{name}_scale"), numbers, like, block
        )

    def done(self, *outputs: fx.Node) -> fx.GraphModule:
        self.graph.output(outputs)
        return fx.GraphModule(self.root, self.graph)


def _frozen(argument: Any) -> Any:
    if isinstance(argument, fx.Node):
        value = argument.meta["val"]
        parts = value if isinstance(value, list | tuple) else (value,)
        return tuple((part.dtype, part.shape, part.stride()) for part in parts)
    if isinstance(argument, list | tuple):
        return tuple(_frozen(item) for item in argument)
    if isinstance(argument, dict):
        return tuple((key, _frozen(item)) for key, item in argument.items())
    return argument


# ---------------------------------------------------------------------------------------- a model


def transformer(nodes: int) -> fx.GraphModule:
    """Layers until there are that many nodes."""
    b = Builder()
    x = b.input(B, T, H)
    i = 0
    while len(b.graph.nodes) < nodes - 1:
        b.module = f"model.layers.{i}"
        x = _layer(b, x, f"layer{i}")
        i += 1
    return b.done(x)


def _layer(b: Builder, x: fx.Node, name: str) -> fx.Node:
    hidden = _norm(b, x, f"{name}_norm1")
    q, k, v = (_heads(b, _linear(b, hidden, H, H, f"{name}_{which}")) for which in "qkv")
    q = b.call(aten.mul.Tensor, q, 0.25)
    k = b.call(aten.transpose.int, k, -1, -2)
    weights = b.call(aten._softmax.default, b.call(aten.matmul.default, q, k), -1, False)
    mixed = b.call(aten.transpose.int, b.call(aten.matmul.default, weights, v), 1, 2)
    flat = b.call(aten.reshape.default, mixed, [B, T, H])
    x = b.call(aten.add.Tensor, x, _linear(b, flat, H, H, f"{name}_o"))
    hidden = _norm(b, x, f"{name}_norm2")
    gate = b.call(aten.silu.default, _linear(b, hidden, 2 * H, H, f"{name}_gate"))
    up = _linear(b, hidden, 2 * H, H, f"{name}_up")
    down = _linear(b, b.call(aten.mul.Tensor, gate, up), H, 2 * H, f"{name}_down")
    x = b.call(aten.add.Tensor, x, down)
    return b.call(aten.relu.default, b.static(x))


def _norm(b: Builder, x: fx.Node, name: str) -> fx.Node:
    mean = b.call(aten.mean.dim, b.call(aten.pow.Tensor_Scalar, x, 2), [-1], True)
    factor = b.call(aten.rsqrt.default, b.call(aten.add.Tensor, mean, 1e-6))
    normed = b.call(aten.mul.Tensor, x, factor)
    return b.call(aten.mul.Tensor, normed, b.constant(torch.ones(H), name))


def _linear(b: Builder, x: fx.Node, rows: int, columns: int, name: str) -> fx.Node:
    """As exporters flatten it: the quantize stands on a view of its own."""
    flat = b.call(aten.view.default, x, [B * T, columns])
    made = b.call(aten.linear.default, b.dynamic(flat), b.weight(rows, columns, name))
    return b.call(aten.view.default, made, [B, T, rows])


def _heads(b: Builder, x: fx.Node) -> fx.Node:
    split = b.call(aten.view.default, x, [B, T, HEADS, H // HEADS])
    return b.call(aten.transpose.int, split, 1, 2)


# ---------------------------------------------------------------------------------------- traps


def wide(n: int) -> fx.GraphModule:
    """A cat of n / 5 parts, quantized; on every part stands an equal quantize."""
    b = Builder()
    x = b.input(4, H)
    parts, others = [], []
    for i in range(n // 5):
        parts.append(b.call(aten.relu.default, b.call(aten.add.Tensor, x, float(i))))
        others.append(b.static(parts[-1]))
    return b.done(b.static(b.call(aten.cat.default, parts)), *others)


def fan(n: int) -> fx.GraphModule:
    """One value with n / 6 views, each quantized and used."""
    b = Builder()
    x = b.call(aten.relu.default, b.input(4, H))
    made = []
    for i in range(n // 6):
        view = b.call(aten.view.default, x, [2, 2, H])
        made.append(b.call(aten.mul.Tensor, b.dynamic(view), 1.5 + i))
    return b.done(*made)


def chain(n: int) -> fx.GraphModule:
    """A quantize that can be lifted over n transposes, and a dequantize that could sink back."""
    b = Builder()
    x = b.call(aten.sigmoid.default, b.input(H, H))
    for _ in range(n // 2):
        x = b.call(aten.transpose.int, b.call(aten.unsqueeze.default, x, 0), 1, 2)
        x = b.call(aten.squeeze.dim, x, 0)
        if len(b.graph.nodes) >= n - 8:
            break
    return b.done(b.call(aten.sigmoid.default, b.dynamic(x, "int8-token")))


def ladder(n: int) -> fx.GraphModule:
    """A chain of relus, each of which is quantized besides."""
    b = Builder()
    x = b.call(aten.sigmoid.default, b.input(4, H))
    made = []
    for _ in range(n // 4):
        x = b.call(aten.relu.default, x)
        made.append(b.static(x))
    return b.done(*made)


def pieces(n: int) -> fx.GraphModule:
    """Slices of one tensor, each quantized: together they are all of it."""
    b = Builder()
    count = n // 6
    x = b.call(aten.relu.default, b.input(count, H))
    made = []
    for i in range(count):
        part = b.call(aten.slice.Tensor, x, 0, i, i + 1)
        made.append(b.call(aten.sigmoid.default, b.dynamic(part)))
    return b.done(*made)


def bodies(n: int) -> fx.GraphModule:
    """Branches of 13 nodes each, in each of which two quantizes become one."""
    b = Builder()
    x = b.input(4, H)
    condition = b.call(aten.gt.Scalar, b.call(aten.sum.default, x), 0)
    for i in range(n // 28):
        names = []
        for branch in "ab":
            inner = Builder()
            inner.mode, inner._known = b.mode, b._known
            y = inner.call(aten.relu.default, inner.input(4, H))
            y, z = (inner.dynamic(inner.call(aten.view.default, y, [2, 2, H])) for _ in range(2))
            y = inner.call(aten.add.Tensor, y, z)
            name = f"branch_{i}_{branch}"
            b.root.add_module(name, inner.done(inner.call(aten.view.default, y, [4, H])))
            names.append(b.graph.get_attr(name))
        made = b.graph.call_function(torch.ops.higher_order.cond, (condition, *names, (x,)))
        b._described(made, (x.meta["val"],))
        x = b.call(operator.getitem, made, 0)
    return b.done(x)


TRAPS: dict[str, Callable[[int], fx.GraphModule]] = {
    "a cat of many parts": wide,
    "a value with many users": fan,
    "a chain of views": chain,
    "a chain quantized at each step": ladder,
    "slices of one tensor": pieces,
    "many bodies": bodies,
}


# ---------------------------------------------------------------------------------------- ONNX


class OnnxBuilder:
    """An ir.Graph that grows; every value knows its type and shape."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}

    def input(self, *shape: int) -> ir.Value:
        return ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))

    def constant(self, array: Any, name: str) -> ir.Value:
        if name not in self.initializers:
            tensor = ir.Tensor(array, name=name)
            self.initializers[name] = ir.Value(
                name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor
            )
        return self.initializers[name]

    def ints(self, *numbers: int) -> ir.Value:
        name = "ints_" + "_".join(map(str, numbers)).replace("-", "m")
        return self.constant(np.array(numbers, dtype=np.int64), name)

    def call(
        self, op: str, inputs: Sequence[ir.Value], shape: Sequence[int], attributes: dict[str, Any] | None = None,
        dtype: ir.DataType = ir.DataType.FLOAT,
    ) -> ir.Value:  # fmt: skip
        node = ir.node(op, inputs, attributes or {}, name=f"node_{len(self.nodes)}")
        (made,) = node.outputs
        made.name, made.type, made.shape = f"v{len(self.nodes)}", ir.TensorType(dtype), ir.Shape(shape)
        self.nodes.append(node)
        return made

    def quantized(self, x: ir.Value, shape: Sequence[int], scale: str = "scale") -> ir.Value:
        given = [
            self.constant(np.array(0.5, dtype=np.float32), scale),
            self.constant(np.array(0, dtype=np.int8), "zero"),
        ]
        codes = self.call("QuantizeLinear", [x, *given], shape, dtype=ir.DataType.INT8)
        return self.call("DequantizeLinear", [codes, *given], shape)

    def weight(self, columns: int, rows: int, name: str) -> ir.Value:
        seed = len(self.nodes)
        codes = ((np.arange(rows * columns) + seed) % 255 - 127).astype(np.int8).reshape(columns, rows)
        scale = self.constant(np.full(rows, 0.01, dtype=np.float32), f"rows_scale_{rows}")
        given = [self.constant(codes, name), scale, self.constant(np.zeros(rows, np.int8), f"zeros_{rows}")]
        return self.call("DequantizeLinear", given, (columns, rows), {"axis": 1})

    def done(self, x: ir.Value, y: ir.Value) -> ir.Model:
        graph = ir.Graph(
            [x], [y], nodes=self.nodes, initializers=list(self.initializers.values()),
            opset_imports={"": 21}, name="model",
        )  # fmt: skip
        return ir.Model(graph, ir_version=10)


def onnx_transformer(nodes: int) -> ir.Model:
    b = OnnxBuilder()
    x = first = b.input(B, T, H)
    i = 0
    while len(b.nodes) < nodes:
        x = _onnx_layer(b, x, f"layer{i}")
        i += 1
    return b.done(first, x)


def _onnx_layer(b: OnnxBuilder, x: ir.Value, name: str) -> ir.Value:
    whole, heads = (B, T, H), (B, HEADS, T, H // HEADS)
    hidden = _onnx_norm(b, x, f"{name}_norm1")
    q, k, v = (_onnx_heads(b, _onnx_linear(b, hidden, H, H, f"{name}_{which}")) for which in "qkv")
    q = b.call("Mul", [q, b.constant(np.array(0.25, np.float32), "quarter")], heads)
    k = b.call("Transpose", [k], (B, HEADS, H // HEADS, T), {"perm": [0, 1, 3, 2]})
    scores = b.call("Softmax", [b.call("MatMul", [q, k], (B, HEADS, T, T))], (B, HEADS, T, T), {"axis": -1})
    mixed = b.call("MatMul", [scores, v], heads)
    mixed = b.call("Transpose", [mixed], (B, T, HEADS, H // HEADS), {"perm": [0, 2, 1, 3]})
    flat = b.call("Reshape", [mixed, b.ints(B, T, H)], whole)
    x = b.call("Add", [x, _onnx_linear(b, flat, H, H, f"{name}_o")], whole)
    hidden = _onnx_norm(b, x, f"{name}_norm2")
    wide = (B, T, 2 * H)
    gate = _onnx_linear(b, hidden, 2 * H, H, f"{name}_gate")
    gate = b.call("Mul", [gate, b.call("Sigmoid", [gate], wide)], wide)
    product = b.call("Mul", [gate, _onnx_linear(b, hidden, 2 * H, H, f"{name}_up")], wide)
    x = b.call("Add", [x, _onnx_linear(b, product, H, 2 * H, f"{name}_down")], whole)
    return b.call("Relu", [b.quantized(x, whole)], whole)


def _onnx_norm(b: OnnxBuilder, x: ir.Value, name: str) -> ir.Value:
    whole, row = (B, T, H), (B, T, 1)
    square = b.call("Pow", [x, b.constant(np.array(2, np.float32), "two")], whole)
    mean = b.call("ReduceMean", [square, b.ints(-1)], row, {"keepdims": 1})
    root = b.call("Sqrt", [b.call("Add", [mean, b.constant(np.array(1e-6, np.float32), "eps")], row)], row)
    normed = b.call("Div", [x, root], whole)
    return b.call("Mul", [normed, b.constant(np.ones(H, np.float32), name)], whole)


def _onnx_linear(b: OnnxBuilder, x: ir.Value, rows: int, columns: int, name: str) -> ir.Value:
    flat = b.call("Reshape", [x, b.ints(B * T, columns)], (B * T, columns))
    made = [b.quantized(flat, (B * T, columns)), b.weight(columns, rows, name)]
    return b.call("Reshape", [b.call("MatMul", made, (B * T, rows)), b.ints(B, T, rows)], (B, T, rows))


def _onnx_heads(b: OnnxBuilder, x: ir.Value) -> ir.Value:
    split = b.call("Reshape", [x, b.ints(B, T, HEADS, H // HEADS)], (B, T, HEADS, H // HEADS))
    return b.call("Transpose", [split], (B, HEADS, T, H // HEADS), {"perm": [0, 2, 1, 3]})
