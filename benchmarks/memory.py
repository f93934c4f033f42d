"""Peak memory of one call beyond its input and its result: at most 1 MiB, for 256 MiB of input.

Each call runs in a process of its own, after the same call on a small array: the kernel's record of the
resident set's peak (VmHWM) is reset before it and read after it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from _ours import TYPES, normal
from _report import Report
from blockscale.numerics import native
from blockscale.numerics.layout import bind
from blockscale.numerics.scheme import refined, scheme_named

MIB = 1 << 20
LIMIT = 1.0  # MiB
Result = Any
Case = tuple[Callable[[], Result], bool]  # the call, and whether its result is new memory
Make = Callable[[int], Case]


# ------------------------------------------------------------------------------ numpy: rows → a call


def fake(
    scheme: str = "mxfp4", kind: str = "f32", out: str = "", view: str = "", given: bool = False,
    ragged: bool = False, **changes: Any,
) -> Make:  # fmt: skip
    def make(rows: int) -> Case:
        x = normal(rows, 4096, kind)
        if ragged:
            x = x.reshape(-1)[: (rows - 1) * 4095].reshape(rows - 1, 4095)
        x = {"": x, "transposed": x.T, "reversed": x[::-1], "every other": x[:, ::2]}[view]
        layout = bind(refined(scheme_named(scheme), **changes), x.shape)
        params = native.choose_params(x, layout) if given else None
        y = {"": None, "in place": x, "out=": np.ones_like(x)}[out]
        return lambda: native.fake_quantize(x, layout, params, out=y), y is None

    return make


def quantize(scheme: str, kind: str = "f32", only_params: bool = False) -> Make:
    def make(rows: int) -> Case:
        x = normal(rows, 4096, kind)
        layout = bind(scheme_named(scheme), x.shape)
        call = native.choose_params if only_params else native.quantize
        return lambda: call(x, layout), True

    return make


def dequantize(scheme: str, kind: str = "f32", out: bool = False) -> Make:
    def make(rows: int) -> Case:
        x = normal(rows)
        layout = bind(scheme_named(scheme), x.shape)
        codes, params = native.quantize(x, layout)
        y = np.ones(x.shape, TYPES[kind]) if out else None  # memory that is there
        return lambda: native.dequantize(codes, layout, params, kind, out=y), not out

    return make


# ---------------------------------------------------------------------------------------- torch


def by_torch(way: str, scheme: str = "mxfp4", out: bool = False, view: str = "", grad: bool = False) -> Make:
    def make(rows: int) -> Case:
        import torch

        from blockscale.runtime import torch_ops

        x = torch.from_numpy(normal(rows))
        x = (x.t() if view else x).requires_grad_(grad)
        layout = bind(scheme_named(scheme), tuple(x.shape))
        y = torch.ones_like(x) if out else None
        if way == "dequantize":
            codes, params = torch_ops.quantize(x, layout)
            return lambda: torch_ops.dequantize(codes, layout, params, out=y), not out
        if way == "fake_quantize":
            return lambda: torch_ops.fake_quantize(x, layout, out=y), not out
        return lambda: getattr(torch_ops, way)(x, layout), True

    return make


CASES: dict[str, Make] = {
    "fake_quantize mxfp4": fake(),
    "fake_quantize mxfp4, out=": fake(out="out="),
    "fake_quantize mxfp4, in place": fake(out="in place"),
    "fake_quantize mxfp8_e4m3": fake("mxfp8_e4m3"),
    "fake_quantize mxint8": fake("mxint8"),
    "fake_quantize nvfp4": fake("nvfp4"),
    "fake_quantize int8": fake("int8"),
    "fake_quantize int8-channel": fake("int8-channel"),
    "fake_quantize int4-g32": fake("int4-g32"),
    "fake_quantize uint4-g32": fake("uint4-g32"),
    "fake_quantize int4-g32, scales given": fake("int4-g32", given=True),
    "fake_quantize mxfp4, scales given": fake(given=True),
    "fake_quantize mxfp4, axis 0": fake(axis=0),
    "fake_quantize mxfp4, 16 × 16 blocks": fake(axis=(-2, -1), block=(16, 16)),
    "fake_quantize mxfp4, rule mse": fake(rule="mse"),
    "fake_quantize mxfp4, stochastic": fake(rounding="stochastic"),
    "fake_quantize mxfp4, short last blocks": fake(ragged=True),
    "fake_quantize mxfp4, bf16": fake(kind="bf16"),
    "fake_quantize mxfp4, f16": fake(kind="f16"),
    "fake_quantize mxfp4, transposed view": fake(view="transposed"),
    "fake_quantize mxfp4, every other column": fake(view="every other"),
    "fake_quantize mxfp4, reversed view": fake(view="reversed"),
    **{f"quantize {s}": quantize(s) for s in ("mxfp4", "mxfp6_e2m3", "mxfp8_e4m3", "nvfp4", "int4-g32")},
    "quantize mxfp4, bf16": quantize("mxfp4", "bf16"),
    "choose_params int4-g32": quantize("int4-g32", only_params=True),
    **{f"dequantize {s}": dequantize(s) for s in ("mxfp4", "mxfp6_e2m3", "nvfp4", "int4-g32", "uint4-g32")},
    "dequantize mxfp4, bf16": dequantize("mxfp4", "bf16"),
    "dequantize mxfp4, out=": dequantize("mxfp4", out=True),
    "torch: fake_quantize mxfp4": by_torch("fake_quantize"),
    "torch: fake_quantize mxfp4, out=": by_torch("fake_quantize", out=True),
    "torch: fake_quantize mxfp4, requires grad": by_torch("fake_quantize", grad=True),
    "torch: fake_quantize mxfp4, transposed view": by_torch("fake_quantize", view="t"),
    "torch: quantize mxfp4": by_torch("quantize"),
    "torch: quantize int4-g32": by_torch("quantize", "int4-g32"),
    "torch: choose_params mxfp4": by_torch("choose_params"),
    "torch: dequantize mxfp4": by_torch("dequantize"),
    "torch: dequantize mxfp4, out=": by_torch("dequantize", out=True),
    "torch: dequantize int4-g32": by_torch("dequantize", "int4-g32"),
}


# ------------------------------------------------------------------------------------- measuring


def reset_peak() -> None:
    """Linux. Elsewhere the peak is that of the whole life of the process, which had the input and more."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak() -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def size_of(result: Result) -> int:
    """Bytes of every array or tensor in a result."""
    if hasattr(result, "nbytes"):
        return int(result.nbytes)
    if isinstance(result, native.Stored):
        result = (result.scales, result.zero_points, result.tensor_scale)
    return sum(size_of(part) for part in result) if isinstance(result, tuple) else 0


