"""What an .onnx file holds, and where it runs. Weights are not read, and nothing in the file is trusted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import onnx_ir as ir

from blockscale.errors import BlockscaleError, FileError
from blockscale.report.onnx_quantized import FUNCTIONS, Tensor, quantized_tensors
from blockscale.report.onnx_runs import Place, places
from blockscale.targets import onnx as onnx_target

HEAD = ["tensor", "read by", "role", "layout", "shape", "stored", "as float", "ratio", "form"]

ONNX = "ai.onnx"
LONGEST = 400  # characters of what is wrong
MOST = 8  # operators of a domain that the summary names


@dataclass(frozen=True)
class Facts:
    """Of a file. Bytes and elements of parameters count what several names share once.

    operators   by domain, then by name: how often, bodies and functions included
    functions   of the model, by domain
    parameters  elements of all constants; of quantized ones, those that the codes stand for
    """

    file: str
    ir_version: int
    opsets: dict[str, int]
    producer: str
    operators: dict[str, dict[str, int]]
    functions: dict[str, int]
    parameters: int
    stored_bytes: int
    float_bytes: int
    external_files: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    runs: tuple[Place, ...]

    def to_dict(self) -> dict[str, Any]:
        rows = [asdict(one) | {"ratio": one.ratio} for one in self.tensors]
        return asdict(self) | {"tensors": rows}


def facts(path: Path) -> Facts:
    """FileError: it is no model that can be read."""
    model = onnx_target.read(path)
    try:
        return _facts(path, model)
    except Exception as error:  # a file can be wrong in every way, and each is said in its own
        told = str(error) if isinstance(error, BlockscaleError) else f"{type(error).__name__}: {error}"
        raise FileError(f"{path}: not a sound ONNX model ({told[:LONGEST]})") from error


def _facts(path: Path, model: ir.Model) -> Facts:
    tensors, constants = quantized_tensors(model)
    held = {id(tensor): tensor for tensor in _constants(model)}
    stored = sum(tensor.nbytes for tensor in held.values())
    outside = [tensor for tensor in held.values() if isinstance(tensor, ir.ExternalTensor)]
    _check_outside(outside)
    return Facts(
        file=str(path), ir_version=model.ir_version,
        opsets={domain or ONNX: version for domain, version in model.opset_imports.items()},
        producer=" ".join(filter(None, (model.producer_name, model.producer_version))),
        operators=_operators(model),
        functions=dict(Counter(function.domain or ONNX for function in model.functions.values())),
        parameters=sum(tensor.size for tensor in held.values())
        + sum(one.elements - one.size for one in constants.values()),
        stored_bytes=stored,
        float_bytes=stored + sum(one.float_bytes - one.nbytes for one in constants.values()),
        external_files=tuple(sorted({Path(tensor.path).name for tensor in outside})),
        tensors=tuple(tensors), runs=places(model),
    )  # fmt: skip


def _check_outside(tensors: list[ir.ExternalTensor]) -> None:
    sizes: dict[str, int] = {}
    for tensor in tensors:
        file = str(tensor.path)
        if file not in sizes:
            sizes[file] = Path(file).stat().st_size
        if (tensor.offset or 0) + tensor.nbytes > sizes[file]:
            raise FileError(
                f"weight {tensor.name!r} ends at byte {(tensor.offset or 0) + tensor.nbytes} of "
                f"{tensor.path}, which has {sizes[file]}: the file is truncated, or of another model"
            )


def _constants(model: ir.Model) -> Iterator[Any]:
    """Not those of our functions, tables that they look values up in."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
    others = [one for one in model.functions.values() if one.domain not in FUNCTIONS]
    nodes = chain(model.graph.all_nodes(), *(one.all_nodes() for one in others))
    for node in nodes:
        attribute = node.attributes.get("value") if (node.domain, node.op_type) == ("", "Constant") else None
        if attribute is not None and attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
            yield attribute.as_tensor()


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _operators(model: ir.Model) -> dict[str, dict[str, int]]:
    """Calls of functions of the model are no operators: their nodes are counted, once a function."""
    found: dict[str, Counter[str]] = {}
    for node in _nodes(model):
        if node.op_identifier() not in model.functions:
            found.setdefault(node.domain or ONNX, Counter())[node.op_type] += 1
    return {domain: dict(counter.most_common()) for domain, counter in sorted(found.items())}


# ------------------------------------------------------------------------------------------ in words


def summary(found: Facts, size: Callable[[int], str]) -> list[list[str]]:
    weights = [one for one in found.tensors if one.stored_bytes is not None]
    rows = [
        ["file", found.file + (f", written by {found.producer}" if found.producer else "")],
        ["version", f"IR {found.ir_version}, opsets " + ", ".join(f"{d} {v}" for d, v in found.opsets.items())],
        ["quantized", f"weights: {len(weights)}, activations: {len(found.tensors) - len(weights)}"],
        ["parameters", f"{found.parameters:,}: {size(found.stored_bytes)} stored, "
                       f"{size(found.float_bytes)} in float{_ratio(found.stored_bytes, found.float_bytes)}"],
    ]  # fmt: skip
    if found.external_files:
        rows.append(["weights in", ", ".join(found.external_files)])
    for domain, operators in found.operators.items():
        named = [f"{name} × {count}" for name, count in list(operators.items())[:MOST]]
        more = [f"{len(operators) - MOST} others"] if len(operators) > MOST else []
        rows.append([f"operators, {domain}", ", ".join([*named, *more])])
    rows += [["functions", f"{count} of {domain}"] for domain, count in found.functions.items()]
    for place in found.runs:
        answer = {True: "yes", False: "no", None: "not tried"}[place.runs]
        rows.append([f"runs on {place.where}", answer + (f": {place.why}" if place.why else "")])
    return rows


def _ratio(stored: int, floats: int) -> str:
    return f" ({stored / floats:.3f})" if floats and math.isfinite(stored / floats) else ""
