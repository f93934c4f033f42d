"""torch.ops.blockscale.{linear, conv2d, add_rms_norm_quantize, …}: operands and output may be quantized.

    linear(codes of x, …) = quantize(aten.linear(dequantize(x), dequantize(weight), bias))

Every quantized operand is dequantized, the operator of ATen works on floats, its result is quantized where
the output's fields say so: the bits of the graph without fusion. Products by a weight of codes on the CPU are
those of `torch_products`, which work on codes; of an embedding only the rows that are asked for are decoded.
`graph.fused` has the table, `graph.fused_fields` the fields.

compute   the dtype of the arithmetic: that of the float operands, or else float32 unless it is given
gradient  none: what is trained is the fake-quantized model
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from blockscale.errors import ArgumentError, DtypeError, ScaleError, ShapeError
from blockscale.graph.fused import OUT, ROWS, Fused
from blockscale.graph.fused_fields import FLOAT, Fields
from blockscale.runtime import torch_library, torch_products
from blockscale.runtime.torch_bound import type_index
from blockscale.runtime.torch_fused_fields import about, edge_of, shape_of, value_of
from blockscale.runtime.torch_fused_schemas import defined_name, function_of, schema_of

_operators = torch.ops.blockscale


# ----------------------------------------------------------------------------------------- kernels
# Made of operators that all have fake kernels, each is its own fake kernel. None returns an argument.


def _kernel(row: Fused, schema_text: str, *, dynamic: bool) -> Callable[..., Any]:
    schema, function = torch._C.parse_schema(schema_text), function_of(row)
    names = [argument.name for argument in schema.arguments]
    defaults = {one.name: one.default_value for one in schema.arguments if one.has_default_value()}
    rest = names[names.index(f"{OUT}_quant_max") + 1 : names.index(f"{row.operands[0].name}_block")]

    def run(*args: Any, **kwargs: Any) -> Any:
        given = defaults | dict(zip(names, args, strict=False)) | kwargs
        with torch.no_grad():
            if row.name == "embedding" and given["weight_scale"] is not None:
                result = _looked_up(row, given)
            else:
                values = _decoded(row, given)
                result = _called(row, function, values | {name: given[name] for name in rest})
            y, *also = result if row.also else (result,)
            with about(f"{row.name}, output"):
                results = (*_encoded(row, y, _fields(given, OUT), dynamic), *also)
        return results if len(results) > 1 else results[0]

    return run


def _product_kernel(row: Fused, decode: Callable[..., Any], *, dynamic: bool) -> Callable[..., Any]:
    """The row on CPU tensors: by the kernels of the core where there is one, else as everywhere."""

    def run(*args: Any, **settings: Any) -> Any:
        given = torch_products.read(row.name, args, settings)
        y = torch_products.product(row.name, given)
        if y is None:
            return decode(*args, **settings)
        if not dynamic and given.out == FLOAT:
            return y
        with torch.no_grad(), about(f"{row.name}, output"):
            results = _encoded(row, y, given.out, dynamic)
        return results if len(results) > 1 else results[0]

    return run


def _fields(given: Mapping[str, Any], name: str) -> Fields:
    values: dict[str, Any] = {field: given.get(f"{name}_{field}") for field in Fields._fields}
    return Fields(**values)


def _decoded(row: Fused, given: Mapping[str, Any]) -> dict[str, Tensor | None]:
    """The operands as floats, by the names that the function has for them."""
    compute = _compute_dtype(row, given)
    values: dict[str, Tensor | None] = {}
    for one in row.operands:
        with about(f"{row.name}, operand {one.name}"):
            values[one.aten] = _value(given[one.name], _fields(given, one.name), compute)
    return values


def _compute_dtype(row: Fused, given: Mapping[str, Any]) -> torch.dtype:
    compute: torch.dtype | None = given["compute"]
    if compute is not None:
        type_index("compute", compute)
    for one in row.operands:
        x, fields = given[one.name], _fields(given, one.name)
        if x is None or fields.kind == "codes":
            continue
        with about(f"{row.name}, operand {one.name}"):
            if not x.is_floating_point():
                raise DtypeError(one.name, x.dtype, "a float dtype, or codes with their scale and dtype")
            type_index(one.name, x.dtype)
            if compute not in (None, x.dtype):
                raise DtypeError(one.name, x.dtype, f"{compute}, as compute and float operands; cast it")
        compute = x.dtype
    return torch.float32 if compute is None else compute


def _value(x: Tensor | None, fields: Fields, compute: torch.dtype) -> Tensor | None:
    if x is None:
        if fields.five != FLOAT.five:
            raise ScaleError("fields", fields.five, "those of a float edge, as there is no operand")
        return None
    return value_of(x, fields, compute)


def _looked_up(row: Fused, given: Mapping[str, Any]) -> Tensor:
    """The rows of a weight of codes that are asked for; no other is decoded."""
    weight, indices, fields = given["weight"], given["indices"], _fields(given, "weight")
    compute = _compute_dtype(row, given)
    with about(f"{row.name}, operand weight"):
        if weight.dim() != 2:
            raise ShapeError("weight shape", tuple(weight.shape), "two dimensions")
        if indices.dtype not in (torch.int64, torch.int32):
            raise DtypeError("indices", indices.dtype, "int64 or int32")
        shape = shape_of(weight, fields)
        numbers, block, *params = edge_of(fields, shape, quantizes=False)
        wanted = indices.reshape(-1)
        of_rows = wanted // block[0] if block[0] else torch.zeros_like(wanted)
        codes = _called(row, torch.index_select, {"input": weight, "dim": 0, "index": wanted})
        chosen = [
            one if one is None or one.dim() != 2
            else _called(row, torch.index_select, {"input": one, "dim": 0, "index": of_rows})
            for one in params
        ]  # fmt: skip
        found = _operators.dequantize.default(
            codes, *chosen, numbers, (wanted.numel(), shape[1]), (1, block[1]), dtype=compute
        )
    return found.reshape(*indices.shape, shape[1])  # type: ignore[no-any-return]


def _called(row: Fused, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return function(**arguments)
    except (RuntimeError, IndexError, ValueError) as error:
        if type(error) not in (RuntimeError, IndexError, ValueError):
            raise  # torch's own ways of saying something else while it traces
        shapes = {k: tuple(v.shape) for k, v in arguments.items() if isinstance(v, Tensor)}
        kind = ShapeError if isinstance(error, RuntimeError) else ArgumentError
        reason = str(error).partition("\n")[0]
        raise kind(f"{row.name} of shapes", shapes, f"not taken by ATen: {reason}") from error


def _encoded(row: Fused, y: Tensor, fields: Fields, dynamic: bool) -> tuple[Tensor, ...]:
    if dynamic:
        if fields.kind != "dynamic":
            raise ScaleError("fields", fields.five, "a dtype and no scale, which is chosen here")
        numbers, block, _, _, tensor_scale = edge = edge_of(fields, y.shape, quantizes=True)
        if edge.zero_point is not None:
            raise ScaleError("zero_point", "a tensor", "None where no scale is given")
        return _operators.dynamic_quantize.default(y, numbers, block, tensor_scale)  # type: ignore[no-any-return]
    if row.output == "float" and fields.five != FLOAT.five:
        raise ScaleError("fields", fields.five, f"none: quantized output is that of {row.name}_quantize")
    if fields.kind == "codes":
        return (_operators.quantize.default(y, *edge_of(fields, y.shape, quantizes=True)),)
    if fields.kind == "dynamic":
        chooses = row.operator(dynamic=True)
        raise ScaleError("scale", None, f"given with dtype {fields.dtype!r}; {chooses} chooses one")
    if fields.five != FLOAT.five or row.output == "codes":
        raise ScaleError("fields", fields.five, "a scale and a dtype" + ", or none" * (row.output != "codes"))
    return (y,)


# ------------------------------------------------------------------------------------ registration


def _register(row: Fused) -> None:
    library = torch_library.LIBRARY
    for dynamic in row.overloads:
        name, schema = defined_name(row, dynamic=dynamic), schema_of(row, dynamic=dynamic)
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        kernel = _kernel(row, schema, dynamic=dynamic)
        library.impl(name, kernel, "CompositeExplicitAutograd")
        if row.name in torch_products.ROWS:
            library.impl(name, _product_kernel(row, kernel, dynamic=dynamic), "CPU")
        torch.library.register_fake(f"blockscale::{name}", kernel, lib=library)
        library.impl(name, torch.library.fallthrough_kernel, "Autograd")


for _row in ROWS:
    _register(_row)
