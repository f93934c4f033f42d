"""`Numbers`: everything that decides a quantized value but the blocks. `Scheme`: numbers with an axis
and a block, free of rank: what presets and recipes name. `numerics.layout` binds it to a shape.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

from blockscale.errors import (
    ArgumentError,
    AxisError,
    BlockError,
    CombinationError,
    UnknownNameError,
)
from blockscale.numerics.dialects import (
    AFFINE_RULES,
    MX_RULES,
    ROUNDINGS,
    RULES,
    TENSOR_SCALED_RULES,
    Dialect,
    dialect_named,
)
from blockscale.numerics.formats import (
    BFP_ELEMENTS,
    E8M0_ELEMENTS,
    ELEMENTS,
    INT_ELEMENTS,
    SCALES,
    Format,
    format_named,
)

Family = Literal["mx", "affine", "tensor_scaled"]

_RULES_OF: dict[Family, tuple[str, ...]] = {
    "mx": MX_RULES,
    "affine": AFFINE_RULES,
    "tensor_scaled": TENSOR_SCALED_RULES,
}


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The fields of a quantize that do not depend on a shape. Equal only if every field is.

    Fields left None (rule, rounding, quant_min, quant_max) are filled in when made, so that two
    spellings of one meaning are equal.

    sub_block, sub_shift: each run of `sub_block` elements of a block has a scale that is smaller than the
    block's by up to 2^sub_shift - 1 powers of two (MX9, MX6, MX4); 0 is none.
    """

    element: str
    scale: str = "e8m0"
    tensor_scale: bool = False
    zero_point: bool = False
    quant_min: int | None = None
    quant_max: int | None = None
    rule: str | None = None
    rounding: str | None = None
    dialect: str = "ocp"
    dynamic: bool = True
    sub_block: int = 0
    sub_shift: int = 0

    def __post_init__(self) -> None:
        element = format_named(self.element, "element", ELEMENTS)
        format_named(self.scale, "scale", SCALES)
        dialect = self._checked_dialect()
        self._fill(element, dialect)
        self._check_family(element)
        self._check_range(element)
        dialect.check(self.element, self.family, str(self.rule), str(self.rounding))

    def _checked_dialect(self) -> Dialect:
        row = dialect_named(self.dialect)
        for name, value, most in (("sub_block", self.sub_block, 1 << 16), ("sub_shift", self.sub_shift, 8)):
            if not _is_int(value) or not 0 <= value <= most:
                raise ArgumentError(name, value, f"an integer from 0 to {most}")
        if self.sub_shift and not self.sub_block:
            raise CombinationError(f"sub_shift = {self.sub_shift} without sub_block: sub-blocks of how many?")
        if self.sub_block and row.sub_blocked is None:
            raise CombinationError(
                f"dialect {self.dialect!r} has no sub-blocks (sub_block = {self.sub_block})"
            )
        return self.dialect_row

    def _fill(self, element: Format, dialect: Dialect) -> None:
        defaults: dict[str, Any] = {"rounding": dialect.default_rounding}
        if self.family == "mx":
            defaults["rule"] = dialect.default_rule
        elif self.family == "tensor_scaled":
            defaults["rule"] = "amax"
        else:
            defaults["rule"] = "asymmetric" if self.zero_point else "symmetric"
        if element.name in INT_ELEMENTS:
            defaults |= {"quant_min": element.min_code, "quant_max": element.max_code}
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    def _check_family(self, element: Format) -> None:
        if self.rule not in RULES:
            raise UnknownNameError("rule", self.rule, RULES)
        if self.rounding not in ROUNDINGS:
            raise UnknownNameError("rounding", self.rounding, ROUNDINGS)
        if self.rule not in _RULES_OF[self.family]:
            raise CombinationError(
                f"rule {self.rule!r} with {self.element} × {self.scale}: rules of this kind of "
                f"scale are {', '.join(_RULES_OF[self.family])}"
            )
        if self.family == "mx" and self.element not in E8M0_ELEMENTS:
            raise CombinationError(
                f"element {self.element!r} with scale 'e8m0': elements of MX and BFP are "
                f"{', '.join(E8M0_ELEMENTS)}; give an integer a scale of f32, bf16 or f16"
            )
        if self.family == "affine" and element.is_fixed and self.element not in INT_ELEMENTS:
            raise CombinationError(
                f"element {self.element!r} takes scale 'e8m0'; use int{element.bits} with a float scale"
            )
        if (self.scale == "fp8_e4m3") != self.tensor_scale:
            raise CombinationError(
                f"scale {self.scale!r} with tensor_scale = {self.tensor_scale}: a scale of "
                "fp8_e4m3 and a tensor scale go together (NVFP4)"
            )
        if self.tensor_scale and not element.is_float:
            raise CombinationError(f"element {self.element!r} cannot take a two-level scale")
        if self.zero_point and not (self.family == "affine" and element.is_fixed):
            raise CombinationError(f"{self.element} × {self.scale} has no zero point")

    def _check_range(self, element: Format) -> None:
        low, high = self.quant_min, self.quant_max
        if element.name not in INT_ELEMENTS:
            if low is not None or high is not None:
                raise CombinationError(f"element {self.element!r} has no quant_min or quant_max")
            return
        assert low is not None and high is not None  # filled above
        if not element.min_code <= low < high <= element.max_code:
            raise ArgumentError(
                "quant_min, quant_max",
                (low, high),
                f"{element.min_code} ≤ quant_min < quant_max ≤ {element.max_code} for {self.element}",
            )
        if not self.zero_point and not low <= 0 < high:
            raise CombinationError(
                f"range {low}..{high} without a zero point cannot hold 0 and a positive value"
            )
        if self.rule == "no_clip" and (low >= 0 or self.zero_point):
            raise CombinationError(f"rule 'no_clip' needs quant_min < 0 and no zero point, not {low}..{high}")
        if self.rule == "asymmetric" and not self.zero_point:
            raise CombinationError("rule 'asymmetric' needs zero_point=True")

    @cached_property
    def family(self) -> Family:
        if self.tensor_scale:
            return "tensor_scaled"
        return "mx" if self.scale == "e8m0" else "affine"

    @cached_property
    def element_format(self) -> Format:
        return format_named(self.element)

    @cached_property
    def scale_format(self) -> Format:
        return format_named(self.scale)

    @cached_property
    def dialect_row(self) -> Dialect:
        row = dialect_named(self.dialect)
        return row.sub_blocked if self.sub_block and row.sub_blocked is not None else row

    @property
    def why_no_codes(self) -> str:
        """Why there is nothing to store, only a fake-quantize; empty if there is."""
        if self.sub_block:
            return f"{self} has sub-blocks, and their shifts no stored form"
        return "" if self.dialect_row.has_codes else f"dialect {self.dialect!r} has no codes"

    def __str__(self) -> str:
        """Shortest spelling, `base,key=value,…`; `numbers_named` reads it back."""
        return self._spelling

    @cached_property
    def _spelling(self) -> str:
        base = _BASE_OF.get((self.element, self.scale), self.element)
        if self.sub_block:
            base = _SUB_BLOCKED_BASE.get((self.element, self.sub_block, self.sub_shift), base)
        defaults = {field.name: field.default for field in fields(Numbers)} | BASES[base]
        own = {name: value for name, value in self._settings() if value != defaults[name]}
        plain = {name: value for name, value in own.items() if defaults[name] is not None}
        filled = Numbers(**BASES[base] | plain)  # with what the fields left None become beside these
        parts = [base]
        for name, value in own.items():
            if name in plain or value != getattr(filled, name):
                parts.append(f"{name}={str(value).lower()}")
        return ",".join(parts)

    def _settings(self) -> list[tuple[str, Any]]:
        return [(field.name, getattr(self, field.name)) for field in fields(Numbers)]

    @property
    def numbers(self) -> Numbers:
        """The shape-free part alone (of a Scheme too)."""
        if type(self) is Numbers:
            return self
        return Numbers(**dict(self._settings()))


