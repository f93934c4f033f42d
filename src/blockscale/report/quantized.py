"""What `blockscale quantize` says of its result: rows of text from the report, and what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec

from blockscale.compiler_report import Report
from blockscale.recipe_rules import FLOAT

MOST = 6  # reasons that are shown; the report has all
NAMES = 3  # of tensors, for each reason


def rows(report: Report) -> list[list[str]]:
    found = [["recipe", report.recipe]]
    layouts = Counter((row["role"], row["layout"]) for row in report.tensors if row["layout"] != FLOAT)
    found += [[_plural(role), f"{count} × {layout}"] for (role, layout), count in sorted(layouts.items())]
    if not layouts and report.tensors:
        found.append(["quantized", "nothing: no tensor of this model meets a rule of the recipe"])
    ratio = f" ({report.bytes_after / report.bytes_before:.3f})" if report.bytes_before else ""
    found.append(["constants", f"{report.bytes_before:,} → {report.bytes_after:,} bytes{ratio}"])
    found += [["left float", text] for text in _float_weights(report)]
    left = Counter((entry["stage"], entry["left"]) for entry in report.entries if entry.get("left"))
    found += [
        ["left alone", f"{count} × by {stage}: {why}"] for (stage, why), count in left.most_common(MOST)
    ]
    if len(left) > MOST:
        found.append(["", f"and {len(left) - MOST} reasons more: --json has them all"])
    return found


def _plural(role: str) -> str:
    return f"{role}es" if role.endswith("s") else f"{role}s"


def _float_weights(report: Report) -> Iterator[str]:
    """Weights alone: that biases and outputs stay float is the rule."""
    by_reason: dict[str, list[str]] = {}
    for row in report.tensors:
        if row["role"] == "weight" and row["layout"] == FLOAT:
            by_reason.setdefault(f"{row['kind']}, {row['why']}", []).append(row["tensor"])
    for reason, tensors in list(by_reason.items())[:MOST]:
        more = f", … ({len(tensors)} weights)" if len(tensors) > NAMES else ""
        yield f"{', '.join(tensors[:NAMES])}{more}: {reason}"


def next_steps(model: str, out: str, form: str | None, runtime: str | None = None) -> str:
    """One line that runs it, and two that look at it."""
    lines = [f"run      {_runs(out, form, runtime)}", f"look     blockscale inspect {out}"]
    return "\n".join([*lines, f"compare  blockscale compare {model} {out} --data …"])


def _runs(out: str, form: str | None, runtime: str | None) -> str:
    if form == "portable" or runtime == "onnxruntime":
        return f"onnxruntime.InferenceSession({out!r})  # operators of ONNX alone"
    if form == "native":
        return f"a runtime that has the types of ONNX in it; `blockscale inspect {out}` says whether onnxruntime does"
    if out.endswith(".onnx") and find_spec("blockscale.onnxruntime") is not None:
        library = "options.register_custom_ops_library(blockscale.onnxruntime.library_path())"
        return f"{library}; onnxruntime.InferenceSession({out!r}, options)"
    return f"blockscale.load({out!r})(inputs)"