def child(name: str, mib: int) -> None:
    make = CASES[name]
    small, _ = make(256)
    small()
    rows = mib * MIB // 4 // 4096
    run, fresh = make(rows * (2 if "f16" in name else 1))  # also of bf16
    reset_peak()
    before = peak()
    result = run()
    beyond = peak() - before
    output = size_of(result) if fresh else 0
    print(json.dumps({"beyond": (beyond - output) / MIB, "output": output / MIB}))


def main(argv: list[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["--child"]:
        return child(argv[1], int(argv[2]))
    report = Report("Memory", " ".join(str(__doc__).split()), argv)
    mib, rows = 64 if report.quick else 256, []
    for name in CASES:
        command = [sys.executable, __file__, "--child", name, str(mib)]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "rror" in line] or ["?"]
            rows.append([name, "", "", f"failed: {lines[-1][:100]}"])
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        beyond = max(found["beyond"], 0.0)
        bar = report.bar(f"{name}: beyond the result", beyond, "≤", LIMIT, " MiB")
        rows.append([name, f"{found['output']:.1f} MiB", f"{beyond:.2f} MiB", bar])
    report.table(f"{mib} MiB of input", ("call", "new result", "beyond it", "bar"), rows)
    report.close()


if __name__ == "__main__":
    main()
