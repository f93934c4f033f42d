"""What a benchmark prints and writes: Markdown tables, bars with met or missed, the machine, JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from _measure import Times

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Bar:
    """A number that the project promises, and the one that was measured."""

    what: str
    value: float
    sense: str  # ≤ or ≥
    bound: float
    unit: str

    @property
    def met(self) -> bool:
        return self.value <= self.bound if self.sense == "≤" else self.value >= self.bound

    @property
    def verdict(self) -> str:
        if self.met:
            return "met"
        beyond = self.value / self.bound - 1 if self.sense == "≤" else 1 - self.value / self.bound
        return f"**missed** by {beyond:.0%}" if beyond >= 0.005 else "**missed** by under 1 %"

    @property
    def text(self) -> str:
        return f"{self.sense} {self.bound:g}{self.unit}: {self.verdict}"


class Report:
    """One script's results. `--quick` takes few samples; `--json FILE` keeps everything."""

    def __init__(self, title: str, about: str, argv: Sequence[str] | None = None) -> None:
        parser = argparse.ArgumentParser(description=about)
        parser.add_argument("--quick", action="store_true", help="few samples: does it run at all")
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
        self.options = parser.parse_args(argv)
        self.quick: bool = self.options.quick
        self.title, self.about = title, about
        self.tables: list[dict[str, Any]] = []
        self.bars: list[Bar] = []
        self.times: dict[str, dict[str, float]] = {}
        self.machine = machine()
        self._start = time.time(), _ticks()
        print(f"# {title}\n\n{about}\n\n{describe(self.machine)}\n", flush=True)

    def seconds(self, full: float) -> float:
        """How long to measure one thing."""
        return full / 12 if self.quick else full

    def keep(self, prefix: str, times: Mapping[str, Times]) -> None:
        self.times |= {f"{prefix}: {name}": found.facts() for name, found in times.items()}

    def bar(self, what: str, value: float, sense: str, bound: float, unit: str = " ×") -> str:
        """The verdict, for the table; and a line of the summary."""
        self.bars.append(Bar(what, value, sense, bound, unit))
        return self.bars[-1].text

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> None:
        self.tables.append({"title": title, "header": list(header), "rows": rows, "note": note})
        print(f"## {title}\n\n{note + chr(10) * 2 if note else ''}{markdown(header, rows)}\n", flush=True)

    def close(self) -> None:
        started, before = self._start
        stolen = _stolen(before, _ticks())
        after = {"seconds": round(time.time() - started, 1), "stolen": stolen, "load": list(os.getloadavg())}
        rows = bar_rows(self.bars)
        if rows:
            print(f"## Bars\n\n{markdown(('what', 'measured', 'bar'), rows)}\n")
        print(f"{after['seconds']} s; stolen by other machines: {stolen:.1%}; load {_load(after['load'])}")
        if self.options.json:
            bars = [asdict(bar) | {"met": bar.met} for bar in self.bars]
            self.options.json.write_text(
                json.dumps(
                    {
                        "title": self.title, "about": self.about, "machine": self.machine, "after": after,
                        "command": " ".join([Path(sys.executable).name, *sys.argv]), "quick": self.quick,
                        "tables": self.tables, "bars": bars, "times": self.times,
                    },
                    indent=1, ensure_ascii=False,
                )
            )  # fmt: skip


def bar_rows(bars: Sequence[Bar]) -> list[list[str]]:
    return [[bar.what, f"{bar.value:.3g}{bar.unit}", bar.text] for bar in bars]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


# --------------------------------------------------------------------------------------- the machine


def machine() -> dict[str, Any]:
    """What a reader must know to compare: processor, caches, instruction set, versions, load."""
    from blockscale import _core  # noqa: TID251 (which instruction set it took)

    cpu = _cpuinfo()
    return {
        "cpu": cpu.get("model name", platform.processor() or platform.machine()),
        "family": f"{cpu.get('cpu family', '?')}/{cpu.get('model', '?')}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "caches": _caches(),
        "isa": _core.isa(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": _versions("numpy", "torch", "torchao", "onnxruntime"),
        "commit": _commit(),
        "load": list(os.getloadavg()),
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }


def describe(facts: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return (
        f"{facts['cpu']} (family/model {facts['family']}), {facts['cores']} cores, {facts['caches']}; "
        f"blockscale {facts['commit']} with {facts['isa']}; Python {facts['python']}, {versions}; "
        f"{facts['system']}; {facts['date']}, load {_load(facts['load'])}."
    )


def _load(values: Sequence[float]) -> str:
    return " ".join(f"{value:.1f}" for value in values)


def _cpuinfo() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _caches() -> str:
    found = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        if kind != "Instruction":
            shared = len(re.findall(r"\d+", (index / "shared_cpu_list").read_text())) > 1
            kib = int(size.rstrip("K"))
            readable = f"{kib // 1024} MiB" if kib >= 1024 else f"{kib} KiB"
            found.append(f"L{level} {readable}{' shared' if shared else ''}")
    return ", ".join(found) or "caches unknown"


def _versions(*names: str) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "core", "src")
        return (git("rev-parse", "--short", "HEAD") or "?") + ("+changes" if changed else "")
    except OSError:
        return "?"


def _ticks() -> list[int]:
    """Time of all processors by what it went to; the eighth entry was stolen by other virtual machines."""
    try:
        return [int(n) for n in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    except OSError:
        return [0] * 8


def _stolen(before: list[int], after: list[int]) -> float:
    spent = [b - a for a, b in zip(before, after, strict=True)]
    return spent[7] / max(sum(spent), 1)
