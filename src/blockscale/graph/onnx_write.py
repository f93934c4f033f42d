"""Overlays → the onnx_ir model they were taken from: live edits replayed at once.

A node that no pass touched stays the object it was. Graph outputs keep their names; new names are unique in
the whole model, bodies included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from blockscale.errors import CombinationError
from blockscale.graph.dims import Dims, Sym
from blockscale.graph.onnx_fused import Functions
from blockscale.graph.onnx_make import MAKERS
from blockscale.graph.onnx_names import Names
from blockscale.graph.onnx_quantizers import DOMAIN
from blockscale.graph.onnx_shapes import bodies_of
from blockscale.graph.onnx_snapshot import OnnxGraph
from blockscale.graph.onnx_types import dtype_of, shape_of
from blockscale.graph.onnx_values import Initializers
from blockscale.graph.view import Meta, Node, Value

_WIDE = 32  # inputs of a node that is made anew rather than changed input by input


class Writer:
    """Replays one overlay onto its ir.Graph; `parent` is that of the graph around a body."""

    def __init__(self, graph: OnnxGraph, model: ir.Model, names: Names, parent: Writer | None) -> None:
        self.overlay, self.model, self.names, self.parent = graph, model, names, parent
        self.graph: ir.Graph = graph.origin
        self.functions: Functions = parent.functions if parent is not None else Functions(model)
        self.opset = int(model.opset_imports.get("", 1))
        self.place_of = {node: i for i, node in enumerate(self.graph) if node.op_type == "Constant"}
        self.cursor: ir.Node | None = None
        self.reached = -1  # the place, in the old order, up to which nodes stand before the cursor
        self.first: ir.Node | None = self.graph[0] if len(self.graph) else None
        self.emitted: set[ir.Node] = set()
        self.initializers = Initializers(self.graph, names)
        self.array, self.ints = self.initializers.array, self.initializers.ints
        self._sizes: dict[tuple[ir.Value, int], ir.Value] = {}

    def commit(self) -> None:
        """What a body took from outside may go only once the body takes something else."""
        self._take_captured()
        changed = self.overlay.changed
        if changed:
            self._write()
        for _, body in self.overlay.bodies:
            Writer(body, self.model, self.names, self).commit()  # type: ignore[arg-type]
        if changed:
            self._erase()

    def _take_captured(self) -> None:
        """What a body takes from outside may be another value now."""
        for inner, (node, slot) in self.overlay.captured.items():
            outer = node.slots[slot]
            if outer is None or self.parent is None:
                continue
            made = self.parent.value(outer)
            if made is not inner.origin:
                inner.origin = made
                self.overlay.changed = True
                for user, _ in inner.uses:
                    user.dirty = True

    def _write(self) -> None:
        nodes = self.overlay.nodes
        originals = sorted((n for n in nodes if isinstance(n.origin, ir.Node)), key=lambda n: n.order)
        turns = iter(originals)
        turn = next(turns, None)
        done: set[Node] = set()
        for node in nodes:
            done.add(node)
            if node.kind == "output":
                continue
            if node.origin is None:
                self._create(node)
            else:
                self._keep(node, in_turn=node is turn)
            while turn is not None and turn in done:
                turn = next(turns, None)
        for node in nodes:
            if node.kind == "output":
                self._write_outputs(node)
        self.overlay.changed = False

    # ------------------------------------------------------------------------------ values

    def value(self, value: Value) -> ir.Value:
        if value.origin is None:
            value.origin = self.initializers.of(value)
        found: ir.Value = value.origin
        return found

    def operand(self, value: Value | None) -> ir.Value | None:
        return None if value is None else self.value(value)

    # ------------------------------------------------------------------------------ placing

    def place(self, node: ir.Node) -> None:
        """Right behind the cursor."""
        if self.cursor is not None:
            self.graph.insert_after(self.cursor, node)
        elif self.first is not None:
            self.graph.insert_before(self.first, node)
            self.first = node
        else:
            self.graph.append(node)
        self.cursor = node
        self.emitted.add(node)

    def _hoist(self, values: Iterable[ir.Value | None]) -> None:
        """Constant nodes that stand behind the cursor go to the front."""
        for value in values:
            node = value.producer() if value is not None else None
            if node is None or self.place_of.get(node, -1) <= self.reached:
                continue
            self.place_of[node] = -1
            if node is not self.first:
                self.graph.remove(node)
                self.graph.insert_before(self.first, node)  # type: ignore[arg-type]
            self.first = node
            if self.cursor is None:
                self.cursor = node

    def _keep(self, node: Node, in_turn: bool) -> None:
        origin: ir.Node = node.origin
        if in_turn:
            self.reached = max(self.reached, node.order)
        if node.dirty or not in_turn:
            self._hoist(map(self.operand, node.slots))
        if not in_turn:
            if origin is self.first:
                self.first = _next(self.graph, origin)
            self.graph.remove(origin)
            self.place(origin)
        self.cursor = origin
        self.emitted.add(origin)
        if node.dirty:
            self._rewire(node)
            node.dirty = False

    # ------------------------------------------------------------------------------ nodes

    def _rewire(self, node: Node) -> None:
        origin: ir.Node = node.origin
        inputs = [self.operand(value) for value in node.slots[: len(origin.inputs)]]
        changed = [i for i, new in enumerate(inputs) if origin.inputs[i] is not new]
        if len(inputs) > _WIDE and len(changed) > 1 and not any(bodies_of(origin)):
            self._rebuild(node, inputs)
            return
        for i in changed:
            origin.replace_input_with(i, inputs[i])

    def _rebuild(self, node: Node, inputs: Sequence[ir.Value | None]) -> None:
        """Input by input, each change costs as much as there are inputs."""
        origin: ir.Node = node.origin
        made = ir.Node(
            origin.domain, origin.op_type, inputs, origin.attributes.values(), overload=origin.overload,
            num_outputs=len(origin.outputs), version=origin.version, name=origin.name,
            doc_string=origin.doc_string, metadata_props=dict(origin.metadata_props) or None,
        )  # fmt: skip
        for value, old, new in zip(node.outputs, origin.outputs, made.outputs, strict=True):
            new.name, new.type, new.shape, new.doc_string = old.name, old.type, old.shape, old.doc_string
            new.metadata_props.update(old.metadata_props)
            for user, index in old.uses():
                user.replace_input_with(index, new)
            for i, output in enumerate(self.graph.outputs):
                if output is old:
                    self.graph.outputs[i] = new
            value.origin = new
        self.emitted.discard(origin)
        self.place(made)
        node.origin = made

    def _create(self, node: Node) -> None:
        made = node.made_by
        assert made is not None
        operands = [self.operand(value) for value in node.slots]
        self._hoist(operands)
        if made.like is not None:
            template: ir.Node = made.like.origin
            if any(bodies_of(template)):
                raise CombinationError(f"{node.where()}: a node with bodies cannot be made twice")
            attributes = {**template.attributes, **self.attributes(made.changes)}
            created = ir.Node(
                template.domain, template.op_type, operands, attributes, overload=template.overload,
                num_outputs=len(node.outputs), version=template.version,
                metadata_props=dict(template.metadata_props) or None,
            )  # fmt: skip
            omitted = [not value.name for value in template.outputs]
        else:
            maker = MAKERS.get(node.kind)
            if maker is None:
                raise CombinationError(f"{node.where()}: no ONNX operator is known for kind {node.kind!r}")
            domain, op_type, inputs, settings = maker(self, node, [self.operand(v) for v in node.operands])
            created = self._node(op_type, inputs, settings, domain, len(node.outputs))
            omitted = [value.meta is not None and value.meta.shape == (0,) for value in node.outputs]
        created.name = self.names.node(node.name)
        for value, output, absent in zip(node.outputs, created.outputs, omitted, strict=True):
            output.name = "" if absent and not value.uses else self.names.value(value.name)
            _describe(output, value.meta)
            value.origin = output
        self.place(created)
        node.origin = created

    def _node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        settings: Mapping[str, Any],
        domain: str,
        outputs: int,
    ) -> ir.Node:
        if domain == DOMAIN:
            self.model.opset_imports.setdefault(DOMAIN, 1)
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        return ir.Node(domain, op_type, given, self.attributes(settings), num_outputs=outputs)

    def emit(
        self, op_type: str, inputs: Sequence[ir.Value | None], meta: Meta,
        settings: Mapping[str, Any] | None = None, *, near: Node,
    ) -> ir.Value:  # fmt: skip
        """A node on the way to the one that a maker gives."""
        created = self._node(op_type, inputs, settings or {}, "", 1)
        created.name = self.names.node(f"{near.name}_{op_type.lower()}")
        output = created.outputs[0]
        output.name = self.names.value(f"{near.name}_{op_type.lower()}")
        _describe(output, meta)
        self.place(created)
        return output

    def attributes(self, settings: Mapping[str, Any]) -> dict[str, ir.Attr]:
        return {name: _attribute(name, value) for name, value in settings.items()}

    # ------------------------------------------------------------------------------ sizes

    def size(self, dim: Any, node: Node) -> ir.Value:
        """One int64 in one dimension: a size known now, or read from a tensor that `node` can reach."""
        if isinstance(dim, int):
            return self.ints([dim], "size")
        seen: list[Value] = [v for v in node.slots if v is not None]
        for value in seen:
            for i, n in enumerate(value.meta.shape if value.meta is not None else ()):
                if n == dim:
                    return self.size_of(self.value(value), i, node)
            if value.producer is not None and len(seen) < 64:
                seen += [v for v in value.producer.slots if v is not None and v not in seen]
        raise CombinationError(f"{node.where()}: no tensor in reach has a dimension of size {dim}")

    def size_of(self, source: ir.Value, index: int, node: Node) -> ir.Value:
        key = (source, index)
        if key not in self._sizes:
            rank = len(source.shape) if source.shape is not None else index + 1
            shape = self.emit("Shape", [source], Meta("int64", (rank,)), near=node)
            inputs = [shape, self.ints([index], "size_index")]
            self._sizes[key] = self.emit("Gather", inputs, Meta("int64", (1,)), {"axis": 0}, near=node)
        return self._sizes[key]

    def sizes(self, target: Dims, node: Node) -> ir.Value:
        """All of `target`, in one dimension."""
        if all(isinstance(dim, int) for dim in target):
            return self.ints(target, "shape")  # type: ignore[arg-type]
        parts = [self.size(dim, node) for dim in target]
        return self.emit("Concat", parts, Meta("int64", (len(target),)), {"axis": 0}, near=node)

    # ------------------------------------------------------------------------------ outputs

    def _write_outputs(self, node: Node) -> None:
        old: list[ir.Value] = list(self.graph.outputs)
        new = [self.value(value) for value in node.slots if value is not None]
        node.dirty = False
        moved = {i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a is not b}
        taken = {value for i, value in enumerate(new) if i not in moved}
        facts = {i: (old[i].name, old[i].type, old[i].shape, dict(old[i].metadata_props)) for i in moved}
        for i in sorted(moved):
            if new[i] in taken or not self._is_made_here(new[i]):
                new[i] = self._copied(new[i], node, i)
            taken.add(new[i])
        for i in moved:
            self.graph.outputs[i] = new[i]
            if old[i] not in taken and not old[i].is_initializer():
                old[i].name = self.names.value(old[i].name or "value")
        for i in moved:  # with other names out of the way
            new[i].name = None
        for i, (name, kind, shape, props) in facts.items():
            new[i].name, new[i].type, new[i].shape = name, kind, shape
            new[i].metadata_props.update(props)

    def _is_made_here(self, value: ir.Value) -> bool:
        producer = value.producer()
        return producer is not None and producer.graph is self.graph

    def _copied(self, value: ir.Value, node: Node, index: int) -> ir.Value:
        created = self._node("Identity", [value], {}, "", 1)
        created.name = self.names.node(f"{value.name}_output")
        self.place(created)
        return created.outputs[0]

    # ------------------------------------------------------------------------------ what is left over

    def _erase(self) -> None:
        """Nodes that are not live any more, and constants that were used and are not."""
        idle = {
            value.origin for value in self.overlay.constants
            if value.origin is not None and not value.uses and value not in self.overlay.idle
        }  # fmt: skip
        gone = [
            node for node in self.graph
            if (node not in self.place_of and node not in self.emitted)
            or (node in self.place_of and node.outputs[0] in idle)
        ]  # fmt: skip
        for node in gone:
            _detach(node)
            for body in bodies_of(node):
                for inner in body.all_nodes():
                    _detach(inner)
        self.graph.remove(gone, safe=True)
        for name, value in list(self.graph.initializers.items()):
            if value in idle and not value.is_graph_input():
                del self.graph.initializers[name]


def _detach(node: ir.Node) -> None:
    """Without inputs. Taken away one by one, each costs as much as there are."""
    if len(node.inputs) > _WIDE:
        for i, value in enumerate(node.inputs):
            if value is not None:
                value._remove_usage(node, i)
        node._inputs = ()
    node.resize_inputs(0)


def _next(graph: ir.Graph, node: ir.Node) -> ir.Node | None:
    found = False
    for one in graph:
        if found:
            return one
        found = one is node
    return None


def _describe(value: ir.Value, meta: Meta | None) -> None:
    if meta is not None:
        value.type, value.shape = ir.TensorType(dtype_of(meta.dtype)), shape_of(meta.shape)


def _attribute(name: str, value: Any) -> ir.Attr:
    """By the type of the value; a size known only at run time is -1."""
    if isinstance(value, tuple | list):
        return ir.AttrInt64s(name, [-1 if isinstance(v, Sym) else int(v) for v in value])
    if isinstance(value, str):
        return ir.AttrString(name, value)
    if isinstance(value, float):
        return ir.AttrFloat32(name, value)
    return ir.AttrInt64(name, int(value))
