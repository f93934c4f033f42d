"""What is done to a float ONNX model before it is quantized: steps that a user would run by hand.

None of them changes a bit of what the model gives, but for `batch_norm`, which changes the order of roundings, and
`opset` where the standard changed an operator's arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from blockscale.errors import ArgumentError, CombinationError, UnknownNameError
from blockscale.graph.onnx_batch_norm import fold_batch_norms
from blockscale.graph.onnx_constants import fold_constants
from blockscale.graph.onnx_facts import is_random
from blockscale.graph.onnx_names import Names
from blockscale.graph.onnx_opset import to_opset
from blockscale.graph.onnx_shapes import bodies_of, inferred, is_vague, state
from blockscale.graph.onnx_steps import Told

LEAST_OPSET = 13  # Squeeze, Split and the like as this writes them, and scales along an axis


@dataclass
class Prepared:
    """told: what was done to which node, and what was left and why."""

    model: ir.Model
    told: list[Told] = field(default_factory=list)


def prepared(model: ir.Model, steps: str | Sequence[str]) -> Prepared:
    """A copy of the model, which shares its weights, after the steps; the model itself where there are none.

    steps  "auto", "none", or names of STEPS; they run in the order of that table
    """
    names = steps_of(steps)
    if not names:
        return Prepared(model)
    made = Prepared(to_opset(model, LEAST_OPSET) if "opset" in names else model)
    if made.model is model:
        made.model = model.clone()
    else:
        have = model.opset_imports.get("", 1)
        made.told.append(Told("opset", "", f"opset {have} → {LEAST_OPSET}"))
    for name in names:
        made.told += _RUN[name](made.model)
    return made


def check_opset(model: ir.Model) -> None:
    """CombinationError: what is written into the model would not be of its version."""
    have, newest = model.opset_imports.get("", LEAST_OPSET), onnx.defs.onnx_opset_version()
    if have > newest:
        raise CombinationError(
            f"the model is of opset {have}, and onnx {onnx.__version__} knows {newest}: a newer onnx is needed, or "
            "the model exported with an older opset"
        )
    if have < LEAST_OPSET:
        raise CombinationError(
            f"the model is of opset {have}, and quantizing takes {LEAST_OPSET} or later: prepare='auto', or with "
            "'opset' among its steps, converts it"
        )


def steps_of(steps: str | Sequence[str]) -> tuple[str, ...]:
    if steps == "none":
        return ()
    if steps == "auto":
        return AUTO
    if isinstance(steps, str) or not isinstance(steps, Iterable):
        raise ArgumentError("prepare", steps, f"'auto', 'none', or some of {', '.join(STEPS)}")
    for name in steps:
        if name not in STEPS:
            raise UnknownNameError("prepare", name, STEPS)
    return tuple(name for name in STEPS if name in steps)


# ------------------------------------------------------------------------------------------ steps


def _nothing(model: ir.Model) -> list[Told]:
    return []


def _name_nodes(model: ir.Model) -> list[Told]:
    """Rules and reports know operators by their names, and ONNX Runtime refuses two of one name."""
    names, seen = Names(model), set[str]()
    for node in model.graph.all_nodes():
        if not node.name:
            node.name = names.node(f"{node.op_type}_0")
        elif node.name in seen:
            node.name = names.node(node.name)
        seen.add(node.name)
    return []


def _defaults(model: ir.Model) -> list[Told]:
    """Inputs that have a default become constants, as weights are inputs in files of some exporters."""
    defaults = [value for value in model.graph.inputs if value.name in model.graph.initializers]
    model.graph.inputs[:] = [value for value in model.graph.inputs if value not in defaults]
    return [
        Told("defaults", str(value.name), "its default is a constant, and it is no input")
        for value in defaults
    ]


def _remove_identities(model: ir.Model) -> list[Told]:
    """Identity, and Dropout, which does nothing where a model is not trained."""
    told = []
    for graph in (model.graph, *model.graph.subgraphs()):
        for node in list(graph):
            if node.domain != "" or node.op_type not in ("Identity", "Dropout"):
                continue
            names = [node.outputs[0].name, node.inputs[0].name if node.inputs[0] is not None else None]
            if _passes(node, graph):
                graph.remove(node, safe=True)
                if node.outputs[0].name is None:  # an output of the model, which keeps its name
                    names.reverse()
                told.append(
                    Told("identity", str(node.name), f"{node.op_type} removed, {names[0]!r} is {names[1]!r}")
                )
    return told


def _passes(node: ir.Node, graph: ir.Graph) -> bool:
    """Whether its readers take what it reads now."""
    source, result = node.inputs[0], node.outputs[0]
    if (
        source is None
        or is_random(node)
        or any(value.uses() or value.is_graph_output() for value in node.outputs[1:])
    ):
        return False
    if result.is_graph_output():
        made = source.producer()
        if made is None or made.graph is not graph or source.is_graph_output():
            return False
        name = result.name
        result.name = None
        source.name, source.shape, source.type = (
            name,
            source.shape or result.shape,
            source.type or result.type,
        )
    result.replace_all_uses_with(source, replace_graph_outputs=True)
    return True


def _remove_unused(model: ir.Model) -> list[Told]:
    """What leads to no output: nodes from the last to the first, then constants."""
    told = []
    graph = model.graph
    for node in reversed(list(graph)):
        kept = any(value.uses() or value.is_graph_output() for value in node.outputs)
        if (
            not kept
            and node.outputs
            and not any(is_random(one, model.functions) for one in _with_bodies(node))
        ):
            graph.remove(node, safe=True)
            told.append(Told("unused", str(node.name), f"{node.op_type} removed: nothing reads it"))
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del graph.initializers[name]
            told.append(Told("unused", name, "constant removed: nothing reads it"))
    return told


def _with_bodies(node: ir.Node) -> Iterable[ir.Node]:
    yield node
    for body in bodies_of(node):
        yield from body.all_nodes()


def _state_shapes(model: ir.Model) -> list[Told]:
    if not is_vague(model.graph):
        return []
    count = state(model, inferred(model))
    return [Told("shapes", "", f"types and shapes of {count} tensors inferred")] if count else []


# In this order: what comes first makes more of what follows. `defaults` changes what a caller may give.
_RUN: dict[str, Callable[[ir.Model], list[Told]]] = {
    "opset": _nothing,  # done first of all, since it makes a new model
    "names": _name_nodes,
    "defaults": _defaults,
    "identity": _remove_identities,
    "shapes": _state_shapes,
    "constants": fold_constants,
    "batch_norm": fold_batch_norms,
    "unused": _remove_unused,
}
STEPS = tuple(_RUN)
AUTO = tuple(name for name in STEPS if name != "defaults")
