"""The value-preserving passes on large graphs: reading, every stage, and writing with its one recompile.

A transformer with a quantize or dequantize at every seventh node, of 1k to 100k nodes, beside one `recompile` of
the same torch.fx graph, a lift as tensor_cast does it, and the common subexpressions of torch and onnx_ir.
Every run takes a model of its own; the garbage collector is on, as it is where passes are used.
"""

from __future__ import annotations

import gc
import math
import operator
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes.common import CommonSubexpressionEliminationPass
from torch import fx
from torch._functorch.compile_utils import fx_graph_cse

from _graphs import TRAPS, aten, onnx_transformer, ours, transformer
from _measure import Times, duration
from _report import Report
from blockscale.graph import models
from blockscale.graph.collecting import at_rest
from blockscale.passes.log import Log
from blockscale.passes.pipeline import OPTIMIZE, run

SIZES = (1_000, 10_000, 50_000, 100_000)
DECISIVE = 50_000
LIMIT, GROWTH = 4.0, 1.2  # recompiles at 50k; the exponent of nodes
ONNX_SIZES = (1_000, 3_000, 10_000)
TRAP_SIZES = (2_500, 10_000)
Samples = dict[str, list[float]]


def timed(call: Callable[[], Any], into: Samples, name: str) -> Any:
    start = time.perf_counter()
    result = call()
    into.setdefault(name, []).append(time.perf_counter() - start)
    return result


def settle() -> None:
    """What the last run left is not collected during the next one."""
    gc.collect()


# ------------------------------------------------------------------------------ our passes


def optimized(model: Any, into: Samples) -> Log:
    """As `optimize(model, in_place=True)`, each part timed; "all" is their sum."""
    parts: Samples = {}
    log = Log()
    start = time.perf_counter()
    with at_rest():
        graph = timed(lambda: models.snapshot(model), parts, "read")
        for i, stage in enumerate(OPTIMIZE):
            timed(lambda stage=stage: run(graph, [stage], log), parts, f"{i + 1} {stage}")
        timed(lambda: models.commit(graph, model), parts, "write")
    into.setdefault("all", []).append(time.perf_counter() - start)
    for name, found in parts.items():
        into.setdefault(name, []).append(sum(found))
    return log


# ------------------------------------------------------------------------------ peers

_VIEWS = (
    aten.view.default,
    aten.reshape.default,
    aten.transpose.int,
    aten.unsqueeze.default,
    aten.squeeze.dim,
)


def lift_in_place(module: fx.GraphModule) -> None:
    """As tensor_cast: each dynamic quantize is walked up its views and inserted anew; then twins are merged.

    Our own re-creation, of the edits alone: it asks nothing about blocks and gives codes and scales the
    views of the input, so what it makes need not run.
    """
    graph = module.graph
    for node in list(graph.nodes):
        if node.target is not ours.dynamic_quantize.default:
            continue
        crossed, source = [], node.args[0]
        while source.target in _VIEWS:
            crossed.append(source)
            source = source.args[0]
        if not crossed:
            continue
        with graph.inserting_after(source):
            lifted = graph.call_function(node.target, (source, *node.args[1:]))
        for item in list(node.users):
            with graph.inserting_before(item):
                made = graph.call_function(operator.getitem, (lifted, item.args[1]))
                for view in reversed(crossed):
                    made = graph.call_function(view.target, (made, *view.args[1:]))
            item.replace_all_uses_with(made)
            graph.erase_node(item)
        graph.erase_node(node)
    graph.eliminate_dead_code()
    merge_twins(graph)
    graph.eliminate_dead_code()
    module.recompile()


