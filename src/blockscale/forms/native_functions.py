"""Functions that quantize and dequantize a tensor with QuantizeLinear and DequantizeLinear.

They make the scales as the portable form does, and leave rounding and saturating to the pair of operators.
"""

from __future__ import annotations

import onnx_ir as ir

from blockscale.forms import quantizers
from blockscale.forms.blocks import spread
from blockscale.forms.body import Body
from blockscale.forms.quantizers import Spec, narrowed, parameters, wide
from blockscale.forms.scales import Chosen
from blockscale.forms.types import Place, Runtime, code_type, has_its_range
from blockscale.numerics.scheme import Numbers


def why_not(numbers: Numbers) -> str:
    """Why QuantizeLinear has not its bits; empty: it has."""
    if numbers.dialect != "ocp":
        return f"QuantizeLinear has not the arithmetic of dialect {numbers.dialect!r}"
    if numbers.rounding != "half_even":
        return f"QuantizeLinear rounds half to even, not {numbers.rounding}"
    return quantizers.why_not(numbers)


def function(spec: Spec, place: Place, runtime: Runtime, domain: str, name: str) -> ir.Function:
    """FakeQuantize, static or dynamic."""
    b = Body(["x", *spec.given])
    numbers = spec.numbers
    x = wide(b, spec)
    found = parameters(b, spec, x)
    step = found.effective
    if numbers.element_format.name == "mxint8":
        step = b("Mul", step, b.f32(2.0**-numbers.element_format.mantissa_bits))
    if numbers.family == "tensor_scaled":  # a scale of 0 is that of a block that is rounded to 0 by any other
        step = b.where(b("Equal", step, b.f32(0)), b.f32(1), step)
    if numbers.family == "affine":
        x = b.where(b("IsNaN", x), b.f32(0), x)
    if numbers.family == "affine" or not has_its_range(numbers, runtime):  # Inf wraps in some runtimes
        x = _limited(b, x, step, found, spec)
    y = _pair(b, x, step, found.zero_point, place, numbers, runtime)
    said = f"FakeQuantize of {numbers} as QuantizeLinear and DequantizeLinear"
    return b.function(domain, name, {"y": narrowed(b, spec, y)}, said, spec.told)


def _limited(b: Body, x: ir.Value, step: ir.Value, found: Chosen, spec: Spec) -> ir.Value:
    """What lies beyond the range of the element is put on its ends: the type has more codes."""
    numbers = spec.numbers
    element = numbers.element_format
    least = numbers.dialect_row.least_code(element) if numbers.quant_min is None else numbers.quant_min
    most = numbers.quant_max if numbers.quant_max is not None else element.max_code
    low, high = b.f32(least), b.f32(most)
    if found.zero_point is not None:
        low, high = b("Sub", low, found.zero_point), b("Sub", high, found.zero_point)
    ends = (spread(b, b("Mul", one, step), x, spec.blocks) for one in (low, high))
    return b("Min", b("Max", x, next(ends)), next(ends))


def _pair(
    b: Body,
    x: ir.Value,
    step: ir.Value,
    zero: ir.Value | None,
    place: Place,
    numbers: Numbers,
    runtime: Runtime,
) -> ir.Value:
    """Scales are float32 here: a byte of 0, 2^-127, is a subnormal number that few casts keep."""
    codes = code_type(numbers, runtime)
    if place.scale_shape is not None:
        step = b("Reshape", step, b.i64(place.scale_shape))
    more = [step]
    if zero is not None:
        if place.scale_shape is not None:
            zero = b("Reshape", zero, b.i64(place.scale_shape))
        more.append(b.cast(zero, codes))
    settings = place.attributes
    to = {} if zero is not None else {"output_dtype": int(codes)}
    q = b("QuantizeLinear", x, *more, **settings, **to)
    return b("DequantizeLinear", q, *more, **settings)
