"""Passes in order. A stage is a name; `optimize` and `lift_combine` are lists of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from blockscale.errors import UnknownNameError
from blockscale.graph import invariants, models
from blockscale.graph.collecting import at_rest
from blockscale.graph.overlay import Graph
from blockscale.passes import (
    absorb,
    canonicalize,
    cse,
    fold,
    fold_metadata,
    fuse_norm,
    fuse_operands,
    lift,
    requantize,
    sink,
)
from blockscale.passes.log import Log, counts

Pass = Callable[[Graph, Log], None]

PASSES: dict[str, Pass] = {
    "canonicalize": canonicalize.run,
    "cse": cse.run,
    "lift": lift.run,
    "fold": fold.run,
    "sink": sink.run,
    "absorb": absorb.run,
    "fuse_norm": fuse_norm.run,
    "requantize": requantize.run,
    "fuse_operands": fuse_operands.run,
    "fold_metadata": fold_metadata.run,
    "expand_metadata": fold_metadata.expand,
}

COMBINE = ("cse", "lift", "cse")
CANONICAL = ("canonicalize",)
# For targets that keep quantization with their tensors: before any motion, which takes pairs apart.
METADATA = (*CANONICAL, "fold_metadata")
# Dequantizes are sunk to the products before anything fuses, and weights are folded, so that what is fused with
# is codes. A norm takes the quantize of its result, then a dequantize–quantize becomes one, then the rest.
OPTIMIZE = (
    *CANONICAL, *COMBINE, "sink", "fold", "absorb", "fuse_norm", "requantize", "fuse_operands", "cse",
)  # fmt: skip


@at_rest()
def run(graph: Graph, stages: Sequence[str], log: Log, *, check: bool = False) -> None:
    """The stages in order, on the graph and on the bodies in it."""
    for stage in stages:
        if stage not in PASSES:
            raise UnknownNameError("stages", stage, PASSES)
    log.before = counts(graph)
    if check:
        invariants.check(graph, "reading")
    for stage in stages:
        for one in graph.walk():
            PASSES[stage](one, log)
            one.sweep()
        if check:
            invariants.check(graph, stage)
    log.after = counts(graph)


@at_rest()
def optimize(
    model: Any, *, stages: Sequence[str] = OPTIMIZE, log: Log | None = None, check: bool = False,
    in_place: bool = False,
) -> Any:  # fmt: skip
    """The model with its quantizes moved, combined, folded and fused; not a bit of its results changes.

    model     a torch.fx.GraphModule, a torch.export.ExportedProgram or an onnx_ir.Model
    stages    which passes, in order: names of PASSES
    log       a Log that is told what each pass did, and why it left things alone
    check     test the invariants of the graph after every stage (for finding defects; slow)
    in_place  change the given model; otherwise it stays as it is, and shares its weights with the result
    """
    if not in_place:
        model = models.copied(model)
    log = Log() if log is None else log
    graph = models.snapshot(model)
    run(graph, stages, log, check=check)
    result = models.commit(graph, model)
    if check:
        models.check(result, "writing")
    return result


def lift_combine(model: Any, *, log: Log | None = None, check: bool = False) -> Any:
    """Equal quantizes of the model combined, lifted over what only puts elements elsewhere where they meet.

    Operators keep their names: a graph of other people's quantizes stays one. The given model is changed,
    and returned, as passes over torch.fx do.
    """
    return optimize(model, stages=COMBINE, log=log, check=check, in_place=True)
