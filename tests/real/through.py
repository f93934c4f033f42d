"""A real model through the compiler: what a recipe and all passes make of it computes the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from blockscale.graph import models
from blockscale.model_api import fake_quantize_model
from blockscale.passes import Log, optimize
from passes.proof import KINDS, Proof
from runtime.torch_cases import equal

Inputs = Sequence[tuple[Any, ...]]


class InOrder(fx.Interpreter):
    """Gives products their operands in order of memory.

    BLAS adds up a transposed matrix in another order than its copy, which differs in the last bit. Of a
    quantize the results are in order, those of a fake-quantize lie as its input does.
    """

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if str(target) in PRODUCTS:
            args = pytree.tree_map_only(torch.Tensor, torch.Tensor.contiguous, args)
        return super().call_function(target, args, kwargs)


PRODUCTS = [f"aten.{name}.default" for name in ("linear", "mm", "addmm", "bmm", "matmul", "baddbmm")]


def run(model: Any, args: tuple[Any, ...], in_order: bool = False) -> list[Any]:
    module = model.module() if isinstance(model, ExportedProgram) else model
    with torch.no_grad():
        return pytree.tree_leaves(InOrder(module).run(*args) if in_order else module(*args))


def assert_same(one: Any, other: Any, inputs: Inputs, in_order: bool = False) -> None:
    """Models compute the same bits on all inputs, and something finite."""
    one, other = (m.module() if isinstance(m, ExportedProgram) else m for m in (one, other))
    for args in inputs:
        for a, b in zip(run(one, args, in_order), run(other, args, in_order), strict=True):
            assert a.isfinite().all()
            assert equal(a, b), f"{(a != b).sum()} of {a.numel()} differ, by {(a - b).abs().max()}"


def through(
    program: ExportedProgram | fx.GraphModule, preset: str, inputs: Inputs,
    calibration: Inputs | None = None, in_order: bool = False,
) -> tuple[Any, Proof]:  # fmt: skip
    """The fake-quantized model, and what all passes make of it: the same, with invariants held all the way."""
    quantized = fake_quantize_model(program, preset, calibration=calibration)
    log = Log()
    after = optimize(quantized, log=log, check=True)
    assert_same(quantized, after, inputs, in_order)
    return quantized, Proof(quantized, after, log)


def quantizes(model: Any) -> int:
    """How many stand on their own, whoever's operators they are; of weights and of activations."""
    return sum(node.kind in KINDS for one in models.snapshot(model).walk() for node in one.nodes)
