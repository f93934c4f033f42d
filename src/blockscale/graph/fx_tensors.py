"""Torch tensors, numpy arrays, and what metadata tells of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from blockscale.graph.dims import Dim, parsed
from blockscale.graph.view import Meta


def meta_of(found: Any) -> Meta | None:
    shape = getattr(found, "shape", None)
    if shape is None or not hasattr(found, "dtype"):
        return None
    return Meta(dtype_name(found.dtype), tuple([n if n.__class__ is int else dim_of(n) for n in shape]))


def array_of(tensor: torch.Tensor) -> Any:
    """The same memory as a numpy array, where the tensor is contiguous on the CPU."""
    tensor = tensor.detach().cpu()
    name = dtype_name(tensor.dtype)
    if name.startswith(("bfloat16", "float8", "float4")):
        import ml_dtypes

        plain = torch.uint8 if tensor.element_size() == 1 else torch.int16
        return tensor.contiguous().view(plain).numpy().view(getattr(ml_dtypes, name))
    return tensor.numpy()


_DTYPE_NAMES: dict[torch.dtype, str] = {}


def dtype_name(dtype: torch.dtype) -> str:
    found = _DTYPE_NAMES.get(dtype)
    if found is None:
        found = _DTYPE_NAMES[dtype] = str(dtype).removeprefix("torch.")
    return found


def dim_of(n: Any) -> Dim:
    if isinstance(n, torch.SymInt):
        node = n.node
        if node.is_constant() or node.expr.is_number:
            return int(node.expr)
        return parsed(str(node.expr))
    return int(n)


def tensor_of(array: Any) -> torch.Tensor:
    """A tensor of a numpy array; types of ml_dtypes go by their bits."""
    array = np.asarray(array, order="C")
    plain = {1: np.uint8, 2: np.int16}.get(array.dtype.itemsize)
    if array.dtype.kind == "V" and plain is not None:
        return torch.from_numpy(array.view(plain).copy()).view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array.copy())
