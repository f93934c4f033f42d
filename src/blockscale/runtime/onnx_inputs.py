"""What a model takes, and whether arrays are that: for every runtime of ONNX models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from blockscale.errors import ArgumentError, DtypeError, ShapeError, UnknownNameError


class Takes:
    """Inputs of a graph; `names` are those without a default, in order."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        given = {value.name for value in graph.initializer}
        self._inputs = {value.name: value.type.tensor_type for value in graph.input}
        self.names = [name for name in self._inputs if name not in given]

    def check(self, inputs: Mapping[str, Any]) -> None:
        for name in inputs:
            if name not in self._inputs:
                raise UnknownNameError("inputs", name, self._inputs)
        missing = [name for name in self.names if name not in inputs]
        if missing:
            raise ArgumentError(
                "inputs", sorted(inputs), f"{', '.join(missing)} too: the model has no default"
            )
        sizes: dict[str, int] = {}
        for name, array in inputs.items():
            _check_input(name, array, self._inputs[name], sizes)


def _check_input(name: str, array: Any, wanted: Any, sizes: dict[str, int]) -> None:
    """Dtype and shape as the model says them; the same name is the same size everywhere."""
    if not wanted.elem_type:  # a sequence, a map
        return
    dtype = onnx.helper.tensor_dtype_to_np_dtype(wanted.elem_type)
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        raise DtypeError(f"inputs[{name!r}]", getattr(array, "dtype", type(array).__name__), f"{dtype}")
    if not wanted.HasField("shape"):
        return
    dims = [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in wanted.shape.dim]
    same = len(dims) == array.ndim and all(
        n == (dim if isinstance(dim, int) else sizes.setdefault(dim, n) if dim else n)
        for dim, n in zip(dims, array.shape, strict=True)
    )
    if not same:
        also = "".join(f", {dim} = {sizes[dim]}" for dim in dims if isinstance(dim, str) and dim in sizes)
        shown = "×".join(str(dim or "?") for dim in dims) or "()"
        raise ShapeError(f"inputs[{name!r}].shape", array.shape, f"{shown}{also}")
