"""What foreign affine quantizers have in common: numbers from a dtype and its limits, the forms of scales,
and how other blocks are said.

All of them that follow torch multiply by the reciprocal of the scale and do not saturate on the way back:
dialect `torchao`. NaN, whose code torch leaves open, has code zero_point here.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from blockscale.errors import BlockscaleError
from blockscale.graph.args import Args, Unreadable
from blockscale.graph.dims import Dims
from blockscale.numerics.formats import FORMATS
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import Numbers

_STORED = ("int8", "uint8", "int16", "uint16")  # dtypes that hold one code an element, as ours do
_WIDTHS = (4, 8, 16)
_SCALES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
_EXACT_UP_TO = {"float32": 1 << 24, "bfloat16": 1 << 8, "float16": 1 << 11}


# ------------------------------------------------------------------------------------------- numbers


def dtype_of(a: Args, name: str, default: str = "") -> str:
    """The name of a dtype argument, whatever framework's it is."""
    found = a.get(name)
    return default if found is None else str(found).rpartition(".")[2]


def element_of(low: int, high: int, dtype: str = "") -> str:
    """The integers that hold codes low..high; as wide as `dtype` where one is given."""
    if dtype in _STORED:
        row = FORMATS[dtype]
        if not row.min_code <= low < high <= row.max_code:
            raise Unreadable(f"codes {low}..{high} do not fit {dtype}")
        return dtype
    if dtype.startswith(("float", "bfloat")):
        raise Unreadable(f"values are rounded to integers before they become {dtype}: no format does that")
    widths = _WIDTHS[1:] if dtype else _WIDTHS  # what has a dtype has a whole element for each code
    for bits in widths:
        name = f"{'' if low < 0 else 'u'}int{bits}"
        row = FORMATS[name]
        if row.min_code <= low < high <= row.max_code:
            return name
    raise Unreadable(f"no integer format of up to 16 bits holds codes {low}..{high}")


@lru_cache(maxsize=4096)
def numbers_of(
    low: int, high: int, zero_point: bool, dtype: str = "", scale: str = "float32", dialect: str = "torchao",
    dynamic: bool = False, rule: str | None = None,
) -> Numbers:  # fmt: skip
    try:
        return Numbers(
            element=element_of(low, high, dtype), scale=_SCALES.get(scale, "f32"),
            zero_point=zero_point or not low <= 0 < high, quant_min=low, quant_max=high, dialect=dialect,
            dynamic=dynamic, rule=rule,
        )  # fmt: skip
    except BlockscaleError as error:
        raise Unreadable(str(error)) from None


def range_of(a: Args, dtype: str) -> tuple[int, int]:
    """quant_min and quant_max, by default the range of the dtype."""
    row = FORMATS.get(dtype)
    limits = []
    for name, default in (("quant_min", row and row.min_code), ("quant_max", row and row.max_code)):
        found = a.array(name).reshape(-1)[0] if name in a.tensors else a.get(name, default)
        if found is None or found != int(found):
            raise Unreadable(f"{name} = {found} is no integer")
        limits.append(int(found))
    return limits[0], limits[1]


# ------------------------------------------------------------------------------- why it is not exact


def why_stored(dtype: str, numbers: Numbers) -> str:
    """`dtype` holds the codes of the foreign operator; a name as uint4 means that uint8 does."""
    if dtype in _STORED or (dtype.startswith("uint") and int(dtype[4:]) < 8):
        return ""
    return f"its codes are {dtype}, ours would be {numbers.element_format.storage_dtype}"


def why_dtype(a: Args, name: str, allowed: tuple[str, ...] = ("float32", "bfloat16", "float16")) -> str:
    found = a.meta(name).dtype
    return "" if found in allowed else f"{name} is {found}, not {' or '.join(allowed)}"


