"""FakeQuantize, Quantize, DynamicQuantize and Dequantize as functions of standard operators.

float32 arithmetic, an operator a rounding, in the order of `numerics.codec`: the same bits, also of NaN, Inf
and -0. What float32 cannot hold is refused (`why_not`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import onnx_ir as ir

from blockscale.forms import bits, grid
from blockscale.forms.blocks import Blocks, scaled, spread
from blockscale.forms.body import Body
from blockscale.forms.scales import Chosen, chosen, values
from blockscale.numerics.formats import FORMATS
from blockscale.numerics.scheme import Numbers

TENSOR_FORMATS = {ir.DataType.FLOAT: "f32", ir.DataType.BFLOAT16: "bf16", ir.DataType.FLOAT16: "f16"}


@dataclass(frozen=True)
class Spec:
    """What a function is made for.

    dtype   of the tensor with values
    given   which inputs are there beside the first: scale, zero_point, tensor_scale
    last    of Dequantize: the last size where packed bytes do not say it
    outputs how many of its outputs there are
    small   of Dequantize: its scales are known, and nothing that they give overflows
    """

    op_type: str
    numbers: Numbers
    blocks: Blocks
    dtype: ir.DataType
    given: tuple[str, ...]
    last: int | None = None
    outputs: int = 1
    small: bool = False

    @property
    def told(self) -> dict[str, str]:
        """For programs that read the file."""
        block = json.dumps(list(self.blocks.block))
        return {"op_type": self.op_type, "numbers": str(self.numbers), "block": block}

    @property
    def rank(self) -> int:
        return len(self.blocks.block)

    @property
    def tensor_format(self) -> str:
        return TENSOR_FORMATS[self.dtype]


def why_not(numbers: Numbers) -> str:
    """Why standard operators have not its bits; empty: they do."""
    row = numbers.dialect_row
    if numbers.rounding == "stochastic":
        return "standard operators have no Philox generator, whose numbers stochastic rounding takes"
    if numbers.rule == "mse":
        return "its rule adds up float64 squares in order, and standard operators add up in any"
    if row.nonfinite == "inf_large" and numbers.family != "affine":
        return f"in dialect {row.name!r} Inf counts as 2^128, which no float32 is"
    return ""


def function(spec: Spec, domain: str, name: str) -> ir.Function:
    first = "codes" if spec.op_type == "Dequantize" else "x"
    b = Body([first, *spec.given])
    outputs = dict(list(_MAKERS[spec.op_type](b, spec).items())[: spec.outputs])
    block = "×".join(map(str, spec.blocks.block)) or "()"
    return b.function(
        domain, name, outputs, f"{spec.op_type} of {spec.numbers} in blocks of {block}", spec.told
    )


# ------------------------------------------------------------------------------------------ parameters


def _stored(b: Body, spec: Spec) -> Chosen:
    """Parameters that are given."""
    scale, fmt = b["scale"], spec.numbers.scale_format
    zero = b.cast(b["zero_point"], ir.DataType.FLOAT) if "zero_point" in spec.given else None
    if fmt.name in TENSOR_FORMATS.values():
        wide = scale if fmt.name == "f32" else b.cast(scale, ir.DataType.FLOAT)
        return Chosen(wide, scale, zero)
    table = b.f32(fmt.decode(range(1 << fmt.bits)))
    wide = b("Gather", table, b.cast(scale, ir.DataType.INT32))
    if "tensor_scale" in spec.given:
        wide = b("Mul", wide, b["tensor_scale"])
    return Chosen(wide, scale, zero)


def parameters(b: Body, spec: Spec, x: ir.Value) -> Chosen:
    if "scale" in spec.given:
        return _stored(b, spec)
    t = b["tensor_scale"] if "tensor_scale" in spec.given else None
    return chosen(b, values(b, x, spec.numbers), spec.blocks, spec.numbers, spec.tensor_format, t)


# ------------------------------------------------------------------------------------------ to the grid


def _on_grid(b: Body, spec: Spec, x: ir.Value, found: Chosen) -> tuple[ir.Value, ir.Value]:
    """x / scale, rounded and saturated, relative to the zero point; and the scale of each element."""
    numbers, row, blocks = spec.numbers, spec.numbers.dialect_row, spec.blocks.fine(spec.numbers.sub_block)
    scale = spread(b, found.effective, x, blocks)
    x = b.where(b("IsNaN", x), b.f32(0), x)
    if row.reciprocal and numbers.family == "affine":
        inverse = spread(b, b("Reciprocal", found.effective), x, blocks)
        v = b("Mul", x, inverse)
    elif numbers.family == "tensor_scaled":  # a scale of 0 is that of a block of zeros
        zero = b("Equal", scale, b.f32(0))
        v = b("Div", b.where(b("And", b("IsInf", x), zero), b.f32(0), x), b.where(zero, b.f32(1), scale))
        v = b("Mul", v, b.where(zero, b.f32(0), b.f32(1)))
    else:
        v = b("Div", x, scale)
    low, high = _limits(b, numbers, found)
    low, high = (spread(b, one, x, blocks) if found.zero_point is not None else one for one in (low, high))
    v = b("Min", b("Max", v, low), high)
    r = grid.rounded(b, v, numbers.element_format, str(numbers.rounding), row.nearly_half)
    return grid.with_signs(b, r, v, x, numbers), scale


def _limits(b: Body, numbers: Numbers, found: Chosen) -> tuple[ir.Value, ir.Value]:
    """Least and greatest value on the grid, relative to the zero point."""
    element = numbers.element_format
    if numbers.quant_min is None or numbers.quant_max is None:
        least = -element.max
        if element.is_fixed:
            least = numbers.dialect_row.least_code(element) * 2.0**-element.mantissa_bits
        return b.f32(least), b.f32(element.max)
    low, high = b.f32(numbers.quant_min), b.f32(numbers.quant_max)
    if found.zero_point is None:
        return low, high
    return b("Sub", low, found.zero_point), b("Sub", high, found.zero_point)


def wide(b: Body, spec: Spec) -> ir.Value:
    """float32, subnormal numbers as 0 where the dialect has none."""
    x = b["x"] if spec.dtype == ir.DataType.FLOAT else b.cast(b["x"], ir.DataType.FLOAT)
    if not spec.numbers.dialect_row.flushes:
        return x
    return b.where(b("GreaterOrEqual", b("Abs", x), b.f32(2.0**-126)), x, b("Mul", x, b.f32(0)))


def narrowed(b: Body, spec: Spec, y: ir.Value, finite: ir.Value | None = None) -> ir.Value:
    """In the dtype of the tensor. What overflows becomes the largest finite value, unless the dialect's does not."""
    if spec.numbers.dialect_row.saturates:
        top = FORMATS[spec.tensor_format].max
        over, under = b("Greater", y, b.f32(top)), b("Less", y, b.f32(-top))
        if finite is not None:
            over, under = b("And", over, finite), b("And", under, finite)
        y = b.where(over, b.f32(top), b.where(under, b.f32(-top), y))
    return y if spec.dtype == ir.DataType.FLOAT else b.cast(y, spec.dtype)


