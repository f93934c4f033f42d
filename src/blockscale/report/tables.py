"""FORMATS and PRESETS as rows of text, for the command and for the documents that are generated."""

from __future__ import annotations

from blockscale.numerics.formats import BFP_ELEMENTS, FORMATS, INT_ELEMENTS, Format
from blockscale.numerics.scheme import PRESETS, Scheme, scheme_named

SPECIALS = {"none": "–", "nan": "NaN", "ieee": "NaN, Inf"}
FORMAT_HEAD = ["name", "kind", "bits", "E, M", "bias", "largest", "smallest > 0", "NaN, Inf", "is"]
PRESET_HEAD = ["preset", "element", "scale", "one scale for", "zero point", "rule", "rounding"]

# Formats of many widths, which the short tables have in one row: bits, and what they are.
_WIDTHS = {
    "bfpN": (BFP_ELEMENTS, "N - 8", "block floating point, N = 10 to 24: a sign and N - 9 bits"),
    "intN, uintN": (INT_ELEMENTS, "N", "affine integers, N = 2 to 16"),
}


def format_rows(every: bool = True) -> list[list[str]]:
    """One row a format; if not `every`, a single one for those of many widths."""
    if every:
        return [_format_row(one) for one in FORMATS.values()]
    firsts = {names[0]: name for name, (names, _, _) in _WIDTHS.items()}
    others = {one for names, _, _ in _WIDTHS.values() for one in names[1:]}
    rows = []
    for one in FORMATS.values():
        if one.name in firsts:
            name = firsts[one.name]
            _, bits, doc = _WIDTHS[name]
            rows.append([name, one.kind, bits, "–", "–", "by N", "1", "–", doc])
        elif one.name not in others:
            rows.append(_format_row(one))
    return rows


def _format_row(one: Format) -> list[str]:
    widths = f"{one.exponent_bits}, {one.mantissa_bits}" if one.is_float else "–"
    return [
        one.name, one.kind, str(one.bits), widths,
        "–" if one.is_fixed else str(one.bias), f"{one.max:.9g}", f"{one.smallest:.9g}",
        "NaN" if one.kind == "exponent" else SPECIALS[one.specials], one.doc,
    ]  # fmt: skip


def preset_rows() -> list[list[str]]:
    schemes = {name: scheme_named(name) for name in PRESETS}
    return [
        [name, one.element, one.scale + (" × one f32" if one.tensor_scale else ""), extent(one),
         "yes" if one.zero_point else "–", str(one.rule), str(one.rounding)]
        for name, one in schemes.items()
    ]  # fmt: skip


def extent(scheme: Scheme) -> str:
    """The elements that share a scale."""
    if not scheme.axes:
        return "the tensor"
    if scheme.others == 0:
        return f"an index of axis {scheme.axes[0]}"
    runs = f", sub-blocks of {scheme.sub_block}" if scheme.sub_block else ""
    return f"{scheme.blocks[0] or 'all'} along axis {scheme.axes[0]}{runs}"
