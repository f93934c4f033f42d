"""A model of the size of ResNet-50, 25.6 M random weights, quantized and run on ONNX Runtime.

What is compared takes turns in one process; quantizing, and importing, are each done in processes of their own.
Sessions are made as users make them, from the file, with our operator library.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

import blockscale
import blockscale.onnxruntime
from _measure import Run, Times, duration, interleaved
from _report import ROOT, Report
from memory import peak, reset_peak

sys.path.insert(0, str(ROOT / "tests"))
from models.resnet import pictures, resnet

MX = ("mxint8", "mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4")
FORMS: tuple[tuple[str, str | None], ...] = (
    ("custom", None), ("portable", None), ("native", "onnxruntime"),
)  # fmt: skip
SLOWER, CPU, MEMORY, IMPORT = 1.5, 3.0, 3.0, 0.2
MIB = 1 << 20
IMPORTS = """
import time
import onnxruntime
options = onnxruntime.SessionOptions()
start = time.perf_counter()
import blockscale.onnxruntime
options.register_custom_ops_library(blockscale.onnxruntime.library_path())
print(time.perf_counter() - start)
"""


def session(path: Path, threads: int = 1) -> Any:
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(blockscale.onnxruntime.library_path())
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run_of(path: Path, threads: int, x: Any) -> Run:
    made = session(path, threads)
    return lambda: made.run(None, {"x": x})


# ------------------------------------------------------------------------------------------- latency


def latency(report: Report, floats: Path, folder: Path, threads: int) -> None:
    x = pictures(1)
    cases: dict[str, Run] = {"float32": run_of(floats, threads, x)}
    for preset in MX:
        for name, settings in (
            (preset, {}),
            (f"{preset}-all", {}),
            (f"{preset}, Quark's", {"compat": "quark"}),
        ):
            recipe = preset if settings else name
            path = folder / "latency.onnx"
            blockscale.quantize_model(floats, recipe, **settings).save(path)
            cases[name] = run_of(path, threads, x)
    times = interleaved(cases, seconds=report.seconds(6.0), least=8)
    where = f"{threads} thread{'s' * (threads > 1)}"
    report.keep(f"latency, {where}", times)
    rows = [_latency_row(report, name, found, times["float32"], where) for name, found in times.items()]
    note = (
        "One picture. `X`: weights and inputs of convolutions and the head. `X-all`: every other activation too. "
        'Quark\'s: the tensors and axes of its quantizer (`compat="quark"`).'
    )
    report.table(
        f"Latency, custom form, {where}", ("model", "best", "median (quartiles)", "/ float32"), rows, note
    )


def _latency_row(report: Report, name: str, found: Times, floats: Times, where: str) -> list[str]:
    ratio = found.best / floats.best
    bar = (
        ""
        if name == "float32"
        else ", " + report.bar(f"{name}: latency / float32, {where}", ratio, "≤", SLOWER)
    )
    return [name, duration(found.best), found.spread, f"{ratio:.2f} ×{bar}"]


# ---------------------------------------------------------------------------------------------- forms


def forms(report: Report, floats: Path, folder: Path) -> None:
    """Loading, the first run, and the next ones, of each form."""
    x = pictures(1)
    files = {"float32": floats}
    for preset in ("mxint8", "mxfp4"):
        model = blockscale.quantize_model(floats, preset)
        for form, runtime in FORMS:
            files[f"{preset}, {form}"] = folder / f"{preset}.{form}.onnx"
            model.save(files[f"{preset}, {form}"], form=form, runtime=runtime)
    loads: dict[str, list[float]] = {name: [] for name in files}
    firsts: dict[str, list[float]] = {name: [] for name in files}
    for _ in range(1 if report.quick else 5):
        for name, path in files.items():
            start = time.perf_counter()
            made = session(path)
            loads[name].append(time.perf_counter() - start)
            start = time.perf_counter()
            made.run(None, {"x": x})
            firsts[name].append(time.perf_counter() - start)
    later = interleaved({n: run_of(p, 1, x) for n, p in files.items()}, seconds=report.seconds(3.0), least=5)
    report.keep("forms", later)
    rows = []
    for name, path in files.items():
        load, first = Times(tuple(loads[name])), Times(tuple(firsts[name]))
        ratio = later[name].best / later["float32"].best
        size = f"{path.stat().st_size / floats.stat().st_size:.3f}"
        rows.append(
            [
                name,
                size,
                duration(load.best),
                duration(first.best),
                duration(later[name].best),
                f"{ratio:.2f} ×",
            ]
        )
    header = ("file", "size / float32", "load", "first run", "next runs", "/ float32")
    note = "One thread, best times. Loading makes a session, which decodes the weights of convolutions."
    report.table("Files", header, rows, note)


# ------------------------------------------------------------------------------------------ quantizing


def child(model: str, preset: str, form: str, folder: str) -> None:
    """What a user's process does, after its imports."""
    warm = resnet((1,), 8, 32, 10)
    blockscale.quantize_model(warm, preset).save(Path(folder) / "warm.onnx", form=form)
    reset_peak()
    before, cpu, start = peak(), time.process_time(), time.perf_counter()
    blockscale.quantize_model(model, preset).save(Path(folder) / "made.onnx", form=form)
    found = {
        "cpu": time.process_time() - cpu, "seconds": time.perf_counter() - start, "peak": peak() - before,
    }  # fmt: skip
    print(json.dumps(found))