@dataclass(frozen=True, kw_only=True)
class Scheme(Numbers):
    """Numbers and how they block a tensor of any rank.

    Dimension axis[i] has blocks of block[i]; every other dimension has blocks of `others`.
    A block of 0 is the whole dimension. So:

        MX             axis -1, block 32, others 1      per token     axis -1, block 0, others 1
        per tensor     no axis,           others 0      per channel   axis c,  block 1, others 0
        per group      axis -1, block g,  others 1      2-D blocks    axis (-2, -1), block (m, n)
    """

    axis: int | tuple[int, ...] = -1
    block: int | tuple[int, ...] = 32
    others: Literal[0, 1] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        axes, blocks = _entries(self.axis), _entries(self.block)
        for axis in axes:
            if not _is_int(axis):
                raise AxisError("axis", self.axis, "an integer or a tuple of integers")
        for block in blocks:
            if not _is_int(block) or not 0 <= block < 1 << 62:
                raise BlockError(
                    "block", self.block, "a positive integer, 0 for a whole dimension, or a tuple"
                )
        if len(blocks) == 1 and len(axes) > 1:
            blocks *= len(axes)
        if len(axes) != len(blocks):
            raise BlockError("block", self.block, f"as many as axes ({len(axes)})")
        if len(set(axes)) != len(axes):
            raise AxisError("axis", self.axis, "each axis once")
        if self.others not in (0, 1):
            raise BlockError("others", self.others, "0 (whole) or 1")
        order = sorted(range(len(axes)), key=lambda i: axes[i])
        object.__setattr__(self, "axis", tuple(int(axes[i]) for i in order))
        object.__setattr__(self, "block", tuple(int(blocks[i]) for i in order))

    @property
    def axes(self) -> tuple[int, ...]:
        assert isinstance(self.axis, tuple)
        return self.axis

    @property
    def blocks(self) -> tuple[int, ...]:
        assert isinstance(self.block, tuple)
        return self.block


