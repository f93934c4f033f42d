"""Types, shapes and contents as onnx_ir writes them, and as the view does."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import onnx_ir as ir

from blockscale.errors import FileError
from blockscale.graph.dims import Dim, Dims, Sym, parsed, symbol
from blockscale.graph.view import Meta

NAMELESS = "?"  # begins the symbol of a size that the model does not even name

# What exporters write for a size without a name.
NO_NAMES = frozenset(("", "?", "None", "-1"))


@lru_cache(maxsize=64)
def dtype_name(dtype: ir.DataType) -> str | None:
    """As numpy writes it; None of strings and of what is no type."""
    if dtype in (ir.DataType.UNDEFINED, ir.DataType.STRING):
        return None
    return str(np.dtype(dtype.numpy()).name)


@lru_cache(maxsize=64)
def dtype_of(name: str) -> ir.DataType:
    for dtype in ir.DataType:
        if dtype_name(dtype) == name:
            return dtype
    raise AssertionError(f"ONNX has no type {name}")


class Namer:
    """Symbols for sizes without a name; each is another size."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Dim:
        self.count += 1
        return symbol(f"{NAMELESS}{self.count}")


def is_nameless(dim: Any) -> bool:
    """An entry of ir.Shape that says nothing."""
    return not isinstance(dim, int) and (dim.value is None or dim.value in NO_NAMES)


def dim_of(dim: Any, namer: Namer) -> Dim:
    """Of an entry of ir.Shape, or an int or a name."""
    if isinstance(dim, int):
        return dim if dim >= 0 else namer()
    text = dim if isinstance(dim, str) else dim.value
    if text is None or text in NO_NAMES:
        return namer()
    return parsed(text)


def meta_of(dtype: ir.DataType | None, shape: Any, namer: Namer) -> Meta | None:
    if dtype is None or shape is None:
        return None
    name = dtype_name(dtype)
    return None if name is None else Meta(name, tuple([dim_of(dim, namer) for dim in shape]))


def tensor_dtype(value: ir.Value) -> ir.DataType | None:
    """None where it is no tensor, or of no known type."""
    return value.type.dtype if isinstance(value.type, ir.TensorType) else None


def shape_of(dims: Dims) -> ir.Shape:
    return ir.Shape([dim if isinstance(dim, int) else _text(dim) for dim in dims])


def _text(dim: Sym) -> str | None:
    if any(name.startswith(NAMELESS) for name, _ in dim.factors):
        return None
    parts = [str(dim.coefficient)] if dim.coefficient != 1 else []
    parts += [name if power == 1 else f"{name}**{power}" for name, power in dim.factors]
    return "*".join(parts)


def array_of(tensor: ir.TensorProtocol) -> Any:
    """Its contents as numpy; external data are mapped, not read. FileError: they cannot be."""
    try:
        return tensor.numpy()
    except (OSError, ValueError, TypeError) as error:
        place = f" ({tensor.path})" if isinstance(tensor, ir.ExternalTensor) else ""
        raise FileError(f"weight {tensor.name!r}{place} cannot be read: {error}") from error


def tensor_of(array: Any, name: str) -> ir.TensorProtocol:
    array = np.asarray(array)
    return ir.Tensor(array if array.flags.c_contiguous else np.ascontiguousarray(array), name=name)


def constant_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    """What a Constant node holds; None of sparse tensors and strings."""
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            return None
        if name == "value":
            tensor = attribute.as_tensor()
            return None if dtype_name(tensor.dtype) is None else tensor
        if name in ("value_int", "value_ints"):
            return ir.Tensor(np.array(attribute.value, dtype=np.int64))
        if name in ("value_float", "value_floats"):
            return ir.Tensor(np.array(attribute.value, dtype=np.float32))
    return None
