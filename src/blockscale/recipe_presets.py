"""Recipes with names: `X`, `X-Y` (weights X, inputs Y), `X-float` (weights alone), each with `-all` or not.

X and Y are layouts as `scheme_named` reads them, settings included: `int4-g128,rule=no_clip-float`.
"""

from __future__ import annotations

from dataclasses import dataclass

from blockscale.errors import BlockscaleError, CombinationError, UnknownNameError
from blockscale.numerics.dialects import dialect_named
from blockscale.numerics.scheme import PRESETS, Scheme, scheme_named
from blockscale.recipe_rules import FLOAT, USES, Rule

ALL = "-all"

_PAIRS = (
    "mxfp4-mxfp8", "mxfp4-mxfp6", "mxfp4-mxint8", "mxfp6-mxfp8", "mxfp6-mxint8", "int4-g128-int8-token",
    "int4-g32-int8-token",
)  # fmt: skip
_WEIGHT_ONLY = (
    "mxfp4-float", "mxfp6-float", "mxfp8-float", "mxint8-float", "nvfp4-float", "int8-float",
    "int4-g32-float", "int4-g64-float", "int4-g128-float", "uint4-g32-float",
)  # fmt: skip
_ALL = ("mxfp4-all", "mxfp6-all", "mxfp8-all", "mxint8-all", "mxfp4-mxint8-all", "int8-all", "uint8-all")
_SHORT = ("mxfp8", "mxfp6")


def names() -> tuple[str, ...]:
    """The recipes that docs and the command line list; every other `X-Y` and `X-float` works as well."""
    return (*_SHORT, *PRESETS, *_PAIRS, *_WEIGHT_ONLY, *_ALL)


def preset_rules(name: str) -> tuple[Rule, ...]:
    """The rules of the recipe `name`. All are optional: a model need not have an embedding."""
    parts = _parsed(name)
    weight, inputs = _weight(parts.weight), _input(parts.inputs)
    embedding, head = _special(weight)
    rules = [Rule(embedding, use="embedding", role="weight", optional=True)]
    if head != weight:
        rules.append(Rule(head, use="linear", role="weight", head=True, optional=True))
    rules.append(Rule(weight, use="linear", role="weight", optional=True))
    if inputs is not None:
        # What goes into an embedding are indices.
        uses = tuple(use for use in USES if use != "embedding") if parts.all else ("linear",)
        rules.append(Rule(inputs, use=uses, role="input", optional=True))
        if parts.all:
            rules.append(Rule(inputs, role="output", optional=True))
    return tuple(rules)


@dataclass(frozen=True)
class _Parts:
    weight: str
    inputs: str | None  # None: float
    all: bool


def _parsed(name: str) -> _Parts:
    plain = name.removesuffix(ALL)
    everything = plain != name
    if _is_layout(plain):
        return _Parts(plain, plain, everything)
    for at, sign in enumerate(plain):
        weight, inputs = plain[:at], plain[at + 1 :]
        if sign != "-" or not _is_layout(weight):
            continue
        if inputs == FLOAT:
            if everything:
                raise CombinationError(
                    f"preset {name!r}: -float leaves activations as they are, {ALL} quantizes every one; "
                    f"write {weight + '-float'!r}, or a second layout as in {weight + '-mxint8-all'!r}"
                )
            return _Parts(weight, None, everything)
        if _is_layout(inputs):
            return _Parts(weight, inputs, everything)
    _explain(name, plain)
    raise UnknownNameError("preset", name, names())


def _is_layout(text: str) -> bool:
    try:
        return bool(scheme_named(text))
    except BlockscaleError:
        return False


def _explain(name: str, plain: str) -> None:
    """Raise what is wrong with the layout, where the name itself is known."""
    try:
        scheme_named(plain)
    except UnknownNameError as error:
        if error.argument != "format":
            raise
    except BlockscaleError as error:
        raise CombinationError(f"preset {name!r}: {error}") from error


# ------------------------------------------------------------------------------- from a name to layouts


def _weight(text: str) -> str:
    """The layout of weights: one scale for the tensor, or for each token, means one for each channel.

    A bare unsigned integer means asymmetric inputs and symmetric weights, as integer kernels want them.
    """
    base, _, settings = text.partition(",")
    element, _, place = base.partition("-")
    if scheme_named(text).family != "affine" or place not in ("", "token"):
        return text
    dropped: tuple[str, ...] = ("dynamic=",)
    if not place and element.startswith("uint"):
        element = element.removeprefix("u")
        dropped += ("quant_min=", "quant_max=", "rule=", "zero_point=")  # said of the unsigned ones
    kept = [one for one in settings.split(",") if one and not one.startswith(dropped)]
    return ",".join([f"{element}-channel", *kept])


def _input(text: str | None) -> str | None:
    """The layout of inputs: one scale for the tensor is static unless said otherwise; weights alone have channels."""
    if text is None:
        return None
    base, _, settings = text.partition(",")
    base = base.removesuffix("-channel")
    text = ",".join(part for part in (base, settings) if part)
    scheme = scheme_named(text)
    if scheme.family == "affine" and not scheme.axes and "dynamic=" not in settings:
        return f"{text},dynamic=false"
    return text


def _special(weight: str) -> tuple[str, str]:
    """The layouts of embeddings and of the head: those of other weights, but of 8 bits at least."""
    scheme = scheme_named(weight)
    if scheme.element_format.bits < 8:
        weight = ("int8-channel" if scheme.family == "affine" else "mxint8") + _dialect(scheme)
    # One scale a row is said as one a token: it holds whatever a lister takes for an embedding's channels.
    return weight.replace("-channel", "-token"), weight


def _dialect(scheme: Scheme) -> str:
    """The same arithmetic where that dialect has 8-bit numbers; ggml has none."""
    family = "affine" if scheme.family == "affine" else "mx"
    row = dialect_named(scheme.dialect)
    element = "int8" if family == "affine" else "mxint8"
    known = family in row.families and element in row.elements_of(family)
    return f",dialect={row.name}" if known and row.name != "ocp" else ""
