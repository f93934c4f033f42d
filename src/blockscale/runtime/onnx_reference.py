"""Runs ONNX models with quantizers: onnx's reference evaluator, and the compiled core for ours.

Slow where a model computes (every float operator is numpy's), exact where it quantizes. Tests compare with
it, and models that hold operators of the domain `blockscale` run on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike, fspath
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx.numpy_helper import saturate_cast
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops._quant_utils import reshape_input
from onnx.reference.ops.op_dequantize_linear import DequantizeLinear_25

from blockscale.errors import (
    BlockscaleError,
    DtypeError,
    FileError,
    GraphError,
)
from blockscale.numerics.arrays import Array
from blockscale.runtime.onnx_inputs import Takes
from blockscale.runtime.onnx_ours import OURS
from blockscale.runtime.onnx_quark import QUARK

Model = str | PathLike[str] | onnx.ModelProto | ir.Model


class Runner:
    """`Runner(model).run({"x": array})` gives the model's outputs by name."""

    def __init__(self, model: Model) -> None:
        proto = _proto(model)
        graph = proto.graph
        self.outputs = [value.name for value in graph.output]
        self._takes = Takes(graph)
        self.inputs = self._takes.names
        _name_what_is_left_out(proto)
        try:
            self._evaluator = _Evaluator(proto)
        except Exception as error:
            raise _understood(error, "the model cannot run on onnx's reference evaluator") from error

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Outputs by name, in the order of the model."""
        found = self.values(inputs)
        return {name: found[name] for name in self.outputs}

    def values(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Every value of the main graph by name."""
        self._takes.check(inputs)
        try:
            with np.errstate(all="ignore"):
                found: dict[str, Array] = self._evaluator.run(None, dict(inputs), intermediate=True)  # type: ignore[assignment]
        except Exception as error:
            raise _understood(error, "the model does not run on these inputs") from error
        return found


def _proto(model: Model) -> onnx.ModelProto:
    """A copy that is changed below, with all weights in it."""
    if isinstance(model, str | PathLike):
        try:
            return onnx.load(fspath(model))
        except Exception as error:
            raise FileError(f"{fspath(model)}: not an ONNX model that can be read ({error})") from error
    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return copy
    if isinstance(model, ir.Model):
        copied = model.clone()
        for graph in (copied.graph, *copied.graph.subgraphs()):
            for value in graph.initializers.values():
                if isinstance(value.const_value, ir.ExternalTensor):
                    array, dtype = value.const_value.numpy(), value.const_value.dtype
                    value.const_value = ir.Tensor(array, dtype=dtype, name=value.name)
        return ir.to_proto(copied)
    raise DtypeError(
        "model", type(model).__name__, "the path of an .onnx file, a ModelProto or an onnx_ir.Model"
    )


