"""Two threads: how work in the cache scales, and what a kernel costs right after a torch operator.

torch's OpenMP worker spins on for a while after an operator and keeps the second core. A kernel that takes
its threads from another pool then waits for that core; one that takes torch's own does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from _limits import aligned
from _measure import Run, Times, duration, interleaved
from _ours import MX, OTHERS, Codec, normal
from _report import Report
from blockscale.numerics import native

HOSTS = {
    "torch's OpenMP": (native.OPENMP, 2),
    "own pool": (native.POOL, 2),
    "one thread": (native.SERIAL, 1),
}
IDLE = 0.03  # seconds until every spinning worker has gone to sleep


@dataclass(frozen=True)
class Trial:
    """A kernel alone, again and again; after a pause; and right after an operator of torch."""

    alone: list[float]
    rested: list[float]
    after: list[float]


def timed(run: Run) -> float:
    start = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - start) / 1e9


def take(run: Run, operator: Run, repeats: int, into: Trial) -> None:
    time.sleep(IDLE)
    into.rested.append(timed(run))
    for _ in range(repeats):
        into.alone.append(timed(run))
    for _ in range(repeats):
        operator()
        into.after.append(timed(run))


def after_torch(report: Report) -> None:
    """1 MiB of float32, after an operator that torch splits in two."""
    torch.set_num_threads(2)
    x = normal(64, like=aligned)
    y = aligned(x.size).reshape(x.shape)
    operands = [torch.ones(1 << 16) for _ in range(3)]

    def operator() -> object:
        return torch.add(operands[0], operands[1], out=operands[2])

    runs: dict[str, Callable[[], object]] = {}
    for host, (kind, threads) in HOSTS.items():
        runs[f"fake_quantize mxfp4, {host}"] = Codec(
            "mxfp4", x, y, threads=threads, host=kind
        ).fake_quantize()
        runs[f"quantize mxfp4, {host}"] = Codec("mxfp4", x, y, threads=threads, host=kind).quantize()
    tx, ty = torch.from_numpy(x), torch.from_numpy(y)
    runs["torch out.copy_(x), two threads"] = lambda: ty.copy_(tx)

    trials = {name: Trial([], [], []) for name in runs}
    for _ in range(4 if report.quick else 40):
        for name, run in runs.items():
            take(run, operator, 8, trials[name])
    rows = []
    for name, trial in trials.items():
        alone, rested, after = (Times(tuple(part)) for part in (trial.alone, trial.rested, trial.after))
        report.keep(name, {"alone": alone, "after a pause": rested, "after torch": after})
        ratio = after.median / alone.median
        bar = f"{ratio:.2f} ×"
        if "OpenMP" in name:
            bar += ", " + report.bar(f"{name}: after a torch operator / alone", ratio, "≤", 1.2)
        spreads = [alone.spread, rested.spread, after.spread]
        rows.append([name, *spreads, f"{after.best / alone.best:.2f} ×", bar])
    header = (
        "kernel", "alone: median (quartiles)", "after a pause of 30 ms", "right after torch.add",
        "after / alone, best", "after / alone, median",
    )  # fmt: skip
    note = (
        "1 MiB float32; torch.add of 64 Ki elements on two threads. Medians decide: every call counts here."
    )
    report.table("Right after a torch operator", header, rows, note)


def scaling(report: Report) -> None:
    """One thread and two, on torch's OpenMP and on the own pool, beside torch's own scaling."""
    torch.set_num_threads(2)
    x = normal((4 << 18) // 4096, like=aligned)
    y = aligned(x.size).reshape(x.shape)
    for host, kind in (("torch's OpenMP", native.OPENMP), ("own pool", native.POOL)):
        cases: dict[str, Run] = {}
        for scheme in MX + OTHERS:
            for way in ("fake_quantize", "quantize", "dequantize"):
                for threads in (1, 2):
                    codec = Codec(scheme, x, y, threads=threads, host=kind if threads == 2 else None)
                    cases[f"{way} {scheme}, {threads}"] = getattr(codec, way)()
        if kind == native.OPENMP:
            cases |= torch_cases(x, y)
        else:
            time.sleep(IDLE)  # from here on torch does nothing in the background
        times = interleaved(cases, seconds=report.seconds(0.25), least=6)
        report.keep(host, times)
        rows = []
        for name in dict.fromkeys(name.rpartition(",")[0] for name in cases):
            one, two = times[f"{name}, 1"], times[f"{name}, 2"]
            ratio, bar = one.best / two.best, ""
            if not name.startswith("torch"):
                bar = report.bar(f"{name}, {host}: two threads / one, 4 MiB", ratio, "≥", 1.8)
            medians = f"{one.median / two.median:.2f} ×"
            rows.append([name, duration(one.best), duration(two.best), f"{ratio:.2f} ×", medians, bar])
        header = ("kernel, 4 MiB in cache", "one thread", "two", "faster", "by medians", "bar")
        report.table(f"From one thread to two, {host}", header, rows)


def torch_cases(x: object, y: object) -> dict[str, Run]:
    """What this machine makes of a second core: torch's copy, and its sine, which is all arithmetic."""
    a, b = torch.from_numpy(x), torch.from_numpy(y)

    def on(threads: int, run: Run) -> Run:
        def with_threads() -> object:
            torch.set_num_threads(threads)
            run()
            return torch.set_num_threads(2)

        return with_threads

    runs: dict[str, Run] = {"out.copy_(x)": lambda: b.copy_(a), "sin(x)": lambda: torch.sin(a, out=b)}
    return {f"torch {name}, {n}": on(n, run) for name, run in runs.items() for n in (1, 2)}


def main(argv: list[str] | None = None) -> None:
    report = Report("Threads", " ".join(str(__doc__).split()), argv)
    if not native.openmp_found():
        print("No OpenMP runtime in this process: torch brings its own threads, and ours stand in.\n")
    after_torch(report)
    scaling(report)
    report.close()


if __name__ == "__main__":
    main()
