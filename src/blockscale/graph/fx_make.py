"""Kinds of ours → calls of torch operators: what passes make without a node to copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from blockscale.graph.dims import Of, sizes_from
from blockscale.graph.fx_fused import FUSED_MAKERS
from blockscale.graph.quant import quant_of
from blockscale.graph.view import Node

if TYPE_CHECKING:
    from blockscale.graph.fx_write import Writer

Made = tuple[Any, tuple[Any, ...], dict[str, Any]]
Operands = list[fx.Node | None]
_aten = torch.ops.aten
_END = 2**63 - 1


def _shape(node: Node) -> Any:
    meta = node.outputs[0].meta
    assert meta is not None
    return meta.shape


def _reshape(w: Writer, node: Node, operands: Operands) -> Made:
    source = node.slots[0]
    assert source is not None and source.meta is not None
    sizes = sizes_from(_shape(node), source.meta.shape)
    if sizes is None:
        return _aten.reshape.default, (operands[0], w.literal(_shape(node), node)), {}
    x: Any = operands[0]
    return _aten.reshape.default, (x, [w.size_of(x, s.index) if isinstance(s, Of) else s for s in sizes]), {}


def _expand(w: Writer, node: Node, operands: Operands) -> Made:
    source = node.slots[0]
    assert source is not None and source.meta is not None
    old = (None,) * (len(_shape(node)) - len(source.meta.shape)) + tuple(source.meta.shape)
    sizes = [-1 if n == m else w.size(m, node) for n, m in zip(old, _shape(node), strict=True)]
    return _aten.expand.default, (operands[0], sizes), {}


def _by_move(target: Any, arguments: Callable[[Any], tuple[Any, ...]]) -> Callable[..., Made]:
    def make(w: Writer, node: Node, operands: Operands) -> Made:
        return target, (operands[0], *arguments(node.params["move"])), {}

    return make


def _cat(w: Writer, node: Node, operands: Operands) -> Made:
    return _aten.cat.default, (operands, node.params["move"].axis), {}


def _pad(w: Writer, node: Node, operands: Operands) -> Made:
    move = node.params["move"]
    flat = [width for pair in reversed(move.widths) for width in pair]
    return _aten.constant_pad_nd.default, (operands[0], flat, move.value), {}


def _gather(w: Writer, node: Node, operands: Operands) -> Made:
    return _aten.index_select.default, (operands[0], node.params["move"].axis, operands[1]), {}


def _quantizer(name: str) -> Callable[..., Made]:
    def make(w: Writer, node: Node, operands: Operands) -> Made:
        quant = quant_of(node)
        x, *params = operands
        place = (str(quant.numbers), list(quant.block))
        ops = torch.ops.blockscale
        if name == "dequantize":
            meta = node.outputs[0].meta
            assert meta is not None
            scale, zero, t = (*params, None, None, None)[:3]
            shape = w.literal(list(meta.shape), node)
            return (
                ops.dequantize.default,
                (x, scale, zero, t, place[0], shape, place[1]),
                {"dtype": getattr(torch, meta.dtype)},
            )
        scale, zero, t = (*params, None, None, None)[:3]
        seed = node.params.get("seed", 0)
        more = {"seed": seed} if seed else {}
        if name == "quantize" and scale is None:
            return ops.dynamic_quantize.default, (x, *place, *((t,) if t is not None else ())), more
        given = [scale, zero, t]
        while given and given[-1] is None:
            given.pop()
        if name == "fake_quantize" and node.params.get("gradient", "straight") != "straight":
            more["gradient"] = node.params["gradient"]
        return getattr(ops, name).default, (x, *place, *given), more

    return make


MAKERS: dict[str, Callable[..., Made]] = {
    "reshape": _reshape,
    "expand": _expand,
    "permute": _by_move(_aten.permute.default, lambda m: (list(m.dims),)),
    "slice": _by_move(_aten.slice.Tensor, lambda m: (m.axis, m.start, _END if m.stop is None else m.stop, m.step)),
    "split": _by_move(_aten.split_with_sizes.default, lambda m: (list(m.sizes), m.axis)),
    "repeat": _by_move(_aten.repeat.default, lambda m: (list(m.times),)),
    "flip": _by_move(_aten.flip.default, lambda m: (list(m.axes),)),
    "roll": _by_move(_aten.roll.default, lambda m: (list(m.shifts), list(m.axes))),
    "neg": _by_move(_aten.neg.default, lambda m: ()),
    "abs": _by_move(_aten.abs.default, lambda m: ()),
    "relu": _by_move(_aten.clamp.default, lambda m: (m.value,)),
    "at_most": lambda w, node, operands: (_aten.clamp.default, (operands[0], None, node.params["value"]), {}),
    "flip_bit": _by_move(_aten.bitwise_xor.Scalar, lambda m: (1 << m.bit,)),
    "clear_bit": _by_move(_aten.bitwise_and.Scalar, lambda m: ((1 << m.bit) - 1,)),
    "cat": _cat,
    "pad": _pad,
    "gather": _gather,
    "quantize": _quantizer("quantize"),
    "dequantize": _quantizer("dequantize"),
    "fake_quantize": _quantizer("fake_quantize"),
    **FUSED_MAKERS,
}  # fmt: skip


def maker_of(node: Node) -> Callable[..., Made] | None:
    return MAKERS.get(node.kind)