def fresh(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=os.environ)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout.splitlines()[-1]


def quantizing(report: Report, floats: Path, folder: Path) -> None:
    size, rows = floats.stat().st_size, []
    for preset in ("mxint8", "mxfp4") if report.quick else MX:
        for form in ("custom", "portable", "native"):
            tries = [
                json.loads(fresh(__file__, "--child", str(floats), preset, form, str(folder)))
                for _ in range(1 if report.quick else 3)
            ]  # fmt: skip
            cpu, most = min(one["cpu"] for one in tries), max(one["peak"] for one in tries) / size
            wall, what = min(one["seconds"] for one in tries), f"{preset}, {form}"
            bars = (
                report.bar(f"quantize to {what}: CPU time", cpu, "≤", CPU, " s"),
                report.bar(f"quantize to {what}: peak memory / model", most, "≤", MEMORY),
            )
            rows.append([what, duration(wall), f"{duration(cpu)}, {bars[0]}", f"{most:.2f} ×, {bars[1]}"])
    note = (
        f"quantize_model of the file ({size / MIB:.0f} MiB) and save; best of the tries, and their highest peak of "
        "memory beyond what the process had after its imports."
    )
    report.table("Quantizing", ("to", "time", "CPU time", "peak memory / model"), rows, note)


def importing(report: Report) -> None:
    found = Times(tuple(float(fresh("-c", IMPORTS)) for _ in range(2 if report.quick else 9)))
    bar = report.bar("import and registration of the library", found.best, "≤", IMPORT, " s")
    row = [duration(found.best), found.spread, bar]
    report.table(
        "Import", ("best", "median (quartiles)", "bar"), [row],
        "`import blockscale.onnxruntime` and `register_custom_ops_library`, after `import onnxruntime`.",
    )  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["--child"]:
        return child(*argv[1:])
    report = Report("ONNX models, speed", " ".join(str(__doc__).split()), argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        floats = folder / "resnet50.onnx"
        onnx.save(resnet(), floats)
        steps: tuple[Callable[[], None], ...] = (
            lambda: latency(report, floats, folder, 1),
            lambda: latency(report, floats, folder, 2),
            lambda: forms(report, floats, folder),
            lambda: quantizing(report, floats, folder),
            lambda: importing(report),
        )
        for step in steps:
            step()
    report.close()


if __name__ == "__main__":
    main()
