"""Where an ONNX model runs: onnxruntime is asked, with a model of the same types and no weights.

It is asked in a process of its own: whatever a file makes of it, the answer is a line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import onnx
import onnx_ir as ir

SECONDS = 120  # that onnxruntime may think about a graph
LONGEST = 160  # characters of what it says
MOST = 6  # operators that are named
SMALL = 1 << 10  # bytes; such constants say shapes and axes, and stay
LIBRARY = "our operator library"

_STANDARD = frozenset(("", "ai.onnx.ml", "com.microsoft", "ai.onnx.training", "ai.onnx.preview.training"))

# Types of elements that kernels of its CPU do not take, or only Cast does.
_LACKING = frozenset(("FLOAT4E2M1", "FLOAT6E2M3", "FLOAT6E3M2", "FLOAT8E8M0"))


@dataclass(frozen=True)
class Place:
    """runs  None: it was not tried, `why` says the reason."""

    where: str
    runs: bool | None
    why: str


def places(model: ir.Model) -> tuple[Place, ...]:
    """Stock onnxruntime, and onnxruntime with our operators."""
    strange, lacking = _strange(model), _lacking(model)
    ours = f"onnxruntime with {LIBRARY}"
    library, missing = _library()
    told = _tried(_shell(model).SerializeToString(), library)
    stock = _place(f"stock onnxruntime {told['version']}", told, "stock", lacking)
    if stock.runs:
        return stock, Place(ours, True, "it needs none")
    if strange and stock.runs is False:
        stock = replace(stock, why=strange)
    if library is None:
        return stock, Place(ours, None, missing)
    return stock, _place(ours, told, "library", lacking)


def _place(where: str, told: dict[str, str], key: str, lacking: str) -> Place:
    if key not in told:
        return Place(where, None, told["failed"])
    if not told[key]:
        return Place(where, True, "")
    said = " ".join(told[key].split())
    said = said if len(said) <= LONGEST else f"{said[:LONGEST]}…"
    return Place(where, False, f"{lacking}; it says: {said}" if lacking else said)


def _strange(model: ir.Model) -> str:
    """Operators that stock onnxruntime cannot have."""
    found: Counter[str] = Counter()
    for node in _nodes(model):
        if node.domain not in _STANDARD and node.op_identifier() not in model.functions:
            found[f"{node.domain}::{node.op_type}"] += 1
    named = [f"{name} × {count}" for name, count in found.most_common(MOST)]
    return f"it has no {', '.join(named + ['…'] * (len(found) > MOST))}" if found else ""


def _lacking(model: ir.Model) -> str:
    found = sorted({dtype for dtype in _types(model) if dtype in _LACKING})
    return f"its CPU has few kernels or none for {', '.join(found)}" if found else ""


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _types(model: ir.Model) -> Iterator[str]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value.dtype.name
    for node in _nodes(model):
        for value in node.outputs:
            if isinstance(value.type, ir.TensorType):
                yield value.type.dtype.name


def _library() -> tuple[str | None, str]:
    """Its path, or why there is none."""
    if find_spec("blockscale.onnxruntime") is None:
        return None, "this installation has none"
    try:
        return str(import_module("blockscale.onnxruntime").library_path()), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def _shell(model: ir.Model) -> onnx.ModelProto:
    """The model with its large constants as inputs, which a session takes the types of, and nothing more."""
    copy = model.clone()
    given = set(copy.graph.inputs)
    for name, value in list(copy.graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or (tensor.nbytes < SMALL and not isinstance(tensor, ir.ExternalTensor)):
            continue
        del copy.graph.initializers[name]
        value.const_value, value.type, value.shape = (
            None,
            ir.TensorType(tensor.dtype),
            ir.Shape(tensor.shape.numpy()),
        )
        if value not in given:
            copy.graph.inputs.append(value)
    return ir.to_proto(copy)


def _tried(proto: bytes, library: str | None) -> dict[str, str]:
    """`stock`, `library`: empty where a session could be made, else what onnxruntime said."""
    child = Path(__file__).with_name("onnx_tried.py")
    command = [sys.executable, "-P", str(child), *([library] if library else [])]
    try:
        done = subprocess.run(command, input=proto, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"version": "", "failed": f"onnxruntime had not finished after {SECONDS} s"}
    lines = done.stdout.decode(errors="replace").splitlines()
    found = {"version": "", "failed": f"onnxruntime died of it, exit code {done.returncode}"}
    for line in lines:
        if not line.startswith("{"):
            continue  # a library may print what it likes
        found |= {key: str(value) for key, value in json.loads(line).items()}
    return found
