"""Linear layers with packed weights, x float32: ours, those of others, and what the machine can do.

M = 1 is a read of the weight: warm from the cache, cold from memory (copies in turn, more than any cache).
From M = 16 on it is arithmetic: shares are of the int8 or bfloat16 dot products a second that were measured
beside it. At two threads everybody runs by itself, since idle workers of others spin.
"""

from __future__ import annotations

import gc
import itertools
import time
from dataclasses import dataclass

import numpy as np

from _limits import Array, aligned
from _linear_peers import peers
from _measure import Run, Times, duration, interleaved
from _peaks import limits
from _report import Report
from blockscale.numerics import native
from blockscale.numerics.layout import layout_named
from blockscale.numerics.native_linear import PackedWeight
from blockscale.numerics.scheme import scheme_named

SHAPES = ((4096, 4096), (2048, 5632), (4096, 14336))
ROWS = (1, 4, 16, 128, 512)
COLD = 220 << 20  # bytes of copies


@dataclass(frozen=True)
class Ours:
    w: str
    x: str | None
    peak: str = "int8_dots"
    bar: float | None = None  # share of the peak at M ≥ 16 or `least`
    least: int = 16

    @property
    def name(self) -> str:
        return f"{self.w} × {self.x or 'as it is'}"


OURS = (
    Ours("mxfp4", "mxint8", bar=0.65),
    Ours("mxfp6_e2m3", "mxint8", bar=0.55),
    Ours("mxint8", "mxint8", bar=0.55),
    Ours("int8-channel", "int8-token"),
    Ours("int4-g32", "int8-token"),
    Ours("int4-g128", "int8-token"),
    Ours("mxfp6_e3m2", "mxint8", "bf16_dots", 0.6, 128),
    Ours("mxfp8_e4m3", "mxfp8_e4m3", "bf16_dots", 0.6, 128),
    Ours("mxfp4", None),
    Ours("mxfp4", "bf16"),
)


def run_of(packed: PackedWeight, case: Ours, x: Array, threads: int) -> Run:
    out = np.empty((len(x), packed.shape[0]), np.float32)
    host = native.SERIAL if threads == 1 else native.POOL
    if case.x == "bf16":
        x = x.astype(native.tensor_dtype("bf16"))
    scheme = scheme_named(case.x) if case.x not in (None, "bf16") else None
    return lambda: packed.linear(x, scheme=scheme, out=out, host=host, threads=threads)


def packed_weight(name: str, w: Array) -> PackedWeight:
    layout = layout_named(name, w.shape)
    codes, stored = native.quantize(w, layout)
    return PackedWeight(codes, layout, stored)


def measured(cases: dict[str, Run], report: Report, threads: int) -> dict[str, Times]:
    seconds = report.seconds(0.3)
    if threads == 1:
        return interleaved(cases, seconds=seconds, least=5)
    found: dict[str, Times] = {}
    for name, run in cases.items():
        time.sleep(0.02)
        found |= interleaved({name: run}, seconds=seconds, least=5)
    return found


def products(report: Report, n: int, k: int, threads: int) -> None:
    w = np.random.default_rng(0).standard_normal((n, k), np.float32)
    layers = {name: make(w, threads) for name, make in peers().items()}
    weights = {case.w: packed_weight(case.w, w) for case in OURS}
    peak = limits(threads) or {}
    rows: dict[str, list[str]] = {}
    where = f"N = {n}, K = {k}, {threads} thread{'s' * (threads > 1)}"
    for m in ROWS:
        x = aligned(m * k).reshape(m, k)
        x[:] = np.random.default_rng(m).standard_normal((m, k), np.float32)
        cases = {case.name: run_of(weights[case.w], case, x, threads) for case in OURS}
        cases |= {name: layer(x) for name, layer in layers.items()}
        times = measured(cases, report, threads)
        report.keep(f"{where}, M = {m}", times)
        for name, found in times.items():
            rate = 2 * m * n * k / found.best / 1e9
            rows.setdefault(name, [name]).append(duration(found.best) if m < 16 else f"{rate:.0f}")
        if (n, k) == SHAPES[0]:
            bars(report, m, n, k, threads, times, peak)
    header = ("W × x", *(f"M = {m}" for m in ROWS))
    note = ", ".join(f"{name} {value:.0f}" for name, value in peak.items()) or "no compiler for the limits"
    report.table(where, header, list(rows.values()), f"M = 1, 4: time; above: GOP/s. Limits: {note} (G/s).")
    gc.collect()


