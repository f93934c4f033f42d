"""OPS: what operators are. One row is one kind; `read_aten` and `read_onnx` read arguments into its params.

A kind whose params hold a `move` only puts elements elsewhere (or brings in zeros, or changes signs): the
contract of numerics.through says when a quantize crosses it.
"""

from __future__ import annotations

from dataclasses import dataclass

from blockscale.graph.view import Node


@dataclass(frozen=True)
class Tensor:
    """One canonical operand of a kind, as recipes and fused operators see it.

    role     input, weight (a constant; where it is none, an input), bias, or other (never quantized)
    axis     the dimension over which it is reduced: blocks run along it
    channel  the dimension of output channels of a weight
    """

    role: str
    axis: int | None = None
    channel: int | None = None


@dataclass(frozen=True)
class Op:
    """A kind of operator.

    aten, onnx   names of operators that mean it, each with the names of its arguments that are the
                 canonical operands, in order
    tensors      what these are
    use          what a recipe calls it: linear, attention, residual, norm, embedding or other
    outputs      how many of its outputs are tensors that a recipe may quantize
    """

    kind: str
    aten: dict[str, str]
    onnx: dict[str, str]
    tensors: tuple[Tensor, ...] = ()
    use: str = "other"
    outputs: int = 1


_X = (Tensor("input"),)
_XY = (Tensor("input"), Tensor("input"))
_OTHER = Tensor("other")


def _all(names: str, operands: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), operands)


def _elementwise(kind: str, aten: str, onnx: str, x: str = "X") -> Op:
    return Op(kind, _all(aten, "self"), _all(onnx, x), _X)


