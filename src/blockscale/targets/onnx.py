"""A quantized ONNX model: it runs on ONNX Runtime with our operator library, and is saved as .onnx in a form."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from blockscale.compiler_report import Report
from blockscale.errors import ArgumentError, DtypeError, FileError, UnknownNameError
from blockscale.files import written_whole
from blockscale.forms import forms
from blockscale.graph.onnx_external import check_external
from blockscale.graph.onnx_sound import sound_model
from blockscale.numerics.arrays import Array
from blockscale.runtime.calibration_data import batches
from blockscale.runtime.onnx_calibrate import inputs_of
from blockscale.runtime.onnx_reference import Runner
from blockscale.runtime.ort import Session

__all__ = ["QuantizedOnnx", "load", "quantized", "read"]

SUFFIX = ".onnx"
_REPORT = "blockscale_report"  # keys of metadata_props
_COMPAT = "blockscale_compat"
RUNNERS: dict[str, Any] = {"onnxruntime": Session, "reference": Runner}
_IR = 13  # the newest that onnxruntime 1.31 loads
_LARGEST = (1 << 31) - (
    1 << 24
)  # bytes of weights in one protobuf, which ends at 2 GiB; the rest is for nodes
_INLINE = 1 << 10  # bytes; smaller tensors stay in the graph where weights lie in a file of their own


class QuantizedOnnx:
    """A model that computes with quantized tensors.

    model    an onnx_ir.Model; quantizers are operators of the domain `blockscale`
    report   what was quantized how, what the passes did, and the size; it is saved with the model
    runner   what runs it: "onnxruntime", with our operator library, or "reference", onnx's own evaluator,
             slow, which has also the types that ONNX Runtime lacks
    compat   whose operators it is written with in the custom form: None for ours, or "quark"
    """

    def __init__(self, model: ir.Model, report: Report, *, compat: str | None = None) -> None:
        self.model = model
        self.report = report
        self.compat = compat
        self._runner_name = "onnxruntime"
        self._made: Any = None
        model.ir_version = min(model.ir_version, _IR)
        model.metadata_props[_REPORT] = report.to_json()
        if compat is not None:
            model.metadata_props[_COMPAT] = compat

    @property
    def graph(self) -> ir.Model:
        """What passes take."""
        return self.model

    @property
    def runner(self) -> str:
        return self._runner_name

    @runner.setter
    def runner(self, name: str) -> None:
        if name not in RUNNERS:
            raise UnknownNameError("runner", name, RUNNERS)
        self._runner_name, self._made = name, None

    @property
    def _runner(self) -> Any:
        if self._made is None:
            self._made = RUNNERS[self._runner_name](forms.written(self.model))
        return self._made

    def __call__(self, *arrays: Any, **by_name: Any) -> Any:
        """The output, or a tuple of outputs. Inputs in order, by name, or as one dict."""
        names, first = self._runner.inputs, next(iter(arrays), None)
        if len(arrays) == 1 and isinstance(first, Mapping):
            given = {**first, **by_name}
        elif len(arrays) > len(names):
            raise ArgumentError("inputs", f"{len(arrays)} arrays", f"the model takes {', '.join(names)}")
        else:
            given = dict(zip(names, arrays, strict=False)) | by_name
        found = self._runner.run(given)
        outputs = tuple(found.values())
        return outputs[0] if len(outputs) == 1 else outputs

    def save(
        self, path: str | os.PathLike[str], form: str = "custom", *, runtime: str | None = None,
        compat: str | None = None,
    ) -> None:  # fmt: skip
        """As .onnx, for `blockscale.load`; weights beyond 2 GB lie in `<name>.data` beside it.

        form     custom    one node a quantize, operators of our library (blockscale.onnxruntime.library_path)
                 portable  functions of standard operators: stock ONNX Runtime runs it
                 native    QuantizeLinear and DequantizeLinear with ONNX's types for codes and scales
        runtime  of native: the types of "onnx" (FLOAT4E2M1, FLOAT6E2M3, FLOAT8E8M0, …), or the nearest that
                 "onnxruntime" has
        compat   of custom: "quark" for the names of AMD Quark's operators; that of quantize_model if not given
        """
        path = Path(path)
        if path.suffix != SUFFIX:
            raise ArgumentError("path", str(path), f"a name that ends in {SUFFIX}")
        compat = self.compat if compat is None and form == "custom" else compat
        model = forms.written(self.model, form, runtime=runtime, compat=compat)
        if _weight_bytes(model) <= _LARGEST:
            with written_whole(path) as temporary:
                temporary.write_bytes(_whole(model).SerializeToString())
            return
        # The data that a model at `path` uses stays until the new model is in its place.
        names = [f"{path.name}.data", f"{path.name}.2.data"]
        fresh, other = sorted(names, key=lambda name: (path.parent / name).exists())
        with written_whole(path.parent / fresh) as data:
            outside = _unloaded(model, data, fresh)
        with written_whole(path) as temporary:
            temporary.write_bytes(outside.SerializeToString())
        (path.parent / other).unlink(missing_ok=True)

    def __reduce__(self) -> Any:
        return _unpickled, (_whole(self.model).SerializeToString(), self.report, self.compat)


def quantized(model: ir.Model, report: Report, compat: str | None = None) -> QuantizedOnnx:
    return QuantizedOnnx(model, report, compat=compat)


def load(path: str | os.PathLike[str]) -> QuantizedOnnx:
    """What `save` wrote."""
    model = read(path)
    told = model.metadata_props.get(_REPORT)
    if told is None:
        raise FileError(f"{path}: not written by blockscale; quantize_model takes it")
    compat = model.metadata_props.get(_COMPAT)
    return QuantizedOnnx(forms.read_back(model), Report.from_json(told, str(path)), compat=compat)


def read(model: Any) -> ir.Model:
    """An onnx_ir.Model of what users give: the path of a file, a ModelProto, or one."""
    if isinstance(model, ir.Model):
        return model
    if isinstance(model, onnx.ModelProto):
        return _read(model, "", "the model")
    if not isinstance(model, str | os.PathLike):
        raise DtypeError(
            "model", type(model).__name__, "the path of an .onnx file, a ModelProto or an onnx_ir.Model"
        )
    where = os.fspath(model)
    try:
        if not os.path.getsize(where):
            raise ValueError("it is empty")
        proto = onnx.load(where, load_external_data=False)
    except FileNotFoundError:
        raise FileError(f"{where}: there is no such file") from None
    except Exception as error:  # protobuf says it in many ways
        raise FileError(f"{where}: not an ONNX model that can be read ({error})") from error
    return _read(proto, os.path.dirname(where), where)


def _read(proto: onnx.ModelProto, folder: str, where: str) -> ir.Model:
    """External data are read late; whether they can be, now."""
    loaded = sound_model(proto, where)
    ir.external_data.set_base_dir(loaded.graph, folder)
    check_external(loaded, where)
    return _without_defaults(loaded)


def _without_defaults(model: ir.Model) -> ir.Model:
    """Before version 4 of the format weights had to be inputs too, so it does not say that they may be given."""
    if model.ir_version < 4:
        weights = model.graph.initializers
        model.graph.inputs[:] = [value for value in model.graph.inputs if value.name not in weights]
        model.ir_version = 4
    return model


def values(model: ir.Model, tensors: Sequence[str], inputs: Any) -> Iterator[dict[str, Array]]:
    """Of `tensors`, and of the outputs, by name, for each batch of inputs."""
    outputs = output_names(model)
    wanted = list(dict.fromkeys([*outputs, *tensors]))
    session = Session(model, also=[name for name in wanted if name not in outputs])
    for feeds in batches(inputs, inputs_of(model)):
        yield session.fetch(wanted, feeds)


def output_names(model: ir.Model) -> list[str]:
    return [str(value.name) for value in model.graph.outputs]


def _weight_bytes(model: ir.Model) -> int:
    graphs = (model.graph, *model.graph.subgraphs())
    tensors = (value.const_value for graph in graphs for value in graph.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def _whole(model: ir.Model) -> onnx.ModelProto:
    """The model with all its weights; those in files of the model it was made from are not beside the new one."""
    copy = model.clone()
    _bring(copy, set())
    return ir.to_proto(copy)


def _bring(model: ir.Model, but: set[ir.Value]) -> None:
    """Reads weights that lie in files, `but` for some."""
    for value in (value for graph in model.graphs() for value in graph.initializers.values()):
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor) and value not in but:
            value.const_value = ir.Tensor(
                tensor.numpy().copy(), tensor.dtype, shape=tensor.shape, name=value.name
            )


def _unloaded(model: ir.Model, data: Path, name: str) -> onnx.ModelProto:
    """The model without its large weights, which are written to `data` and will be found in `name` beside it."""
    copy = model.clone()
    values = [
        value for value in copy.graph.initializers.values()
        if value.const_value is not None and value.const_value.nbytes >= _INLINE
    ]  # fmt: skip
    tensors = [value.const_value for value in values if value.const_value is not None]
    _bring(copy, set(values))
    outside = ir.external_data.convert_tensors_to_external(tensors, data.parent, data.name)
    for value, tensor in zip(values, outside, strict=True):
        value.const_value = ir.ExternalTensor(
            name, tensor.offset, tensor.length, tensor.dtype,
            shape=tensor.shape, name=str(value.name), base_dir=data.parent,
        )  # fmt: skip
    return ir.to_proto(copy)


def _unpickled(saved: bytes, report: Report, compat: str | None) -> QuantizedOnnx:
    return QuantizedOnnx(ir.from_proto(onnx.ModelProto.FromString(saved)), report, compat=compat)
