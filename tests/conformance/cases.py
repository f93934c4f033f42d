"""The layouts that conformance tests go through."""

from __future__ import annotations

from blockscale.numerics.dialects import dialect_named
from blockscale.numerics.formats import FLOAT_ELEMENTS, MX_ELEMENTS
from blockscale.numerics.scheme import Scheme

MX_RULES = ("floor", "ceil", "even", "rceil")
ROUNDINGS = ("half_even", "half_away", "half_up", "toward_zero", "half_zero")

# Our roundings by the names that peers give them.
QUARK_MODES = {"half_away": 0, "half_up": 1, "half_even": 2}
MICROXCALING_NAMES = {"half_away": "nearest", "half_even": "even", "toward_zero": "floor"}

QUARK = [(e, r) for e in MX_ELEMENTS for r in dialect_named("quark").roundings_of(e)]
MICROXCALING = [(e, r) for e in MX_ELEMENTS for r in MICROXCALING_NAMES]
TORCHAO = [(e, rule) for e in FLOAT_ELEMENTS for rule in MX_RULES]
# Ranges of integers that torchao's affine primitives are compared in.
AFFINE = {
    "int8": (-128, 127),
    "int8,quant_min=-127": (-127, 127),
    "int8,quant_min=-8,quant_max=6": (-8, 6),
    "int4": (-8, 7),
    "uint4": (0, 15),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
}


def mx(element: str, dialect: str = "ocp", rule: str | None = None, rounding: str | None = None) -> Scheme:
    return Scheme(element=element, dialect=dialect, rule=rule, rounding=rounding)


def nvfp4(dialect: str = "ocp") -> Scheme:
    return Scheme(element="fp4_e2m1", scale="fp8_e4m3", tensor_scale=True, block=16, dialect=dialect)
