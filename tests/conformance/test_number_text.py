"""core/number_text.cpp reads the language of scheme.numbers_named: the same numbers, and the same refusals."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockscale.errors import ArgumentError, BlockscaleError
from blockscale.numerics import native
from blockscale.numerics.dialects import DIALECTS, ROUNDINGS, RULES
from blockscale.numerics.formats import SCALES
from blockscale.numerics.scheme import BASES, PRESETS, SETTINGS, Numbers, numbers_named, scheme_named
from conformance.core_cases import all_numbers

FIELDS = [name for name in dir(native._core.Numbers) if not name.startswith("_")]


def assert_read_alike(text: str) -> None:
    """Both read it as the same numbers, or both refuse."""
    try:
        wanted = native.core_numbers(numbers_named(text))
    except BlockscaleError:
        with pytest.raises(ArgumentError):
            native._core.numbers_named(text)
        return
    found = native._core.numbers_named(text)
    for field in FIELDS:
        assert getattr(found, field) == getattr(wanted, field), (text, field)


def in_full(numbers: Numbers) -> str:
    settings = ((name, getattr(numbers, name)) for name in SETTINGS if name != "element")
    said = ",".join(f"{name}={str(value).lower()}" for name, value in settings if value is not None)
    return f"{numbers.element if numbers.element in BASES else 'mxint8'},{said}"


def test_every_numbers_in_both_spellings() -> None:
    for numbers in all_numbers():
        assert_read_alike(str(numbers))
        assert numbers_named(in_full(numbers)) == numbers
        assert_read_alike(in_full(numbers))


def test_every_preset() -> None:
    for name in PRESETS:
        assert_read_alike(str(scheme_named(name).numbers))


def test_every_combination_is_read_or_refused_alike() -> None:
    for base, dialect, rule, rounding in product(BASES, DIALECTS, ("", *RULES), ("", *ROUNDINGS)):
        settings = {"dialect": dialect, "rule": rule, "rounding": rounding}
        said = "".join(f",{key}={value}" for key, value in settings.items() if value)
        assert_read_alike(base + said)
    for base, scale, zero_point, tensor_scale in product(BASES, SCALES, ("false", "true"), ("false", "true")):
        assert_read_alike(f"{base},scale={scale},zero_point={zero_point},tensor_scale={tensor_scale}")


@pytest.mark.parametrize("text", [
    "", ",", "mxfp4,", "mxfp4,rule", "mxfp4,rule=", "mxfp4,rule=floor,rule=floor", "mxfp4 ", "MXFP4", "mxfp4,=",
    "int8,quant_min=", "int8,quant_min=+3", "int8,quant_min=1_0", "int8,quant_min= 3", "int8,quant_min=-128",
    "int8,quant_min=-129", "int8,quant_max=99999999999999999999999", "int8,zero_point=True", "mxfp4,rule=floor ceil",
    "mxfp4,dynamic=maybe", "mxfp4,element=fp4_e2m1 fp6_e2m3", "int8,quant_min=5,quant_max=5", "mxfp4,x=1",
    "uint8,zero_point=false,quant_min=1", "mxfp4,element=int8", "mxfp4,quant_min=0", "int8,rule=no_clip,quant_min=0",
    "mxfp4,scale=f32,dynamic=false",
])  # fmt: skip
def test_odd_texts(text: str) -> None:
    assert_read_alike(text)


WORDS = (
    *SETTINGS,
    *RULES,
    *ROUNDINGS,
    *DIALECTS,
    *SCALES,
    "true",
    "false",
    "-7",
    "8",
    "",
    "int8",
    "fp4_e2m1",
)


@given(
    st.sampled_from(tuple(BASES)),
    st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(WORDS)), max_size=4),
)
def test_fuzz_texts(base: str, settings: list[tuple[str, str]]) -> None:
    assert_read_alike(base + "".join(f",{key}={value}" for key, value in settings))


def test_a_refusal_says_what_is_allowed() -> None:
    with pytest.raises(ArgumentError, match=r"rule = 'ceiling': allowed are floor, ceil, even"):
        native._core.numbers_named("mxfp4,rule=ceiling")
