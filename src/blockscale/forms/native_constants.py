"""Constants of the native form: codes and scales in types of ONNX, made when the model is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from blockscale.forms.model import Edit
from blockscale.forms.nodes import Read
from blockscale.forms.types import Place, Runtime, code_type, scale_type
from blockscale.numerics.formats import FORMATS
from blockscale.numerics.packing import unpack

_FLOAT = ir.DataType.FLOAT


class Constants:
    """Of one model: equal ones are one."""

    def __init__(self, edit: Edit, runtime: Runtime) -> None:
        self.edit, self.runtime = edit, runtime

    # ------------------------------------------------------------------------------ weights

    def decoded(self, found: Read, place: Place) -> list[ir.Node]:
        """The nodes in place of a Dequantize."""
        codes = self._codes(found)
        scales = scale_type(found.numbers, self.runtime)
        made: list[ir.Node] = []
        if found.numbers.tensor_scale:  # the scales are numbers of float8 with a scale of their own
            scale = self._constant(found, "scale", ir.DataType.FLOAT8E4M3FN, place)
            level = ir.node("DequantizeLinear", [scale, found.given["tensor_scale"]])
            level.outputs[0].type, level.outputs[0].shape = ir.TensorType(_FLOAT), scale.shape
            made.append(level)
            more = [level.outputs[0]]
        else:
            more = [self._constant(found, "scale", scales, place)]
        if "zero_point" in found.given:
            more.append(self._constant(found, "zero_point", code_type(found.numbers, self.runtime), place))
        back = {} if scales == _FLOAT else {"output_dtype": int(_FLOAT)}
        made.append(ir.node("DequantizeLinear", [codes, *more], {**place.attributes, **back}))
        self._check_range(found)
        if found.dtype != _FLOAT:
            made[-1].outputs[0].type, made[-1].outputs[0].shape = (
                ir.TensorType(_FLOAT),
                found.node.outputs[0].shape,
            )
            made.append(ir.node("Cast", [made[-1].outputs[0]], {"to": int(found.dtype)}))
        return made

    def _codes(self, found: Read) -> ir.Value:
        numbers, dtype = found.numbers, code_type(found.numbers, self.runtime)
        element = numbers.element_format
        shape, x = _known(found), found.x  # the node will read nothing by then

        def make() -> Any:
            codes = unpack(_contents(found, x), element, shape[-1] if shape else 1)
            if element.is_fixed:
                return codes.astype(dtype.numpy())
            table = element.decode(np.arange(1 << element.bits)).astype(dtype.numpy())
            return table[codes]  # float64 of all of them would take more than the model

        return self._lazy(found, x, "codes", dtype, shape, make)

    def _check_range(self, found: Read) -> None:
        """A decoded value that overflows is the largest finite one with us, and Inf with DequantizeLinear."""
        scale = np.asarray(_effective(found))
        top = FORMATS[{_FLOAT: "f32", ir.DataType.FLOAT16: "f16"}.get(found.dtype, "bf16")].max
        finite = scale[~np.isnan(scale)]
        element = found.numbers.element_format
        largest = float(2**element.bits if element.is_fixed and element.name != "mxint8" else element.max)
        if finite.size and float(finite.max()) * largest > top:
            raise found.refusal("native", "values of this weight may lie beyond the largest of its dtype")

    # ------------------------------------------------------------------------------ parameters

    def parameters(self, found: Read, place: Place) -> list[ir.Value] | None:
        """Scale and zero point as QuantizeLinear takes them; None: they are no constants."""
        if any(value.const_value is None for value in found.given.values()):
            return None
        codes = code_type(found.numbers, self.runtime)
        types = {"scale": _FLOAT, "zero_point": codes}
        return [self._constant(found, name, types[name], place) for name in found.given]

    def _constant(self, found: Read, name: str, dtype: ir.DataType, place: Place) -> ir.Value:
        value = found.given[name]
        shape = place.scale_shape
        full = (
            tuple(-(-n // b) if b else 1 for n, b in zip(_known(found), found.block, strict=True))
            if shape is None
            else shape
        )

        def make() -> Any:
            array = _contents(found, value)
            if name == "scale" and found.numbers.family == "mx":
                if dtype == ir.DataType.FLOAT8E8M0:
                    return array.view(dtype.numpy()).reshape(full)
                return _effective(found).reshape(full)
            if dtype == ir.DataType.FLOAT8E4M3FN and name == "scale":
                return array.view(dtype.numpy()).reshape(full)
            return array.astype(dtype.numpy()).reshape(full)

        return self._lazy(found, value, name, dtype, full, make)

    def _lazy(
        self,
        found: Read,
        source: ir.Value,
        what: str,
        dtype: ir.DataType,
        shape: tuple[int, ...],
        make: Callable[[], Any],
    ) -> ir.Value:
        hint = f"{source.name}_{what}" if not str(source.name).endswith(what) else str(source.name)

        def tensor() -> ir.TensorProtocol:
            return ir.Tensor(make(), dtype=dtype, shape=ir.Shape(shape), name=hint)

        key = (source, what, dtype, shape)
        return self.edit.constant(
            found.node.graph, ir.LazyTensor(tensor, dtype, ir.Shape(shape), name=hint), hint, key
        )


def _known(found: Read) -> tuple[int, ...]:
    sizes = tuple(n for n in found.sizes if n is not None)
    if len(sizes) != len(found.sizes):
        raise found.refusal("native", "its size is known only at run time")
    return sizes


def _contents(found: Read, value: ir.Value) -> Any:
    if value.const_value is None:
        raise found.refusal(
            "native", f"{value.name!r} is no constant, and ONNX has no type for packed codes in bytes"
        )
    return np.asarray(value.const_value.numpy())


def _effective(found: Read) -> Any:
    """float32: by what codes are multiplied."""
    stored = _contents(found, found.given["scale"])
    fmt = found.numbers.scale_format
    if fmt.bits != 8:
        return stored.astype(np.float32)
    scale = fmt.decode(stored)
    if found.numbers.tensor_scale:
        scale = scale * float(_contents(found, found.given["tensor_scale"]))
    if found.numbers.element_format.is_fixed:
        scale = scale * 2.0**-found.numbers.element_format.mantissa_bits
    return scale.astype(np.float32)
