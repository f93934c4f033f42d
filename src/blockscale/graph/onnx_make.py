"""Kinds of ours → ONNX nodes: what passes make without a node to copy. Opset 13 or later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from blockscale.graph.dims import Of, sizes_from
from blockscale.graph.onnx_fused import FUSED_MAKERS
from blockscale.graph.onnx_quantizers import DOMAIN
from blockscale.graph.onnx_types import dtype_of
from blockscale.graph.quant import quant_of
from blockscale.graph.view import Meta, Node

if TYPE_CHECKING:
    from blockscale.graph.onnx_write import Writer

# Domain, operator, inputs, attributes.
Made = tuple[str, str, list[ir.Value | None], dict[str, Any]]
Operands = list[ir.Value | None]
Maker = Callable[["Writer", Node, Operands], Made]
_END = 2**63 - 1


def _meta(node: Node) -> Meta:
    meta = node.outputs[0].meta
    assert meta is not None
    return meta


def _rank(node: Node) -> int:
    source = node.slots[0]
    assert source is not None and source.meta is not None
    return len(source.meta.shape)


# ------------------------------------------------------------------------------------------ moves


def _reshape(w: Writer, node: Node, operands: Operands) -> Made:
    """Sizes known only at run time are kept (0), left to the operator (-1), or read from tensors."""
    source, target = node.slots[0], _meta(node).shape
    assert source is not None and source.meta is not None
    sizes = sizes_from(target, source.meta.shape)
    empty = 0 in target
    if sizes is None:
        shape = w.sizes(target, node)
    elif all(isinstance(n, int) for n in sizes):
        shape = w.ints([n for n in sizes if isinstance(n, int)], "shape")
    elif not empty and all(isinstance(n, int) or n.index == i for i, n in enumerate(sizes)):
        shape = w.ints([n if isinstance(n, int) else 0 for n in sizes], "shape")
    else:
        x = w.value(source)
        parts = [w.size_of(x, n.index, node) if isinstance(n, Of) else w.ints([n], "size") for n in sizes]
        shape = w.emit("Concat", parts, Meta("int64", (len(parts),)), {"axis": 0}, near=node)
    allowzero = {"allowzero": 1} if empty and w.opset >= 14 else {}
    return "", "Reshape", [operands[0], shape], allowzero


def _expand(w: Writer, node: Node, operands: Operands) -> Made:
    return "", "Expand", [operands[0], w.sizes(_meta(node).shape, node)], {}


def _permute(w: Writer, node: Node, operands: Operands) -> Made:
    rank = _rank(node)
    return "", "Transpose", operands, {"perm": [d % rank for d in node.params["move"].dims]}


def _slice(w: Writer, node: Node, operands: Operands) -> Made:
    move = node.params["move"]
    stop = _END if move.stop is None else move.stop
    numbers = ((move.start, "start"), (stop, "end"), (move.axis, "axis"), (move.step, "step"))
    return "", "Slice", [operands[0], *(w.ints([n], name) for n, name in numbers)], {}


def _flip(w: Writer, node: Node, operands: Operands) -> Made:
    axes = node.params["move"].axes
    numbers = ((-1, "start"), (-_END, "end"), (None, "axis"), (-1, "step"))
    inputs = [w.ints(axes if n is None else [n] * len(axes), name) for n, name in numbers]
    return "", "Slice", [operands[0], *inputs], {}


def _roll(w: Writer, node: Node, operands: Operands) -> Made:
    """A gather an axis; sizes are known, or the move would not have been made."""
    move, meta, x = node.params["move"], _meta(node), operands[0]
    made = ("", "Identity", [x], dict[str, Any]())
    for shift, axis in zip(move.shifts, move.axes, strict=True):
        n = meta.shape[axis]
        assert isinstance(n, int) and x is not None
        places = w.ints(np.roll(np.arange(n), shift).tolist(), "places")
        made = "", "Gather", [x, places], {"axis": axis}
        if axis is not move.axes[-1]:
            x = w.emit("Gather", [x, places], meta, {"axis": axis}, near=node)
    return made


def _split(w: Writer, node: Node, operands: Operands) -> Made:
    move = node.params["move"]
    return "", "Split", [operands[0], w.ints(move.sizes, "sizes")], {"axis": move.axis}


def _cat(w: Writer, node: Node, operands: Operands) -> Made:
    return "", "Concat", operands, {"axis": node.params["move"].axis}


def _gather(w: Writer, node: Node, operands: Operands) -> Made:
    return "", "Gather", operands, {"axis": node.params["move"].axis}


def _repeat(w: Writer, node: Node, operands: Operands) -> Made:
    return "", "Tile", [operands[0], w.ints(node.params["move"].times, "times")], {}


def _pad(w: Writer, node: Node, operands: Operands) -> Made:
    move = node.params["move"]
    pads = [before for before, _ in move.widths] + [after for _, after in move.widths]
    inputs = [operands[0], w.ints(pads, "pads"), _number(w, node, move.value)]
    return "", "Pad", inputs, {}


# ------------------------------------------------------------------------------------------ elements


def _number(w: Writer, node: Node, value: float) -> ir.Value:
    """In the dtype of the tensor."""
    return w.array(np.array(value, dtype_of(_meta(node).dtype).numpy()), "value")


def _plain(op_type: str) -> Maker:
    return lambda w, node, operands: ("", op_type, operands, {})


def _relu(w: Writer, node: Node, operands: Operands) -> Made:
    """ONNX Runtime has Clip of 8-bit codes, but neither Max nor Min."""
    return "", "Clip", [operands[0], _number(w, node, node.params["move"].value)], {}


def _at_most(w: Writer, node: Node, operands: Operands) -> Made:
    return "", "Clip", [operands[0], None, _number(w, node, node.params["value"])], {}


def _flip_bit(w: Writer, node: Node, operands: Operands) -> Made:
    """The highest bit of the code: x + 2^bit modulo 2^(bit + 1). Bitwise operators came with opset 18."""
    bit = node.params["move"].bit
    wide = _wide(w, node, operands[0])
    total = w.emit("Add", [wide, _int(w, 1 << bit)], _wide_meta(node), near=node)
    return _narrow(w, node, w.emit("Mod", [total, _int(w, 2 << bit)], _wide_meta(node), near=node))


def _clear_bit(w: Writer, node: Node, operands: Operands) -> Made:
    wide = _wide(w, node, operands[0])
    bit = node.params["move"].bit
    return _narrow(w, node, w.emit("Mod", [wide, _int(w, 1 << bit)], _wide_meta(node), near=node))


def _int(w: Writer, number: int) -> ir.Value:
    return w.array(np.array(number, np.int32), "bit")


def _wide_meta(node: Node) -> Meta:
    return Meta("int32", _meta(node).shape)


def _wide(w: Writer, node: Node, x: ir.Value | None) -> ir.Value:
    return w.emit("Cast", [x], _wide_meta(node), {"to": int(ir.DataType.INT32)}, near=node)


def _narrow(w: Writer, node: Node, x: ir.Value) -> Made:
    return "", "Cast", [x], {"to": int(dtype_of(_meta(node).dtype))}


# ------------------------------------------------------------------------------------------ quantizers


def _quantizer(op_type: str) -> Maker:
    def make(w: Writer, node: Node, operands: Operands) -> Made:
        quant = quant_of(node)
        x, scale, zero, t = (*operands, None, None, None)[:4]
        settings: dict[str, Any] = {"numbers": str(quant.numbers), "block": list(quant.block)}
        if node.params.get("seed", 0):
            settings["seed"] = node.params["seed"]
        if op_type == "Dequantize":
            meta = _meta(node)
            settings |= {"shape": meta.shape, "dtype": int(dtype_of(meta.dtype))}
        if op_type == "Quantize" and scale is None:
            return DOMAIN, "DynamicQuantize", [x, t], settings
        return DOMAIN, op_type, [x, scale, zero, t], settings

    return make


MAKERS: dict[str, Maker] = {
    "reshape": _reshape, "expand": _expand, "permute": _permute, "slice": _slice, "split": _split,
    "cat": _cat, "gather": _gather, "repeat": _repeat, "flip": _flip, "roll": _roll, "pad": _pad,
    "neg": _plain("Neg"), "abs": _plain("Abs"), "relu": _relu, "at_most": _at_most, "flip_bit": _flip_bit,
    "clear_bit": _clear_bit,
    **FUSED_MAKERS, "quantize": _quantizer("Quantize"), "dequantize": _quantizer("Dequantize"),
    "fake_quantize": _quantizer("FakeQuantize"),
}  # fmt: skip