def _entries(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, Sequence) else (value,)


def _is_int(value: object) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


# ---------------------------------------------------------------------------------- presets

_MX = {"mxfp8": "fp8_e4m3", "mxfp8_e4m3": "fp8_e4m3", "mxfp8_e5m2": "fp8_e5m2",
       "mxfp6": "fp6_e2m3", "mxfp6_e2m3": "fp6_e2m3", "mxfp6_e3m2": "fp6_e3m2",
       "mxfp4": "fp4_e2m1", "mxint8": "mxint8"}  # fmt: skip

# MX with shared microexponents, by the bits an element takes on average.
_SUB_BLOCKED = {"mx9": "bfp16", "mx6": "bfp13", "mx4": "bfp11"}

# What a base name means, as arguments of Numbers.
BASES: dict[str, dict[str, Any]] = {
    **{name: {"element": element} for name, element in _MX.items()},
    **{name: {"element": name} for name in BFP_ELEMENTS},
    **{name: {"element": element, "sub_block": 2, "sub_shift": 1} for name, element in _SUB_BLOCKED.items()},
    "nvfp4": {"element": "fp4_e2m1", "scale": "fp8_e4m3", "tensor_scale": True},
    **{
        name: {"element": name, "scale": "f32", "zero_point": not format_named(name).signed}
        for name in ELEMENTS
        if name not in ("mxint8", *BFP_ELEMENTS)
    },
}
_BASE_OF: dict[tuple[str, str], str] = {
    **{(element, "e8m0"): name for name, element in reversed(_MX.items())},
    ("fp4_e2m1", "fp8_e4m3"): "nvfp4",
}
_SUB_BLOCKED_BASE = {(element, 2, 1): name for name, element in _SUB_BLOCKED.items()}

# What recipes, the command line and the docs list; `scheme_named` takes more (see its docstring).
PRESETS = (
    "mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4", "mxint8", "nvfp4",
    "bfp16", "mx9", "mx6", "mx4",
    "int8", "int8-channel", "int8-token", "int4-g32", "int4-g64", "int4-g128", "uint8", "uint4-g32",
)  # fmt: skip

_PLACE = re.compile(r"^(?P<base>[a-z0-9_]+?)(?:-(?P<place>tensor|channel|token|g(?P<group>[0-9]{1,18})))?$")


def _unknown_format(name: str) -> UnknownNameError:
    bases = (base for base in BASES if base not in (*PRESETS, *INT_ELEMENTS, *BFP_ELEMENTS))
    also = (
        "; every intN and uintN of 2 to 16 bits, every bfpN of 10 to 24; "
        "and these and fp8, fp6, fp4 with -channel, -token or -g<size>"
    )
    return UnknownNameError("format", name, (*PRESETS, *bases), also)


