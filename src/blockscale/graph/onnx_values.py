"""New constants of one onnx_ir graph: initializers, made when they are needed, or when the model is saved."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from blockscale.graph.onnx_names import Names
from blockscale.graph.onnx_types import dtype_of, shape_of, tensor_of
from blockscale.graph.view import Value

_LAZY = 1 << 16  # bytes of a new constant from which on it is made when the model is saved


class Initializers:
    def __init__(self, graph: ir.Graph, names: Names) -> None:
        self.graph, self.names = graph, names
        self._known: dict[Any, ir.Value] = {}

    def of(self, value: Value) -> ir.Value:
        """For a constant that a pass made."""
        const, meta = value.const, value.meta
        if const is None or meta is None:
            raise AssertionError(f"{value!r} is used before it is made")
        name, dtype, shape = self.names.value(value.name), dtype_of(meta.dtype), meta.shape

        def fetch() -> ir.TensorProtocol:
            tensor = tensor_of(const.fetch(), name)
            if tensor.dtype != dtype or tuple(tensor.shape.numpy()) != shape:
                raise AssertionError(f"{value!r} is {tensor.dtype} {tensor.shape}, not {meta}")
            return tensor

        if prod(n for n in shape if isinstance(n, int)) * dtype.bitwidth // 8 < _LAZY:
            return self._register(fetch(), name)
        return self._register(ir.LazyTensor(fetch, dtype, shape_of(shape), name=name), name)

    def array(self, array: Any, hint: str) -> ir.Value:
        """A small constant that a maker needs; equal ones are one."""
        array = np.asarray(array)
        key = (array.dtype, array.shape, array.tobytes())
        if key not in self._known:
            name = self.names.value(hint)
            self._known[key] = self._register(tensor_of(array, name), name)
        return self._known[key]

    def ints(self, numbers: Iterable[int], hint: str) -> ir.Value:
        return self.array(np.array(list(numbers), dtype=np.int64), hint)

    def _register(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        made = ir.Value(
            name=name,
            shape=ir.Shape(tensor.shape.numpy()),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        self.graph.register_initializer(made)
        return made
