"""Which tensors of a checkpoint belong together as codes and scales, and in which format.

A rule is a row: the name and type of the codes, the name and type of their scales, and how the shapes
relate. The layouts are those that compressed-tensors, transformers (gpt-oss) and Quark write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from blockscale.report.safetensors import Entry


@dataclass(frozen=True)
class Rule:
    """`codes` and `scales` are ends of names; a row of `per_byte` · n bytes holds n blocks of `block`."""

    written_by: str
    format: str
    codes: str
    scales: str
    codes_dtype: str
    scale_dtype: str
    bits: int
    block: int
    also: str = ""  # end of the name of a further tensor, which must be there
    not_with: str = ""  # … or must not
    blocks_apart: bool = False  # the blocks are a dimension of their own: [..., blocks, bytes a block]


RULES = (
    Rule("compressed-tensors", "nvfp4", "weight_packed", "weight_scale", "U8", "F8_E4M3", 4, 16,
         also="weight_global_scale"),
    Rule("compressed-tensors", "mxfp4", "weight_packed", "weight_scale", "U8", "U8", 4, 32),
    Rule("compressed-tensors", "mxfp6_e2m3", "weight_packed", "weight_scale", "U8", "U8", 6, 32),
    Rule("compressed-tensors", "mxfp8_e4m3", "weight", "weight_scale", "F8_E4M3", "U8", 8, 32),
    Rule("Quark", "mxfp4", "weight", "weight_scale", "U8", "U8", 4, 32, not_with="weight_packed"),
    Rule("gpt-oss", "mxfp4", "_blocks", "_scales", "U8", "U8", 4, 32, blocks_apart=True),
)  # fmt: skip


@dataclass(frozen=True)
class Quantized:
    """Codes and scales of one weight; `shape` is that of the values."""

    name: str
    written_by: str
    format: str
    shape: tuple[int, ...]
    block: int
    tensors: tuple[str, ...]
    nbytes: int
    elements: int = field(default=0)

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.nbytes / self.elements if self.elements else 0.0


def recognized(entries: list[Entry]) -> list[Quantized]:
    """Every weight that a rule fits, in the order of the file. A tensor belongs to one weight."""
    by_name = {entry.name: entry for entry in entries}
    found, taken = [], set[str]()
    for entry in entries:
        for rule in RULES:
            one = _fit(rule, entry, by_name)
            if one is not None and not taken & set(one.tensors):
                found.append(one)
                taken |= set(one.tensors)
                break
    return found


def _fit(rule: Rule, codes: Entry, by_name: Mapping[str, Entry]) -> Quantized | None:
    if codes.dtype != rule.codes_dtype or not codes.name.endswith(rule.codes):
        return None
    stem = codes.name[: len(codes.name) - len(rule.codes)]
    if not rule.codes.startswith("_") and stem and not stem.endswith("."):
        return None
    scales = by_name.get(stem + rule.scales)
    further = by_name.get(stem + rule.also) if rule.also else None
    if scales is None or scales.dtype != rule.scale_dtype or (rule.also and further is None):
        return None
    if rule.not_with and stem + rule.not_with in by_name:
        return None
    shape = _values_shape(rule, codes.shape, scales.shape)
    if shape is None:
        return None
    parts = [codes, scales] + ([further] if further else [])
    elements = 1
    for n in shape:
        elements *= n
    return Quantized(
        name=stem.rstrip(".") if rule.codes.startswith("_") else stem + "weight",
        written_by=rule.written_by, format=rule.format, shape=shape, block=rule.block,
        tensors=tuple(part.name for part in parts), nbytes=sum(part.nbytes for part in parts),
        elements=elements,
    )  # fmt: skip


def _values_shape(rule: Rule, codes: tuple[int, ...], scales: tuple[int, ...]) -> tuple[int, ...] | None:
    """Shape of the values if codes and scales fit together, else None."""
    if rule.blocks_apart:
        if len(codes) < 2 or codes[:-1] != scales or codes[-1] * 8 != rule.block * rule.bits:
            return None
        return (*codes[:-2], codes[-2] * rule.block)
    if not codes or len(codes) != len(scales) or codes[:-1] != scales[:-1]:
        return None
    length = Fraction(codes[-1] * 8, rule.bits)
    if length.denominator != 1 or -(-length.numerator // rule.block) != scales[-1]:
        return None
    return (*codes[:-1], length.numerator)
