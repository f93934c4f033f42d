"""The five fields of an operand of a fused operator: which numbers they mean, and in which blocks.

    scale   zero_point    dtype                     the operand is
    None    None          ""                        a float edge: a float tensor as it is
    uint8   None          "fp4_e2m1", "mxint8", …   codes of MX, the scale in E8M0
    uint8   tensor scale  "nvfp4"                   codes of NVFP4, the scale in fp8_e4m3
    float   int32, None   "int8", "fp8_e4m3", …     affine codes
    None    None          any of these              dynamic: a float tensor, quantized inside

A scale has the operand's rank, or one element; where its shape leaves the block open (`block_of_scale`),
where a dimension is symbolic, and where there is no scale, the block is given beside the fields. NVFP4's
tensor scale, float32 of shape (), lies in the place of the zero point, which NVFP4 does not have. A zero
point of shape (0,) is none, as the operators return it.

dtype is the name of the element, then `,key=value` for what else decides a value and is not the default:
rule, rounding, dialect; scale (`fp6_e2m3,scale=fp8_e4m3` has two levels as NVFP4 has), and zero_point
where there is no scale to tell. quant_min and quant_max are None for an element's whole range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from torch import Tensor

from blockscale.errors import (
    BlockError,
    BlockscaleError,
    CombinationError,
    DtypeError,
    ScaleError,
    ShapeError,
    UnknownNameError,
)
from blockscale.numerics.formats import ELEMENTS, MX_ELEMENTS, format_named
from blockscale.numerics.layout import Layout, block_of_scale
from blockscale.numerics.scheme import Numbers, numbers_named
from blockscale.runtime.torch_bound import FORMAT_OF

NVFP4 = "nvfp4"
_SETTINGS = ("rule", "rounding", "dialect", "scale")


class Fields(NamedTuple):
    """The five fields, and what they may leave open: the block, and the length of packed rows."""

    scale: Any = None
    zero_point: Any = None
    dtype: str = ""
    quant_min: int | None = None
    quant_max: int | None = None
    block: Sequence[int] | None = None
    last: int | None = None

    @property
    def five(self) -> tuple[Any, Any, str, int | None, int | None]:
        return self[:5]

    @property
    def kind(self) -> Literal["float", "codes", "dynamic"]:
        if self.scale is not None:
            return "codes"
        return "dynamic" if self.dtype else "float"


FLOAT = Fields()


class Edge(NamedTuple):
    """What the codec's operators take."""

    numbers: str
    block: Sequence[int]
    scale: Tensor | None
    zero_point: Tensor | None
    tensor_scale: Tensor | None


def fields_of(
    layout: Layout | None, scale: Any = None, zero_point: Any = None, tensor_scale: Any = None
) -> Fields:
    """How the fields say a layout; scale, zero point and tensor scale are tensors or nodes of a graph.

    Without a layout: a float edge. Without a scale: dynamic.
    """
    if layout is None:
        return FLOAT
    numbers = layout.numbers
    if scale is None and not numbers.dynamic:
        raise ScaleError("scale", None, f"given: {numbers} is static")
    slot = tensor_scale if numbers.tensor_scale else zero_point
    fields = Fields(scale, slot, _dtype_of(numbers, scale is not None), numbers.quant_min, numbers.quant_max)
    if scale is None:
        return fields._replace(block=layout.block)
    return fields._replace(block=_open_block(layout), last=_open_last(layout))


def _dtype_of(numbers: Numbers, scale_given: bool) -> str:
    head = NVFP4 if numbers.tensor_scale and numbers.element == "fp4_e2m1" else numbers.element
    own: dict[str, object] = {}
    if numbers.tensor_scale:
        if head != NVFP4:
            own["scale"] = numbers.scale
    elif not scale_given and numbers.scale != _default_scale(head):
        own["scale"] = numbers.scale
    if not scale_given:
        if numbers.zero_point == numbers.element_format.signed:
            own["zero_point"] = str(numbers.zero_point).lower()
        if numbers.rule != replace(numbers, rule=None).rule:
            own["rule"] = numbers.rule
    if numbers.rounding != replace(numbers, rounding=None).rounding:
        own["rounding"] = numbers.rounding
    if numbers.dialect != "ocp":
        own["dialect"] = numbers.dialect
    return ",".join([head, *(f"{key}={value}" for key, value in own.items())])


def _open_block(layout: Layout) -> tuple[int, ...] | None:
    """The block, where the shapes do not tell it, or would tell another one at another size."""
    if any(b.bit_count() > 1 for b in layout.block):
        return layout.block
    try:
        found = block_of_scale(layout.shape, layout.scale_shape)
    except ScaleError:
        return layout.block
    pairs = zip(layout.scale_shape, layout.block, found, strict=True)
    return None if all(n == 1 or b == other for n, b, other in pairs) else layout.block


def _open_last(layout: Layout) -> int | None:
    """The length of a row, where its last byte has room for more codes."""
    if not layout.numbers.element_format.packed or not layout.shape:
        return None
    room = layout.codes_shape[-1] * 8 // layout.numbers.element_format.bits
    return None if room == layout.shape[-1] else layout.shape[-1]


# ------------------------------------------------------------------------------------ reading them


