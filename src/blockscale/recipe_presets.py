"""Recipes with names: `X`, `X-Y` (weights X, inputs Y), `X-float` (weights alone), each with `-all` or not.

X and Y are layouts as `scheme_named` reads them, settings included: `int4-g128,rule=no_clip-float`. As inputs
they may end in `-dynamic`.
"""

from __future__ import annotations

from dataclasses import dataclass

from blockscale.errors import BlockscaleError, CombinationError, UnknownNameError
from blockscale.numerics.formats import BFP_ELEMENTS
from blockscale.numerics.scheme import PRESETS, scheme_named
from blockscale.recipe_rules import DTYPES, FLOAT, USES, Rule

ALL = "-all"
DYNAMIC = "-dynamic"

_SINGLE = (
    "mxfp8", "mxfp6", *(name for name in PRESETS if name != "int8-channel"), "int8-dynamic", "uint8-dynamic",
)  # fmt: skip
_PAIRS = (
    "mxfp4-mxfp8", "mxfp4-mxfp6", "mxfp4-mxint8", "mxfp6-mxfp8", "mxfp6-mxint8", "int8-uint8",
    "int4-g128-int8-token", "int4-g32-int8-token",
)  # fmt: skip
_WEIGHT_ONLY = (
    "mxfp4-float", "mxfp6-float", "mxfp8-float", "mxint8-float", "nvfp4-float", "bfp16-float", "mx9-float",
    "mx6-float", "mx4-float", "int8-float",
    "int4-g32-float", "int4-g64-float", "int4-g128-float", "uint4-g32-float",
)  # fmt: skip
_ALL = ("mxfp4-all", "mxfp6-all", "mxfp8-all", "mxint8-all", "mxfp4-mxint8-all", "int8-all", "uint8-all")


def names() -> tuple[str, ...]:
    """The recipes that docs and the command line list; every other `X-Y` and `X-float` works as well."""
    return (*_SINGLE, *_PAIRS, *_WEIGHT_ONLY, *_ALL)


def is_preset(text: str) -> bool:
    """Whether it names a recipe, and not the file of one."""
    try:
        _parsed(text)
    except BlockscaleError:
        return False
    return True


def parts_of(name: str) -> tuple[str, str | None]:
    """The layouts of weights and of inputs, None where these stay float; `-all` says nothing here."""
    parts = _parsed(name)
    return parts.weight, parts.inputs


def preset_rules(name: str) -> tuple[Rule, ...]:
    """The rules of the recipe `name`. All are optional: a model need not have an embedding."""
    parts = _parsed(name)
    weight = _weight(parts.weight)
    head = _at_least_8_bits(weight)
    # One scale a row is said as one a token: it holds whatever a lister takes for an embedding's channels.
    rules = [Rule(head.replace("-channel", "-token"), use="embedding", role="weight", optional=True)]
    if head != weight:
        rules.append(Rule(head, use="linear", role="weight", head=True, optional=True))
    rules.append(Rule(weight, use="linear", role="weight", optional=True))
    if parts.inputs is not None:
        inputs = _input(parts.inputs)
        rules.append(Rule(inputs, use="linear", role="input", optional=True))
        if parts.all:
            rules += _of_every_activation(inputs)
    return tuple(rules)


def _of_every_activation(layout: str) -> list[Rule]:
    # Indices, masks and numbers on their own are activations too, but nothing that this could hold.
    rank = 1 if scheme_named(layout).axes else None
    uses = tuple(use for use in USES if use not in ("linear", "embedding"))
    return [
        Rule(layout, use=uses, role="input", dtype=DTYPES, min_rank=rank, optional=True),
        Rule(layout, role="output", dtype=DTYPES, min_rank=rank, optional=True),
    ]


# ------------------------------------------------------------------------------- from a name to its parts


@dataclass(frozen=True)
class _Parts:
    weight: str
    inputs: str | None  # None: float
    all: bool


