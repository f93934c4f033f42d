"""The compiled core equals the reference codec, bit for bit, on every instruction set of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from blockscale.numerics import codec, native
from blockscale.numerics.arrays import TENSOR_DTYPES
from blockscale.numerics.codec import Params
from blockscale.numerics.dialects import DIALECTS
from blockscale.numerics.formats import ELEMENTS, FORMATS, MX_ELEMENTS, TENSOR_FORMATS
from blockscale.numerics.layout import Layout
from blockscale.numerics.packing import pack
from blockscale.numerics.scheme import Numbers
from conformance.core_cases import PLACES, all_numbers, data_for, placed, same_bits, sweep, valid
from conformance.data import least_ranges

Array = np.ndarray[Any, np.dtype[Any]]

CORE = native._core
ISAS = CORE.available_isas().split()
SEED = 0x9E3779B97F4A7C15


@pytest.fixture(autouse=True)
def _the_best_set_afterwards() -> Iterator[None]:
    yield
    CORE.choose_isa("")


@dataclass
class Expected:
    """What the reference makes of x: by itself, or with `params` given."""

    x: Array
    layout: Layout
    tensor_format: str
    seed: int
    params: Params | None = None

    def __post_init__(self) -> None:
        has_codes = not self.layout.numbers.why_no_codes
        arguments: dict[str, Any] = {"tensor_format": self.tensor_format, "seed": self.seed}
        with np.errstate(all="ignore"):
            self.fake = codec.fake_quantize(self.x, self.layout, self.params, **arguments)
            if has_codes:
                codes, self.used = codec.quantize(self.x, self.layout, self.params, **arguments)
                self.codes = pack(np.asarray(codes), self.layout.numbers.element_format)
                self.stored = stored(self.used, self.layout.numbers)
                self.decoded = {f: codec.dequantize(codes, self.layout, self.used, f) for f in TENSOR_FORMATS}

    def check(self, isa: str) -> None:
        assert CORE.choose_isa(isa)
        x, layout, seed = self.x, self.layout, self.seed
        if self.params is None:
            self.equal("fake_quantize", self.fake, native.fake_quantize(x, layout, seed=seed))
        if layout.numbers.why_no_codes:
            return
        known = native.fake_quantize(x, layout, self.stored, seed=seed)
        self.equal("fake_quantize, given scales", self.fake, known)
        given = None if self.params is None else self.stored
        codes, params = native.quantize(x, layout, given, seed=seed)
        self.equal("codes", self.codes, codes)
        if given is None:
            self.equal_params("quantize", params)
            self.equal_params("choose_params", native.choose_params(x, layout))
        for f, wanted in self.decoded.items():
            self.equal(f"dequantize to {f}", wanted, native.dequantize(codes, layout, self.stored, f))

    def equal_params(self, what: str, params: native.Stored) -> None:
        for name in ("scales", "zero_points", "tensor_scale"):
            wanted, got = getattr(self.stored, name), getattr(params, name)
            assert (wanted is None) == (got is None), f"{what}: {name}"
            if wanted is not None:
                self.equal(f"{what}: {name}", wanted, got)

    def equal(self, what: str, wanted: Array, got: Array) -> None:
        equal = same_bits(wanted, got)
        if equal.all():
            return
        at = tuple(np.argwhere(~equal)[0]) if equal.shape == wanted.shape else ()
        values = (wanted[at], got[at], self.x[at] if self.x.shape == wanted.shape else None)
        layout = self.layout
        pytest.fail(
            f"{what}: {(~equal).sum()} differ in {layout.numbers} {layout.shape} in {layout.block}, "
            f"{self.tensor_format}, {CORE.isa()}; at {at}: wanted, got, x = {values}"
        )


def stored(params: Params, numbers: Numbers) -> native.Stored:
    zeros = None if params.zero_points is None else np.asarray(params.zero_points, np.int32)
    t = None if params.tensor_scale is None else np.asarray(params.tensor_scale, np.float32)
    return native.Stored(np.asarray(params.scales).astype(native.scale_dtype(numbers)), zeros, t)


# --------------------------------------------------------------------------------- every combination

PARTS = 6


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_combination(dialect: str, part: int) -> None:
    """A small tensor for each, of varying shape, block and dtype; a second one with scales of other data."""
    mine = [n for n in all_numbers() if n.dialect == dialect][part::PARTS]
    for i, numbers in enumerate(mine):
        place = PLACES[(i * 7 + part) % len(PLACES)]
        tensor_format = TENSOR_FORMATS[(i + part) % 3]
        layout = placed(numbers, *place)
        x = data_for(numbers, layout.shape, tensor_format, i * PARTS + part)
        cases = [Expected(x, layout, tensor_format, SEED)]
        if not numbers.why_no_codes:
            with np.errstate(all="ignore"):
                other = codec.choose_params(data_for(numbers, layout.shape, tensor_format, i + 99), layout)
            cases.append(Expected(x, layout, tensor_format, SEED + i, other))
        for case in cases:
            for isa in ISAS:
                case.check(isa)


@pytest.mark.full
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_combination_with_50_000_values(dialect: str, element: str) -> None:
    mine = [n for n in all_numbers() if n.dialect == dialect and n.element == element]
    if not mine:
        pytest.skip(f"{dialect} has no {element}")
    for i, numbers in enumerate(mine):
        for j, tensor_format in enumerate(TENSOR_FORMATS):
            for layout, x in sweep(numbers, tensor_format, 50_000, 3 * i + j):
                case = Expected(x, layout, tensor_format, SEED)
                for isa in ISAS:
                    case.check(isa)


DEFAULTS = [
    n
    for n in all_numbers()
    if n == Numbers(element=n.element, scale=n.scale, tensor_scale=n.tensor_scale, zero_point=n.zero_point)
]


@pytest.mark.full
@pytest.mark.parametrize("numbers", DEFAULTS, ids=str)
def test_a_million_values(numbers: Numbers) -> None:
    """Random bits, random exponents and everything that looks for trouble, in float32."""
    pieces = sweep(numbers, "f32", 1_000_000, 7)
    for layout, x in pieces:
        case = Expected(x, layout, "f32", SEED)
        for isa in ISAS:
            case.check(isa)


# ------------------------------------------------------------------------------------- special places


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rule", ["floor", "ceil", "even", "rceil", "mse"])
@pytest.mark.parametrize("tensor_format", TENSOR_FORMATS)
def test_ends_of_the_range(isa: str, rule: str, tensor_format: str) -> None:
    """Every binade as a block maximum: scales clamp to 2^-127, and outputs overflow at the other end."""
    form, dtype = FORMATS[tensor_format], TENSOR_DTYPES[tensor_format]
    mantissas = np.array([1, 1.25, 1.5, 1.75, 1.875, 1.9375, 1.9990234375])
    exponents = np.arange(form.emin - form.mantissa_bits, form.emax + 1)
    tops = np.minimum(np.ldexp(mantissas, exponents[:, None]), form.max).reshape(-1, 1)
    x = (tops.astype(dtype).astype(np.float32) * np.linspace(1, -1, 32, dtype=np.float32)).astype(dtype)
    for element in (*MX_ELEMENTS, "bfp11", "bfp16", "bfp24"):
        layout = Layout(Numbers(element=element, rule=rule), x.shape, (1, 32))
        Expected(x, layout, tensor_format, SEED).check(isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rule", ["symmetric", "no_clip", "asymmetric"])
@pytest.mark.parametrize("element", ["int2", "uint4", "int8", "int16"])
def test_least_affine_scales(isa: str, rule: str, element: str) -> None:
    """Chosen scales next to the least one, and given ones below it: their reciprocals may overflow."""
    x = least_ranges(blocks=500)
    for dialect in ("ocp", "torchao"):
        for scale in ("f32", "bf16", "f16"):
            unsigned = element.startswith("u")
            numbers = valid(
                element=element, scale=scale, rule=rule, dialect=dialect,
                zero_point=unsigned or rule == "asymmetric",
            )  # fmt: skip
            if numbers is None:
                continue
            layout = Layout(numbers, x.shape, (1, 32))
            Expected(x, layout, "f32", SEED).check(isa)
            least = np.ldexp(1.0, numbers.scale_format.emin - numbers.scale_format.mantissa_bits)
            scales = (least * np.resize([1, 3, 97], (len(x), 1))).astype(np.float32)
            zeros = (
                np.resize([numbers.quant_min, numbers.quant_max], (len(x), 1)) if numbers.zero_point else None
            )
            Expected(x, layout, "f32", SEED, Params(scales, zeros)).check(isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tensor_format", TENSOR_FORMATS)
def test_every_code_decodes(isa: str, tensor_format: str) -> None:
    """All codes under all scales that matter: NaN and Inf codes, -128 of mxint8, overflow on the way back."""
    assert CORE.choose_isa(isa)
    for element in (*MX_ELEMENTS, "bfp10", "bfp13", "bfp16", "bfp20"):
        numbers = Numbers(element=element)
        width = 1 << numbers.element_format.bits
        layout = Layout(numbers, (256, width), (1, width))
        scales = np.arange(256).reshape(256, 1)
        patterns = np.tile(np.arange(width), (256, 1))
        if numbers.element_format.is_fixed:
            patterns = (patterns ^ width // 2) - width // 2
        with np.errstate(all="ignore"):
            wanted = codec.dequantize(patterns, layout, Params(scales), tensor_format)
        codes = pack(patterns, numbers.element_format)
        given = native.Stored(scales.astype(np.uint8))
        assert same_bits(wanted, native.dequantize(codes, layout, given, tensor_format)).all(), element