@contextmanager
def about(where: str) -> Iterator[None]:
    """Errors from here say where."""
    try:
        yield
    except BlockscaleError as error:
        error.args = (f"{where}: {error}",)
        raise


def numbers_of(fields: Fields) -> Numbers:
    """The numbers that fields with a dtype mean."""
    scale, zero_point = fields.scale, fields.zero_point
    form = None
    if scale is not None:
        form = {"torch.uint8": "e8m0"}.get(str(scale.dtype)) or FORMAT_OF.get(scale.dtype)
        if form is None:
            raise DtypeError("scale", scale.dtype, "uint8 (E8M0, or fp8_e4m3 of NVFP4) or a float dtype")
        if not fields.dtype:
            raise ScaleError("dtype", "", "the element's name beside a scale")
    has_zero = zero_point is not None and tuple(zero_point.shape) != (0,)
    return _numbers(fields.dtype, form, has_zero, fields.quant_min, fields.quant_max)


@lru_cache(maxsize=4096)
def _numbers(dtype: str, scale: str | None, zero_point: bool, low: int | None, high: int | None) -> Numbers:
    head, *settings = dtype.split(",")
    if head != NVFP4 and head not in ELEMENTS:
        raise UnknownNameError("dtype", head, (*ELEMENTS, NVFP4))
    keys = [setting.partition("=")[0] for setting in settings]
    allowed = _SETTINGS if scale else (*_SETTINGS, "zero_point")
    for key in keys:
        if key not in allowed:
            raise UnknownNameError(f"setting of dtype {dtype!r}", key, allowed)
    two_levels = head == NVFP4 or "scale=fp8_e4m3" in settings
    if two_levels:
        settings.append("tensor_scale=true")
    elif "scale" not in keys:
        settings.append(f"scale={scale or _default_scale(head)}")
    if scale and not two_levels:
        settings.append(f"zero_point={str(zero_point).lower()}")
    settings += [f"{k}={v}" for k, v in (("quant_min", low), ("quant_max", high)) if v is not None]
    return numbers_named(",".join([head, *settings]))


def _default_scale(head: str) -> str:
    """Of dynamic operands: elements that MX has are MX."""
    return "e8m0" if head in MX_ELEMENTS else "f32"


def edge_of(fields: Fields, shape: Sequence[Any], *, quantizes: bool) -> Edge:
    """Fields with a dtype, for an operand of that shape."""
    numbers = numbers_of(fields)
    if quantizes and numbers.rounding == "stochastic":
        raise CombinationError("rounding 'stochastic' has a seed, which fused operators do not take")
    scale, zero_point, block = fields.scale, fields.zero_point, fields.block
    if scale is None:
        if block is None:
            raise BlockError("block", None, f"given where there is no scale: one entry for each of {shape}")
        if len(block) != len(shape):
            raise BlockError("block", tuple(block), f"one entry a dimension of shape {tuple(shape)}")
    else:
        block = _block(shape, scale.shape, block)
        scale = _full_rank(scale, len(shape))
    if numbers.tensor_scale:
        return Edge(str(numbers), block, scale, None, zero_point)
    if zero_point is not None:
        zero_point = zero_point if tuple(zero_point.shape) == (0,) else _full_rank(zero_point, len(shape))
    return Edge(str(numbers), block, scale, zero_point, None)


def _block(shape: Sequence[Any], scale_shape: Sequence[Any], block: Sequence[Any] | None) -> Sequence[Any]:
    """Given, or inferred from the dimensions that are known.

    Of a symbolic dimension nothing is asked, as that would be a guard; fake kernels, the only ones to
    meet one, return the same whatever its block is.
    """
    if len(scale_shape) != len(shape):
        return block_of_scale(shape, scale_shape)
    if block is not None:
        if len(block) != len(shape):
            raise BlockError("block", tuple(block), f"one entry a dimension of shape {tuple(shape)}")
        return block
    known = [type(n) is int and type(g) is int for n, g in zip(shape, scale_shape, strict=True)]
    found = iter(block_of_scale(_those(shape, known), _those(scale_shape, known)))
    return [next(found) if one else 1 for one in known]


def _those(sizes: Sequence[Any], wanted: Sequence[bool]) -> tuple[Any, ...]:
    return tuple(n for n, one in zip(sizes, wanted, strict=True) if one)


def _full_rank(scale: Tensor, rank: int) -> Tensor:
    """A scale of one element may have any rank."""
    return scale if scale.dim() == rank or scale.numel() != 1 else scale.reshape((1,) * rank)


def shape_of(codes: Tensor, fields: Fields) -> tuple[Any, ...]:
    """Of the tensor that codes stand for; packed rows are full unless `last` says how long they are."""
    head = fields.dtype.partition(",")[0]
    element = format_named("fp4_e2m1" if head == NVFP4 else head)
    shape, last = tuple(codes.shape), fields.last
    if not shape:
        return shape
    stored = shape[-1]
    room = stored * 8 // element.bits if element.packed else stored
    if last is None:
        return (*shape[:-1], room)
    bytes_of_last = (last * element.bits + 7) // 8 if element.packed else last
    if type(bytes_of_last) is int and type(stored) is int and bytes_of_last != stored:
        raise ShapeError("last", last, f"a length that takes {stored} of {element.name} as stored in a row")
    return (*shape[:-1], last)
