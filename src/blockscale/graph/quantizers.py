"""Operators that quantize, whoever's, by qualified name → their kind, operands and Quant.

A reader gets the arguments by the operator's own names. Its operator need not be installed anywhere: the
graph that holds it has its schema.
"""

from __future__ import annotations

from typing import Any

from blockscale.graph.args import Args
from blockscale.graph.dims import Dims
from blockscale.graph.quant import Quant, Read, Reader
from blockscale.graph.quantizers_aten import ATEN
from blockscale.graph.quantizers_pt2e import PT2E
from blockscale.graph.quantizers_tensor_cast import TENSOR_CAST
from blockscale.graph.quantizers_tico import TICO
from blockscale.graph.quantizers_torchao import TORCHAO
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import Numbers, numbers_named

_PARAMS = ("scale", "zero_point", "tensor_scale")


def _say_ours(layout: Layout, dims: Dims) -> dict[str, Any]:
    return {"block": list(layout.block)}


def ours(
    numbers: Numbers, block: tuple[int, ...], seed: int = 0, gradient: str = "straight", **fields: Any
) -> Quant:
    """Of fake_quantize and the quantizes of blockscale."""
    return Quant(numbers, block, say=_say_ours, identity=(seed, gradient), **fields)


def our_dequantize(numbers: Numbers, block: tuple[int, ...], dtype: str) -> Quant:
    return Quant(numbers, block, say=_say_dequantize, identity=(dtype,))


def _ours(a: Args, **fields: Any) -> Quant:
    numbers, seed, gradient = numbers_named(a.get("numbers")), a.get("seed", 0), a.get("gradient", "straight")
    return ours(numbers, a.ints("block"), seed, gradient, **fields)


def _fake_quantize(a: Args) -> Read:
    return "fake_quantize", ("x", *_PARAMS), _ours(a)


def _quantize(a: Args) -> Read:
    return "quantize", ("x", *_PARAMS), _ours(a)


def _dynamic_quantize(a: Args) -> Read:
    outputs = ("codes", "scale", "zero_point", "tensor_scale")
    zero_point = None if numbers_named(a.get("numbers")).zero_point else 0
    return "quantize", ("x", *_PARAMS), _ours(a, outputs=outputs, zero_point=zero_point)


def _dequantize(a: Args) -> Read:
    quant = our_dequantize(numbers_named(a.get("numbers")), a.ints("block"), a.out().dtype)
    return "dequantize", ("codes", *_PARAMS), quant


def _say_dequantize(layout: Layout, dims: Dims) -> dict[str, Any]:
    return {"block": list(layout.block), "shape": dims}


READERS: dict[str, Reader] = {
    "blockscale.fake_quantize.default": _fake_quantize,
    "blockscale.quantize.default": _quantize,
    "blockscale.dynamic_quantize.default": _dynamic_quantize,
    "blockscale.dequantize.default": _dequantize,
    **ATEN,
    **PT2E,
    **TORCHAO,
    **TICO,
    **TENSOR_CAST,
}
