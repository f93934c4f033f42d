"""Run every benchmark in the environment that it needs and write docs/benchmarks.md and onnx-models.md (`make bench`).

    python benchmarks/run.py [--quick] [--only NAME …] [--output FILE] [--json FOLDER]

Times are never asserted: a missed bar is written down, a benchmark that fails makes the exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _report import ROOT, Bar, bar_rows, describe, markdown

HERE = Path(__file__).resolve().parent
NAMES = (
    "codec",
    "peers",
    "threads",
    "calls",
    "memory",
    "passes",
    "onnx_operators",
    "onnx_speed",
    "onnx_models",
)
AMONG_PEERS = ("peers", "onnx_operators")  # these need the peers' environment
PAGES = {"onnx_models": "docs/onnx-models.md"}  # of their own; all others are sections of docs/benchmarks.md
PEERS = ROOT / ".venv-peers/bin/python"
Result = dict[str, Any]


def interpreter(name: str) -> Path | None:
    """None if it is not there."""
    if name not in AMONG_PEERS:
        return Path(sys.executable)
    return PEERS if PEERS.exists() else None


def run(name: str, python: Path, file: Path, quick: bool) -> Result | None:
    print(f"\n== {name}: {python}\n", flush=True)
    command = [python, HERE / f"{name}.py", "--json", file, *(["--quick"] if quick else [])]
    environment = os.environ | {"PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    done = subprocess.run(command, env=environment)
    if done.returncode or not file.exists():
        print(f"\n{name} failed with exit code {done.returncode}", flush=True)
        return None
    found: Result = json.loads(file.read_text())
    return found


def bars_of(result: Result) -> list[Bar]:
    return [
        Bar(**{key: bar[key] for key in ("what", "value", "sense", "bound", "unit")})
        for bar in result["bars"]
    ]


def section(result: Result) -> list[str]:
    bars, after = bars_of(result), result["after"]
    met = f"{sum(bar.met for bar in bars)} of {len(bars)} bars met. " if bars else ""
    load, stolen = after["load"][0], after["stolen"]
    lines = [
        f"## {result['title']}", result["about"],
        f"{met}`{command_of(result)}` took {after['seconds']:.0f} s; load {load:.1f} at its end, "
        f"{stolen:.1%} of the processors' time went to other virtual machines.",
    ]  # fmt: skip
    for table in result["tables"]:
        lines += [f"### {table['title']}", table["note"], markdown(table["header"], table["rows"])]
    return [line for line in lines if line]


def command_of(result: Result) -> str:
    script = Path(result["command"].split()[1]).name
    return f"python benchmarks/{script}{' --quick' if result['quick'] else ''}"


def summary(results: Sequence[Result]) -> list[str]:
    bars = [(result["title"], bar) for result in results for bar in bars_of(result)]
    missed = [bar for _, bar in bars if not bar.met]
    counts = []
    for result in results:
        own = bars_of(result)
        counts.append([result["title"], str(len(own)), str(sum(bar.met for bar in own))])
    lines = ["## Bars", markdown(("benchmark", "bars", "met"), counts)]
    if missed:
        lines += ["Missed:", markdown(("what", "measured", "bar"), bar_rows(missed))]
    return lines


def document(results: Sequence[Result], skipped: Sequence[str], quick: bool) -> str:
    lines = [
        "# Benchmarks",
        "Written by `make bench`. Numbers hold for this machine on this day; the ratios within one table "
        "come from one run in which everything took turns. Compared are best times; the median and the "
        "quartiles tell how quiet the machine was.",
        *dict.fromkeys(describe(result["machine"]) for result in results[:1]),
    ]
    if quick:
        lines.append("**A quick run**: too few samples to conclude anything.")
    lines += summary(results)
    lines += [f"Not run: {reason}" for reason in skipped]
    for result in results:
        lines += section(result)
    return "\n\n".join(lines) + "\n"


def page(result: Result) -> str:
    """A document of one benchmark."""
    first, *lines = section(result)
    told = (
        "Written by `make bench`; ratios within one table come from one run in which everything took turns."
    )
    return "\n\n".join([first.removeprefix("#"), told, describe(result["machine"]), *lines]) + "\n"


def write(results: dict[str, Result], skipped: Sequence[str], output: Path | None, quick: bool) -> None:
    """`output` is for all but pages of their own; nothing is written of a quick run."""
    together = [result for name, result in results.items() if name not in PAGES]
    if output and together:
        output.write_text(document(together, skipped, quick))
        print(f"\nwritten to {output}")
    for name, path in PAGES.items():
        if name in results and not quick:
            (ROOT / path).write_text(page(results[name]))
            print(f"\nwritten to {path}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few samples; the documents are left alone")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME")
    parser.add_argument("--output", type=Path, help="instead of docs/benchmarks.md")
    parser.add_argument("--json", type=Path, metavar="FOLDER", help="keep each benchmark's numbers there")
    options = parser.parse_args(argv)
    output = options.output or (None if options.quick else ROOT / "docs/benchmarks.md")
    results: dict[str, Result] = {}
    skipped, failed = [], False
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = options.json or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in options.only:
            python = interpreter(name)
            if python is None:
                skipped.append(f"{name}: no {PEERS.relative_to(ROOT)}; `make test-peers` makes it.")
                continue
            result = run(name, python, folder / f"{name}.json", options.quick)
            failed |= result is None
            if result is None:
                skipped.append(f"{name}: it failed.")
            else:
                results[name] = result
    for line in summary(list(results.values())):
        print(f"\n{line}")
    write(results, skipped, output, options.quick)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
