"""torch.ops.quantized_decomposed.*: what PT2E makes of a model.

Per tensor and per channel, codes are clamp(round(x · (1 / scale)) + zero_point); per token and per group the
zero point is added before rounding, which is the same only where it is 0. NaN has no defined code.
"""

from __future__ import annotations

from typing import Any

from blockscale.graph.args import Args, Unreadable
from blockscale.graph.dims import Dims
from blockscale.graph.quant import Foreign, Quant, Read, Reader, Say
from blockscale.graph.quantizers_affine import (
    dtype_of,
    form_of,
    numbers_of,
    per_channel,
    range_of,
    say_channel,
    say_token,
    say_whole,
    whole,
    why_decoded,
    why_dtype,
    why_scale,
    why_stored,
    why_zero,
)
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import Numbers


def _limited(a: Args, zero_point: bool, scale: str = "float32") -> tuple[Numbers, str, tuple[Any, ...]]:
    """Numbers, the dtype of the codes, and what else decides the result."""
    dtype = dtype_of(a, "dtype")
    low, high = range_of(a, dtype)
    return numbers_of(low, high, zero_point, dtype, scale), dtype, (dtype,)


def _result(a: Args) -> str:
    return a.out().dtype


# ----------------------------------------------------------------------------------------- per tensor


def _quantize_python(a: Args) -> Read:
    scale, zero = float(a.get("scale")), a.int("zero_point")
    numbers, dtype, identity = _limited(a, zero != 0)
    low, high = range_of(a, dtype)
    why = (
        why_dtype(a, "input")
        or why_stored(dtype, numbers)
        or why_scale(scale, wide=True)
        or why_zero(zero, low, high)
    )
    block = whole(len(a.shape("input")))
    return "quantize", ("input",), Quant(
        numbers, block, False, "python", say=say_whole, zero_point=zero, identity=identity,
        foreign=Foreign(why, scale),
    )  # fmt: skip


def _dequantize_python(a: Args) -> Read:
    scale, zero = float(a.get("scale")), a.int("zero_point")
    numbers, dtype, identity = _limited(a, zero != 0)
    low, high = range_of(a, dtype)
    why = (
        why_stored(dtype, numbers)
        or why_decoded(_result(a), numbers, zero)
        or why_scale(scale, wide=False)
        or why_zero(zero, low, high)
    )
    block = whole(len(a.shape("input")))
    return "dequantize", ("input",), Quant(
        numbers, block, False, "python", say=say_whole, zero_point=zero, identity=(*identity, _result(a)),
        foreign=Foreign(why, scale),
    )  # fmt: skip


def _quantize_tensor(a: Args) -> Read:
    numbers, dtype, identity = _limited(a, True)
    shape = a.shape("input")
    block = whole(len(shape))
    form_of(a, block, shape, "scale", "zero_point")
    # Parameters become Python numbers: float32 scales arrive as they are, others are divided in float64.
    why = why_dtype(a, "input") or why_stored(dtype, numbers) or why_dtype(a, "scale", ("float32",))
    return "quantize", ("input", "scale", "zero_point"), Quant(
        numbers, block, False, "scalar", say=say_whole, identity=(*identity, *range_of(a, dtype)),
        foreign=Foreign(why),
    )  # fmt: skip


def _dequantize_tensor(a: Args) -> Read:
    numbers, dtype, identity = _limited(a, True)
    shape = a.shape("input")
    block = whole(len(shape))
    form_of(a, block, shape, "scale", "zero_point")
    why = (
        why_stored(dtype, numbers)
        or why_decoded(_result(a), numbers, None)
        or why_dtype(a, "scale", ("float32",))
    )
    return (
        "dequantize",
        ("input", "scale", "zero_point"),
        Quant(
            numbers,
            block,
            False,
            "scalar",
            say=say_whole,
            identity=(*identity, _result(a)),
            foreign=Foreign(why),
        ),
    )


# --------------------------------------------------------------------------- per channel, token, group


def _several(
    kind: str, a: Args, block: tuple[int, ...], say: Say, *, before_rounding: bool = False
) -> Read:  # fmt: skip
    """Scales and zero points are tensors with one entry a block."""
    scale = a.meta("scales").dtype
    numbers, dtype, identity = _limited(a, "zero_points" in a, scale)
    form = form_of(a, block, a.shape("input"), "scales", "zero_points")
    if say is say_channel:
        form = "channel"
    elif say is say_token and form not in ("full", "scalar"):
        raise Unreadable("its scales are multiplied with something other than the rows")
    why = why_stored(dtype, numbers)
    if kind == "quantize":
        why = why or why_dtype(a, "input") or why_dtype(a, "scales", ("float32",))
    else:
        why = why or _why_multiplied(a, scale)
    zero = a.meta("zero_points").dtype if "zero_points" in a else ""
    return kind, ("input", "scales", "zero_points"), Quant(
        numbers, block, False, form, say=None if form == "compact" else say,
        identity=(*identity, zero, _result(a)), foreign=Foreign(why, zero_only=before_rounding),
    )  # fmt: skip