_ROWS = (
    # ------------------------------------------------------------------ moves
    Op("identity", _all(
        "aten.alias.default aten.detach.default aten.detach_.default aten.contiguous.default aten.clone.default "
        "aten.lift_fresh_copy.default aten.dropout.default", "self"
    ) | {"aten.dropout.default": "input"}, {"Identity": "input", "Dropout": "data"}, _X),
    Op("reshape", _all(
        "aten.view.default aten._unsafe_view.default aten.reshape.default aten.flatten.using_ints "
        "aten.unflatten.int aten.squeeze.default aten.squeeze.dim aten.squeeze.dims aten.unsqueeze.default", "self"
    ), {"Reshape": "data", "Flatten": "input", "Squeeze": "data", "Unsqueeze": "data"}, _X),
    Op("permute", _all(
        "aten.permute.default aten.transpose.int aten.t.default aten.numpy_T.default aten.swapaxes.default "
        "aten.movedim.int aten.movedim.intlist", "self"
    ), {"Transpose": "data"}, _X),
    Op("expand", _all("aten.expand.default aten.broadcast_to.default", "self"), {"Expand": "input"}, _X),
    Op("slice", _all("aten.slice.Tensor aten.narrow.default", "self"), {"Slice": "data"}, _X),
    Op("split", _all("aten.split.Tensor aten.split.sizes aten.split_with_sizes.default aten.chunk.default", "self"),
       {"Split": "input"}, _X),
    Op("cat", {"aten.cat.default": "tensors"}, {"Concat": "inputs"}),
    Op("gather", _all("aten.index_select.default", "self"), {"Gather": "data"}, _X),
    Op("repeat", _all("aten.repeat.default aten.tile.default", "self"), {"Tile": "input"}, _X),
    Op("flip", _all("aten.flip.default", "self"), {}, _X),
    Op("roll", _all("aten.roll.default", "self"), {}, _X),
    Op("pad", _all("aten.constant_pad_nd.default aten.pad.default", "self"), {"Pad": "data"}, _X),
    _elementwise("neg", "aten.neg.default", "Neg"),
    _elementwise("abs", "aten.abs.default", "Abs"),
    _elementwise("relu", "aten.relu.default", "Relu"),
    # ------------------------------------------------------------------ products
    Op("linear", {"aten.linear.default": "input weight bias"}, {},
       (Tensor("input", -1), Tensor("weight", -1, 0), Tensor("bias")), "linear"),
    Op("matmul", {
        "aten.matmul.default": "self other", "aten.mm.default": "self mat2", "aten.bmm.default": "self mat2",
        "aten.addmm.default": "mat1 mat2 self", "aten.baddbmm.default": "batch1 batch2 self",
    }, {"MatMul": "A B"}, (Tensor("input", -1), Tensor("weight", -2, -1), Tensor("bias")), "linear"),
    # Gemm, whose transpose flags say where the reduced dimensions are (params trans_a, trans_b).
    Op("gemm", {}, {"Gemm": "A B C"}, (Tensor("input", -1), Tensor("weight", -2, -1), Tensor("bias")), "linear"),
    Op("conv", _all(
        "aten.conv1d.default aten.conv1d.padding aten.conv2d.default aten.conv2d.padding aten.conv3d.default "
        "aten.conv3d.padding aten.convolution.default", "input weight bias"
    ), {"Conv": "X W B"}, (Tensor("input", 1), Tensor("weight", 1, 0), Tensor("bias")), "linear"),
    Op("conv_transpose", _all(
        "aten.conv_transpose1d.default aten.conv_transpose2d.input aten.conv_transpose3d.input", "input weight bias"
    ), {"ConvTranspose": "X W B"}, (Tensor("input", 1), Tensor("weight", 0, 1), Tensor("bias")), "linear"),
    Op("embedding", {"aten.embedding.default": "weight indices"}, {}, (Tensor("weight", -1, 0), _OTHER), "embedding"),
    Op("sdpa", {"aten.scaled_dot_product_attention.default": "query key value attn_mask"},
       {"Attention": "Q K V attn_mask"},
       (Tensor("input", -1), Tensor("input", -1), Tensor("input", -2), _OTHER), "attention"),
    # ------------------------------------------------------------------ norms
    Op("rms_norm", {"aten.rms_norm.default": "input weight", "aten._fused_rms_norm.default": "input weight"},
       {"RMSNormalization": "X scale"}, (Tensor("input"), _OTHER), "norm"),
    Op("layer_norm", _all("aten.layer_norm.default aten.native_layer_norm.default", "input weight bias"),
       {"LayerNormalization": "X Scale B"}, (Tensor("input"), _OTHER, _OTHER), "norm"),
    Op("batch_norm", {
        "aten.batch_norm.default": "input weight bias running_mean running_var",
        "aten._native_batch_norm_legit_no_training.default": "input weight bias running_mean running_var",
    }, {"BatchNormalization": "X scale B input_mean input_var"}, (Tensor("input"), *(_OTHER,) * 4), "norm"),
    Op("group_norm", {"aten.group_norm.default": "input weight bias"}, {"GroupNormalization": "X scale bias"},
       (Tensor("input"), _OTHER, _OTHER), "norm"),
    # ------------------------------------------------------------------ element by element
    Op("add", {"aten.add.Tensor": "self other", "aten.add.Scalar": "self"}, {"Add": "A B"}, _XY),
    Op("sub", {"aten.sub.Tensor": "self other", "aten.sub.Scalar": "self"}, {"Sub": "A B"}, _XY),
    Op("mul", {"aten.mul.Tensor": "self other", "aten.mul.Scalar": "self"}, {"Mul": "A B"}, _XY),
    Op("div", {"aten.div.Tensor": "self other", "aten.div.Scalar": "self"}, {"Div": "A B"}, _XY),
    Op("pow", {"aten.pow.Tensor_Scalar": "self"}, {"Pow": "X Y"}, (Tensor("input"), _OTHER)),
    _elementwise("rsqrt", "aten.rsqrt.default", ""),
    _elementwise("sqrt", "aten.sqrt.default", "Sqrt"),
    _elementwise("reciprocal", "aten.reciprocal.default", "Reciprocal"),
    _elementwise("gelu", "aten.gelu.default", "Gelu"),
    _elementwise("silu", "aten.silu.default", "Swish"),
    _elementwise("sigmoid", "aten.sigmoid.default", "Sigmoid"),
    _elementwise("tanh", "aten.tanh.default", "Tanh", "input"),
    _elementwise("erf", "aten.erf.default", "Erf", "input"),
    _elementwise("hardswish", "aten.hardswish.default", "HardSwish"),
    _elementwise("hardsigmoid", "aten.hardsigmoid.default", "HardSigmoid"),
    Op("hardtanh", {"aten.hardtanh.default": "self", "aten.clamp.default": "self"}, {"Clip": "input"}, _X),
    Op("cast", {"aten.to.dtype": "self", "aten._to_copy.default": "self", "aten.type_as.default": "self"},
       {"Cast": "input"}, _X),
    # ------------------------------------------------------------------ reductions and pools
    Op("mean", {"aten.mean.dim": "self"}, {"ReduceMean": "data"}, _X),
    Op("softmax", {"aten.softmax.int": "self", "aten._softmax.default": "self"}, {"Softmax": "input"},
       (Tensor("input", -1),)),
    Op("max_pool", {"aten.max_pool2d.default": "self", "aten.max_pool1d.default": "self"}, {"MaxPool": "X"}, _X),
    Op("avg_pool", {
        "aten.avg_pool2d.default": "self", "aten.adaptive_avg_pool2d.default": "self",
    }, {"AveragePool": "X", "GlobalAveragePool": "X"}, _X),
    # ------------------------------------------------------------------ of no value
    Op("assert", {"aten._assert_tensor_metadata.default": "a"}, {}),
)  # fmt: skip

OPS: dict[str, Op] = {row.kind: row for row in _ROWS}
KIND_OF_ATEN: dict[str, Op] = {name: row for row in _ROWS for name in row.aten}
KIND_OF_ONNX: dict[str, Op] = {name: row for row in _ROWS for name in row.onnx}

QUANTIZERS = ("quantize", "dequantize", "fake_quantize")  # their params are in quant.py

# They make no values of their own, so a recipe says nothing of them.
SILENT = frozenset((
    "identity", "reshape", "permute", "expand", "slice", "split", "cat", "gather", "repeat", "flip", "roll",
    "pad", "cast", "assert", *QUANTIZERS,
))  # fmt: skip


def moves(node: Node) -> bool:
    """Whether it only puts elements elsewhere, so that a quantize might cross it."""
    return "move" in node.params


_OF_SIZES = frozenset(("aten.sym_size.int", "aten.sym_numel.default", "ai.onnx::Shape", "ai.onnx::Size"))


def reads_size(node: Node) -> bool:
    """Whether it asks a tensor for its size alone."""
    return node.call.name in _OF_SIZES
