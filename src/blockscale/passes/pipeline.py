"""Passes in order. A stage is a name; `optimize` and `lift_combine` are lists of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from blockscale.errors import UnknownNameError
from blockscale.graph import invariants, models
from blockscale.graph.collecting import at_rest
from blockscale.graph.overlay import Graph
from blockscale.passes import (
    absorb,
    canonicalize,
    cse,
    dense,
    fold,
    fold_metadata,
    fuse_norm,
    fuse_operands,
    fuse_scale,
    join,
    lift,
    pack,
    requantize,
    sink,
)
from blockscale.passes.log import Log, counts

Pass = Callable[[Graph, Log], None]

PASSES: dict[str, Pass] = {
    "canonicalize": canonicalize.run,
    "ours": partial(canonicalize.run, split=False),
    "split_constants": canonicalize.split_constants,
    "join": join.run,
    "dense": dense.run,
    "pack": pack.run,
    "cse": cse.run,
    "lift": lift.run,
    "fold": fold.run,
    "sink": sink.run,
    "absorb": absorb.run,
    "fuse_norm": fuse_norm.run,
    "requantize": requantize.run,
    "fuse_operands": fuse_operands.run,
    "fuse_scale": fuse_scale.run,
    "fuse_scale_close": fuse_scale.run_close,
    "fold_metadata": fold_metadata.run,
    "expand_metadata": fold_metadata.expand,
}

COMBINE = ("cse", "lift", "cse")
CANONICAL = ("canonicalize",)
# For targets that keep quantization with their tensors: before any motion, which takes pairs apart.
METADATA = (*CANONICAL, "fold_metadata")
# Dequantizes are sunk to the products before anything fuses, and weights are folded, so that what is fused with
# is codes, and factors have gone into them. A norm takes the quantize of its result, then a dequantize–quantize
# becomes one, then the rest.
OPTIMIZE = (
    *CANONICAL, *COMBINE, "sink", "fold", "absorb", "fuse_scale", "fuse_norm", "requantize", "fuse_operands", "cse",
)  # fmt: skip
# For targets whose runtime takes floats: one node a quantize of an activation, weights as codes.
FLOATS = ("ours", "join", *COMBINE, "dense", "split_constants", "pack", "fold")


def checks_asked_for() -> bool:
    return os.environ.get("BLOCKSCALE_CHECK", "0") not in ("", "0")


@at_rest()
def run(graph: Graph, stages: Sequence[str], log: Log, *, check: bool = False) -> None:
    """The stages in order, on the graph and on the bodies in it.

    check   test the invariants of the graph after every stage, and name the stage where one does not hold;
            the environment variable BLOCKSCALE_CHECK=1 does so for every run
    """
    check = check or checks_asked_for()
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
    check     test the invariants of the graph after every stage, and the written model (for finding defects;
              slow). The environment variable BLOCKSCALE_CHECK=1 asks for it everywhere
    in_place  change the given model; otherwise it stays as it is, and shares its weights with the result
    """
    if not in_place:
        model = models.copied(model)
    log = Log() if log is None else log
    graph = models.snapshot(model)
    run(graph, stages, log, check=check)
    result = models.commit(graph, model)
    if check or checks_asked_for():
        models.check(result, "writing")
    return result


def lift_combine(model: Any, *, log: Log | None = None, check: bool = False) -> Any:
    """Equal quantizes of the model combined, lifted over what only puts elements elsewhere where they meet.

    Operators keep their names: a graph of other people's quantizes stays one. The given model is changed,
    and returned, as passes over torch.fx do.
    """
    return optimize(model, stages=COMBINE, log=log, check=check, in_place=True)
