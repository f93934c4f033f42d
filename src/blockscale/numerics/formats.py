"""FORMATS: what numbers are. One row is one element or scale format.

`Format.decode` over all codes is the definition of a format. The reference codec, the C++ tables,
the documentation table and the test vectors are derived from these rows (tools/generate.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from blockscale.errors import UnknownNameError

Kind = Literal["float", "fixed", "exponent"]
Specials = Literal["none", "nan", "ieee"]


@dataclass(frozen=True)
class Format:
    """One number format.

    float:     value = (-1)^S · 2^(max(e, 1) - bias) · (m / 2^M + (e > 0)), codes S.e.m
    fixed:     value = code · 2^-M, two's complement if signed
    exponent:  value = 2^(code - bias), the all-ones code is NaN, there is no zero

    specials: `none`, `nan` (S.1…1.1…1 alone is NaN), `ieee` (all-ones exponent: Inf and NaN).
    """

    name: str
    kind: Kind
    bits: int
    exponent_bits: int = 0
    mantissa_bits: int = 0
    bias: int = 0
    specials: Specials = "none"
    signed: bool = True
    min_code: int = 0  # fixed only: the least and greatest code that quantizing produces
    max_code: int = 0
    ml_dtype: str | None = None  # the type of the ml_dtypes package with the same codes
    doc: str = ""

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_fixed(self) -> bool:
        return self.kind == "fixed"

    @property
    def fraction_bits(self) -> int:
        """Bits behind the leading one of the largest value: what the maximum of a block is rounded to."""
        return self.mantissa_bits + (self.emax if self.is_fixed else 0)

    @cached_property
    def emin(self) -> int:
        """Exponent of the smallest normal number; the grid keeps its spacing below it."""
        return 1 - self.bias if self.is_float else 0

    @cached_property
    def emax(self) -> int:
        """Exponent of the largest finite magnitude: floor(log2(max))."""
        if self.is_float:
            return (1 << self.exponent_bits) - 1 - self.bias - (self.specials == "ieee")
        return int(np.frexp(self.max)[1]) - 1

    @cached_property
    def max(self) -> float:
        """Largest finite magnitude that quantizing produces."""
        if self.is_fixed:
            return self.max_code * 2.0**-self.mantissa_bits
        if self.kind == "exponent":
            return 2.0 ** ((1 << self.bits) - 2 - self.bias)
        last_mantissa = (1 << self.mantissa_bits) - 1 - (self.specials == "nan")
        return (1 + last_mantissa * 2.0**-self.mantissa_bits) * 2.0**self.emax

    @cached_property
    def smallest(self) -> float:
        """Smallest positive value (a subnormal where the format has them)."""
        if self.kind == "exponent":
            return 2.0**-self.bias
        return 2.0 ** (self.emin - self.mantissa_bits)

    @property
    def storage_dtype(self) -> np.dtype[Any]:
        """Dtype of a tensor of stored codes: packed uint8 below 8 bits, a native integer from there."""
        if self.is_fixed and self.bits >= 8:
            return np.dtype(f"{'' if self.signed else 'u'}int{8 if self.bits == 8 else 16}")
        return np.dtype(np.uint8)

    @property
    def packed(self) -> bool:
        """Several codes share a byte: an LSB-first stream of `bits` a code, each row from a new byte."""
        return self.bits < 8

    def decode(self, codes: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Values of unsigned codes (bit patterns), as float64."""
        c = np.asarray(codes).astype(np.int64) & ((1 << self.bits) - 1)
        if self.kind == "exponent":
            value = np.ldexp(1.0, (c - self.bias).astype(np.int32))
            return np.where(c == (1 << self.bits) - 1, np.nan, value)
        if self.is_fixed:
            wrapped = np.where(self.signed & (c >> (self.bits - 1) != 0), c - (1 << self.bits), c)
            return np.asarray(wrapped * 2.0**-self.mantissa_bits, dtype=np.float64)
        exponents = (1 << self.exponent_bits) - 1
        sign = np.where(c >> (self.bits - 1) != 0, -1.0, 1.0)
        e = (c >> self.mantissa_bits) & exponents
        m = c & ((1 << self.mantissa_bits) - 1)
        significand = m * 2.0**-self.mantissa_bits + (e > 0)
        value = sign * np.ldexp(significand, (np.maximum(e, 1) - self.bias).astype(np.int32))
        if self.specials == "ieee":
            value = np.where(e == exponents, np.where(m == 0, sign * np.inf, np.nan), value)
        elif self.specials == "nan":
            last = (1 << self.mantissa_bits) - 1
            value = np.where((e == exponents) & (m == last), np.nan, value)
        return value


