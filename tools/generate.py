"""Derive files from the tables of numerics: those of the core, tables in the docs, test vectors.

python tools/generate.py            write core/generated/*.inc, docs/formats.md and the
                                    parts of README.md and docs/numerics.md between markers
python tools/generate.py --check    fail if they are out of date (part of `make lint`)
python tools/generate.py --vectors FILE [--samples N]
                                    write test vectors of the reference codec for core/tests
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))
sys.path.insert(0, str(ROOT / "tools"))

from blockscale.numerics import dialects  # noqa: E402
from blockscale.numerics.formats import E8M0_ELEMENTS, ELEMENTS, FORMATS, SCALES, Format  # noqa: E402
from blockscale.numerics.scheme import BASES, SETTINGS  # noqa: E402
from blockscale.report import tables  # noqa: E402

SPECIALS = {"none": "kNone", "nan": "kNan", "ieee": "kIeee"}
KINDS = {"float": "kFloat", "fixed": "kFixed", "exponent": "kExponent"}


def cpp_row(row: Format) -> str:
    fields = (
        row.name, KINDS[row.kind], row.bits, row.exponent_bits, row.mantissa_bits, row.bias,
        f"Specials::{SPECIALS[row.specials]}", str(row.signed).lower(), row.min_code, row.max_code,
        row.emax, row.emin, f"{float(row.max).hex()}f",
    )  # fmt: skip
    return f"BS_FORMAT({', '.join(map(str, fields))})"


def cpp_table() -> str:
    return head_of("FORMATS") + "".join(cpp_row(row) + "\n" for row in FORMATS.values())


def head_of(source: str) -> str:
    return f"// Written by tools/generate.py from {source}; do not edit.\n// clang-format off\n"


def cpp_value(value: object) -> str:
    """Of a field: a list of names is one string, with blanks between them."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple) and value and isinstance(value[0], bool):
        return "{" + ", ".join(map(cpp_value, value)) + "}"
    if isinstance(value, tuple):
        return f'"{" ".join(value)}"'
    return f'"{value}"' if isinstance(value, str) else str(value)


def cpp_bases() -> str:
    rows = []
    for name, fields in BASES.items():
        row = (name, fields["element"], fields.get("scale", "e8m0"))
        flags = (fields.get("tensor_scale", False), fields.get("zero_point", False))
        runs = (fields.get("sub_block", 0), fields.get("sub_shift", 0))
        rows.append(f"BS_BASE({', '.join(map(cpp_value, row + flags + runs))})\n")
    return head_of("BASES of scheme.py") + "".join(rows)


DIALECT_FIELDS = (
    "name", "families", "elements", "affine_elements", "tensor_scaled_elements", "rules", "roundings",
    "int_roundings", "default_rule", "default_rounding", "nonfinite", "has_codes", "clamps", "flushes",
    "saturates", "reciprocal", "nearly_half", "least_scale", "zero_scale", "full_range", "float_zero",
    "fixed_zero", "fixed_zero_half_even",
)  # fmt: skip


def cpp_dialects() -> str:
    lines = [head_of("DIALECTS")]
    for name, row in dialects.DIALECTS.items():
        for macro, one in (("BS_DIALECT", row), ("BS_SUB_BLOCKED", row.sub_blocked)):
            if one is not None:
                values = [name, *(getattr(one, field) for field in DIALECT_FIELDS[1:])]
                lines.append(f"{macro}({', '.join(map(cpp_value, values))})\n")
    return "".join(lines)


def cpp_number_names() -> str:
    lists = {
        "kSettings": SETTINGS, "kElements": ELEMENTS, "kMxElements": E8M0_ELEMENTS, "kScales": SCALES,
        "kRules": dialects.RULES, "kMxRules": dialects.MX_RULES, "kAffineRules": dialects.AFFINE_RULES,
        "kTensorScaledRules": dialects.TENSOR_SCALED_RULES, "kRoundings": dialects.ROUNDINGS,
    }  # fmt: skip
    rows = (f"constexpr Text {name} = {cpp_value(names)};\n" for name, names in lists.items())
    return head_of("the tables of numerics") + "".join(rows)


def docs_table() -> str:
    lines = [
        "# Number formats",
        "",
        "Written by `python tools/generate.py` from the one table that everything else is derived",
        "from, `FORMATS` in `src/blockscale/numerics/formats.py`. `blockscale formats --all` prints it.",
        "",
    ]
    rows = [[f"`{name}`", *rest] for name, *rest in tables.format_rows()]
    return "\n".join(lines) + "\n" + markdown(tables.FORMAT_HEAD, rows)


def short_table() -> str:
    """FORMATS with the affine integers in one row, and what each is for."""
    rows = []
    for name, _, bits, widths, _, largest, smallest, specials, doc in tables.format_rows(every=False):
        if name in FORMATS:
            uses = ["yes" if name in names else "–" for names in (ELEMENTS, SCALES)]
        else:
            name, uses = name.replace(", ", "`, `"), ["yes", "–"]
            bits = f"{bits}, {doc[doc.index('N =') :].partition(':')[0]}"
        rows.append([f"`{name}`", bits, widths, largest, smallest, specials, *uses])
    head = ["format", "bits", "E, M", "largest", "smallest > 0", "NaN, Inf", "element", "scale"]
    return markdown(head, rows)


def presets_table() -> str:
    rows = []
    for name, element, scale, extent, zero, rule, _ in tables.preset_rows():
        first, times, rest = scale.partition(" × ")
        rows.append([f"`{name}`", f"`{element}`", f"`{first}`{times}{rest}", extent, zero, rule])
    return markdown(tables.PRESET_HEAD[:-1], rows)


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return (
        "".join("| " + " | ".join(line) + " |\n" for line in lines)
        .replace("| --- |", "|---|")
        .replace(" --- |", "---|")
    )


def within_markers(path: Path, parts: dict[str, str]) -> str:
    """The file with each part written anew between `<!-- generated: name -->` and `<!-- end -->`."""
    text = path.read_text()
    for name, part in parts.items():
        start, end = f"<!-- generated: {name} -->\n", "<!-- end -->"
        head, found, rest = text.partition(start)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise SystemExit(f"{path.name} has no {start.strip()} … {end}")
        text = head + start + part + end + tail
    return text


README, NUMERICS = ROOT / "README.md", ROOT / "docs" / "numerics.md"
OUTPUTS = {
    ROOT / "core" / "generated" / "formats.inc": cpp_table,
    ROOT / "core" / "generated" / "bases.inc": cpp_bases,
    ROOT / "core" / "generated" / "dialects.inc": cpp_dialects,
    ROOT / "core" / "generated" / "number_names.inc": cpp_number_names,
    ROOT / "docs" / "formats.md": docs_table,
    README: lambda: within_markers(README, {"formats": short_table()}),
    NUMERICS: lambda: within_markers(NUMERICS, {"presets": presets_table()}),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail if out of date")
    parser.add_argument("--vectors", type=Path, help="write test vectors to this file")
    parser.add_argument("--samples", type=int, default=4, help="vectors a combination (default 4)")
    arguments = parser.parse_args()
    if arguments.vectors:
        from vectors import write_vectors

        write_vectors(arguments.vectors, arguments.samples)
        return 0
    stale = []
    for path, render in OUTPUTS.items():
        text = render()
        if path.exists() and path.read_text() == text:
            continue
        stale.append(path.relative_to(ROOT))
        if not arguments.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for name in stale:
        print(f"{'out of date' if arguments.check else 'wrote'}: {name}")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