def _parsed(name: str) -> _Parts:
    plain = name.removesuffix(ALL)
    everything = plain != name
    fault = _fault(plain)
    if fault is None:
        return _Parts(plain.removesuffix(DYNAMIC), plain, everything)
    for at, sign in enumerate(plain):
        weight, inputs = plain[:at], plain[at + 1 :]
        if sign != "-" or weight.endswith(DYNAMIC):
            continue
        fault_of_weight = _fault(weight)
        if fault_of_weight is not None:
            fault = fault if _is_unknown(fault_of_weight) else fault_of_weight
            continue
        if inputs == FLOAT:
            if everything:
                raise CombinationError(
                    f"preset {name!r}: -float leaves activations as they are, {ALL} quantizes every one; "
                    f"write {weight + '-float'!r}, or a second layout as in {weight + '-mxint8-all'!r}"
                )
            return _Parts(weight, None, everything)
        fault_of_inputs = _fault(inputs)
        if fault_of_inputs is None:
            return _Parts(weight, inputs, everything)
        if not _is_unknown(fault_of_inputs):
            fault = fault_of_inputs
    if _is_unknown(fault):
        raise UnknownNameError("preset", name, names(), "; every other X-Y and X-float too") from None
    raise CombinationError(f"preset {name!r}: {fault}") from fault


def _fault(layout: str) -> BlockscaleError | None:
    """What is wrong with a layout of inputs. None: nothing."""
    plain = layout.removesuffix(DYNAMIC)
    try:
        scheme = scheme_named(plain)
    except BlockscaleError as error:
        return error
    if plain != layout and (scheme.family != "affine" or scheme.axes):
        return CombinationError(f"{DYNAMIC} is for one scale a tensor; those of {plain!r} are never static")
    return None


def _is_unknown(error: BlockscaleError) -> bool:
    return isinstance(error, UnknownNameError) and error.argument == "format"


# ------------------------------------------------------------------------------- from a part to its layout


def _weight(text: str) -> str:
    """The layout of weights: one scale for the tensor, or for each token, means one for each channel."""
    base, settings = _split(text)
    element, _, place = base.partition("-")
    if scheme_named(text).family == "affine" and place in ("", "token"):
        base = f"{element}-channel"
    return ",".join([base, *(one for one in settings if not one.startswith("dynamic="))])


def _input(text: str) -> str:
    """The layout of inputs: one scale for the tensor is static unless said otherwise."""
    plain = text.removesuffix(DYNAMIC)
    if plain != text:
        return f"{plain},dynamic=true" if "dynamic=" not in plain else plain
    scheme = scheme_named(text)
    if scheme.axes == (0,) and scheme.others == 0:
        element = text.partition("-")[0]
        raise CombinationError(
            f"{text!r} for inputs: they have no output channels; write {element!r} (one scale, static), "
            f"'{element}-dynamic' or '{element}-token', or '{text}-float' for weights alone"
        )
    if scheme.family == "affine" and not scheme.axes and "dynamic=" not in text:
        return f"{text},dynamic=false"
    return text


def _at_least_8_bits(weight: str) -> str:
    """The layout of embeddings and of the head: that of other weights, but of 8 bits at least.

    Settings stay where 8-bit numbers have them: ggml has none, and the rule of NVFP4 is not one of MX.
    """
    scheme = scheme_named(weight)
    if scheme.element_format.bits >= 8:
        return weight
    layout = "int8-channel" if scheme.family == "affine" else "mxint8"
    if scheme.element in BFP_ELEMENTS:
        layout = "mx9" if scheme.sub_block else "bfp16"
    for setting in _split(weight)[1]:
        kept = setting.startswith(("rule=", "rounding=", "scale=", "dialect="))
        if kept and _fault(f"{layout},{setting}") is None:
            layout = f"{layout},{setting}"
    return layout


def _split(text: str) -> tuple[str, list[str]]:
    base, *settings = text.split(",")
    return base, settings
