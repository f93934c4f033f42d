"""torch's own fake-quantize operators: clamp(round(x · (1 / scale)) + zero_point) in float32, and back.

What torch leaves open is not kept: NaN (it gives the least code, or what a conversion of NaN to an integer
gives) becomes 0 here, and per channel |x / scale| ≥ 2^63 (an overflow there) saturates.
"""

from __future__ import annotations

from blockscale.graph.args import Args, Unreadable
from blockscale.graph.quant import Foreign, Quant, Read, Reader
from blockscale.graph.quantizers_affine import (
    form_of,
    numbers_of,
    per_channel,
    range_of,
    say_channel,
    say_whole,
    whole,
    why_dtype,
    why_scale,
    why_zero,
)


def _per_tensor(outputs: tuple[str, ...]) -> Reader:
    def read(a: Args) -> Read:
        low, high = range_of(a, "")
        scale, zero = float(a.get("scale")), a.int("zero_point")
        why = why_dtype(a, "self") or why_scale(scale, wide=False) or why_zero(zero, low, high)
        return "fake_quantize", ("self",), Quant(
            numbers_of(low, high, zero != 0), whole(len(a.shape("self"))), scale="python", outputs=outputs,
            say=None if "mask" in outputs else say_whole, zero_point=zero, foreign=Foreign(why, scale),
        )  # fmt: skip

    return read


def _per_tensor_qparams(outputs: tuple[str, ...]) -> Reader:
    def read(a: Args) -> Read:
        if "fake_quant_enabled" in a and a.array("fake_quant_enabled").reshape(-1)[0] != 1:
            raise Unreadable("it is switched off")
        low, high = range_of(a, "")
        shape = a.shape("self")
        block = whole(len(shape))
        form_of(a, block, shape, "scale", "zero_point")
        why = why_dtype(a, "self") or why_dtype(a, "scale", ("float32",))
        return "fake_quantize", ("self", "scale", "zero_point"), Quant(
            numbers_of(low, high, True), block, scale="scalar", outputs=outputs,
            say=None if "mask" in outputs else say_whole, foreign=Foreign(why),
        )  # fmt: skip

    return read


def _per_channel(outputs: tuple[str, ...]) -> Reader:
    def read(a: Args) -> Read:
        low, high = range_of(a, "")
        shape = a.shape("self")
        block = per_channel(len(shape), a.int("axis"))
        form_of(a, block, shape, "scale", "zero_point")
        why = why_dtype(a, "self") or why_dtype(a, "scale", ("float32",))
        zero = a.meta("zero_point").dtype
        return "fake_quantize", ("self", "scale", "zero_point"), Quant(
            numbers_of(low, high, True), block, scale="channel", outputs=outputs,
            say=None if "mask" in outputs else say_channel, identity=(zero,),
            # A zero point that is no integer type is added before rounding.
            foreign=Foreign(why, zero_only=zero != "int32"),
        )  # fmt: skip

    return read


_X, _WITH_MASK = ("x",), ("x", "mask")
_CACHEMASK_QPARAMS = "aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default"

ATEN: dict[str, Reader] = {
    "aten.fake_quantize_per_tensor_affine.default": _per_tensor(_X),
    "aten.fake_quantize_per_tensor_affine_cachemask.default": _per_tensor(_WITH_MASK),
    "aten.fake_quantize_per_tensor_affine.tensor_qparams": _per_tensor_qparams(_X),
    _CACHEMASK_QPARAMS: _per_tensor_qparams(_WITH_MASK),
    "aten.fake_quantize_per_channel_affine.default": _per_channel(_X),
    "aten.fake_quantize_per_channel_affine_cachemask.default": _per_channel(_WITH_MASK),
}
