"""`Operand`: one tensor at one operator, as a rule sees it. `Rule`: conditions, and a layout."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from fnmatch import translate
from functools import cached_property, lru_cache
from glob import escape
from math import prod
from typing import Any

from blockscale.errors import (
    ArgumentError,
    BlockscaleError,
    CombinationError,
    RecipeError,
    UnknownNameError,
)
from blockscale.numerics.layout import bind
from blockscale.numerics.scheme import Scheme, refined, scheme_named

ROLES = ("input", "weight", "bias", "output")
USES = ("linear", "attention", "residual", "norm", "embedding", "other")
DTYPES = ("f32", "bf16", "f16")  # what numerics takes; other tensors can only stay as they are

FLOAT = "float"

# What a rule without a role is about: what kernels multiply. Biases and outputs are asked for by role.
_ROLES_OF_LAYOUT = ("input", "weight")


# Names of tensors, or of operators, where a part of a graph begins, and where it ends.
Region = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class Operand:
    """One tensor at one operator. The same tensor read by two operators is two operands.

    node     the operator's name: module path for torch ("model.layers.0.mlp.up_proj"), node name for ONNX
    kind     kind of operator, a row of OPS: linear conv matmul embedding rms_norm add softmax sdpa …
    role     "input", "weight" or "bias" (both constants) or "output"; index: which input or output
    tensor   the tensor's name (a parameter's full name for weights)
    dtype    f32, bf16, f16; anything else cannot be quantized
    shape    None: a dimension that is not known before the run
    use      "linear" (linear, conv, matmul by a constant: input, weight, bias, output), "attention" (matmul
             or sdpa of two activations), "residual" (add of two activations), "norm", "embedding", "other"
    head     of the linear that makes the model's output
    axis     the dimension that is reduced: blocks, groups and per-token scales run along it. None: the last
    channel  the dimension of a weight that is the output channel (of an embedding: the row)
    source   "file.py:12, in forward" if known
    op_type  the operator as its framework names it: "Conv", "Gemm" (ONNX), "conv2d" (ATen)
    alias    what the model calls the operator, where `node` is a path that was made of that
    regions  the pairs of a rule's `between` that it lies between
    """

    node: str
    kind: str
    role: str
    index: int
    tensor: str
    dtype: str
    shape: tuple[int | None, ...]
    use: str
    head: bool = False
    axis: int | None = None
    channel: int | None = None
    source: str = ""
    op_type: str = ""
    alias: str = ""
    regions: frozenset[Region] = frozenset()

    def __post_init__(self) -> None:
        _check_known("role", (self.role,), ROLES)
        _check_known("use", (self.use,), USES)

    @property
    def size(self) -> int | None:
        """Number of elements; None if it is not known before the run."""
        known = [n for n in self.shape if n is not None]
        return prod(known) if len(known) == len(self.shape) else None

    def __str__(self) -> str:
        place = f" ({self.source})" if self.source else ""
        tensor = f"{self.role} {self.index} {self.tensor!r} [{self.size_text}]"
        return f"{tensor} of {self.kind} {self.node!r}{place}"

    @property
    def size_text(self) -> str:
        return "×".join("?" if n is None else str(n) for n in self.shape) or "scalar"


Names = str | tuple[str, ...] | None

_CONDITIONS = (
    "name", "tensor", "kind", "op_type", "between", "role", "use", "dtype", "index", "head", "min_rank",
    "min_size", "max_size",
)  # fmt: skip
_SETTINGS = (
    "axis", "block", "rule", "rounding", "dialect", "dynamic", "scale", "zero_point", "quant_min",
    "quant_max",
)  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """Operands that meet every condition get `layout`: a preset's name with settings ("mxfp4",
    "int4-g128,rule=no_clip"), a Scheme, or "float".

    Conditions. `name` (the operator's) and `tensor` are globs ("*.mlp.*", where * matches dots too) or
    "re:<regex>", which must match fully; those, `kind`, `op_type`, `role`, `use` and `dtype` may be tuples,
    any one of which suffices. `between=(a, b)` is for the operators on the ways from tensor a to tensor b, each
    a name or several. Without a role a layout is for inputs and weights, and "float" for every role. A rank
    counts dimensions, a size elements; a tensor whose size is not known before the run meets no condition
    on it.

    Settings replace fields of the scheme. `optional`: may match nothing, as rules made for any model do, and
    leaves tensors of a dtype that has no layouts (float64) as they are.
    """

    layout: str | Scheme
    name: Names = field(default=None, kw_only=True)
    tensor: Names = field(default=None, kw_only=True)
    kind: Names = field(default=None, kw_only=True)
    op_type: Names = field(default=None, kw_only=True)
    between: Any = field(default=None, kw_only=True)
    role: Names = field(default=None, kw_only=True)
    use: Names = field(default=None, kw_only=True)
    dtype: Names = field(default=None, kw_only=True)
    index: int | None = field(default=None, kw_only=True)
    head: bool | None = field(default=None, kw_only=True)
    min_rank: int | None = field(default=None, kw_only=True)
    min_size: int | None = field(default=None, kw_only=True)
    max_size: int | None = field(default=None, kw_only=True)
    axis: int | tuple[int, ...] | None = field(default=None, kw_only=True)
    block: int | tuple[int, ...] | None = field(default=None, kw_only=True)
    rule: str | None = field(default=None, kw_only=True)
    rounding: str | None = field(default=None, kw_only=True)
    dialect: str | None = field(default=None, kw_only=True)
    dynamic: bool | None = field(default=None, kw_only=True)
    scale: str | None = field(default=None, kw_only=True)
    zero_point: bool | None = field(default=None, kw_only=True)
    quant_min: int | None = field(default=None, kw_only=True)
    quant_max: int | None = field(default=None, kw_only=True)
    optional: bool = field(default=False, kw_only=True)
    scheme: Scheme | None = field(init=False, repr=False, compare=False)  # None: float

    def __post_init__(self) -> None:
        for key in ("name", "tensor", "kind", "op_type", "role", "use", "dtype"):
            object.__setattr__(self, key, _names(key, getattr(self, key)))
        object.__setattr__(self, "between", _region(self.between))
        for key in ("axis", "block"):
            if isinstance(getattr(self, key), list):
                object.__setattr__(self, key, tuple(getattr(self, key)))
        _check_known("role", self.role, ROLES)
        _check_known("use", self.use, USES)
        _check_known("dtype", self.dtype, DTYPES)
        for key in ("name", "tensor"):
            for pattern in getattr(self, key) or ():
                matcher(pattern, key)
        self._check_values()
        object.__setattr__(self, "scheme", self._scheme())

    def _check_values(self) -> None:
        for key in ("index", "min_rank", "min_size", "max_size", "quant_min", "quant_max"):
            value = getattr(self, key)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise ArgumentError(key, value, "an integer")
        for key in ("rule", "rounding", "dialect", "scale"):
            if getattr(self, key) is not None and not isinstance(getattr(self, key), str):
                raise ArgumentError(key, getattr(self, key), "a name")
        for key in ("axis", "block"):
            value = getattr(self, key)
            several = value if isinstance(value, tuple) else (0 if value is None else value,)
            if not several or not all(isinstance(n, int) and not isinstance(n, bool) for n in several):
                raise ArgumentError(key, value, "an integer, or several")
        for key in ("index", "min_rank", "min_size", "max_size"):
            if (getattr(self, key) or 0) < 0:
                raise ArgumentError(key, getattr(self, key), "not below 0")
        for key in ("head", "dynamic", "zero_point", "optional"):
            if getattr(self, key) is not None and not isinstance(getattr(self, key), bool):
                raise ArgumentError(key, getattr(self, key), "true or false")
        if self.min_size is not None and self.max_size is not None and self.min_size > self.max_size:
            raise CombinationError(f"min_size {self.min_size} is above max_size {self.max_size}")

    def _scheme(self) -> Scheme | None:
        settings = self.settings
        if self.layout == FLOAT:
            if settings:
                raise CombinationError(f"layout 'float' takes no {', '.join(settings)}: nothing is quantized")
            return None
        if isinstance(self.layout, str):
            scheme = scheme_named(self.layout)
        elif isinstance(self.layout, Scheme):
            scheme = self.layout
        else:
            raise ArgumentError("layout", self.layout, "a preset's name, a Scheme or 'float'")
        more = {key: settings.pop(key) for key in tuple(settings) if key in _DIRECT}
        if "zero_point" in more:
            more["rule"] = None  # symmetric or asymmetric goes with it, unless `settings` name a rule
        scheme = refined(replace(scheme, **more) if more else scheme, **settings)
        if scheme.family == "mx" and not scheme.dynamic:
            raise CombinationError(
                f"dynamic = False with {scheme}: MX scales come from the values themselves"
            )
        return scheme

    @property
    def conditions(self) -> dict[str, Any]:
        """The conditions that are given."""
        return {key: getattr(self, key) for key in _CONDITIONS if getattr(self, key) is not None}

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that are given."""
        return {key: getattr(self, key) for key in _SETTINGS if getattr(self, key) is not None}

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles it is about: those named, or what the layout stands for."""
        if self.role is not None:
            return tuple(self.role)
        return ROLES if self.scheme is None else _ROLES_OF_LAYOUT

    @cached_property
    def _tests(self) -> tuple[tuple[str, Any], ...]:
        implied: dict[str, Any] = {"dtype": DTYPES} if self.optional and self.scheme is not None else {}
        return tuple((implied | self.conditions | {"role": self.roles}).items())

    def matches(self, operand: Operand) -> bool:
        return all(_MEETS[key](wanted, operand) for key, wanted in self._tests)

    def failed(self, operand: Operand) -> list[str]:
        """The conditions that `operand` does not meet. None: the rule matches."""
        return [key for key, wanted in self._tests if not _MEETS[key](wanted, operand)]

    def __str__(self) -> str:
        given = (self.conditions | self.settings).items()
        return ", ".join([layout_text(self), *(f"{key}={_shown(value)}" for key, value in given)])


# Settings that `refined` does not know.
_DIRECT = ("dynamic", "scale", "zero_point", "quant_min", "quant_max")
RULE_KEYS = tuple(f.name for f in fields(Rule) if f.init)


@lru_cache(maxsize=4096)
def matcher(pattern: str, key: str) -> Callable[[str], re.Match[str] | None]:
    """Whether a whole text fits a glob, or `re:` and a regular expression."""
    if not pattern.startswith("re:"):
        return re.compile(translate(pattern)).fullmatch
    try:
        return re.compile(pattern[3:]).fullmatch
    except (re.error, OverflowError, RecursionError) as error:
        raise ArgumentError(key, pattern, f"a glob, or re: and a regular expression ({error})") from None


# Condition → whether an operand meets what is wanted.
_MEETS: dict[str, Callable[[Any, Operand], bool]] = {
    "name": lambda patterns, operand: any(
        matcher(one, "name")(name) for one in patterns for name in (operand.node, operand.alias) if name
    ),
    "tensor": lambda patterns, operand: any(matcher(one, "tensor")(operand.tensor) for one in patterns),
    "kind": lambda names, operand: operand.kind in names,
    "op_type": lambda names, operand: operand.op_type in names,
    "between": lambda region, operand: region in operand.regions,
    "role": lambda names, operand: operand.role in names,
    "use": lambda names, operand: operand.use in names,
    "dtype": lambda names, operand: operand.dtype in names,
    "index": lambda index, operand: operand.index == index,
    "head": lambda head, operand: operand.head == head,
    "min_rank": lambda least, operand: len(operand.shape) >= least,
    "min_size": lambda least, operand: operand.size is not None and operand.size >= least,
    "max_size": lambda most, operand: operand.size is not None and operand.size <= most,
}


def _names(key: str, value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, tuple | list) or not names or not all(isinstance(n, str) and n for n in names):
        raise ArgumentError(key, value, "a name, or several")
    return tuple(names)


def _region(value: object) -> Region | None:
    if value is None:
        return None
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ArgumentError(
            "between", value, "two tensors, where it begins and where it ends; each may be several"
        )
    start, end = (_names("between", one) for one in value)
    if start is None or end is None:
        raise ArgumentError("between", value, "two tensors; None names none")
    return start, end


def _check_known(key: str, names: Names, known: Iterable[str]) -> None:
    for name in names or ():
        if name not in known:
            raise UnknownNameError(key, name, known)


def _shown(value: object) -> str:
    if isinstance(value, tuple) and isinstance(value[0], tuple):  # a region
        return "…".join(map(_shown, value))
    return "|".join(value) if isinstance(value, tuple) and isinstance(value[0], str) else str(value)


# ------------------------------------------------------------------------------- the scheme on an operand


def bound(rule: Rule, operand: Operand) -> Scheme | None:
    """The rule's scheme with its axis that of the operand, legal for its shape. None: float.

    Blocks along one axis follow `operand.axis`, one scale a channel follows `operand.channel`, unless the
    rule or its Scheme names an axis. Weights and biases are constant: their parameters come from their
    values.
    """
    scheme = rule.scheme
    if scheme is None:
        return None
    if operand.dtype not in DTYPES:
        raise _refusal(rule, operand, f"its dtype is {operand.dtype}, not {', '.join(DTYPES)}: cast it")
    if scheme.axes and not operand.shape:
        raise _refusal(rule, operand, "a scalar has no axis; only one scale for the whole tensor fits it")
    if rule.axis is None:
        scheme = _placed(rule, scheme, operand)
    if operand.role in ("weight", "bias"):
        scheme = _with(scheme, dynamic=True)
    try:
        layout = bind(scheme, [1 if n is None else n for n in operand.shape])
    except BlockscaleError as error:
        raise _refusal(rule, operand, str(error)) from error
    grows = any(n is None and b for n, b in zip(operand.shape, layout.block, strict=True))
    if scheme.family == "affine" and not scheme.dynamic and grows:
        raise _refusal(
            rule, operand, "how many static scales it takes is not known before the run; set dynamic: true"
        )
    return scheme


@lru_cache(maxsize=4096)
def _with(scheme: Scheme, **changes: Any) -> Scheme:
    """`replace`, remembered: a scheme is checked when made, and large models ask for few different ones."""
    return replace(scheme, **changes)


def _placed(rule: Rule, scheme: Scheme, operand: Operand) -> Scheme:
    if scheme.others == 1 and scheme.axes == (-1,):
        return _with(scheme, axis=-1 if operand.axis is None else operand.axis)
    if scheme.others == 0 and scheme.axes == (0,) and scheme.blocks == (1,):
        if operand.channel is None:
            raise _refusal(
                rule, operand,
                "it has no output channels; set axis, or name a layout such as 'int8' or 'int8-token'",
            )  # fmt: skip
        return _with(scheme, axis=operand.channel)
    return scheme


def _refusal(rule: Rule, operand: Operand, reason: str) -> RecipeError:
    return RecipeError(
        f"{operand} cannot take {layout_text(rule)}: {reason}. "
        f'Narrow the rule (role, kind, name), or put Rule("float", name={escape(operand.node)!r}, '
        f"role={operand.role!r}) before it"
    )


def layout_text(rule: Rule) -> str:
    """The layout as the rule names it."""
    return rule.layout if isinstance(rule.layout, str) else scheme_text(rule.layout)


def scheme_text(scheme: Scheme) -> str:
    """Numbers and place, for people: `mxfp4, 32 along axis -1`."""
    if not scheme.axes:
        place = "whole tensor" if scheme.others == 0 else "each element"
    elif scheme.others == 0 and scheme.blocks == (1,):
        place = f"each index of axis {scheme.axes[0]}"
    else:
        parts = zip(scheme.blocks, scheme.axes, strict=True)
        place = " × ".join(f"{b or 'all'} along axis {axis}" for b, axis in parts)
        if scheme.others == 0:
            place += ", rest whole"
    return f"{scheme}, {place}"