SETTINGS = tuple(sorted(field.name for field in fields(Numbers)))
_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)


@lru_cache(maxsize=4096)
def numbers_named(text: str) -> Numbers:
    """Read `base` or `base,key=value,…`, the inverse of `str(numbers)`; core/number_text.cpp does so too."""
    base, *settings = text.split(",")
    if base not in BASES:
        raise _unknown_format(base)
    arguments = dict(BASES[base])
    given: set[str] = set()
    for setting in settings:
        key, _, value = setting.partition("=")
        if key not in SETTINGS:
            raise UnknownNameError(f"setting of {text!r}", key, SETTINGS)
        if key in given:
            raise CombinationError(f"{text!r}: {key} twice")
        given.add(key)
        arguments[key] = _read(key, value)
    return Numbers(**arguments)


def _read(key: str, value: str) -> object:
    if key in ("zero_point", "tensor_scale", "dynamic"):
        if value not in ("true", "false"):
            raise UnknownNameError(key, value, ("true", "false"))
        return value == "true"
    if key in ("quant_min", "quant_max", "sub_block", "sub_shift"):
        if not _INTEGER.fullmatch(value):
            raise ArgumentError(key, value, "an integer")
        return int(value)
    return value


@lru_cache(maxsize=4096)
def scheme_named(text: str) -> Scheme:
    """The scheme that a name stands for.

    `mxfp4`, `nvfp4`, …; `int8` (per tensor), `int8-channel` (axis 0), `int8-token`, `int4-g128`
    (groups along the last axis), for every intN, uintN and float element; then `,key=value` settings.
    """
    head, comma, settings = text.partition(",")
    match = _PLACE.match(head)
    base = match["base"] if match else head
    if match is None or base not in BASES:
        raise _unknown_format(head)
    numbers = numbers_named(base + comma + settings)
    place: Mapping[str, Any]
    if numbers.family != "affine":
        if match["place"] and not match["group"]:
            raise CombinationError(f"{head!r}: {base} is blocked along an axis; write {base!r}")
        place = {"axis": -1, "block": int(match["group"] or _usual_block(numbers))}
    elif match["group"]:
        place = {"axis": -1, "block": int(match["group"])}
    else:
        places: dict[str | None, Mapping[str, Any]] = {
            None: {"axis": (), "block": (), "others": 0},
            "tensor": {"axis": (), "block": (), "others": 0},
            "channel": {"axis": 0, "block": 1, "others": 0},
            "token": {"axis": -1, "block": 0, "others": 1},
        }
        place = places[match["place"]]
    if match["group"] and int(match["group"]) == 0:
        raise BlockError("block", head, "a positive group size")
    return Scheme(**asdict(numbers), **place)


def _usual_block(numbers: Numbers) -> int:
    if numbers.tensor_scale or numbers.sub_block:
        return 16
    return 8 if numbers.element in BFP_ELEMENTS else 32


def refined(
    scheme: Scheme,
    *,
    axis: int | tuple[int, ...] | None = None,
    block: int | tuple[int, ...] | None = None,
    rule: str | None = None,
    rounding: str | None = None,
    dialect: str | None = None,
) -> Scheme:
    """`scheme` with the given fields replaced; a dialect brings its own default rounding and default rule."""
    if axis is not None and not scheme.axes:
        raise AxisError("axis", axis, "none: this scheme is per tensor; name one such as 'int8-channel'")
    if block is not None and not scheme.axes:
        raise BlockError("block", block, "none: this scheme is per tensor; name one such as 'int8-g32'")
    changes: dict[str, Any] = {}
    if axis is not None:
        changes["axis"] = axis
        if block is None and not _is_int(axis) and len(scheme.blocks) == 1:
            block = scheme.blocks[0]
    if block is not None:
        if 0 in _entries(block):
            raise BlockError("block", block, "positive; name a scheme for whole dimensions")
        changes["block"] = block
    if rule is not None:
        changes["rule"] = rule
    if dialect is not None and dialect != scheme.dialect:
        changes |= {"dialect": dialect, "rounding": None}
        if rule is None and scheme.family == "mx" and scheme.rule == scheme.dialect_row.default_rule:
            changes["rule"] = None
    if rounding is not None:
        changes["rounding"] = rounding
    return replace(scheme, **changes) if changes else scheme