def _understood(error: Exception, what: str) -> BlockscaleError:
    """What a kernel of ours said, which the evaluator wraps; else what the evaluator said."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, BlockscaleError):
            return cause
        cause = cause.__cause__
    return GraphError(f"{what}: {type(error).__name__}: {error}")


def _name_what_is_left_out(proto: onnx.ModelProto) -> None:
    """An output without a name is no output; the evaluator would give it to every input without one."""
    for nodes in (proto.graph.node, *(function.node for function in proto.functions)):
        for count, node in enumerate(_all_nodes(nodes)):
            for i, name in enumerate(node.output):
                if not name:
                    node.output[i] = f"@{count}.{i}"


def _all_nodes(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _all_nodes(graph.node)


class _Evaluator(ReferenceEvaluator):
    """Knows our operators in bodies and in functions too; every value lies in order.

    A tensor of ONNX has no strides, and products of matrices round by how these lie in memory.
    """

    def __init__(self, proto: Any, *, new_ops: Sequence[type[OpRun]] | None = None, **settings: Any) -> None:
        super().__init__(proto, new_ops=[*OPERATORS, *(new_ops or ())], **settings)
        for node in self.rt_nodes_:
            node.run = _in_order(node.run)


def _in_order(run: Callable[..., Sequence[Any]]) -> Callable[..., tuple[Any, ...]]:
    def ordered(*args: Any, **settings: Any) -> tuple[Any, ...]:
        results = run(*args, **settings)
        return tuple(
            v.copy(order="C") if isinstance(v, np.ndarray) and not v.flags.c_contiguous else v
            for v in results
        )

    return ordered


# ------------------------------------------------------------------------------------------ standard


class QuantizeLinear(OpRun):
    """As onnxruntime: what lies beyond every integer saturates (onnx's wraps), NaN is the least code."""

    def _run(
        self, x: Array, y_scale: Array, y_zero_point: Any = None, *, axis: int = 1, block_size: int = 0,
        output_dtype: int | None = None, precision: int | None = None, saturate: int = 1,
    ) -> tuple[Array]:  # fmt: skip
        wanted = output_dtype or onnx.TensorProto.UINT8
        code = onnx.helper.tensor_dtype_to_np_dtype(wanted) if y_zero_point is None else y_zero_point.dtype
        wide = onnx.helper.tensor_dtype_to_np_dtype(precision) if precision else x.dtype
        scale = reshape_input(y_scale, x.shape, axis, block_size)
        quotient = x.astype(wide) / scale.astype(wide)
        if not code.name.startswith(("int", "uint")):
            return (saturate_cast(quotient, code) if saturate else quotient.astype(code),)
        zero: Any = 0
        if y_zero_point is not None:
            zero = reshape_input(y_zero_point, x.shape, axis, block_size).astype(np.int64)
        limits = ml_dtypes.iinfo(code)  # type: ignore[no-untyped-call]
        low, high = limits.min - zero, limits.max - zero
        rounded = np.rint(quotient).astype(np.float64)
        bounded = np.clip(np.where(np.isnan(rounded), low, rounded), low, high)
        return ((bounded.astype(np.int64) + zero).astype(code),)


class DequantizeLinear(DequantizeLinear_25):
    """onnx's has no version before 19; the last one is all of them."""


class Loop(OpRun):
    """onnx's puts what each turn gives in one row, and gives nothing of a loop without turns."""

    def need_context(self) -> bool:
        return True

    def _run(
        self, limit: Any, go: Any, *state: Any, body: Any, context: Any = None, attributes: Any = None,
        bindings: Any = None,
    ) -> tuple[Any, ...]:  # fmt: skip
        names, turn, count = body.input_names, 0, len(state)
        seen: list[list[Any]] = [[] for _ in body.output_names[1 + count :]]
        go = np.array(True) if go is None else go
        while go and (limit is None or turn < limit):
            inputs = dict(zip(names, (np.array(turn, np.int64), go, *state), strict=True))
            outer = {**(context or {}), **inputs}
            go, *made = self._evaluate_subgraph(outer, body, attributes, bindings)  # type: ignore[no-untyped-call]
            state, turn = made[:count], turn + 1
            for rows, value in zip(seen, made[count:], strict=True):
                rows.append(value)
        types = body.output_types[1 + count :]
        return (*state, *(np.stack(v) if v else _no_rows(t) for v, t in zip(seen, types, strict=True)))


def _no_rows(of: onnx.TypeProto) -> Array:
    sizes = [dim.dim_value for dim in of.tensor_type.shape.dim]
    return np.empty((0, *sizes), onnx.helper.tensor_dtype_to_np_dtype(of.tensor_type.elem_type))


class Gelu(OpRun):
    """As the function that ONNX has for it, which the evaluator finds where types are known: not in functions."""

    def _run(self, x: Array, *, approximate: str = "none") -> tuple[Array]:
        half, one, two = (np.array(n, x.dtype) for n in (0.5, 1, 2))
        if approximate == "tanh":
            ratio, cube, three = (np.array(n, x.dtype) for n in (2 / np.pi, 0.044715, 3))
            inner = np.tanh(np.sqrt(ratio) * (x + cube * np.power(x, three)))
        else:
            inner = _erf(x / np.sqrt(two)).astype(x.dtype)
        return ((half * x) * (one + inner),)


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _of_microsoft(operator: type[OpRun]) -> type[OpRun]:
    return type(operator.__name__, (operator,), {"op_domain": "com.microsoft"})


OPERATORS: tuple[type[OpRun], ...] = (
    *OURS, *QUARK,
    Gelu, Loop, QuantizeLinear, DequantizeLinear, _of_microsoft(QuantizeLinear), _of_microsoft(DequantizeLinear),
)  # fmt: skip