def bars(
    report: Report, m: int, n: int, k: int, threads: int, times: dict[str, Times], peak: dict[str, float]
) -> None:
    where = f"M = {m}, {threads} thread{'s' * (threads > 1)}"
    for case in OURS:
        if case.bar is not None and m >= case.least and peak:
            share = 2 * m * n * k / times[case.name].best / 1e9 / peak[case.peak]
            report.bar(f"{case.name}, {where}: share of {case.peak}", share, "≥", case.bar, "")

    def against(ours: str, peer: str, bound: float) -> None:
        if peer in times:
            ratio = times[ours].best / times[peer].best
            report.bar(f"{ours} / {peer}, {where}", ratio, "≤", bound)

    against("mxfp4 × mxint8", "OpenVINO int4 g32, dynamic int8", 1)
    against("int4-g32 × int8-token", "OpenVINO int4 g32, dynamic int8", 1)
    against("int8-channel × int8-token", "ONNX Runtime dynamic int8", 1)
    if m >= 128:
        against("mxfp4 × mxint8", "ONNX Runtime dynamic int8", 1.15)


def reading(report: Report, threads: int) -> None:
    """M = 1, the weight from the cache and from memory."""
    n, k = SHAPES[0]
    x = np.random.default_rng(1).standard_normal((1, k), np.float32)
    w = np.random.default_rng(0).standard_normal((n, k), np.float32)
    rows = []
    for case in OURS:
        first = packed_weight(case.w, w)
        copies = [first] + [packed_weight(case.w, w) for _ in range(COLD // first.nbytes)]
        runs = [run_of(each, case, x, threads) for each in copies]
        times = interleaved({"warm": runs[0]}, seconds=report.seconds(0.3), least=20)
        times["cold"] = _in_turn(runs, 3 if report.quick else 15)
        peak = limits(threads, 10)
        report.keep(f"M = 1, {threads}: {case.name}", times)
        cells = [case.name]
        for which, memory, bar in (("warm", "cache", 0.6), ("cold", "memory", 0.85)):
            rate = first.nbytes / times[which].best / 1e9
            share = f"{rate / peak[memory]:.0%}" if peak else ""
            cells += [duration(times[which].best), f"{rate:.0f}", share]
            if peak and case.x == "mxint8" and case.w in ("mxfp4", "mxfp6_e2m3", "mxint8"):
                bound = bar if case.w == "mxfp4" else 0.8
                if which == "cold" or case.w == "mxfp4":
                    what = f"{case.name}, M = 1 {which}, {threads}: share of reading"
                    report.bar(what, rate / peak[memory], "≥", bound, "")
        rows.append(cells)
        del copies, runs
        gc.collect()
    header = ("W × x", "warm", "GB/s", "of the cache's", "cold", "GB/s", "of memory's")
    report.table(f"M = 1, N = K = 4096, {threads} thread{'s' * (threads > 1)}", header, rows)


def _in_turn(runs: list[Run], rounds: int) -> Times:
    """Samples of each run after all others; a first round brings out of the caches what was used before."""
    found = []
    for turn in range(rounds + 1):
        for run in runs:
            start = time.perf_counter_ns()
            run()
            if turn:
                found.append((time.perf_counter_ns() - start) / 1e9)
    return Times(tuple(found))


def main(argv: list[str] | None = None) -> None:
    report = Report("Linear layers", " ".join(str(__doc__).split()), argv)
    for threads in (1, 2):
        reading(report, threads)
    for (n, k), threads in itertools.product(SHAPES[:1] if report.quick else SHAPES, (1, 2)):
        products(report, n, k, threads)
    report.close()


if __name__ == "__main__":
    main()
