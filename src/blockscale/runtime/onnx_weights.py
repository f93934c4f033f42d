"""An ONNX model without its weights, for onnxruntime: the graph names them, and shares their memory.

So models above 2 GB are no exception, and nothing is copied: weights of a file stay mapped from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath

import onnx
import onnx_ir as ir

from blockscale.errors import DtypeError, FileError
from blockscale.graph.onnx_quantizers import CUSTOM
from blockscale.numerics.arrays import Array

Model = str | PathLike[str] | onnx.ModelProto | ir.Model

INLINE = 1 << 10  # bytes; smaller initializers stay in the graph, where onnxruntime may fold them
OLD_IR = 10  # every onnxruntime that we support reads it, and later versions only add types
SHARED = frozenset((
    "float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
))  # fmt: skip


def loaded(model: Model) -> ir.Model:
    if isinstance(model, ir.Model):
        return model
    if isinstance(model, onnx.ModelProto):
        return ir.from_proto(model)
    if not isinstance(model, str | PathLike):
        raise DtypeError(
            "model", type(model).__name__, "the path of an .onnx file, a ModelProto or an onnx_ir.Model"
        )
    try:
        return ir.load(fspath(model))
    except FileNotFoundError:
        raise FileError(f"{fspath(model)}: there is no such file") from None
    except Exception as error:
        raise FileError(f"{fspath(model)}: not an ONNX model that can be read ({error})") from error


def without_weights(model: ir.Model, outputs: Sequence[str]) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model giving `outputs` too, and the arrays of initializers that it only names."""
    graph = model.graph
    proto = onnx.ModelProto(ir_version=min(model.ir_version, OLD_IR))
    for domain, version in model.opset_imports.items():
        proto.opset_import.append(onnx.helper.make_opsetid(domain, version))
    proto.functions.extend(ir.serde.serialize_function(function) for function in model.functions.values())
    proto.graph.name = graph.name or "graph"
    proto.graph.input.extend(ir.serde.serialize_value(value) for value in graph.inputs)
    proto.graph.output.extend(ir.serde.serialize_value(value) for value in graph.outputs)
    present = {value.name for value in graph.outputs}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs if name not in present)
    proto.graph.node.extend(ir.serde.serialize_node(node) for node in graph)
    proto.graph.value_info.extend(_types(model))
    given = {value.name for value in graph.inputs}
    weights = {}
    for name, value in graph.initializers.items():
        tensor = value.const_value
        if tensor is None or not (value.uses() or value.is_graph_output()):
            continue  # onnxruntime drops what is not used, and then misses it
        if tensor.nbytes < INLINE or name in given or str(tensor.dtype.numpy()) not in SHARED:
            proto.graph.initializer.append(_inline(tensor, name))
        else:
            weights[name] = _contents(tensor, name)
            proto.graph.initializer.append(_named(name, tensor))
    return proto, weights


def _types(model: ir.Model) -> list[onnx.ValueInfoProto]:
    """Of what operators of ours and functions give, which onnxruntime does not find out by itself.

    It does not look for our operators in functions, and before 1.24 their attributes tell it no types.
    """
    outputs = {value.name for value in model.graph.outputs}
    return [
        ir.serde.serialize_value(value)
        for node in model.graph
        if (node.domain, node.op_type) in CUSTOM or node.op_identifier() in model.functions
        for value in node.outputs
        if value.name and value.type is not None and value.name not in outputs
    ]


def _inline(tensor: ir.TensorProtocol, name: str) -> onnx.TensorProto:
    if isinstance(tensor, ir.ExternalTensor):
        tensor = ir.Tensor(_contents(tensor, name), dtype=tensor.dtype, name=name)
    return ir.serde.serialize_tensor(tensor)


def _contents(tensor: ir.TensorProtocol, name: str) -> Array:
    try:
        array = tensor.numpy()
    except Exception as error:
        raise FileError(f"weight {name!r} cannot be read: {error}") from error
    return array if array.flags.c_contiguous and array.flags.aligned else array.copy(order="C")


def _named(name: str, tensor: ir.TensorProtocol) -> onnx.TensorProto:
    """Said to lie elsewhere; the session is given its contents."""
    proto = onnx.TensorProto(
        name=name, data_type=int(tensor.dtype), dims=tensor.shape.numpy(),
        data_location=onnx.TensorProto.EXTERNAL,
    )  # fmt: skip
    for key, text in (("location", "memory"), ("offset", "0"), ("length", str(tensor.nbytes))):
        proto.external_data.add(key=key, value=text)
    return proto