def merge_twins(graph: fx.Graph) -> None:
    first: dict[Any, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "call_function":
            twin = first.setdefault((node.target, repr(node.args), repr(node.kwargs)), node)
            if twin is not node:
                node.replace_all_uses_with(twin)


def torch_cse(module: fx.GraphModule) -> None:
    module.graph = fx_graph_cse(module.graph)  # recompiles


# ------------------------------------------------------------------------------ tables


def best(samples: Samples, name: str) -> float:
    return min(samples[name])


def exponent(found: Mapping[int, float]) -> float:
    """The slope of time over size, both in logarithms, by least squares."""
    xs, ys = [math.log(n) for n in found], [math.log(t) for t in found.values()]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def keep(report: Report, prefix: str, samples: Samples) -> None:
    report.keep(prefix, {name: Times(tuple(found)) for name, found in samples.items()})


def rounds(report: Report, size: int) -> int:
    return 1 if report.quick else max(3, min(10, 60_000 // size))


def fx_graphs(report: Report) -> None:
    sizes = SIZES[:2] if report.quick else SIZES
    found: dict[int, Samples] = {}
    counts: dict[int, int] = {}
    did: Counter[str] = Counter()
    optimized(transformer(300), {})
    torch_cse(transformer(300))
    for size in sizes:
        samples = found[size] = {}
        for _ in range(rounds(report, size)):
            module = transformer(size)
            counts[size] = len(module.graph.nodes)
            settle()
            timed(module.recompile, samples, "recompile")
            settle()
            log = optimized(module, samples)
            for name, peer in (("lift", lift_in_place), ("cse", torch_cse)):
                module = transformer(size)
                settle()
                timed(lambda peer=peer, module=module: peer(module), samples, name)
        keep(report, f"fx {counts[size]}", samples)
        did = Counter(entry.stage for entry in log.entries if entry.did)
    rows = []
    for size, samples in found.items():
        base = best(samples, "recompile")
        ratio = best(samples, "all") / base
        bar = f"{ratio:.2f} ×"
        if size == DECISIVE:
            bar += ", " + report.bar("all passes / one recompile, 50k nodes", ratio, "≤", LIMIT)
        relative = [f"{best(samples, peer) / base:.2f} ×" for peer in ("lift", "cse")]
        rows.append([f"{counts[size]:,}", duration(base), duration(best(samples, "all")), bar, *relative])
    header = ("nodes", "recompile", "passes", "passes / recompile", "tensor_cast's lift", "torch's CSE")
    growth = exponent({counts[size]: best(samples, "all") for size, samples in found.items()})
    slower = exponent({counts[size]: best(samples, "lift") for size, samples in found.items()})
    note = (
        f"Of reading, {len(OPTIMIZE)} stages and writing with its recompile, the best time; the peers' with their "
        f"own recompile, both relative to it. Passes grow as n^{growth:.2f}, "
        f"{report.bar('growth of all passes on FX, exponent', growth, '≤', GROWTH, '')}; the lift of "
        f"tensor_cast as n^{slower:.2f}. At the largest size: "
        + ", ".join(f"{count:,} × {stage}" for stage, count in did.items())
        + "."
    )
    report.table("torch.fx", header, rows, note)
    stages(report, "Where the time goes, torch.fx", found, counts, "recompile")


def stages(
    report: Report, title: str, found: Mapping[int, Samples], counts: Mapping[int, int], base: str
) -> None:
    parts = ["read", *(f"{i + 1} {stage}" for i, stage in enumerate(OPTIMIZE)), "write"]
    rows = []
    for part in parts:
        cells = []
        for samples in found.values():
            share = best(samples, part) / best(samples, base)
            cells.append(f"{duration(best(samples, part))} ({share:.2f} ×)")
        rows.append([part, *cells])
    header = ("part", *(f"{count:,} nodes" for count in counts.values()))
    report.table(title, header, rows, f"In brackets relative to one {base} of the same graph.")


def traps(report: Report) -> None:
    rows = []
    for name, make in TRAPS.items():
        times: dict[int, float] = {}
        ratios = []
        for size in TRAP_SIZES:
            samples: Samples = {}
            for _ in range(1 if report.quick else 3):
                module = make(size)
                settle()
                timed(module.recompile, samples, "recompile")
                settle()
                optimized(module, samples)
            keep(report, f"{name} {size}", samples)
            times[size] = best(samples, "all")
            ratios.append(times[size] / best(samples, "recompile"))
        growth = exponent(times)
        bar = report.bar(f"growth on {name}, exponent", growth, "≤", GROWTH, "")
        cells = [f"{duration(t)} ({r:.1f} ×)" for t, r in zip(times.values(), ratios, strict=True)]
        rows.append([name, *cells, f"n^{growth:.2f}, {bar}"])
    header = ("graph", *(f"{size:,} nodes" for size in TRAP_SIZES), "growth")
    report.table(
        "Traps", header, rows, "Where naive passes are quadratic or recurse; in brackets / recompile."
    )


def onnx_graphs(report: Report) -> None:
    sizes = ONNX_SIZES[:2] if report.quick else ONNX_SIZES
    found: dict[int, Samples] = {}
    counts: dict[int, int] = {}
    optimized(onnx_transformer(300), {})
    for size in sizes:
        samples = found[size] = {}
        for _ in range(rounds(report, 2 * size)):
            model = onnx_transformer(size)
            counts[size] = len(model.graph)
            settle()
            timed(lambda model=model: ir.serde.serialize_model(model), samples, "serialization")
            settle()
            optimized(model, samples)
            model = onnx_transformer(size)
            settle()
            timed(lambda model=model: CommonSubexpressionEliminationPass()(model), samples, "cse")
        keep(report, f"onnx {counts[size]}", samples)
    rows = []
    for size, samples in found.items():
        base, whole, cse = (best(samples, name) for name in ("serialization", "all", "cse"))
        rows.append(
            [
                f"{counts[size]:,}", duration(base), duration(whole), f"{whole / base:.2f} ×",
                duration(cse), f"{whole / cse:.2f} ×",
            ]
        )  # fmt: skip
    growth = exponent({counts[size]: best(samples, "all") for size, samples in found.items()})
    header = (
        "nodes", "serialization", "passes", "passes / serialization", "onnx_ir's CSE", "passes / CSE",
    )  # fmt: skip
    bar = report.bar("growth of all passes on ONNX, exponent", growth, "≤", GROWTH, "")
    note = (
        f"Passes grow as n^{growth:.2f}, {bar}. Serialization is that of the model before, to a ModelProto."
    )
    report.table("ONNX", header, rows, note)
    stages(report, "Where the time goes, ONNX", found, counts, "serialization")


def main(argv: list[str] | None = None) -> None:
    report = Report("Passes", " ".join(str(__doc__).split()), argv)
    torch.set_num_threads(1)
    fx_graphs(report)
    traps(report)
    onnx_graphs(report)
    report.close()


if __name__ == "__main__":
    main()
