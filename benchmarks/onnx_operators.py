"""The fake-quantize operator for ONNX Runtime beside that of AMD Quark, on the same memory in one run.

Runs in .venv-peers (make test-peers makes it), where Quark's operator is compiled. Both are run by ONNX Runtime as
their users run them, ours by Quark's name and semantics, blocks of 32 along the last axis and along the first one.
Quark's operator knows no threads; ours is also run on two.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import onnxruntime
from onnx import TensorProto, helper

import blockscale.onnxruntime
from _limits import aligned, memcpy
from _measure import Run, Times, duration, interleaved
from _ours import normal
from _report import Report
from peers import quiet

ELEMENTS = ("int8", "fp8_e4m3", "fp8_e5m2", "fp6_e3m2", "fp6_e2m3", "fp4_e2m1")
DOMAIN = "com.amd.quark"
FASTER, SCALING = 100, 1.7
COPY = "memcpy"


def model(element: str, axis: int, shape: tuple[int, ...]) -> bytes:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    node = helper.make_node(
        "MXQuantizeDequantize", ["x"], ["y"], domain=DOMAIN, element_dtype=element, axis=axis, block_size=32,
        rounding_mode=2,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph([node], "g", [x], [y])
    made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return made


def runs(library: str, element: str, axis: int, threads: int, x: Any, y: Any) -> Run:
    """Outputs go to memory that is there, so that only the operator is timed."""
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library)
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model(element, axis, x.shape), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    for bind, name, array in ((binding.bind_input, "x", x), (binding.bind_output, "y", y)):
        bind(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    return lambda: session.run_with_iobinding(binding)


def quark_library() -> str:
    with quiet():
        from quark.onnx.operators import custom_ops
    found: str = custom_ops.get_library_path()
    return found


def compare(report: Report, axis: int) -> None:
    x = normal((8 << 18) // 4096, like=aligned)
    y = aligned(x.size).reshape(x.shape)
    libraries = {"ours": blockscale.onnxruntime.library_path(), "Quark": quark_library()}
    cases: dict[str, Run] = {COPY: memcpy(y, x)}
    for element in ELEMENTS:
        cases[f"{element} Quark"] = runs(libraries["Quark"], element, axis, 1, x, y)
        for threads in (1, 2):
            cases[f"{element} ours {threads}"] = runs(libraries["ours"], element, axis, threads, x, y)
    times = interleaved(cases, seconds=report.seconds(3.0), least=5)
    where = f"8 MiB, axis {axis} of 2"
    report.keep(where, times)
    rows = [_row(report, element, axis, times) for element in ELEMENTS]
    header = (
        "element", "Quark", "ours, one thread", "two threads", "× memcpy", "Quark / ours", "one / two threads",
    )  # fmt: skip
    report.table(
        f"MXQuantizeDequantize, {where}", header, rows, "Median (quartiles); ratios are of best times."
    )


def _row(report: Report, element: str, axis: int, times: dict[str, Times]) -> list[str]:
    quark, one, two = (times[f"{element} {name}"] for name in ("Quark", "ours 1", "ours 2"))
    faster, scaling = quark.best / one.best, one.best / two.best
    bar = report.bar(f"{element}, axis {axis}: Quark / ours, one thread", faster, "≥", FASTER)
    scales = report.bar(f"{element}, axis {axis}: one thread / two", scaling, "≥", SCALING)
    copies = f"{one.best / times[COPY].best:.1f}"
    return [
        element, duration(quark.best), one.spread, two.spread, copies, f"{faster:.0f} ×, {bar}",
        f"{scaling:.2f} ×, {scales}",
    ]  # fmt: skip


def main(argv: list[str] | None = None) -> None:
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # ninja, for Quark
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(__file__).parents[1] / "build/torch-extensions"))
    report = Report("ONNX operators", " ".join(str(__doc__).split()), argv)
    compare(report, 1)
    compare(report, 0)
    report.close()


if __name__ == "__main__":
    main()
