"""Layouts of ONNX files in words, and what functions of the portable form say of theirs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from blockscale.errors import BlockscaleError
from blockscale.graph.quant import Quant
from blockscale.numerics.scheme import Numbers, Scheme, numbers_named
from blockscale.recipe_rules import scheme_text

Place = tuple[Numbers, tuple[int, ...]]  # block in each dimension


def words(place: Quant | Place | None, is_weight: bool) -> str:
    if place is None:
        return ""
    numbers, block = (place.numbers, place.block) if isinstance(place, Quant) else place
    return scheme_text(_scheme(numbers, block, is_weight))


def _scheme(numbers: Numbers, block: tuple[int, ...], is_weight: bool) -> Scheme:
    """The scheme of few words that has these blocks on this rank. Weights have channels, activations tokens."""
    blocked = [i for i, b in enumerate(block) if b != 1]
    single = [i for i, b in enumerate(block) if b != 0]
    fields = {name: getattr(numbers, name) for name in Numbers.__dataclass_fields__}
    if len(single) < len(blocked) or not blocked or (is_weight and [block[i] for i in single] == [1]):
        return Scheme(**fields, axis=tuple(single), block=tuple(block[i] for i in single), others=0)
    axes = tuple(i - len(block) for i in blocked)
    return Scheme(**fields, axis=axes, block=tuple(block[i] for i in blocked), others=1)


def told(notes: Mapping[str, Any]) -> Place | None:
    """Numbers and blocks, where a function of ours or its call has them."""
    numbers, block = notes.get("numbers"), notes.get("block")
    if not isinstance(numbers, str) or block is None:
        return None
    sizes = json.loads(block) if isinstance(block, str) else block
    return numbers_named(numbers), tuple(int(n) for n in sizes)


# `FakeQuantize_mxint8_rounding_half_away_1x32`, `…_2`: a name has no sign and no comma.
_NAME = re.compile(r"[A-Za-z]+_(?P<numbers>\w+?)_(?P<block>\d+(x\d+)*)(_\d+)?")
_SETTING = re.compile(r"_(rule|rounding|scale|dialect|dynamic|zero_point)_")


def from_name(name: str) -> Place | None:
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    try:
        numbers = numbers_named(_SETTING.sub(r",\1=", match["numbers"]))
    except BlockscaleError:
        return None
    return numbers, tuple(map(int, match["block"].split("x")))
