"""Schemas of the fused operators and what they do to floats, from the rows of `graph.fused`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from blockscale.graph.fused import OUT, RESULTS, Fused
from blockscale.graph.fused_forms import COMPOSITIONS
from blockscale.graph.ops import KIND_OF_ATEN
from blockscale.graph.torch_names import overload_named

_FIVE = "Tensor? {0}_scale, Tensor? {0}_zero_point, str {0}_dtype, int? {0}_quant_min, int? {0}_quant_max"


def schema_of(row: Fused, *, dynamic: bool) -> str:
    operands = [f"Tensor{'?' * one.optional} {one.name}" for one in row.operands]
    fields = [_FIVE.format(name) for name in (*(one.name for one in row.operands), OUT)]
    open_ = [f"SymInt[]? {one.name}_block=None, SymInt? {one.name}_last=None" for one in row.operands]
    settings = [*open_, f"SymInt[]? {OUT}_block=None", "ScalarType? compute=None"]
    arguments = [*operands, *fields, *filter(None, [row.rest]), "*", *settings]
    results = [*(RESULTS if dynamic else (OUT,)), *row.also]
    returned = ", ".join(f"Tensor {name}" for name in results) if len(results) > 1 else "Tensor"
    return f"{defined_name(row, dynamic=dynamic)}({', '.join(arguments)}) -> ({returned})"


def defined_name(row: Fused, *, dynamic: bool) -> str:
    """As torch.library wants it: "linear", "linear.dynamic", "add.Scalar_dynamic"."""
    return row.operator(dynamic=dynamic).partition(".")[2].removesuffix(".default")


def function_of(row: Fused) -> Callable[..., Any]:
    """What the operator is on floats; it takes keywords, by the names of ATen."""
    composed = COMPOSITIONS.get(row.name)
    return overload_named(row.aten) if composed is None else partial(composed, _Runner())


class _Runner:
    """`fused_forms.Builder` that runs what it is told."""

    def call(
        self, name: str, operands: Sequence[Tensor | None], settings: Mapping[str, Any] | None = None
    ) -> Tensor:
        names = KIND_OF_ATEN[name].aten[name].split()
        return overload_named(name)(**dict(zip(names, operands, strict=True)), **(settings or {}))  # type: ignore[no-any-return]

    def cast(self, x: Tensor, like: Tensor | str) -> Tensor:
        return x.to(getattr(torch, like) if isinstance(like, str) else like.dtype)
