"""fake_quantize, quantize (pack) and dequantize (unpack), beside the copies that bound them.

In cache: 8 MiB of float32 in, results in 8 MiB more. In memory: 256 MiB. Results go to memory that is there
already; what a fresh one costs is the last table.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from _limits import aligned, memcpy, streaming_copy
from _measure import Run, Times, duration, interleaved
from _ours import MX, OTHERS, Codec, normal
from _report import Report
from blockscale.numerics import native
from blockscale.runtime import torch_ops

ALL = MX + OTHERS
COPY, TORCH, STREAM = "memcpy", "torch out.copy_(x)", "non-temporal copy"
HEADER = ("what", "best", "median (quartiles)", "G elements/s")


@dataclass
class Block:
    """Everything that is measured in turns: one size, one number of threads."""

    report: Report
    mib: int
    threads: int
    cases: dict[str, Run] = field(default_factory=dict)
    times: Mapping[str, Times] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows = (self.mib << 18) // 4096
        self.x = normal(rows, like=aligned)
        self.y = aligned(self.x.size).reshape(self.x.shape)
        self.name = f"{self.mib} MiB, {self.threads} thread{'s' * (self.threads > 1)}"
        self.in_cache = self.mib <= 8

    def measure(self, seconds: float) -> None:
        torch.set_num_threads(self.threads)
        self.times = interleaved(self.cases, seconds=self.report.seconds(seconds), least=4)
        self.report.keep(self.name, self.times)

    def best(self, name: str) -> float:
        return self.times[name].best

    def row(self, name: str, limit: str, bars: str, count: int | None = None) -> list[str]:
        """Time, rate, time as a multiple of the limit's (by the medians), bars."""
        found = self.times[name]
        best = found.best / self.best(limit)
        median = found.median / self.times[limit].median
        cells = [name, duration(found.best), found.spread, found.rate(count or self.x.size)]
        return [*cells, f"{best:.2f} ({median:.2f})", bars]

    def add_limits(self) -> None:
        x, y = torch.from_numpy(self.x), torch.from_numpy(self.y)
        if self.threads == 1:
            self.cases[COPY] = memcpy(self.y, self.x)
            stream = streaming_copy(self.y, self.x)
            if stream is not None:
                self.cases[STREAM] = stream
        self.cases[TORCH] = lambda: y.copy_(x)

    def add_fake(self) -> None:
        for scheme in ALL:
            self.cases[f"fake {scheme}"] = Codec(scheme, self.x, self.y, threads=self.threads).fake_quantize()
        for scheme in MX:
            other = Codec(scheme, self.x, self.y, axis=0, threads=self.threads)
            self.cases[f"fake {scheme} axis 0"] = other.fake_quantize()

    def add_half(self) -> None:
        for kind in ("bf16", "f16"):
            x = normal(*self.x.shape, kind, like=aligned)
            y = aligned(x.size, x.dtype).reshape(x.shape)
            for scheme in MX:
                codec = Codec(scheme, x, y, threads=self.threads)
                self.cases[f"fake {scheme} {kind}"] = codec.fake_quantize()

    def add_stored(self, schemes: tuple[str, ...]) -> None:
        for scheme in schemes:
            codec = Codec(scheme, self.x, self.y, threads=self.threads)
            self.cases[f"pack {scheme}"] = codec.quantize()
            self.cases[f"unpack {scheme}"] = codec.dequantize()

    # ------------------------------------------------------------------------------------ tables

    @property
    def limit(self) -> str:
        return COPY if self.in_cache and COPY in self.cases else TORCH

    def table(self, title: str, rows: list[list[str]], note: str = "") -> None:
        limit = f"× {self.limit} (medians)"
        self.report.table(f"{title}, {self.name}", (*HEADER, limit, "bar"), rows, note)

    def limits_table(self) -> None:
        names = [name for name in (COPY, TORCH, STREAM) if name in self.cases]
        self.table("Limits", [self.row(name, self.limit, "") for name in names])

    def fake_table(self) -> None:
        rows = []
        for scheme in ALL:
            name = f"fake {scheme}"
            rows.append(self.row(name, self.limit, self._fake_bars(scheme, name) if scheme in MX else ""))
        for scheme in MX:
            name = f"fake {scheme} axis 0"
            ratio = self.best(name) / self.best(f"fake {scheme}")
            text = f"{ratio:.2f} × the last axis"
            if self.threads == 1:
                bar = self.report.bar(f"{name}: time / last axis, {self.name}", ratio, "≤", 1.5)
                text += f", {bar}"
            rows.append(self.row(name, self.limit, text))
        self.table("fake_quantize float32", rows)

    def _fake_bars(self, scheme: str, name: str) -> str:
        report, where = self.report, f"{name}, {self.name}"
        if not self.in_cache:
            return report.bar(f"{where}: time / copy_", self.best(name) / self.best(TORCH), "≤", 1.05)
        if self.threads > 1:
            return ""  # threads.py measures how it scales
        rate = report.bar(f"{where}: rate", self.x.size / self.best(name) / 1e9, "≥", 5, " G/s")
        copy = report.bar(f"{where}: time / memcpy", self.best(name) / self.best(COPY), "≤", 2)
        return f"{rate}; {copy}"

    def half_table(self) -> None:
        rows = []
        for kind in ("bf16", "f16"):
            for scheme in MX:
                name = f"fake {scheme} {kind}"
                ratio = self.best(f"fake {scheme}") / self.best(name)
                text = self.report.bar(f"{name}: rate / float32's, {self.name}", ratio, "≥", 1)
                rows.append(self.row(name, self.limit, f"{ratio:.2f} × the rate of float32, {text}"))
        self.table("fake_quantize bfloat16 and float16", rows)

    def stored_table(self, schemes: tuple[str, ...]) -> None:
        rows = []
        for way in ("pack", "unpack"):
            for scheme in schemes:
                name = f"{way} {scheme}"
                bars = self._stored_bars(way, scheme) if self.in_cache and self.threads == 1 else ""
                rows.append(self.row(name, self.limit, bars))
        note = "pack: scales chosen and stored, codes packed; unpack: to float32. The copy is of the float32."
        self.table("quantize and dequantize", rows, note)

    def _stored_bars(self, way: str, scheme: str) -> str:
        best, report = self.best(f"{way} {scheme}"), self.report
        if scheme.startswith("mxfp6"):
            ratio = best / self.best(f"{way} mxfp4")
            text = report.bar(f"{way} {scheme}: time / fp4's, {self.name}", ratio, "≤", 1.5)
            return f"{ratio:.2f} × fp4, {text}"
        if scheme != "mxfp4":
            return ""
        if way == "pack":
            return report.bar(f"pack mxfp4: time / memcpy, {self.name}", best / self.best(COPY), "≤", 2.2)
        return report.bar(f"unpack mxfp4: rate, {self.name}", self.x.size / best / 1e9, "≥", 15, " G/s")


