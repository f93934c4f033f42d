"""torch.ops.torchao.{choose_qparams,quantize,dequantize}_affine: any blocks, given as their sizes."""

from __future__ import annotations

from blockscale.graph.args import Args, Unreadable
from blockscale.graph.quant import Foreign, Quant, Read, Reader
from blockscale.graph.quantizers_affine import (
    dtype_of,
    form_of,
    numbers_of,
    range_of,
    say_block_size,
    why_decoded,
    why_dtype,
    why_stored,
)


def _block(a: Args, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A size that is the whole of its dimension is 0."""
    sizes = a.ints("block_size")
    if len(sizes) != len(shape):
        raise Unreadable(f"block_size {sizes} on {len(shape)} dimensions")
    return tuple(0 if b == n and b != 1 else b for b, n in zip(sizes, shape, strict=True))


def _quantize(a: Args) -> Read:
    dtype, shape = dtype_of(a, "output_dtype"), a.shape("input")
    low, high = range_of(a, dtype)
    block = _block(a, shape)
    form = form_of(a, block, shape, "scale", "zero_point")
    numbers = numbers_of(low, high, True, dtype)
    why = why_dtype(a, "input") or why_stored(dtype, numbers) or why_dtype(a, "scale", ("float32",))
    return "quantize", ("input", "scale", "zero_point"), Quant(
        numbers, block, False, form, say=None if form == "compact" else say_block_size,
        identity=(dtype, a.meta("zero_point").dtype), foreign=Foreign(why),
    )  # fmt: skip


def _dequantize(a: Args) -> Read:
    dtype, shape = dtype_of(a, "input_dtype"), a.shape("input")
    low, high = range_of(a, dtype)
    block = _block(a, shape)
    form = form_of(a, block, shape, "scale", "zero_point")
    scale = a.meta("scale").dtype
    numbers = numbers_of(low, high, "zero_point" in a, dtype, scale)
    result = a.out().dtype
    why = why_stored(dtype, numbers) or why_decoded(result, numbers, None)
    if scale not in ("float32", result):
        why = why or f"its product is of {scale} and {result}"
    return "dequantize", ("input", "scale", "zero_point"), Quant(
        numbers, block, False, form, say=None if form == "compact" else say_block_size,
        identity=(dtype, result), foreign=Foreign(why),
    )  # fmt: skip


_RULES = {
    "SYMMETRIC": "symmetric",
    "SYMMETRIC_NO_CLIPPING_ERR": "no_clip",
    "ASYMMETRIC": "asymmetric",
}


def _choose(a: Args) -> Read:
    dtype, shape, mapping = dtype_of(a, "target_dtype"), a.shape("input"), a.get("mapping_type")
    low, high = range_of(a, dtype)
    block = _block(a, shape)
    rule = _RULES.get(mapping)
    if rule is None:
        raise Unreadable(f"mapping_type is {mapping}")
    scale = a.out().dtype
    # The rule no_clip has no zero point; this operator gives one of 0 with it.
    numbers = numbers_of(low, high, rule != "no_clip", dtype, scale, dynamic=True, rule=rule)
    form = "full" if a.get("keepdim") else "compact"
    if form == "compact" and len(a.out().shape) < 2:
        form = "channel" if a.out().shape else "scalar"
    return "choose_params", ("input",), Quant(
        numbers, block, False, form, ("scale", "zero_point"), None if form == "compact" else say_block_size,
        None if rule == "asymmetric" else int((low + high + 1) / 2),
        identity=(dtype, a.get("eps"), a.out(1).dtype),
        foreign=Foreign("of a block with Inf it gives Inf, of one with NaN it gives NaN"),
    )  # fmt: skip


TORCHAO: dict[str, Reader] = {
    "torchao.choose_qparams_affine.default": _choose,
    "torchao.quantize_affine.default": _quantize,
    "torchao.dequantize_affine.default": _dequantize,
}
