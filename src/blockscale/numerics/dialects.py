"""DIALECTS: whose arithmetic. `ocp` is the project's own; each other row is one peer, to the bit.

A dialect is data: the codec and the compiled core read these fields and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from blockscale.errors import CombinationError, UnknownNameError
from blockscale.numerics.formats import (
    BFP_ELEMENTS,
    E8M0_ELEMENTS,
    ELEMENTS,
    FLOAT_ELEMENTS,
    INT_ELEMENTS,
    MX_ELEMENTS,
    Format,
)

MX_RULES = ("floor", "ceil", "even", "rceil", "mse")
AFFINE_RULES = ("symmetric", "no_clip", "asymmetric")
TENSOR_SCALED_RULES = ("amax",)
RULES = MX_RULES + AFFINE_RULES + TENSOR_SCALED_RULES
ROUNDINGS = ("half_even", "half_away", "half_up", "toward_zero", "stochastic", "half_zero")

FAMILIES = ("mx", "affine", "tensor_scaled")
_SET = tuple(rounding for rounding in ROUNDINGS if rounding != "stochastic")

Nonfinite = Literal["block", "pass", "nan_zero", "inf_large"]
# Whether a result of 0 keeps the sign of x: where x is 0; where x / scale underflows float32 to 0; where
# it is rounded to 0.
ZeroSigns = tuple[bool, bool, bool]
KEPT: ZeroSigns = (True, True, True)
PLUS: ZeroSigns = (False, False, False)


@dataclass(frozen=True)
class Dialect:
    """How one system's numbers differ from `ocp`; the defaults are `ocp`.

    nonfinite    block      a NaN or Inf makes its whole block NaN
                 pass       each passes through alone; E is that of the finite elements
                 nan_zero   NaN counts as 0, Inf makes its block NaN
                 inf_large  NaN makes its block NaN, Inf counts as 2^128
    has_codes    False: the peer only fake-quantizes, so there is nothing to store
    clamps       False: E is taken from the exponent field, so it is at least -127, and the scale is no byte
    flushes      subnormals of float32 count as 0 of their sign
    saturates    a decoded value beyond the output's range becomes its largest finite one, not Inf
    reciprocal   x · f32(1 / scale) instead of x / scale (float scales)
    nearly_half  0.5 - 2^-25 steps is rounded up like a half (a sum in float32)
    least_scale  least code of a block scale under a tensor scale; `zero_scale` that of a zero block
    full_range   the MX integers of which the least code too, -2^(bits-1), is produced; then what rounds up to
                 +2^(bits-1) alone makes rule `even` take the next scale
    sub_blocked  the row of numbers with sub-blocks, if the peer has them
    """

    name: str
    doc: str
    families: tuple[str, ...] = FAMILIES
    elements: tuple[str, ...] = ELEMENTS  # that take an MX scale
    affine_elements: tuple[str, ...] = ELEMENTS
    tensor_scaled_elements: tuple[str, ...] = ELEMENTS
    rules: tuple[str, ...] = RULES
    roundings: tuple[str, ...] = ROUNDINGS
    int_roundings: tuple[str, ...] = ROUNDINGS
    default_rounding: str = "half_even"
    nonfinite: Nonfinite = "block"
    has_codes: bool = True
    clamps: bool = True
    flushes: bool = False
    saturates: bool = True
    reciprocal: bool = False
    nearly_half: bool = False
    least_scale: int = 1
    zero_scale: int = 0
    full_range: tuple[str, ...] = ()
    float_zero: ZeroSigns = KEPT
    fixed_zero: ZeroSigns = PLUS
    fixed_zero_half_even: ZeroSigns = PLUS
    sub_blocked: Dialect | None = field(default=None, repr=False)

    def least_code(self, element: Format) -> int:
        """Of those that quantizing produces; numbers with a range have their own."""
        return -(1 << element.bits - 1) if element.name in self.full_range else element.min_code

    @property
    def default_rule(self) -> str:
        """Of MX scales."""
        return "floor" if "floor" in self.rules else self.rules[0]

    def zero_signs(self, fixed: bool, rounding: str) -> ZeroSigns:
        if not fixed:
            return self.float_zero
        return self.fixed_zero_half_even if rounding == "half_even" else self.fixed_zero

    def roundings_of(self, element: str) -> tuple[str, ...]:
        fixed = element in E8M0_ELEMENTS and element not in FLOAT_ELEMENTS
        return self.int_roundings if fixed else self.roundings

    def elements_of(self, family: str) -> tuple[str, ...]:
        by_family = (self.elements, self.affine_elements, self.tensor_scaled_elements)
        return by_family[FAMILIES.index(family)]

    def check(self, element: str, family: str, rule: str, rounding: str) -> None:
        """Refuse what this peer cannot do: a value it never gives is not a dialect of it."""
        if family not in self.families:
            raise CombinationError(
                f"dialect {self.name!r} has no {family} scales; it has {', '.join(self.families)}"
            )
        for what, value, allowed in (
            ("element", element, self.elements_of(family)),
            ("rule", rule, self.rules),
            ("rounding", rounding, self.roundings_of(element)),
        ):
            if value not in allowed:
                raise CombinationError(
                    f"{what} {value!r} with dialect {self.name!r}: it has {', '.join(allowed)}"
                )


_ROWS = (
    Dialect(
        "ocp",
        "OCP Microscaling 1.0 and this project's numerics page",
        sub_blocked=Dialect(
            "ocp with sub-blocks",
            "MX9, MX6, MX4: shared microexponents",
            families=("mx",),
            elements=BFP_ELEMENTS,
            rules=("floor",),
            int_roundings=_SET,
            has_codes=False,
        ),
    ),
    Dialect(
        "quark",
        "AMD Quark for ONNX: MXQuantizeDequantize, BFPQuantizeDequantize (fake-quantize only)",
        families=("mx",),
        elements=E8M0_ELEMENTS,
        rules=("floor",),
        roundings=("half_even",),
        int_roundings=("half_away", "half_up", "half_even"),
        nonfinite="pass",
        has_codes=False,
        clamps=False,
        saturates=False,
        full_range=("mxint8",),
        float_zero=PLUS,
        fixed_zero=KEPT,
        fixed_zero_half_even=(True, True, False),
        sub_blocked=Dialect(
            "quark with sub-blocks",
            "AMD Quark for ONNX: BFPQuantizeDequantize by to_bfp_prime",
            families=("mx",),
            elements=BFP_ELEMENTS,
            rules=("floor",),
            int_roundings=("half_even", "half_away", "half_up"),
            has_codes=False,
            clamps=False,
            flushes=True,
            saturates=False,
            fixed_zero=KEPT,
            fixed_zero_half_even=KEPT,
        ),
    ),
    Dialect(
        "quark_compiler",
        "AMD Quark for ONNX: BFPQuantizeDequantize as its compiler has it, with 8 bits in two's complement",
        families=("mx",),
        elements=("bfp16",),
        rules=("even",),
        int_roundings=("half_even", "half_away", "half_up"),
        nonfinite="pass",
        has_codes=False,
        clamps=False,
        saturates=False,
        full_range=("bfp16",),
        fixed_zero=KEPT,
        fixed_zero_half_even=(True, True, False),
    ),
    Dialect(
        "microxcaling",
        "Microsoft's microxcaling and TICO: float32 data, exponents taken exactly",
        families=("mx",),
        elements=MX_ELEMENTS,
        rules=("floor",),
        roundings=("half_away", "half_even", "toward_zero"),
        int_roundings=("half_away", "half_even", "toward_zero"),
        default_rounding="half_away",
        nearly_half=True,
        float_zero=(False, False, True),
        fixed_zero=(False, False, True),
        fixed_zero_half_even=(False, False, True),
    ),
    Dialect(
        "torchao",
        "torchao's MX and NVFP4 prototypes and its affine primitives",
        elements=FLOAT_ELEMENTS,
        affine_elements=INT_ELEMENTS,  # its fp8 with a float scale divides, as `ocp` does
        tensor_scaled_elements=("fp4_e2m1",),
        rules=tuple(rule for rule in RULES if rule != "mse"),
        roundings=("half_even",),
        int_roundings=("half_even",),
        nonfinite="inf_large",
        saturates=False,
        reciprocal=True,
        least_scale=8,
        zero_scale=8,
    ),
    Dialect(
        "ggml",
        "llama.cpp's MXFP4: nearest by distance, ties toward zero, no -0",
        families=("mx",),
        elements=("fp4_e2m1",),
        rules=("floor",),
        roundings=("half_zero",),
        default_rounding="half_zero",
        nonfinite="nan_zero",
        saturates=False,
        float_zero=PLUS,
    ),
)
DIALECTS: dict[str, Dialect] = {row.name: row for row in _ROWS}


def dialect_named(name: str) -> Dialect:
    if name not in DIALECTS:
        raise UnknownNameError("dialect", name, DIALECTS)
    return DIALECTS[name]
