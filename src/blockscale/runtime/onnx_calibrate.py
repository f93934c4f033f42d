"""Calibration of ONNX models: onnxruntime runs them with more outputs and observers see those.

The model is not changed, and its weights are not copied (see onnx_weights).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from os import PathLike
from typing import Any

import onnx_ir as ir

from blockscale.errors import CalibrationError, GraphError
from blockscale.numerics.arrays import Array
from blockscale.numerics.calibration import Calibrated, Observer
from blockscale.runtime.calibration_data import Input, batches
from blockscale.runtime.onnx_weights import Model, loaded
from blockscale.runtime.ort import Session
from blockscale.runtime.watch import K, Watch, shown


def calibrate(
    model: Model, inputs: Any, observers: Mapping[K, Observer], *,
    libraries: Iterable[str | PathLike[str]] = (),
) -> dict[K, Calibrated]:  # fmt: skip
    """Static parameters for the values that observers look at, from one pass over `inputs`.

    observers   by the name of a value (an input or what a node gives). A key may also be a tuple that
                begins with the name, so that several observers see one value
    inputs      an iterable of dicts of numpy arrays by input name, an object with get_next(), a folder of
                .npy files, or `random(…)`: see calibration_data. None is enough where there are no observers
    libraries   of custom operators that the model needs, other than ours
    """
    if not observers:
        return {}
    watch = Watch(observers)
    watch.check_source(inputs)
    graph = loaded(model)
    _check_names(graph, watch.tensors)
    session = _session(graph, watch.tensors, libraries)
    takes = inputs_of(graph)
    count = 0
    for feeds in shown(batches(inputs, takes), "calibrating", inputs):
        count += 1
        for tensor, values in _values(session, watch.tensors, feeds, f"calibration batch {count}").items():
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


def _session(model: ir.Model, tensors: Sequence[str], libraries: Iterable[str | PathLike[str]]) -> Session:
    given = {value.name for value in model.graph.inputs}
    computed = [tensor for tensor in tensors if tensor not in given]
    try:
        return Session(model, also=computed, libraries=libraries, optimize="basic")
    except GraphError as error:
        raise CalibrationError(
            f"calibration runs the model, and {error} (Operators of other domains need their library, "
            "libraries=[…].)"
        ) from error


def _values(
    session: Session, tensors: Sequence[str], feeds: Mapping[str, Array], where: str
) -> dict[str, Any]:
    """The values of all tensors, in their order."""
    wanted = [tensor for tensor in tensors if tensor not in feeds]
    found: dict[str, Any] = dict(feeds)
    if wanted:
        try:
            found |= session.fetch(wanted, feeds)
        except GraphError as error:
            raise CalibrationError(f"{where}: the model does not run on it: {error}") from error
    return {tensor: found[tensor] for tensor in tensors}
