"""torch.ops.circle_custom.*: TICO's MX operators, in the arithmetic of microxcaling.

mx_fake_quantize computes. quantize_mx and dequantize_mx only say where codes would be: their result is the
tensor that they are given, without scales, so they are replaced as a pair.
"""

from __future__ import annotations

from typing import Any

from blockscale.errors import BlockscaleError
from blockscale.graph.args import Args, Unreadable
from blockscale.graph.dims import Dims
from blockscale.graph.quant import Foreign, Quant, Read, Reader
from blockscale.graph.quantizers_affine import per_channel, why_dtype
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import Numbers

BLOCK = 32
_ELEMENTS = {
    "int8": "mxint8",
    "fp4": "fp4_e2m1",
    "fp4_e2m1": "fp4_e2m1",
    "fp6_e3m2": "fp6_e3m2",
    "fp6_e2m3": "fp6_e2m3",
    "fp8_e4m3": "fp8_e4m3",
    "fp8_e5m2": "fp8_e5m2",
}
_ROUNDINGS = {"nearest": "half_away", "even": "half_even", "floor": "toward_zero"}


def _reader(kind: str, pair: bool) -> Reader:
    def read(a: Args) -> Read:
        element, rounding = a.get("elem_format"), a.get("round")
        if element not in _ELEMENTS:
            raise Unreadable(f"elem_format is {element}")
        if rounding not in _ROUNDINGS:
            raise Unreadable(f"round is {rounding}")
        if a.get("shared_exp_method") != "max":
            raise Unreadable(f"shared_exp_method is {a.get('shared_exp_method')}")
        try:
            numbers = Numbers(
                element=_ELEMENTS[element], dialect="microxcaling", rounding=_ROUNDINGS[rounding]
            )
        except BlockscaleError as error:
            raise Unreadable(str(error)) from None
        ones = per_channel(len(a.shape("input_")), a.int("axis"))
        block = tuple(BLOCK if one else 1 for one in ones)
        why = why_dtype(a, "input_", ("float32",))
        return kind, ("input_",), Quant(numbers, block, False, say=_say_axis, foreign=Foreign(why, pair=pair))

    return read


def _say_axis(layout: Layout, dims: Dims) -> dict[str, Any] | str:
    """One dimension in blocks of 32, no blocks in the others."""
    axes = [i for i, b in enumerate(layout.block) if b == BLOCK]
    others = [i for i, b in enumerate(layout.block) if b != 1 and i not in axes]
    if len(axes) != 1 or any(layout.shape[i] != 1 for i in others):
        return f"it has blocks of {BLOCK} along one dimension"
    return {"axis": axes[0]}


TICO: dict[str, Reader] = {
    "circle_custom.mx_fake_quantize.default": _reader("fake_quantize", False),
    "circle_custom.quantize_mx.default": _reader("quantize", True),
    "circle_custom.dequantize_mx.default": _reader("dequantize", True),
}
