"""Small constants computed before the run: what exporters leave of shapes, masks and scales.

Only operators that give the same bits on every runtime: those that move elements, integers, comparisons, and the
arithmetic that IEEE 754 rounds correctly. Results are small (a weight is never expanded or transposed here), and
large constants are not read at all.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from blockscale.graph.onnx_steps import Told
from blockscale.graph.onnx_types import array_of, constant_tensor

_LARGEST = 1 << 16  # bytes of a result, and of each operand that is read

_MOVES = frozenset((
    "Cast", "Concat", "ConstantOfShape", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Range",
    "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where",
))  # fmt: skip
_LOGIC = frozenset(("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or", "Xor"))
_EXACT = frozenset(("Abs", "Add", "Div", "Mul", "Neg", "Sqrt", "Sub"))  # on floats as well as on integers
_OF_INTEGERS = frozenset(("CumSum", "Max", "Min", "Mod", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum"))
_SIZES = frozenset(("Shape", "Size"))
_ROUNDED = (np.dtype(np.float32), np.dtype(np.float64))


def fold_constants(model: ir.Model) -> list[Told]:
    """In place, in the main graph and in bodies: results become initializers of the main graph."""
    told = []
    version = model.opset_imports.get("", 1)
    for graph in (model.graph, *model.graph.subgraphs()):
        for node in list(graph):
            arrays = _computed(node, version)
            if arrays is None:
                continue
            for value, array in zip(node.outputs, arrays, strict=True):
                value.replace_all_uses_with(_constant(model, value, array), replace_graph_outputs=False)
            graph.remove(node, safe=True)
            told.append(Told("constants", str(node.name), f"{node.op_type} computed"))
    return told


def _constant(model: ir.Model, value: ir.Value, array: Any) -> ir.Value:
    """It takes the name, which is unique in the model."""
    name, value.name = value.name, None
    tensor = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)
    made = ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    model.graph.register_initializer(made)
    return made


def _computed(node: ir.Node, version: int) -> list[Any] | None:
    """The results of a node, if they are known and small."""
    if node.domain != "" or not node.outputs or any(value.is_graph_output() for value in node.outputs):
        return None
    if node.op_type in _SIZES:
        return _size(node)
    if node.op_type not in _MOVES | _LOGIC | _EXACT | _OF_INTEGERS:
        return None
    operands = [None if value is None else _known(value) for value in node.inputs]
    if any(array is None and value is not None for array, value in zip(operands, node.inputs, strict=True)):
        return None
    given = [array for array in operands if array is not None]
    if not given or not _is_exact(node, given) or not _is_small(node, given):
        return None
    return _run(node, operands, version)


def _size(node: ir.Node) -> list[Any] | None:
    """Of a tensor whose sizes are all known; it is not read."""
    source = node.inputs[0]
    shape = None if source is None else source.shape
    if shape is None or not all(isinstance(n, int) for n in shape):
        return None
    sizes = [int(n) for n in shape.numpy()]
    if node.op_type == "Size":
        return [np.array(math.prod(sizes), np.int64)]
    start, end = (node.attributes.get(name) for name in ("start", "end"))
    part = slice(None if start is None else start.as_int(), None if end is None else end.as_int())
    return [np.array(sizes[part], np.int64)]


def _known(value: ir.Value) -> Any:
    """The contents of a small constant, which nobody can give another value."""
    tensor = value.const_value
    node = value.producer()
    if node is not None:
        tensor = constant_tensor(node) if node.op_type == "Constant" and node.domain == "" else None
    elif value.is_graph_input():
        return None
    if tensor is None or tensor.dtype == ir.DataType.STRING or tensor.nbytes > _LARGEST:
        return None
    return np.asarray(array_of(tensor))


def _is_exact(node: ir.Node, given: list[Any]) -> bool:
    """Whether every runtime gives these bits."""
    kinds = {array.dtype.kind for array in given}
    if node.op_type == "Cast":
        return _casts(given[0], ir.DataType(node.attributes["to"].as_int()))
    if node.op_type == "Range" or node.op_type in _OF_INTEGERS:
        return kinds <= set("iu") and all((array >= 0).all() for array in given if node.op_type == "Mod")
    if node.op_type not in _EXACT or kinds <= set("iu"):
        return node.op_type != "Div" or all((array > 0).all() for array in given)
    return all(array.dtype in _ROUNDED and np.isfinite(array).all() for array in given)


def _casts(array: Any, to: ir.DataType) -> bool:
    """Between floats and integers that hold the value."""
    try:
        target = to.numpy()
    except (TypeError, KeyError, ValueError):
        return False
    if array.dtype.kind not in "biuf" or target.kind not in "biuf":
        return False
    if target.kind in "iu" and array.dtype.kind == "f":
        bounds = np.iinfo(target)
        return bool(np.isfinite(array).all() and (array > bounds.min).all() and (array < bounds.max).all())
    return True


def _is_small(node: ir.Node, given: list[Any]) -> bool:
    """Before it is computed: sizes that operands ask for."""
    if node.op_type in ("Expand", "ConstantOfShape"):
        count = math.prod(int(n) for n in given[-1].reshape(-1))
    elif node.op_type == "Tile":
        count = given[0].size * math.prod(int(n) for n in given[1].reshape(-1))
    elif node.op_type == "Range":
        start, limit, step = (int(array) for array in given)
        count = (limit - start) // step if step else 0
    else:
        count = math.prod(np.broadcast_shapes(*(array.shape for array in given))) if _broadcasts(node) else 0
    return count * 8 <= _LARGEST


def _broadcasts(node: ir.Node) -> bool:
    return node.op_type in _LOGIC | _EXACT or node.op_type in ("Where", "Mod")


def _run(node: ir.Node, operands: list[Any], version: int) -> list[Any] | None:
    """By onnx's reference; what it cannot run is left to the runtime, which will say what is wrong."""
    names = [f"x{i}" if array is not None else "" for i, array in enumerate(operands)]
    inputs = [
        ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(array.dtype)), shape=ir.Shape(array.shape))
        if name else None
        for name, array in zip(names, operands, strict=True)
    ]  # fmt: skip
    copy = ir.Node("", node.op_type, inputs, node.attributes.values(), num_outputs=len(node.outputs))
    for i, value in enumerate(copy.outputs):
        value.name = f"y{i}"
    graph = ir.Graph(
        [value for value in inputs if value],
        copy.outputs,
        nodes=[copy],
        opset_imports={"": version},
        name="one",
    )
    proto = ir.to_proto(ir.Model(graph, ir_version=10))
    try:
        with np.errstate(all="ignore"):
            found = ReferenceEvaluator(proto).run(
                None, {name: array for name, array in zip(names, operands, strict=True) if name}
            )
    except Exception:
        return None
    arrays = [np.asarray(array) for array in found]
    wanted = [value.dtype for value in node.outputs]
    fits = all(
        dtype is None or dtype.numpy() == array.dtype for dtype, array in zip(wanted, arrays, strict=True)
    )
    return arrays if fits and sum(array.nbytes for array in arrays) <= _LARGEST else None
