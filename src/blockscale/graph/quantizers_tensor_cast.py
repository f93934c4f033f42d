"""torch.ops.tensor_cast.*: a performance model's operators, which compute nothing.

Of `quantize` the arithmetic is told, clamp(round(x / scale) + offset); of the dynamic ones it is not, so
nothing can be said to have their bits. They move and combine as what they are.
"""

from __future__ import annotations

from typing import Any

from blockscale.graph.args import Args, Unreadable
from blockscale.graph.dims import Dims
from blockscale.graph.quant import Foreign, Quant, Read, Reader
from blockscale.graph.quantizers_affine import dtype_of, form_of, numbers_of, range_of, whole, why_dtype
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import Numbers

_UNTOLD = "tensor_cast does not tell how it chooses scales"


def _quantize(a: Args) -> Read:
    dtype, shape = dtype_of(a, "out_dtype", "int8"), a.shape("x")
    low, high = range_of(a, dtype)
    given = a.shape("scale")
    rank = len(shape)
    size = 1
    for n in given:
        size *= n
    if size == 1:
        block = whole(rank)
    elif len(given) <= rank and all(n in (1, m) for n, m in zip(given[::-1], shape[::-1], strict=False)):
        full = (1,) * (rank - len(given)) + given  # as torch broadcasts
        block = tuple(int(n == m != 1) for n, m in zip(full, shape, strict=True))
    else:
        raise Unreadable(f"scale of shape {given} does not broadcast to {shape}")
    form = form_of(a, block, shape, "scale", "offset")
    why = why_dtype(a, "x", ("float32",)) or why_dtype(a, "scale", ("float32",))
    return "quantize", ("x", "scale", "offset"), Quant(
        numbers_of(low, high, "offset" in a, dtype, dialect="ocp"), block, False, form,
        say=_say_broadcast if form in ("full", "scalar") else None, identity=(dtype,), foreign=Foreign(why),
    )  # fmt: skip


def _say_broadcast(layout: Layout, dims: Dims) -> dict[str, Any] | str:
    """No argument says the blocks: the scale is broadcast."""
    pairs = zip(layout.scale_shape, layout.shape, strict=True)
    return {} if all(n in (1, m) for n, m in pairs) else "its scales are broadcast: it has no blocks"


def _dynamic(zero_point: bool) -> Reader:
    def read(a: Args) -> Read:
        dtype, shape = dtype_of(a, "out_dtype", "int8"), a.shape("x")
        low, high = range_of(a, dtype)
        rank = len(shape)
        dims = a.ints("dims")
        if any(not -rank <= dim < rank for dim in dims):
            raise Unreadable(f"dims {dims} on {rank} dimensions")
        reduced = {dim % rank for dim in dims}
        block = tuple(0 if i in reduced else 1 for i in range(rank)) if dims else whole(rank)
        numbers = numbers_of(
            low, high, zero_point, dtype, dtype_of(a, "scale_dtype", "float32"), "ocp", dynamic=True
        )
        outputs = ("codes", "scale", "zero_point") if zero_point else ("codes", "scale")
        return "quantize", ("x",), Quant(
            numbers, block, False, "full" if dims else "scalar", outputs,
            say=_say_dims if dims else _say_no_dims, zero_point=None if zero_point else 0, identity=(dtype,),
            foreign=Foreign(_UNTOLD),
        )  # fmt: skip

    return read


def _say_no_dims(layout: Layout, dims: Dims) -> dict[str, Any] | str:
    return {} if layout.per_tensor else "it has one scale for the tensor"


def _say_dims(layout: Layout, dims: Dims) -> dict[str, Any] | str:
    """The dimensions that are reduced; none would mean all, with a scale of another rank."""
    reduced = [i for i, n in enumerate(layout.scale_shape) if n == 1]
    if any(n not in (1, m) for n, m in zip(layout.scale_shape, layout.shape, strict=True)):
        return "it has no blocks within a dimension"
    return {"dims": reduced} if reduced else "it has a scale for each element"


def _mxfp4(a: Args) -> Read:
    shape, size = a.shape("x"), a.int("group_size")
    if not shape or size < 1:
        raise Unreadable(f"groups of {size} on {len(shape)} dimensions")
    block = (1,) * (len(shape) - 1) + (size,)
    return "quantize", ("x",), Quant(
        Numbers(element="fp4_e2m1"), block, False, "full", ("codes", "scale"), say=_say_group_size,
        identity=(a.out().dtype,), foreign=Foreign(_UNTOLD),
    )  # fmt: skip


def _say_group_size(layout: Layout, dims: Dims) -> dict[str, Any] | str:
    """Groups along the last dimension; a longer one than the dimension is a group all the same."""
    if not layout.rank or layout.scale_shape[:-1] != layout.shape[:-1]:
        return "it has groups along the last dimension"
    size = layout.block[-1] or dims[-1]
    return {"group_size": size} if isinstance(size, int) else "its group has a size known only at run time"


TENSOR_CAST: dict[str, Reader] = {
    "tensor_cast.quantize.default": _quantize,
    "tensor_cast.dynamic_quantize_asymmetric.default": _dynamic(True),
    "tensor_cast.dynamic_quantize_symmetric.default": _dynamic(False),
    "tensor_cast.dynamic_quantize_mxfp4.default": _mxfp4,
}
