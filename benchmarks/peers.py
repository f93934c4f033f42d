"""blockscale beside what others ship, in one run on the same memory.

Runs in .venv-peers (make test-peers makes it); a peer that is not there, or does not compile, is listed so.
Each peer does its own version of the work: to_mx packs, Quark and microxcaling fake-quantize, torch's
fake_quantize is given its scales. blockscale does the same work, without the checks of its Python functions;
the peers' calls are as their users make them.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from _limits import aligned, memcpy
from _measure import Run, duration, interleaved
from _ours import Codec, normal
from _report import Report

COPY = "memcpy"
TORCHAO, QUARK = 50, 100  # how many times faster blockscale is to be
FORMATS = {"mxfp4": "fp4_e2m1", "mxfp6_e2m3": "fp6_e2m3", "mxfp8_e4m3": "fp8_e4m3", "mxint8": "int8"}


@dataclass
class Contest:
    """Peers' calls, each with the one of ours that it is compared with."""

    x: Any
    y: Any
    threads: int
    compiled: bool
    cases: dict[str, Run] = field(default_factory=dict)
    against: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    absent: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cases[COPY] = memcpy(self.y, self.x)
        self.torch_x = torch.from_numpy(self.x)
        self._codecs: dict[str, Codec] = {}

    def ours(self, what: str) -> str:
        """`quantize mxfp4` and the like, made when first asked for."""
        name = f"blockscale {what}"
        if name not in self.cases:
            way, scheme = what.split()
            if scheme not in self._codecs:
                self._codecs[scheme] = Codec(scheme, self.x, self.y, threads=self.threads)
            codec = self._codecs[scheme]
            given = way == "fake(given)"
            self.cases[name] = codec.fake_quantize(given) if "fake" in way else getattr(codec, way)()
        return name

    def add(self, name: str, run: Run, ours: str, bar: int | None = None) -> None:
        try:
            with quiet():
                run()
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            self.absent.append((name, f"{type(error).__name__}: {reason[:120]}"))
            return
        self.against[name] = self.ours(ours), bar
        self.cases[name] = run


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Peers warn and log when they are imported and compiled; nothing here can change that."""
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


# ------------------------------------------------------------------------------------------- peers


def torchao(contest: Contest) -> None:
    from torchao.prototype.mx_formats.mx_tensor import to_dtype, to_mx
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize

    elements = {
        "mxfp4": torch.float4_e2m1fn_x2, "mxfp6_e2m3": "fp6_e2m3", "mxfp8_e4m3": torch.float8_e4m3fn,
    }  # fmt: skip
    x = contest.torch_x
    for scheme, element in elements.items():
        pack, unpack = f"quantize {scheme}", f"dequantize {scheme}"
        with quiet():
            scale, data = to_mx(x, element, 32)
        bar = TORCHAO if scheme == "mxfp4" else None
        contest.add(f"torchao to_mx {scheme}", _bound(to_mx, x, element, 32), pack, bar)
        run = _bound(to_dtype, data, scale, element, 32, torch.float32)
        contest.add(f"torchao to_dtype {scheme}", run, unpack)
        if not contest.compiled:
            continue

        # Inductor has no e8m0 in C++: nothing of that type may enter or leave.
        def codes(x: Any, element: Any = element) -> Any:
            return to_mx(x, element, 32)[1]

        def values(data: Any, scale: Any, element: Any = element) -> Any:
            return to_dtype(data, scale.view(torch.float8_e8m0fnu), element, 32, torch.float32)

        compiled = [torch.compile(function, dynamic=False) for function in (to_mx, codes, values)]
        contest.add(f"torchao to_mx {scheme}, compiled", _bound(compiled[0], x, element, 32), pack)
        contest.add(f"torchao to_mx {scheme}, compiled, no scales out", _bound(compiled[1], x), pack)
        run = _bound(compiled[2], data, scale.view(torch.uint8))
        contest.add(f"torchao to_dtype {scheme}, compiled", run, unpack)
    run = _bound(nvfp4_quantize, x, 16, torch.tensor(1.0))
    contest.add("torchao nvfp4_quantize", run, "quantize nvfp4")


def torch_itself(contest: Contest) -> None:
    x = contest.torch_x
    scale, zero = x.abs().amax(1) / 127, torch.zeros(len(x), dtype=torch.int32)
    run = _bound(torch.fake_quantize_per_channel_affine, x, scale, zero, 0, -128, 127)
    contest.add("torch.fake_quantize_per_channel_affine", run, "fake(given) int8-channel")
    run = _bound(torch.fake_quantize_per_tensor_affine, x, 0.03, 0, -128, 127)
    contest.add("torch.fake_quantize_per_tensor_affine", run, "fake(given) int8")


def ggml(contest: Contest) -> None:
    spec = importlib.util.find_spec("_pywhispercpp")
    if spec is None or spec.origin is None:
        raise ImportError("pywhispercpp, which carries libggml-base.so, is not installed")
    library = ctypes.CDLL(str(Path(spec.origin).parent / "libggml-base.so"))
    pack, unpack = library.quantize_row_mxfp4_ref, library.dequantize_row_mxfp4
    for function in (pack, unpack):
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64], None
    x, y, count = contest.x, contest.y, contest.x.size
    stored = aligned(count // 32 * 17, "uint8")
    pack_it = _bound(pack, x.ctypes.data, stored.ctypes.data, count)
    contest.add("ggml quantize_row_mxfp4_ref (C)", pack_it, "quantize mxfp4")
    unpack_it = _bound(unpack, stored.ctypes.data, y.ctypes.data, count, keep=stored)
    contest.add("ggml dequantize_row_mxfp4 (C)", unpack_it, "dequantize mxfp4")


def gguf(contest: Contest) -> None:
    from gguf import GGMLQuantizationType, quants

    kind = GGMLQuantizationType.MXFP4
    stored = quants.quantize(contest.x, kind)
    for function, data in ((quants.quantize, contest.x), (quants.dequantize, stored)):
        way = function.__name__
        contest.add(f"gguf.quants.{way} (numpy)", _bound(function, data, kind), f"{way} mxfp4")


def quark(contest: Contest) -> None:
    """Its op library is compiled when first imported; the operator itself knows no threads."""
    import onnxruntime
    from onnx import TensorProto, helper
    from quark.onnx.operators import custom_ops

    shape, domain = contest.x.shape, "com.amd.quark"
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    for scheme in ("mxfp4", "mxfp8_e4m3", "mxint8"):
        node = helper.make_node(
            "MXQuantizeDequantize", ["x"], ["y"], domain=domain, element_dtype=FORMATS[scheme], axis=1,
            block_size=32, rounding_mode=2,
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(domain, 1)]
        model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets)
        model.ir_version = 10
        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(custom_ops.get_library_path())
        options.intra_op_num_threads = contest.threads
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        run = _bound(session.run, None, {"x": contest.x})
        contest.add(f"Quark MXQuantizeDequantize {scheme}, ONNX Runtime", run, f"fake {scheme}", QUARK)


def microxcaling(contest: Contest) -> None:
    from tico.utils.mx import mx_ops

    for scheme in ("mxfp4", "mxfp8_e4m3", "mxint8"):

        def run(scheme: str = scheme) -> Any:
            return mx_ops._quantize_mx(
                contest.torch_x, 8, FORMATS[scheme], shared_exp_method="max", axes=[-1], block_size=32,
                round="even",
            )  # fmt: skip

        contest.add(f"microxcaling _quantize_mx {scheme} (TICO's copy)", run, f"fake {scheme}")


THREADED = (torchao, torch_itself)
PEERS = (*THREADED, ggml, gguf, quark, microxcaling)


def _bound(function: Callable[..., Any], *arguments: Any, keep: Any = None) -> Run:
    return lambda memory=keep: function(*arguments)


def compare(report: Report, mib: int, threads: int, compiled: bool, seconds: float) -> None:
    torch.set_num_threads(threads)
    x = normal((mib << 18) // 4096, like=aligned)
    contest = Contest(x, aligned(x.size).reshape(x.shape), threads, compiled)
    for peer in PEERS if threads == 1 else THREADED:
        try:
            with quiet():
                peer(contest)
        except (ImportError, OSError, AttributeError, RuntimeError) as error:
            contest.absent.append((peer.__name__, f"{type(error).__name__}: {str(error)[:120]}"))
    with quiet():
        times = interleaved(contest.cases, seconds=report.seconds(seconds), least=4)
    where = f"{mib} MiB, {threads} thread{'s' * (threads > 1)}"
    report.keep(where, times)
    rows = []
    for name, found in times.items():
        ours, bar = contest.against.get(name, (None, None))
        ratio = "" if ours is None else f"{found.best / times[ours].best:.1f} × {ours}"
        text = "" if bar is None or threads > 1 else report.bar(
            f"{name}: time / ours, {where}", found.best / times[str(ours)].best, "≥", bar
        )  # fmt: skip
        copies = f"{found.best / times[COPY].best:.1f}"
        rows.append([name, duration(found.best), found.spread, found.rate(x.size), copies, ratio, text])
    header = ("what", "best", "median (quartiles)", "G elements/s", "× memcpy", "time / ours", "bar")
    report.table(where, header, rows)
    if contest.absent:
        report.table(f"Not measured, {where}", ("peer", "why"), contest.absent)


def main(argv: list[str] | None = None) -> None:
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # ninja, for Quark
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(__file__).parents[1] / "build/torch-extensions"))
    report = Report("Peers", " ".join(str(__doc__).split()), argv)
    compare(report, 8, 1, True, 2.0)
    compare(report, 8, 2, False, 1.0)
    if not report.quick:
        compare(report, 128, 1, False, 2.0)
    report.close()


if __name__ == "__main__":
    main()
