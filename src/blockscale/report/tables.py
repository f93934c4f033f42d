"""FORMATS and PRESETS as rows of text, for the command and for the documents that are generated."""

from __future__ import annotations

from blockscale.numerics.formats import FORMATS, INT_ELEMENTS, Format
from blockscale.numerics.scheme import PRESETS, Scheme, scheme_named

SPECIALS = {"none": "–", "nan": "NaN", "ieee": "NaN, Inf"}
FORMAT_HEAD = ["name", "kind", "bits", "E, M", "bias", "largest", "smallest > 0", "NaN, Inf", "is"]
PRESET_HEAD = ["preset", "element", "scale", "one scale for", "zero point", "rule", "rounding"]


def format_rows(every: bool = True) -> list[list[str]]:
    """One row a format; if not `every`, the affine integers in a single row."""
    rows = []
    for one in FORMATS.values():
        if every or one.name not in INT_ELEMENTS:
            rows.append(_format_row(one))
        elif one.name == INT_ELEMENTS[0]:
            bits = [FORMATS[name].bits for name in INT_ELEMENTS]
            rows.append(
                ["intN, uintN", one.kind, "N", "–", "–", "by N", "1", "–",
                 f"affine integers, N = {min(bits)} to {max(bits)}"]
            )  # fmt: skip
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
    return f"{scheme.blocks[0] or 'all'} along axis {scheme.axes[0]}"
