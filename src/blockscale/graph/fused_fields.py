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

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from blockscale.errors import ArgumentError, DtypeError, ScaleError, UnknownNameError
from blockscale.graph.fused import OUT, Fused
from blockscale.numerics.formats import E8M0_ELEMENTS, ELEMENTS, Format, format_named
from blockscale.numerics.layout import Layout, block_of_scale
from blockscale.numerics.scheme import Numbers, numbers_named

NVFP4 = "nvfp4"
_SETTINGS = ("rule", "rounding", "dialect", "scale", "sub_block", "sub_shift")
_SCALE_FORMATS = {"uint8": "e8m0", "float32": "f32", "bfloat16": "bf16", "float16": "f16"}


class Fields(NamedTuple):
    """The five fields, and what they may leave open: the block, and the length of packed rows.

    scale and zero_point are tensors, or what stands for them in a graph.
    """

    scale: Any = None
    zero_point: Any = None
    dtype: str = ""
    quant_min: int | None = None
    quant_max: int | None = None
    block: Sequence[Any] | None = None
    last: Any = None

    @property
    def five(self) -> tuple[Any, Any, str, int | None, int | None]:
        return self[:5]

    @property
    def kind(self) -> Literal["float", "codes", "dynamic"]:
        if self.scale is not None:
            return "codes"
        return "dynamic" if self.dtype else "float"


FLOAT = Fields()


def fields_of(
    layout: Layout | None, scale: Any = None, zero_point: Any = None, tensor_scale: Any = None
) -> Fields:
    """How the fields say a layout. Without a layout: a float edge. Without a scale: dynamic."""
    if layout is None:
        return FLOAT
    numbers = layout.numbers
    if scale is None and not numbers.dynamic:
        raise ScaleError("scale", None, f"given: {numbers} is static")
    slot = tensor_scale if numbers.tensor_scale else zero_point if numbers.zero_point else None
    fields = Fields(scale, slot, _dtype_of(numbers, scale is not None), numbers.quant_min, numbers.quant_max)
    if scale is None:
        return fields._replace(block=layout.block)
    return fields._replace(block=_open_block(layout), last=_open_last(layout))


@lru_cache(maxsize=4096)
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
    if numbers.sub_block:
        own |= {"sub_block": numbers.sub_block, "sub_shift": numbers.sub_shift}
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


def arguments_of(
    row: Fused, operands: Sequence[Any], fields: Sequence[Fields], out: Fields = FLOAT, compute: Any = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a fused operator but the rest of ATen's, for operands and their fields.

    They are tensors, or what stands for them in a graph; None where there is no operand.
    """
    if not len(operands) == len(fields) == len(row.operands):
        wanted = f"one for each of {', '.join(one.name for one in row.operands)}"
        raise ArgumentError("operands, fields", (len(operands), len(fields)), wanted)
    settings: dict[str, Any] = {}
    for one, given in zip(row.operands, fields, strict=True):
        settings |= {f"{one.name}_block": given.block, f"{one.name}_last": given.last}
    settings |= {f"{OUT}_block": out.block, "compute": compute}
    fives = [value for given in (*fields, out) for value in given.five]
    return (*operands, *fives), {k: v for k, v in settings.items() if v is not None}


# ------------------------------------------------------------------------------------ reading them


def numbers_of(fields: Fields, scale_dtype: str | None, has_zero_point: bool) -> Numbers:
    """The numbers that fields with a dtype mean; the dtype of the scale as torch and numpy write it."""
    form = None
    if scale_dtype is not None:
        form = _SCALE_FORMATS.get(scale_dtype.removeprefix("torch."))
        if form is None:
            raise DtypeError("scale", scale_dtype, "uint8 (E8M0, or fp8_e4m3 of NVFP4) or a float dtype")
    return _numbers(fields.dtype, form, has_zero_point, fields.quant_min, fields.quant_max)


@lru_cache(maxsize=4096)
def _numbers(dtype: str, scale: str | None, zero_point: bool, low: int | None, high: int | None) -> Numbers:
    head, *settings = dtype.split(",")
    _check_head(head)
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


def _check_head(head: str) -> None:
    if not head:
        raise ScaleError("dtype", head, "the element's name beside a scale")
    if head != NVFP4 and head not in ELEMENTS:
        raise UnknownNameError("dtype", head, (*ELEMENTS, NVFP4))


def _default_scale(head: str) -> str:
    """Of dynamic operands: elements that MX has are MX."""
    return "e8m0" if head in E8M0_ELEMENTS else "f32"


def element_of(fields: Fields) -> Format:
    head = fields.dtype.partition(",")[0]
    _check_head(head)
    return format_named("fp4_e2m1" if head == NVFP4 else head)