def fresh_outputs(report: Report) -> None:
    """The public functions, which return new memory, beside copies that do."""
    torch.set_num_threads(1)
    rows = []
    for mib in (8, 256):
        x = normal((mib << 18) // 4096)  # where numpy puts it: not on a cache line
        t = torch.from_numpy(x).clone()
        layout = Codec("mxfp4", x, x).layout
        cases: dict[str, Run] = {
            "numpy x.copy()": x.copy,
            "numerics.native.fake_quantize": lambda x=x, layout=layout: native.fake_quantize(x, layout),
            "torch x.clone()": t.clone,
            "runtime.torch_ops.fake_quantize": lambda t=t, layout=layout: torch_ops.fake_quantize(t, layout),
        }
        times = interleaved(cases, seconds=report.seconds(1.0), least=3)
        report.keep(f"fresh {mib} MiB", times)
        names = list(cases)
        for i, (name, found) in enumerate(times.items()):
            ratio = found.best / times[names[i // 2 * 2]].best
            what = f"{name}, {mib} MiB"
            rows.append([what, duration(found.best), found.spread, found.rate(x.size), f"{ratio:.2f}"])
    note = "mxfp4. numpy's pool of threads, torch with one. Most of the time goes to new pages."
    report.table("As called, with a fresh output", (*HEADER, "× the copy"), rows, note)


def main(argv: list[str] | None = None) -> None:
    report = Report("Codec", " ".join(str(__doc__).split()), argv)
    for mib, threads, seconds in ((8, 1, 0.6), (8, 2, 0.4), (256, 1, 1.6), (256, 2, 1.2)):
        block = Block(report, mib, threads)
        stored: tuple[str, ...] = ALL if block.in_cache else ("mxfp4", "mxfp6_e2m3", "mxfp8_e4m3", "nvfp4")
        block.add_limits()
        block.add_fake()
        if threads == 1:
            block.add_half()
        block.add_stored(stored)
        block.measure(seconds)
        block.limits_table()
        block.fake_table()
        if threads == 1:
            block.half_table()
        block.stored_table(stored)
        del block
        gc.collect()
    fresh_outputs(report)
    report.close()


if __name__ == "__main__":
    main()