def _integer(bits: int, signed: bool) -> Format:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    name = f"{'' if signed else 'u'}int{bits}"
    return Format(
        name, "fixed", bits, signed=signed, min_code=low, max_code=high,
        ml_dtype=name if bits in (2, 4, 8, 16) else None, doc="affine integer, step 1",
    )  # fmt: skip


def _block_floating_point(width: int) -> Format:
    """BFP-`width` as it is counted: 8 bits of the shared exponent, a sign, and the rest magnitude."""
    most = (1 << width - 9) - 1
    return Format(
        f"bfp{width}", "fixed", width - 8, min_code=-most, max_code=most,
        doc=f"block floating point, sign and {width - 9} bits; {-most - 1} is decoded, never produced",
    )  # fmt: skip


_ROWS = (
    Format("fp8_e4m3", "float", 8, 4, 3, 7, "nan", ml_dtype="float8_e4m3fn", doc="OCP FP8"),
    Format("fp8_e5m2", "float", 8, 5, 2, 15, "ieee", ml_dtype="float8_e5m2", doc="OCP FP8"),
    Format("fp6_e3m2", "float", 6, 3, 2, 3, ml_dtype="float6_e3m2fn", doc="OCP MX"),
    Format("fp6_e2m3", "float", 6, 2, 3, 1, ml_dtype="float6_e2m3fn", doc="OCP MX"),
    Format("fp4_e2m1", "float", 4, 2, 1, 1, ml_dtype="float4_e2m1fn", doc="OCP MX, NVFP4"),
    Format(
        "mxint8", "fixed", 8, mantissa_bits=6, min_code=-127, max_code=127,
        doc="OCP MX INT8, step 1/64; -128 is decoded, never produced",
    ),
    *(_block_floating_point(width) for width in range(10, 25)),
    *(_integer(bits, signed) for signed in (True, False) for bits in range(2, 17)),
    Format("e8m0", "exponent", 8, 8, bias=127, ml_dtype="float8_e8m0fnu", doc="OCP MX scale"),
    Format("f32", "float", 32, 8, 23, 127, "ieee", ml_dtype="float32", doc="scale, tensor"),
    Format("bf16", "float", 16, 8, 7, 127, "ieee", ml_dtype="bfloat16", doc="scale, tensor"),
    Format("f16", "float", 16, 5, 10, 15, "ieee", ml_dtype="float16", doc="scale, tensor"),
)  # fmt: skip

FORMATS: dict[str, Format] = {row.name: row for row in _ROWS}

MX_ELEMENTS = ("fp8_e4m3", "fp8_e5m2", "fp6_e3m2", "fp6_e2m3", "fp4_e2m1", "mxint8")
FLOAT_ELEMENTS = MX_ELEMENTS[:-1]
BFP_ELEMENTS = tuple(row.name for row in _ROWS if row.name.startswith("bfp"))
E8M0_ELEMENTS = MX_ELEMENTS + BFP_ELEMENTS  # that share a power of two
INT_ELEMENTS = tuple(row.name for row in _ROWS if row.is_fixed and row.name not in E8M0_ELEMENTS)
ELEMENTS = E8M0_ELEMENTS + INT_ELEMENTS
TENSOR_FORMATS = ("f32", "bf16", "f16")
SCALES = ("e8m0", "fp8_e4m3", *TENSOR_FORMATS)


def format_named(name: str, argument: str = "format", allowed: tuple[str, ...] = ()) -> Format:
    """The row called `name`, or an error that lists what is allowed."""
    names = allowed or tuple(FORMATS)
    if name not in names:
        raise UnknownNameError(argument, name, names)
    return FORMATS[name]
