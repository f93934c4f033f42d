"""DIALECTS: whose arithmetic. `ocp` is the project's own; each other row is one peer, to the bit.

A dialect is data: the codec and the compiled core read these fields and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from blockscale.errors import CombinationError, UnknownNameError
from blockscale.numerics.formats import ELEMENTS, FLOAT_ELEMENTS, INT_ELEMENTS, MX_ELEMENTS

MX_RULES = ("floor", "ceil", "even", "rceil", "mse")
AFFINE_RULES = ("symmetric", "no_clip", "asymmetric")
TENSOR_SCALED_RULES = ("amax",)
RULES = MX_RULES + AFFINE_RULES + TENSOR_SCALED_RULES
ROUNDINGS = ("half_even", "half_away", "half_up", "toward_zero", "stochastic", "half_zero")

FAMILIES = ("mx", "affine", "tensor_scaled")


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
                 pass       each passes through alone; E is that of the finite elements, taken from the
                            exponent field (so at least -127), and the scale is not clamped
                 nan_zero   NaN counts as 0, Inf makes its block NaN
                 inf_large  NaN makes its block NaN, Inf counts as 2^128
    has_codes    False: the peer only fake-quantizes, so there is nothing to store
    saturates    a decoded value beyond the output's range becomes its largest finite one, not Inf
    reciprocal   x · f32(1 / scale) instead of x / scale (float scales)
    nearly_half  0.5 - 2^-25 steps is rounded up like a half (a sum in float32)
    least_scale  least code of a block scale under a tensor scale; `zero_scale` that of a zero block
    int_low      least mxint8 code that is produced
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
    saturates: bool = True
    reciprocal: bool = False
    nearly_half: bool = False
    least_scale: int = 1
    zero_scale: int = 0
    int_low: int = -127
    float_zero: ZeroSigns = KEPT
    fixed_zero: ZeroSigns = PLUS
    fixed_zero_half_even: ZeroSigns = PLUS

    def zero_signs(self, fixed: bool, rounding: str) -> ZeroSigns:
        if not fixed:
            return self.float_zero
        return self.fixed_zero_half_even if rounding == "half_even" else self.fixed_zero

    def roundings_of(self, element: str) -> tuple[str, ...]:
        return self.int_roundings if element == "mxint8" else self.roundings

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
    Dialect("ocp", "OCP Microscaling 1.0 and this project's numerics page"),
    Dialect(
        "quark",
        "AMD Quark for ONNX: MXFixNeuron, MXQuantizeDequantize (fake-quantize only)",
        families=("mx",),
        elements=MX_ELEMENTS,
        rules=("floor",),
        roundings=("half_even",),
        int_roundings=("half_away", "half_up", "half_even"),
        nonfinite="pass",
        has_codes=False,
        saturates=False,
        int_low=-128,
        float_zero=PLUS,
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
