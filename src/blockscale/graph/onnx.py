"""The ONNX adapter: onnx_ir models seen, copied, written and checked."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir

from blockscale.errors import CombinationError, GraphError
from blockscale.graph.onnx_names import Names
from blockscale.graph.onnx_quantizers import DOMAIN
from blockscale.graph.onnx_shapes import is_missing, without_weights
from blockscale.graph.onnx_snapshot import OnnxGraph, snapshot
from blockscale.graph.onnx_write import Writer
from blockscale.graph.view import Node

__all__ = ["check", "commit", "copied", "snapshot"]


def commit(graph: OnnxGraph, model: ir.Model) -> ir.Model:
    """The model with the edits of `graph`, a snapshot of it: changed in place, or untouched without edits."""
    if not any(one.changed for one in graph.walk()):
        return model
    _sweep(graph)
    _check_outputs(graph)
    Writer(graph, model, Names(model), None).commit()
    return model


def copied(model: ir.Model) -> ir.Model:
    """The same model with graphs of its own; weights are shared."""
    return model.clone()


def check(model: ir.Model, stage: str) -> None:
    """A GraphError where onnx's checker finds something, or shapes inferred anew are not those stored.

    Behind an operator that nobody knows, and whose types the model does not say, nothing can be inferred.
    """
    proto = ir.serde.serialize_model(without_weights(model))
    strict = not is_missing(model.graph)
    try:
        onnx.checker.check_model(proto)
        _without_ours(proto)
        onnx.shape_inference.infer_shapes(proto, check_type=strict, strict_mode=strict, data_prop=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise GraphError(f"after {stage}: the graph is not sound: {error}") from error


def _without_ours(proto: onnx.ModelProto) -> None:
    """Of our functions nothing can be inferred, since nobody knows our quantizers; their calls say their types."""
    kept = [function for function in proto.functions if function.domain != DOMAIN]
    del proto.functions[:]
    proto.functions.extend(kept)


def _sweep(graph: Any) -> None:
    """Dead nodes go, inside first: what a body does not take any more, its node does not use."""
    taken: dict[Node, set[int]] = {}
    for node, body in graph.bodies:
        _sweep(body)
        found = taken.setdefault(node, set())
        found |= {slot for value, (_, slot) in body.captured.items() if value.uses}
    for node, slots in taken.items():
        for slot in range(len(node.origin.inputs), len(node.slots)):
            if slot not in slots and node.slots[slot] is not None:
                graph.set_slot(node, slot, None)
    graph.sweep()
    graph.bodies = [(node, body) for node, body in graph.bodies if node in graph]


def _check_outputs(graph: OnnxGraph) -> None:
    """Before anything is edited: an output that is an input cannot become something else of that name."""
    for node in graph.nodes:
        if node.kind == "output":
            for value, old in zip(node.slots, graph.origin.outputs, strict=True):
                if old.is_graph_input() and value is not None and value.origin is not old:
                    raise CombinationError(
                        f"output {old.name!r} of the model is its input of that name, and would be another "
                        "tensor now; put an Identity between the two"
                    )