@lru_cache(maxsize=4096)
def why_scale(scale: float, wide: bool) -> str:
    """Of a scale in the arguments; `wide`: it is divided into 1 in float64, and only then rounded."""
    with np.errstate(all="ignore"):
        narrow = np.float32(scale)
        if not (narrow > 0 and np.isfinite(narrow)):
            return f"its scale, {scale}, is not positive and finite in float32"
        if wide and np.float32(1 / scale) != np.float32(1) / narrow:
            return f"1 / {scale} is rounded from float64"
    return ""


def why_zero(zero_point: int, low: int, high: int) -> str:
    return "" if low <= zero_point <= high else f"its zero point, {zero_point}, is not in {low}..{high}"


def why_decoded(dtype: str, numbers: Numbers, zero_point: int | None) -> str:
    """Of a dequantize that subtracts in its output dtype; None: any zero point."""
    row = numbers.element_format
    low, high = row.min_code, row.max_code
    zeros = (numbers.quant_min or 0, numbers.quant_max or 0) if zero_point is None else (zero_point,)
    most = max(abs(code - zero) for code in (low, high) for zero in (0, *zeros))
    limit = _EXACT_UP_TO.get(dtype)
    if limit is None:
        return f"its result is {dtype}"
    return "" if most <= limit else f"{dtype} does not hold the difference of a code and its zero point"


# ------------------------------------------------------------------------------------- forms of scales


def form_of(a: Args, block: tuple[int, ...], shape: tuple[int, ...], *names: str) -> str:
    """How scales (and zero points, which must agree) are given for a tensor of `shape`: see Quant.scale."""
    pairs = zip(shape, block, strict=True)
    full = tuple(1 if b == 0 else -(-n // b) for n, b in pairs)
    found = set()
    for name in names:
        if name in a.tensors and a.value(name) is not None:
            found.add(_form(name, a.shape(name), full))
    return found.pop() if len(found) == 1 else "compact"


def _form(name: str, given: tuple[int, ...], full: tuple[int, ...]) -> str:
    if given == full:
        return "full"
    if math.prod(given) != math.prod(full):
        raise Unreadable(f"{name} of shape {given} for blocks that need {full}")
    if math.prod(given) == 1:
        return "scalar"
    return "channel" if len(given) == 1 and sum(n != 1 for n in full) == 1 else "compact"


def whole(rank: int) -> tuple[int, ...]:
    return (0,) * rank


def per_channel(rank: int, axis: int) -> tuple[int, ...]:
    if not -rank <= axis < rank:
        raise Unreadable(f"axis {axis} on {rank} dimensions")
    return tuple(int(i == axis % rank) for i in range(rank))


# ------------------------------------------------------------------------------------ saying other blocks


def say_whole(layout: Layout, dims: Dims) -> dict[str, Any] | str:
    return {} if layout.per_tensor else "it has one scale for the tensor"


def say_channel(layout: Layout, dims: Dims) -> dict[str, Any] | str:
    """One scale for each index of `axis`; where there is one scale, `axis` has one index."""
    scales = layout.scale_shape
    wide = [i for i, n in enumerate(scales) if n != 1]
    single = [i for i, n in enumerate(layout.shape) if n == 1]
    axis = (wide or single or [-1])[0]
    if len(wide) > 1 or axis < 0 or scales[axis] != layout.shape[axis]:
        return "it has one scale for each index of one dimension"
    return {"axis": axis}


def say_token(layout: Layout, dims: Dims) -> dict[str, Any] | str:
    if layout.scale_shape == (*layout.shape[:-1], 1) and layout.rank:
        return {}
    return "it has one scale for each row of the last dimension"


def say_block_size(layout: Layout, dims: Dims) -> dict[str, Any] | str:
    """Blocks as sizes, which divide their dimensions."""
    sizes: list[Any] = []
    for n, b, dim in zip(layout.shape, layout.block, dims, strict=True):
        if b and b < n and n % b:
            return f"its blocks of {b} have to divide the dimension"
        sizes.append(b if 0 < b < n else dim)
    return {"block_size": sizes}
