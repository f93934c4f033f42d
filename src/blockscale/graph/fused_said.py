"""Operators of a model as fused operators say them: the row, its operands, its other arguments.

Of ATen a row is found by the operator's name; of ONNX by kind and params, which both readers give alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blockscale.graph.fused import ROW_OF, ROWS_OF_ATEN, Fused
from blockscale.graph.ops import KIND_OF_ATEN, OPS
from blockscale.graph.overlay import Graph
from blockscale.graph.view import Node, Value
from blockscale.numerics.moves import Permute


@dataclass(frozen=True)
class Said:
    """operands and tensors are in the order of the row."""

    row: Fused
    operands: tuple[Value | None, ...]
    tensors: tuple[Value | None, ...]
    settings: Mapping[str, Any]


def said(graph: Graph, node: Node, *, quantized: bool) -> Said | str:
    """The node as a fused operator whose output is quantized or not; or why there is none."""
    name = node.call.name
    if name in ROWS_OF_ATEN:
        found = _of_aten(graph, node, quantized)
    elif name in KIND_OF_ATEN or node.kind not in OPS or name.startswith("blockscale."):
        return f"{name} has no fused operator"
    else:
        found = _of_kind(graph, node, quantized)
    if isinstance(found, Said) and found.row.name not in graph.fusible:
        return f"blockscale.{found.row.name} cannot be written into this model"
    return found


def as_linear(graph: Graph, found: Said) -> Said:
    """A product with a transposed matrix as the linear layer that it is, where the matrix is dequantized.

    Codes that share bytes cannot be transposed themselves.
    """
    if found.row.name not in ("mm", "addmm") or "linear" not in graph.fusible:
        return found
    x, y, bias = (*found.operands, None)[:3]
    node = y.producer if y is not None else None
    if node is None:
        return found
    weight = node.operand(0) if node.params.get("move") == Permute((1, 0)) and node.call.pure else None
    if weight is None or weight.producer is None or weight.producer.kind != "dequantize":
        return found
    if bias is not None and (bias.meta is None or len(bias.meta.shape) != 1):
        return found
    return Said(ROW_OF["linear"], (x, weight, bias), (), {})


def reads_transposed(graph: Graph, node: Node) -> bool:
    """Whether all that use a permute are linear layers (`as_linear`): a copy in another order of memory would
    be added up in another order, so it stays a view.
    """
    if node.params.get("move") != Permute((1, 0)) or "linear" not in graph.fusible:
        return False
    value = node.outputs[0]
    return bool(value.users) and all(
        user.call.name in _TRANSPOSING and user.operand(1) is value and user.operand(0) is not value
        for user in value.users
    )


_TRANSPOSING = frozenset((ROW_OF["mm"].aten, ROW_OF["addmm"].aten))


def _fits(row: Fused, quantized: bool) -> bool:
    return row.output == "any" or (row.output == "codes") == quantized


def _of_aten(graph: Graph, node: Node, quantized: bool) -> Said | str:
    name = node.call.name
    if not node.call.operands:
        return f"{name}: {node.params.get('why', 'its arguments were not read')}"
    given = dict(zip(KIND_OF_ATEN[name].aten[name].split(), node.operands, strict=True))
    present = {n for n, value in given.items() if value is not None}
    settings = {n: v for n, v in graph.settings(node).items() if v is not None and n not in present}
    why = ""
    for row in ROWS_OF_ATEN[name]:
        allowed = {one.aten for one in row.operands} | set(row.rest_tensors)
        if not _fits(row, quantized) or not row.needed <= present <= allowed:
            continue
        more = sorted(settings.keys() - set(row.rest_names) - set(row.ignored))
        if more:
            why = f"{name} with {', '.join(more)} has no fused operator"
            continue
        kept = {n: v for n, v in settings.items() if n in row.rest_names}
        if any(_at_run_time(v) for v in kept.values()):
            return f"{name}: an argument is known only at run time"
        operands = tuple(given.get(one.aten) for one in row.operands)
        return Said(row, operands, tuple(given.get(n) for n in row.rest_tensors), kept)
    return why or f"{name} with these operands has no fused operator"


def _at_run_time(setting: Any) -> bool:
    if isinstance(setting, list | tuple):
        return any(_at_run_time(item) for item in setting)
    return isinstance(setting, Value)


# ------------------------------------------------------------------------------------------ by kind

_ALIKE = frozenset((
    "matmul", "embedding", "add", "sub", "mul", "relu", "silu", "sigmoid", "tanh", "hardswish", "hardsigmoid",
    "gelu", "softmax", "mean", "rms_norm", "layer_norm",
))  # fmt: skip


def _of_kind(graph: Graph, node: Node, quantized: bool) -> Said | str:
    name, operands = node.call.name, node.operands
    found = _row_of_kind(node)
    if found is None:
        return f"{name} has no fused operator"
    row = ROW_OF.get(f"{found}_quantize" if quantized and ROW_OF[found].output == "float" else found)
    if row is None or not _fits(row, quantized):
        return f"{name} has no fused operator"
    count = len(row.operands)
    operands += [None] * (count + len(row.rest_tensors) - len(operands))
    settings = {n: node.params[n] for n in row.rest_names if node.params.get(n) is not None}
    return Said(row, tuple(operands[:count]), tuple(operands[count:]), settings)


def _row_of_kind(node: Node) -> str | None:
    params, x = node.params, node.operand(0)
    if node.kind in _ALIKE:
        return node.kind
    if x is None or x.meta is None:
        return None
    if node.kind == "conv" and "padding" in params and 3 <= len(x.meta.shape) <= 5:
        return f"conv{len(x.meta.shape) - 2}d"
    if node.kind == "gemm" and (params["alpha"], params["beta"]) == (1.0, 1.0):
        bias = node.operand(2)
        row = bias is None or (bias.meta is not None and len(bias.meta.shape) == 1)
        if row and params["trans_b"] and not params["trans_a"]:
            return "linear"
    return None
