"""onnx_ir models → overlays. `onnx_write` goes back.

Initializers and Constant nodes are constants; an initializer that is also an input of the graph is not, since
whoever runs the model may give another. Bodies of If, Loop and Scan are graphs of their own; what they take
from outside is an operand of their node, behind its inputs. Model-local functions are left as they are.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import onnx_ir as ir

from blockscale.errors import DtypeError
from blockscale.graph.args import Args, Unreadable
from blockscale.graph.dims import Alphabet
from blockscale.graph.fused import ROW_OF
from blockscale.graph.fused_nodes import Core
from blockscale.graph.onnx_facts import Facts, facts_in, is_random
from blockscale.graph.onnx_fused import OLDEST_IR, stand_for
from blockscale.graph.onnx_quantizers import READERS
from blockscale.graph.onnx_shapes import Known, bodies_of, inferred, is_vague
from blockscale.graph.onnx_types import (
    Namer,
    array_of,
    constant_tensor,
    is_nameless,
    meta_of,
    tensor_dtype,
)
from blockscale.graph.overlay import Graph
from blockscale.graph.read_onnx import OPSET, read
from blockscale.graph.view import NOTHING, Call, Const, Meta, Node, Value

ONNX = "ai.onnx"


class OnnxGraph(Graph):
    """captured  of a body: its values from outside → the node that holds the body, and the slot there
    idle      constants that nothing used when the model was read
    """

    def __init__(self, graph: ir.Graph, alphabet: Alphabet, opsets: Mapping[str, int]) -> None:
        super().__init__(graph.name or "", alphabet)
        self.origin = graph
        self.opsets = opsets
        self.arguments = self._arguments
        self.stand_for = self._stand_for
        self.takes = self._takes
        self.captured: dict[Value, tuple[Node, int]] = {}
        self.idle: set[Value] = set()

    def _stand_for(self, made: Node, core: Core) -> None:
        stand_for(self, made, core)

    def _takes(self, kind: str, dtype: str) -> bool:
        """Relu is of int8 since opset 14, of unsigned integers never."""
        signed = dtype.startswith("int") and self.opsets.get("", 1) >= 14
        return kind != "relu" or signed or "float" in dtype

    def _arguments(self, node: Node) -> Hashable:
        """All that a node says beside its operands: what two equal nodes have in common."""
        origin: ir.Node = node.origin
        facts = facts_in(self.opsets, origin)
        defaults = facts.defaults if facts is not None else {}
        found = {name: _literal(value) for name, value in defaults.items()}
        for attribute in origin.attributes.values():
            found[attribute.name] = _literal(attribute.value)
        given = tuple(value is not None for value in origin.inputs)
        return tuple(sorted(found.items())), given, tuple(bool(value.name) for value in origin.outputs)


def snapshot(model: ir.Model) -> OnnxGraph:
    """The overlay of a model; nothing is changed, and no weight is read."""
    if not isinstance(model, ir.Model):
        raise DtypeError("model", type(model).__name__, "an onnx_ir.Model")
    return _Reader(model.graph, _Shared(model), (), None).graph


class _Shared:
    """What all graphs of a model have in common."""

    def __init__(self, model: ir.Model) -> None:
        self.alphabet = Alphabet()
        self.namer = Namer()
        self.shapes = inferred(model) if is_vague(model.graph) else {}
        self.opsets = dict(model.opset_imports)
        self.fusible = ROW_OF if (model.ir_version or OLDEST_IR) >= OLDEST_IR else ()
        self.functions = {
            key: all(not is_random(node, model.functions) for node in function.all_nodes())
            for key, function in model.functions.items()
        }

    def is_pure(self, node: ir.Node) -> bool:
        """A custom operator that nothing is known of may do anything."""
        of_function = self.functions.get(node.op_identifier())
        return of_function if of_function is not None else not is_random(node)


class _Reader:
    """One pass over an ir.Graph."""

    def __init__(
        self, graph: ir.Graph, shared: _Shared, path: tuple[int, ...], parent: _Reader | None
    ) -> None:
        self.shared = shared
        self.path = path
        self.parent = parent
        self.known: Known = shared.shapes.get(path, {})
        self.graph = OnnxGraph(graph, shared.alphabet, shared.opsets)
        self.graph.fusible = shared.fusible
        self.value_of: dict[ir.Value, Value] = {}
        self.captures: dict[ir.Value, Value] = {}  # of this body: what it takes from outside
        for value in graph.inputs:
            self.value_of[value] = self.graph.add_input(
                Value(value.name or "", self.meta(value), origin=value)
            )
        for value in graph.initializers.values():
            if value not in self.value_of and value.const_value is not None:
                self.constant(value, value.const_value)
        for order, node in enumerate(graph):
            self.node(node, order)
        output = Call("output", "output", (), pure=False)
        slots: list[Value | None] = [self.value(value) for value in graph.outputs]
        self.graph.add_node(Node(output, slots, "output", len(graph), graph))
        self.graph.idle = {value for value in self.graph.constants if not value.uses}

    # ------------------------------------------------------------------------------ values

    def value(self, value: ir.Value) -> Value:
        """Of this graph, or captured from one around it."""
        found = self.value_of.get(value)
        if found is None:
            if self.parent is None:
                raise DtypeError("model", f"a graph with {value.name!r}, which nothing makes", "a sound one")
            outer = self.parent.value(value)
            found = Value(outer.name, outer.meta, const=outer.const, origin=value)
            (self.graph.add_constant if outer.const else self.graph.add_input)(found)
            self.value_of[value] = self.captures[value] = found
        return found

    def constant(self, value: ir.Value, tensor: ir.TensorProtocol) -> None:
        meta = meta_of(tensor.dtype, tensor.shape, self.shared.namer)
        const = Const(lambda: array_of(tensor), value.name or "") if meta is not None else None
        made = Value(value.name or "", meta, const=const, origin=value)
        self.value_of[value] = self.graph.add_constant(made)

    def meta(self, value: ir.Value) -> Meta | None:
        """As the model says, else as inferred."""
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            return None
        dtype, shape = tensor_dtype(value), value.shape
        found = self.known.get(value.name or "")
        if found is not None:
            dtype, shape = dtype or found[0], _named(shape, found[1])
        return meta_of(dtype, shape, self.shared.namer)

    # ------------------------------------------------------------------------------ nodes

    def node(self, node: ir.Node, order: int) -> None:
        if node.op_type == "Constant" and node.domain == "":
            tensor = constant_tensor(node)
            if tensor is not None:
                self.constant(node.outputs[0], tensor)
                return
        bodies = [
            _Reader(body, self.shared, (*self.path, order, i), self) for i, body in enumerate(bodies_of(node))
        ]
        slots = [None if value is None else self.value(value) for value in node.inputs]
        taken: dict[ir.Value, int] = {}
        for body in bodies:
            for value in body.captures:
                if value not in taken:
                    taken[value] = len(slots)
                    slots.append(self.value(value))
        outs = [self.meta(value) for value in node.outputs]
        call = self.call(node, slots, outs, bodies)
        made = Node(call, slots, node.name or node.op_type, order, node, _site(node))
        made.scope = _scope(node)
        for i, (value, meta) in enumerate(zip(node.outputs, outs, strict=True)):
            self.value_of[value] = Value(value.name or "", meta, made, i, origin=value)
            made.outputs.append(self.value_of[value])
        self.graph.add_node(made)
        for body in bodies:
            body.graph.captured = {inner: (made, taken[value]) for value, inner in body.captures.items()}
            self.graph.bodies.append((made, body.graph))

    def call(
        self, node: ir.Node, slots: list[Value | None], outs: list[Meta | None], bodies: list[_Reader]
    ) -> Call:
        name = qualified(node)
        pure = self.shared.is_pure(node)
        if bodies:
            return Call("raw", name, (), pure=pure and all(map(_is_pure, bodies)))
        facts = facts_in(self.shared.opsets, node)
        reader = READERS.get(name)
        is_ours = node.op_identifier() not in self.shared.functions
        why = ""
        if is_ours and facts is not None:
            opset = node.version or self.shared.opsets.get(node.domain, 1)
            args = arguments(node, facts, slots, outs, self.shared.alphabet, opset)
            try:
                if reader is not None:
                    kind, operands, quant = reader(args)
                    return Call(kind, name, tuple(args.slot(n) for n in operands), {"quant": quant})
                found = read(node.op_type, args) if node.domain == "" else None
                if found is not None:
                    return Call(found.kind, name, found.operands, found.params, pure)
            except Unreadable as reason:
                why = str(reason)
        return Call("raw", name, (), {"why": why} if why else NOTHING, pure)


def _named(shape: Any, known: list[int | str | None]) -> Any:
    """With the sizes that inference knows, where the model has none."""
    if shape is None or len(shape) != len(known):
        return known if shape is None else shape
    return [
        one if one is not None and is_nameless(dim) else dim for dim, one in zip(shape, known, strict=True)
    ]


def _is_pure(reader: _Reader) -> bool:
    return all(node.call.pure or node.kind == "output" for node in reader.graph.nodes)


def qualified(node: ir.Node) -> str:
    return f"{node.domain or ONNX}::{node.op_type}" + (f":{node.overload}" if node.overload else "")


# ------------------------------------------------------------------------------------------ arguments


def arguments(
    node: ir.Node, facts: Facts, slots: list[Value | None], outs: list[Meta | None], alphabet: Alphabet,
    opset: int,
) -> Args:  # fmt: skip
    tensors: dict[str, Any] = {}
    at = range(len(node.inputs))
    for i, name in enumerate(facts.inputs):
        if facts.variadic and i == len(facts.inputs) - 1:
            tensors[name] = [j if node.inputs[j] is not None else None for j in at[i:]]
        elif i < len(at):
            tensors[name] = i if node.inputs[i] is not None else None
    others = {**facts.defaults, OPSET: opset}
    for attribute in node.attributes.values():
        if not attribute.is_ref():
            others[attribute.name] = attribute.value
    return Args(slots, tensors, others, outs, alphabet)


def _literal(value: Any) -> Hashable:
    if isinstance(value, tuple | list):
        return tuple(_literal(item) for item in value)
    if isinstance(value, int | float | str | bytes):
        # 1 == 1.0, and they mean different things.
        return type(value).__name__, repr(value)
    return "object", str(id(value))  # tensors, graphs: equal only to themselves


# ------------------------------------------------------------------------------------------ places

_TRACE = "pkg.torch.onnx.stack_trace"
_SCOPES = "pkg.torch.onnx.name_scopes"


def _scope(node: ir.Node) -> str:
    """The module that a torch exporter wrote it from."""
    scopes = node.metadata_props.get(_SCOPES) if node.metadata_props else None
    if scopes:
        names = [name.strip(" '\"") for name in scopes.strip("[]").split(",")]
        return names[-2] if len(names) > 1 else ""
    name = node.name or ""
    return ".".join(part for part in name.split("/")[:-1] if part) if name.startswith("/") else ""


def _site(node: ir.Node) -> str:
    """Module path and source line, as far as an exporter kept them."""
    trace = node.metadata_props.get(_TRACE, "") if node.metadata_props else ""
    lines = [line.strip() for line in trace.split("\n") if line.strip().startswith("File ")]
    return ", ".join(part for part in (_scope(node), *lines[-1:]) if part)
