"""One ONNX node of each form that a kind has: how it is built, and what must be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from blockscale.numerics.moves import (
    Abs,
    Cat,
    Chain,
    Expand,
    Flip,
    Gather,
    Move,
    MulPow2,
    Neg,
    Pad,
    Permute,
    Relu,
    Repeat,
    Reshape,
    Same,
    Slice,
    Split,
)
from passes.onnx_graphs import Builder, example

F16 = ir.DataType.FLOAT16
END = 2**63 - 1
ALL = (13, 18, 21, 24)


@dataclass(frozen=True)
class Case:
    """`made` gives the outputs of one node; `operands` are the inputs that are canonical, in order."""

    name: str
    made: Callable[[Builder], Any]
    kind: str
    params: Mapping[str, Any] = field(default_factory=dict)
    operands: tuple[int | None, ...] = (0,)
    opsets: tuple[int, ...] = ALL
    runs: bool = True

    @property
    def op_type(self) -> str:
        return self.name.split()[0]


def _move(
    name: str, made: Callable[[Builder], Any], move: Move, kind: str, opsets: tuple[int, ...] = ALL,
    operands: tuple[int | None, ...] = (0,), **more: Any,
) -> Case:  # fmt: skip
    return Case(name, made, kind, {"move": move, **more}, operands, opsets)


def _x(b: Builder) -> ir.Value:
    return b.input(2, 4, 6)


def _number(b: Builder, value: float, *shape: int) -> ir.Value:
    return b.constant(np.full(shape, value, np.float32))


MOVES = [
    _move("Identity", lambda b: b.call("Identity", _x(b)), Same(), "identity"),
    _move("Dropout", lambda b: b.call("Dropout", _x(b)), Same(), "identity"),
    _move("Dropout not training", lambda b: b.call("Dropout", _x(b), None, b.constant(np.array(False))), Same(),
          "identity"),
    _move("Reshape", lambda b: b.call("Reshape", _x(b), b.ints([8, 6])), Reshape((8, 6)), "reshape"),
    _move("Reshape by a Constant node", lambda b: b.call("Reshape", _x(b), b.constant_node(np.array([0, -1]))),
          Reshape((2, 24)), "reshape"),
    _move("Flatten", lambda b: b.call("Flatten", _x(b), axis=2), Reshape((8, 6)), "reshape"),
    _move("Flatten at 0", lambda b: b.call("Flatten", _x(b), axis=0), Reshape((1, 48)), "reshape"),
    _move("Squeeze", lambda b: b.call("Squeeze", b.input(1, 4, 1), b.ints([0, -1])), Reshape((4,)), "reshape"),
    _move("Squeeze all", lambda b: b.call("Squeeze", b.input(1, 4, 1)), Reshape((4,)), "reshape"),
    _move("Unsqueeze", lambda b: b.call("Unsqueeze", _x(b), b.ints([0, -1])), Reshape((1, 2, 4, 6, 1)), "reshape"),
    _move("Transpose", lambda b: b.call("Transpose", _x(b), perm=[2, 0, 1]), Permute((2, 0, 1)), "permute"),
    _move("Transpose without perm", lambda b: b.call("Transpose", _x(b)), Permute((2, 1, 0)), "permute"),
    _move("Expand", lambda b: b.call("Expand", b.input(4, 1), b.ints([3, 1, 5])), Expand((3, 4, 5)), "expand"),
    _move("Expand to less", lambda b: b.call("Expand", _x(b), b.ints([6])), Expand((2, 4, 6)), "expand"),
    _move("Slice", lambda b: b.call("Slice", _x(b), b.ints([1]), b.ints([-1]), b.ints([-1])), Slice(2, 1, -1),
          "slice"),
    _move("Slice to the end", lambda b: b.call("Slice", _x(b), b.ints([1]), b.ints([END]), b.ints([1]), b.ints([2])),
          Slice(1, 1, None, 2), "slice"),
    _move("Slice without axes", lambda b: b.call("Slice", _x(b), b.ints([1, 1]), b.ints([2, 4])),
          Chain((Slice(0, 1, 2), Slice(1, 1, 4))), "slice"),
    _move("Slice of int32", lambda b: b.call("Slice", _x(b), *(b.constant(np.array([n], np.int32)) for n in (0, 3, 1))),
          Slice(1, 0, 3), "slice"),
    _move("Slice backwards",
          lambda b: b.call("Slice", _x(b), b.ints([-1]), b.ints([-END]), b.ints([1]), b.ints([-1])), Flip((1,)),
          "slice"),
    _move("Slice of all", lambda b: b.call("Slice", _x(b), b.ints([0]), b.ints([END]), b.ints([1])), Same(), "slice"),
    _move("Split", lambda b: b.add("Split", (_x(b), b.ints([1, 3])), outputs=2, axis=1), Split(1, (1, 3)), "split"),
    _move("Split in equal parts", lambda b: b.add("Split", (_x(b),), outputs=2, axis=-1), Split(-1, (3, 3)), "split",
          (13,)),
    _move("Split unevenly", lambda b: b.add("Split", (b.input(5, 2),), outputs=2, num_outputs=2), Split(0, (3, 2)),
          "split", (18, 21, 24)),
    _move("Concat", lambda b: b.call("Concat", _x(b), b.input(2, 1, 6), axis=-2), Cat(-2), "cat", operands=(0, 1)),
    _move("Gather", lambda b: b.call("Gather", _x(b), b.ints([3, -1, 0]), axis=1), Gather(1, (3, -1, 0)), "gather"),
    _move("Gather of one", lambda b: b.call("Gather", _x(b), b.constant(np.array(-1)), axis=1),
          Chain((Slice(1, -1, None), Reshape((2, 6)))), "gather"),
    _move("Gather in rows", lambda b: b.call("Gather", _x(b), b.ints([[0, 1], [2, 2]]), axis=-1),  # type: ignore
          Chain((Gather(-1, (0, 1, 2, 2)), Reshape((2, 4, 2, 2)))), "gather"),
    _move("Tile", lambda b: b.call("Tile", _x(b), b.ints([1, 2, 1])), Repeat((1, 2, 1)), "repeat"),
    _move("Pad", lambda b: b.call("Pad", _x(b), b.ints([0, 1, 0, 0, 0, 2])), Pad(((0, 0), (1, 0), (0, 2))), "pad"),
    _move("Pad with a given 0", lambda b: b.call("Pad", _x(b), b.ints([1, 0, 0, 0, 0, 0]), _number(b, 0)),
          Pad(((1, 0), (0, 0), (0, 0))), "pad"),
    _move("Pad of axes", lambda b: b.call("Pad", _x(b), b.ints([1, 2]), None, b.ints([-1])),
          Pad(((0, 0), (0, 0), (1, 2))), "pad", (18, 21, 24)),
    _move("Neg", lambda b: b.call("Neg", _x(b)), Neg(), "neg"),
    _move("Abs", lambda b: b.call("Abs", _x(b)), Abs(), "abs"),
    _move("Relu", lambda b: b.call("Relu", _x(b)), Relu(), "relu"),
    _move("Cast to the same", lambda b: b.call("Cast", _x(b), to=1), Same(), "cast"),
    _move("Mul by a power of two", lambda b: b.call("Mul", _x(b), _number(b, 0.25)), MulPow2(-2), "mul",
          operands=(0, 1), factor=0.25),
    _move("Mul of a power of two", lambda b: b.call("Mul", _number(b, 8, 1), _x(b)), MulPow2(3), "mul",
          operands=(1, 0), factor=8.0),
    _move("Div by a power of two", lambda b: b.call("Div", _x(b), _number(b, 2, 1, 1)), MulPow2(-1), "div",
          operands=(0, 1), divisor=2.0),
]  # fmt: skip


def _weights(b: Builder, *shape: int) -> ir.Value:
    return b.constant(np.nan_to_num(example(shape, 3), posinf=1, neginf=-1))


def _pool(kind: str, **more: Any) -> Callable[[Builder], Any]:
    return lambda b: b.call(kind, b.input(1, 2, 6, 6), **more)


def _conv(kind: str, *weight: int, **more: Any) -> Callable[[Builder], Any]:
    return lambda b: b.call(kind, b.input(1, 2, 6, 6), _weights(b, *weight), _weights(b, 3), **more)


def _gemm(*more: ir.Value, **flags: Any) -> Callable[[Builder], Any]:
    a = (6, 4) if flags.get("transA") else (4, 6)
    w = (5, 6) if flags.get("transB") else (6, 5)
    return lambda b: b.call("Gemm", b.input(*a), _weights(b, *w), _weights(b, 5), **flags)


_GEMM = {"trans_a": False, "trans_b": False, "alpha": 1.0, "beta": 1.0}
_CONV = {"stride": (1, 1), "dilation": (1, 1), "groups": 1, "padding": (0, 0)}
_HEADS = {"is_causal": False, "scale": None}


def _elementwise(op_type: str, kind: str, *opsets: int, **params: Any) -> Case:
    return Case(op_type, lambda b: b.call(op_type, _x(b)), kind, params, opsets=opsets or ALL)


OTHERS = [
    Case("MatMul", lambda b: b.call("MatMul", _x(b), _weights(b, 6, 3)), "matmul", {}, (0, 1)),
    Case("Gemm", _gemm(), "gemm", _GEMM, (0, 1, 2)),
    Case("Gemm transposed", _gemm(transA=1, transB=1, alpha=0.5, beta=2.0), "gemm",
         {"trans_a": True, "trans_b": True, "alpha": 0.5, "beta": 2.0}, (0, 1, 2)),
    Case("Gemm without C", lambda b: b.call("Gemm", b.input(4, 6), _weights(b, 6, 5)), "gemm", _GEMM, (0, 1, None)),
    Case("Conv", _conv("Conv", 3, 2, 3, 3), "conv", _CONV, (0, 1, 2)),
    Case("Conv padded", _conv("Conv", 3, 2, 3, 3, strides=[2, 1], pads=[1, 0, 1, 0], dilations=[1, 2]), "conv",
         _CONV | {"stride": (2, 1), "dilation": (1, 2), "padding": (1, 0)}, (0, 1, 2)),
    Case("Conv padded unevenly", _conv("Conv", 3, 2, 3, 3, pads=[1, 0, 0, 0]), "conv",
         {"stride": (1, 1), "dilation": (1, 1), "groups": 1, "pads": (1, 0, 0, 0), "auto_pad": "NOTSET"}, (0, 1, 2)),
    Case("Conv VALID", _conv("Conv", 3, 2, 3, 3, auto_pad="VALID"), "conv", _CONV, (0, 1, 2)),
    Case("Conv SAME_UPPER", _conv("Conv", 3, 2, 3, 3, auto_pad="SAME_UPPER"), "conv",
         {"stride": (1, 1), "dilation": (1, 1), "groups": 1, "pads": (0, 0, 0, 0), "auto_pad": "SAME_UPPER"},
         (0, 1, 2)),
    Case("Conv without bias", lambda b: b.call("Conv", b.input(1, 2, 6, 6), _weights(b, 4, 1, 3, 3), group=2), "conv",
         _CONV | {"groups": 2}, (0, 1, None)),
    Case("ConvTranspose", _conv("ConvTranspose", 2, 3, 3, 3), "conv_transpose", _CONV | {"output_padding": (0, 0)},
         (0, 1, 2)),
    Case("Gather at run time", lambda b: b.call("Gather", _weights(b, 10, 8), b.given(np.array([[3, 1], [0, 9]]))),
         "embedding", {}, (0, 1)),
    Case("Attention", lambda b: b.call("Attention", *(b.input(1, 2, 4, 8) for _ in range(3))), "sdpa", _HEADS,
         (0, 1, 2, None), (23, 24)),
    Case("Attention of heads", lambda b: b.call("Attention", *(b.input(1, 4, 16) for _ in range(3)), q_num_heads=2,
         kv_num_heads=2, scale=0.5, is_causal=1), "sdpa",
         {"is_causal": True, "scale": 0.5, "q_num_heads": 2, "kv_num_heads": 2}, (0, 1, 2, None), (23, 24)),
    Case("RMSNormalization", lambda b: b.call("RMSNormalization", _x(b), _weights(b, 6)), "rms_norm",
         {"normalized_shape": (6,), "eps": float(np.float32(1e-5))}, (0, 1), (23, 24)),
    Case("LayerNormalization", lambda b: b.call("LayerNormalization", _x(b), _weights(b, 4, 6), axis=1, epsilon=0.5),
         "layer_norm", {"normalized_shape": (4, 6), "eps": 0.5}, (0, 1, None), (18, 21, 24)),
    Case("BatchNormalization", lambda b: b.call("BatchNormalization", b.input(2, 3, 4),
         *(_weights(b, 3) for _ in "wbm"), b.constant(np.ones(3, np.float32)), epsilon=0.5),
         "batch_norm", {"eps": 0.5, "training": False}, (0, 1, 2, 3, 4), (18, 21, 24)),
    Case("GroupNormalization", lambda b: b.call("GroupNormalization", b.input(2, 4, 3), _weights(b, 4),
         _weights(b, 4), num_groups=2), "group_norm",
         {"num_groups": 2, "eps": float(np.float32(1e-5))}, (0, 1, 2), (21, 24)),
    *(Case(op, lambda b, op=op: b.call(op, _x(b), b.input(6)), op.lower(), {}, (0, 1))
      for op in ("Add", "Sub", "Mul", "Div")),
    Case("Mul by a number", lambda b: b.call("Mul", _x(b), _number(b, 0.3)), "mul",
         {"factor": float(np.float32(0.3))}, (0, 1)),
    Case("Div of a number", lambda b: b.call("Div", _number(b, 2), _x(b)), "div", {}, (0, 1)),
    Case("Mul that expands", lambda b: b.call("Mul", b.input(6), _number(b, 2, 1, 1)), "mul", {"factor": 2.0}, (0, 1)),
    Case("Pow", lambda b: b.call("Pow", _x(b), _number(b, 2)), "pow", {"exponent": 2.0}, (0, 1)),
    _elementwise("Sqrt", "sqrt"), _elementwise("Reciprocal", "reciprocal"), _elementwise("Sigmoid", "sigmoid"),
    _elementwise("Tanh", "tanh"), _elementwise("Erf", "erf"), _elementwise("HardSwish", "hardswish", 14, 18, 22),
    _elementwise("Gelu", "gelu", 20, 24, approximate="none"), _elementwise("Swish", "silu", 24),
    Case("Gelu by tanh", lambda b: b.call("Gelu", _x(b), approximate="tanh"), "gelu", {"approximate": "tanh"},
         opsets=(20, 24)),
    Case("HardSigmoid", lambda b: b.call("HardSigmoid", _x(b), alpha=1 / 6, beta=0.5), "hardsigmoid", {}),
    Case("Clip", lambda b: b.call("Clip", _x(b), _number(b, 0), _number(b, 6)), "hardtanh",
         {"min_val": 0.0, "max_val": 6.0}),
    Case("Clip above", lambda b: b.call("Clip", _x(b), None, _number(b, 6)), "hardtanh", {"max_val": 6.0}),
    Case("Cast", lambda b: b.call("Cast", _x(b), to=int(F16)), "cast", {"dtype": "float16"}),
    Case("ReduceMean by attribute", lambda b: b.call("ReduceMean", _x(b), axes=[-1], keepdims=0), "mean",
         {"dim": (-1,), "keepdim": False}, opsets=(13,)),
    Case("ReduceMean by input", lambda b: b.call("ReduceMean", _x(b), b.ints([1, 2])), "mean",
         {"dim": (1, 2), "keepdim": True}, opsets=(18, 21, 24)),
    Case("ReduceMean of all", lambda b: b.call("ReduceMean", _x(b)), "mean", {"dim": (0, 1, 2), "keepdim": True}),
    Case("Softmax", lambda b: b.call("Softmax", _x(b)), "softmax", {"dim": 2}),
    Case("Softmax of an axis", lambda b: b.call("Softmax", _x(b), axis=1), "softmax", {"dim": 1}),
    Case("MaxPool", _pool("MaxPool", kernel_shape=[2, 2], strides=[2, 2]), "max_pool"),
    Case("AveragePool", _pool("AveragePool", kernel_shape=[2, 2], strides=[2, 2]), "avg_pool"),
    Case("GlobalAveragePool", _pool("GlobalAveragePool"), "avg_pool"),
]  # fmt: skip

# What has an op type of the table and yet is of no kind, and why.
UNREADABLE: list[tuple[str, Callable[[Builder], Any], str]] = [
    ("Dropout in training", lambda b: b.call("Dropout", _x(b), None, b.constant(np.array(True))), "it drops at random"),
    ("Dropout with mask", lambda b: b.add("Dropout", (_x(b),), outputs=2), "it gives its mask"),
    ("Reshape by an input", lambda b: b.call("Reshape", _x(b), b.given(np.array([8, 6]))), "only at run time"),
    ("Slice by an input",
     lambda b: b.call("Slice", _x(b), b.given(np.array([0])), b.ints([2])), "starts is no constant"),
    ("Slice backwards from the middle",
     lambda b: b.call("Slice", _x(b), b.ints([2]), b.ints([0]), b.ints([1]), b.ints([-1])), "it goes backwards"),
    ("Slice of what an input names",
     lambda b: b.call("Slice", b.input(4, 6, dynamic=(0,)), b.ints([0]), b.ints([2]), b.ints([0])),
     "only at run time"),
    ("Gather of an activation",
     lambda b: b.call("Gather", b.input(4, 6), b.given(np.array([1]))), "indices is no constant"),
    ("Pad with 1", lambda b: b.call("Pad", _x(b), b.ints([1, 0, 0, 0, 0, 0]), _number(b, 1)), "other than 0"),
    ("Pad by reflection",
     lambda b: b.call("Pad", _x(b), b.ints([1, 0, 0, 0, 0, 0]), mode="reflect"), "mode is reflect"),
    ("Pad that crops", lambda b: b.call("Pad", _x(b), b.ints([-1, 0, 0, 0, 0, 0])), "it crops"),
    ("Tile by an input", lambda b: b.call("Tile", _x(b), b.given(np.array([1, 1, 2]))), "repeats is no constant"),
    ("HardSigmoid of ONNX", lambda b: b.call("HardSigmoid", _x(b)), "alpha is"),
]  # fmt: skip