# ------------------------------------------------------------------------------------------ operators


def _fake_quantize(b: Body, spec: Spec) -> dict[str, ir.Value]:
    x = wide(b, spec)
    r, scale = _on_grid(b, spec, x, parameters(b, spec, x))
    y = b("Mul", r, scale)
    if spec.numbers.dialect_row.nonfinite == "pass":
        y = b.where(b.any_of(b("IsNaN", x), b("IsInf", x)), x, y)
    return {"y": narrowed(b, spec, y)}


def _codes(b: Body, spec: Spec, x: ir.Value, found: Chosen) -> ir.Value:
    element = spec.numbers.element_format
    r, scale = _on_grid(b, spec, x, found)
    codes = grid.codes(b, r, element)
    if found.zero_point is not None:
        zero = spread(b, found.zero_point, x, spec.blocks)
        codes = b("Add", codes, b.cast(zero, ir.DataType.INT32))
    if spec.numbers.family != "affine":
        codes = b.where(b("IsNaN", scale), b.i32(0), codes)
    return bits.stored(b, codes, element, spec.rank)


def _quantize(b: Body, spec: Spec) -> dict[str, ir.Value]:
    x = wide(b, spec)
    return {"codes": _codes(b, spec, x, _stored(b, spec))}


def _dynamic_quantize(b: Body, spec: Spec) -> dict[str, ir.Value]:
    x = wide(b, spec)
    found = parameters(b, spec, x)
    is_byte = spec.numbers.scale_format.bits == 8
    scale = b.cast(found.stored, ir.DataType.UINT8) if is_byte else found.stored
    zero, t = b.i32([]), b.f32([])
    if found.zero_point is not None:
        zero = b.cast(found.zero_point, ir.DataType.INT32)
    if found.tensor_scale is not None:
        t = found.tensor_scale
    return {"codes": _codes(b, spec, x, found), "scale": scale, "zero_point": zero, "tensor_scale": t}


def _dequantize(b: Body, spec: Spec) -> dict[str, ir.Value]:
    """A runtime that folds constants does this once to each weight, so it is few operators on all elements."""
    element = spec.numbers.element_format
    found = _stored(b, spec)
    finite = None
    if element.packed:
        r = bits.values(b, b["codes"], element, spec.rank, spec.last)
    elif element.is_float:
        r = b("Gather", b.f32(element.decode(range(256))), b.cast(b["codes"], ir.DataType.INT32))
        if element.specials != "none" and not spec.small:
            finite = b("Not", b.any_of(b("IsNaN", r), b("IsInf", r)))
    else:
        r = b.cast(b["codes"], ir.DataType.FLOAT)
        if element.mantissa_bits:
            r = b("Mul", r, b.f32(2.0**-element.mantissa_bits))
    if found.zero_point is not None:
        r = b("Sub", r, spread(b, found.zero_point, r, spec.blocks))
    y = scaled(b, r, found.effective, spec.blocks)
    if spec.small and spec.dtype == ir.DataType.FLOAT:
        return {"y": y}
    return {"y": narrowed(b, spec, y, finite)}


_MAKERS = {
    "FakeQuantize": _fake_quantize, "Quantize": _quantize, "DynamicQuantize": _dynamic_quantize,
    "Dequantize": _dequantize,
}  # fmt: skip