def _why_multiplied(a: Args, scale: str) -> str:
    """Of (codes − zero points) · scales in the dtypes that these have, and then cast."""
    if scale == "float64" and _result(a) != "float32":
        return "its product is rounded from float64"
    if scale not in ("float32", "float64"):
        return f"its product is rounded to {scale}"
    if "zero_points" in a and a.meta("zero_points").dtype not in ("int32", "int64", "float32"):
        return f"its zero points are {a.meta('zero_points').dtype}, and may wrap around"
    return "" if _result(a) in ("float32", "bfloat16", "float16") else f"its result is {_result(a)}"


def _channel(kind: str) -> Reader:
    def read(a: Args) -> Read:
        return _several(kind, a, per_channel(len(a.shape("input")), a.int("axis")), say_channel)

    return read


def _token(kind: str) -> Reader:
    def read(a: Args) -> Read:
        block = _rows(a)
        return _several(kind, a, block, say_token, before_rounding=kind == "quantize")

    return read


def _rows(a: Args) -> tuple[int, ...]:
    rank = len(a.shape("input"))
    if not rank:
        raise Unreadable("it has no dimension")
    return (1,) * (rank - 1) + (0,)


def _group(kind: str) -> Reader:
    def read(a: Args) -> Read:
        shape, size = a.shape("input"), a.int("group_size", 128)
        if len(shape) != 2 or size < 1:
            raise Unreadable(f"groups of {size} on {len(shape)} dimensions")
        block = (1, 0 if size >= shape[1] else size)
        return _several(kind, a, block, _say_group, before_rounding=kind == "quantize")

    return read


def _say_group(layout: Layout, dims: Dims) -> dict[str, Any] | str:
    if layout.rank != 2 or layout.scale_shape[0] != layout.shape[0]:
        return "it has groups along the rows of a matrix"
    (_, n), (_, b) = layout.shape, layout.block
    if b and n % b:
        return f"its groups of {b} have to divide the row"
    size = b or dims[1]
    return {"group_size": size} if isinstance(size, int) else "its groups have a size known only at run time"


# ----------------------------------------------------------------------------------------- parameters


def _choose(rule: str, rows: bool) -> Reader:
    def read(a: Args) -> Read:
        dtype = dtype_of(a, "dtype")
        low, high = range_of(a, dtype)
        block = _rows(a) if rows else whole(len(a.shape("input")))
        numbers = numbers_of(low, high, rule == "asymmetric", dtype, dynamic=True, rule=rule)
        return "choose_params", ("input",), Quant(
            numbers, block, False, "full" if rows else "scalar", ("scale", "zero_point"),
            say_token if rows else say_whole, None if rule == "asymmetric" else 0,
            identity=(dtype, a.get("eps"), rule), foreign=Foreign(_OWN_RULE),
        )  # fmt: skip

    return read


_OWN_RULE = "its least scale, and its scale of a tensor with NaN or Inf, are its own"

PT2E: dict[str, Reader] = {
    f"quantized_decomposed.{name}": reader
    for name, reader in {
        "quantize_per_tensor.default": _quantize_python,
        "quantize_per_tensor.tensor": _quantize_tensor,
        "quantize_per_tensor.tensor2": _quantize_tensor,
        "dequantize_per_tensor.default": _dequantize_python,
        "dequantize_per_tensor.tensor": _dequantize_tensor,
        "dequantize_per_tensor.tensor2": _dequantize_tensor,
        "quantize_per_channel.default": _channel("quantize"),
        "dequantize_per_channel.default": _channel("dequantize"),
        "quantize_per_token.default": _token("quantize"),
        "dequantize_per_token.default": _token("dequantize"),
        "quantize_per_channel_group.default": _group("quantize"),
        "dequantize_per_channel_group.default": _group("dequantize"),
        "choose_qparams.tensor": _choose("asymmetric", False),
        "choose_qparams_symmetric.tensor": _choose("symmetric", False),
        "choose_qparams_per_token.default": _choose("symmetric", True),
        "choose_qparams_per_token_asymmetric.default": _choose("asymmetric", True),
    }.items()
}
