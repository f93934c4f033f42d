"""Runs ONNX models on ONNX Runtime, with our operator library: `Session(model).run({"x": array})`.

The model is not changed and its weights are not copied (see onnx_weights). bfloat16 goes in and out, which
onnxruntime itself has no numpy arrays of.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from os import PathLike, fspath
from typing import Any, Literal

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from blockscale.errors import BlockscaleError, GraphError, UnknownNameError
from blockscale.graph.onnx_quantizers import ATTRIBUTES, DOMAIN
from blockscale.numerics.arrays import Array
from blockscale.onnxruntime import library_path
from blockscale.runtime.onnx_inputs import Takes
from blockscale.runtime.onnx_weights import Model, loaded, without_weights

BFLOAT16 = "tensor(bfloat16)"
LEVELS = {
    "none": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


class Session:
    """onnxruntime on a model; it may be run by many threads at once.

    also        values of the main graph that `fetch` gives too
    libraries   of custom operators of others. Where there are some, operators that AMD Quark writes are
                left to them
    threads     of one run; as many as onnxruntime takes where None
    optimize    what onnxruntime may do with float operators; ours stay as they are
    """

    def __init__(
        self, model: Model, *, also: Sequence[str] = (), libraries: Iterable[str | PathLike[str]] = (),
        threads: int | None = None, optimize: Literal["none", "basic", "all"] = "all",
    ) -> None:  # fmt: skip
        graph = loaded(model)
        check_attributes(graph)
        self.outputs = [str(value.name) for value in graph.graph.outputs]
        proto, weights = without_weights(graph, also)
        self._takes = Takes(proto.graph)
        self.inputs = self._takes.names
        options = ort.SessionOptions()
        options.log_severity_level = 4  # an error is raised: it need not be printed too
        options.graph_optimization_level = LEVELS[optimize]
        options.intra_op_num_threads = threads or 0
        self._register(options, graph, [fspath(library) for library in libraries])
        self._weights = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in weights.items()}
        options.add_external_initializers(list(self._weights), list(self._weights.values()))
        try:
            self._session = ort.InferenceSession(
                proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise GraphError(f"onnxruntime {ort.__version__} cannot load it: {error}.") from error
        edges = [*self._session.get_inputs(), *self._session.get_outputs()]
        self._has_bfloat16 = any(edge.type == BFLOAT16 for edge in edges)

    @staticmethod
    def _register(options: Any, model: ir.Model, libraries: Sequence[str]) -> None:
        for library in libraries:
            options.register_custom_ops_library(library)
        domains = {node.domain for node in all_nodes(model)}
        quark = domains & {domain for domain, _ in ATTRIBUTES if domain != DOMAIN}
        if DOMAIN in domains or (quark and not libraries):
            options.register_custom_ops_library(library_path())

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Outputs by name, in the order of the model."""
        self._takes.check(inputs)
        return self.fetch(self.outputs, inputs)

    def fetch(self, names: Sequence[str], inputs: Mapping[str, Any]) -> dict[str, Array]:
        """These values, outputs or of `also`; inputs are taken as they are."""
        try:
            return dict(zip(names, self._values(names, inputs), strict=True))
        except BlockscaleError:
            raise
        except Exception as error:
            raise GraphError(f"the model does not run on these inputs: {error}") from error

    def _values(self, names: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
        if not self._has_bfloat16:
            return list(self._session.run(names, dict(inputs)))
        values = {name: ort_value(array) for name, array in inputs.items()}
        return [array_of(value) for value in self._session.run_with_ort_values(names, values)]


def check_attributes(model: ir.Model) -> None:
    """Every attribute of an operator of our library is one that it has.

    The library cannot see others: the C interface of ONNX Runtime gives attributes by name, and no list.
    """
    for node in all_nodes(model):
        allowed = ATTRIBUTES.get((node.domain, node.op_type))
        if allowed is None:
            continue
        for name in node.attributes:
            if name not in allowed:
                what = f"attribute of {node.domain}::{node.op_type} {node.name or ''!r}"
                raise UnknownNameError(what, name, allowed)


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Of the graph, of bodies in it, and of functions."""
    bodies: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for graph in bodies:
        yield from ir.traversal.RecursiveGraphIterator(graph)


def ort_value(array: Array) -> Any:
    if not (array.flags.c_contiguous and array.flags.aligned):
        array = array.copy(order="C")  # np.ascontiguousarray would give a scalar a dimension
    if array.dtype == ml_dtypes.bfloat16:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, onnx.TensorProto.BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(array)


def array_of(value: Any) -> Any:
    """numpy's view of an output; onnxruntime itself has none of bfloat16."""
    if value.data_type() != BFLOAT16:
        return value.numpy()
    shape = tuple(value.shape())
    data = ctypes.string_at(value.data_ptr(), 2 * prod(shape))
    return np.frombuffer(data, ml_dtypes.bfloat16).reshape(shape)
