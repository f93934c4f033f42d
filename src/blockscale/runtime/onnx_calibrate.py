"""Calibration of ONNX models: onnxruntime runs them with more outputs and observers see those.

The model is not changed, and its weights are not copied: the session gets the graph without them, and
shares their memory (that of the file, where they are external data). So models above 2 GB are no exception.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from math import prod
from os import PathLike, fspath
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from blockscale.errors import CalibrationError, DtypeError, FileError
from blockscale.numerics.arrays import Array
from blockscale.numerics.calibration import Calibrated, Observer
from blockscale.runtime.calibration_data import Input, batches
from blockscale.runtime.watch import K, Watch, shown

Model = str | PathLike[str] | onnx.ModelProto | ir.Model

INLINE = 1 << 10  # bytes; smaller initializers stay in the graph, where onnxruntime may fold them
OLD_IR = 10  # every onnxruntime that we support reads it, and later versions only add types
BFLOAT16 = "tensor(bfloat16)"
SHARED = frozenset((
    "float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
))  # fmt: skip


def calibrate(
    model: Model, inputs: Any, observers: Mapping[K, Observer], *,
    libraries: Iterable[str | PathLike[str]] = (),
) -> dict[K, Calibrated]:  # fmt: skip
    """Static parameters for the values that observers look at, from one pass over `inputs`.

    observers   by the name of a value (an input or what a node gives). A key may also be a tuple that
                begins with the name, so that several observers see one value
    inputs      an iterable of dicts of numpy arrays by input name, an object with get_next(), a folder of
                .npy files, or `random(…)`: see calibration_data. None is enough where there are no observers
    libraries   of custom operators that the model needs
    """
    if not observers:
        return {}
    watch = Watch(observers)
    watch.check_source(inputs)
    loaded = _loaded(model)
    _check_names(loaded, watch.tensors)
    session = _Session(loaded, watch.tensors, libraries)
    takes = inputs_of(loaded)
    count = 0
    for feeds in shown(batches(inputs, takes), "calibrating", inputs):
        count += 1
        for tensor, values in session.run(feeds, f"calibration batch {count}").items():
            watch.see(tensor, values)
    return watch.finished(count)


def inputs_of(model: ir.Model) -> list[Input]:
    """What has to be given: inputs without a default."""
    return [_input(value) for value in model.graph.inputs if value.name not in model.graph.initializers]


def _input(value: ir.Value) -> Input:
    dtype = value.dtype if isinstance(value.type, ir.TensorType) else None
    known = dtype is not None and dtype not in (ir.DataType.STRING, ir.DataType.UNDEFINED)
    shape = None
    if value.shape is not None:
        shape = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    return Input(str(value.name), shape, str(dtype.numpy()) if known and dtype is not None else None)


def _loaded(model: Model) -> ir.Model:
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


def _check_names(model: ir.Model, tensors: Sequence[str]) -> None:
    outer = {str(value.name) for value in model.graph.inputs}
    outer |= {str(value.name) for node in model.graph for value in node.outputs if value.name}
    weights = set(model.graph.initializers)
    for tensor in tensors:
        if tensor in weights:
            raise CalibrationError(
                f"calibration of {tensor!r}: it is a constant; blockscale.choose_params gives its parameters"
            )
        if tensor not in outer:
            raise CalibrationError(f"calibration of {tensor!r}: {_why_not(model, tensor, sorted(outer))}")


def _made_in(one: ir.Graph | ir.Node) -> Sequence[ir.Value]:
    return one.inputs if isinstance(one, ir.Graph) else one.outputs


def _why_not(model: ir.Model, tensor: str, outer: Sequence[str]) -> str:
    for body in model.graph.subgraphs():
        if any(value.name == tensor for node in (body, *body) for value in _made_in(node)):
            return (
                "it lies in a body of control flow, where nothing can look; leave it float, or take a layout that "
                "needs no calibration: MX formats, or dynamic ones"
            )
    close = get_close_matches(tensor, outer, n=1)
    return "the model has no such value" + (f"; did you mean {close[0]!r}?" if close else "")


# ------------------------------------------------------------------------------------------ the session


class _Session:
    """onnxruntime on the model, giving the values of `tensors`."""

    def __init__(
        self, model: ir.Model, tensors: Sequence[str], libraries: Iterable[str | PathLike[str]]
    ) -> None:
        self.tensors = list(tensors)
        given = {value.name for value in model.graph.inputs}
        self.computed = [tensor for tensor in tensors if tensor not in given]
        proto, weights = without_weights(model, self.computed)
        options = ort.SessionOptions()
        options.log_severity_level = 3  # errors
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        for library in libraries:
            options.register_custom_ops_library(fspath(library))
        self.weights = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in weights.items()}
        options.add_external_initializers(list(self.weights), list(self.weights.values()))
        try:
            self.session = ort.InferenceSession(
                proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise CalibrationError(
                f"calibration runs the model, and onnxruntime {ort.__version__} cannot load it: {error}. "
                "(Operators of other domains need their library, libraries=[…].)"
            ) from error
        edges = [*self.session.get_inputs(), *self.session.get_outputs()]
        self.has_bfloat16 = any(edge.type == BFLOAT16 for edge in edges)

    def run(self, feeds: Mapping[str, Array], where: str) -> dict[str, Any]:
        """The values of all tensors, in their order."""
        result: dict[str, Any] = dict(feeds)
        if self.computed:
            try:
                result |= zip(self.computed, self._outputs(feeds), strict=True)
            except Exception as error:
                raise CalibrationError(f"{where}: the model does not run on it: {error}") from error
        return {tensor: result[tensor] for tensor in self.tensors}

    def _outputs(self, feeds: Mapping[str, Array]) -> list[Any]:
        if not self.has_bfloat16:
            return list(self.session.run(self.computed, dict(feeds)))
        values = {name: _ort_value(array) for name, array in feeds.items()}
        return [_array(value) for value in self.session.run_with_ort_values(self.computed, values)]


def _ort_value(array: Array) -> Any:
    if array.dtype == ml_dtypes.bfloat16:
        array = np.ascontiguousarray(array)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, onnx.TensorProto.BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))


def _array(value: Any) -> Any:
    """numpy's view of an output; onnxruntime itself has none of bfloat16."""
    if value.data_type() != BFLOAT16:
        return value.numpy()
    shape = tuple(value.shape())
    data = ctypes.string_at(value.data_ptr(), 2 * prod(shape))
    return np.frombuffer(data, ml_dtypes.bfloat16).reshape(shape)


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
