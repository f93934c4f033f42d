"""Fused nodes in ONNX models: calls of functions of the model, which hold the very nodes that were fused.

A function of the domain `blockscale` is named for its row: `rms_norm_quantize`, `linear_2`. Its body decodes the
operands, runs the nodes whose place it took, and quantizes their result, so that bits are the same by
construction, whoever runs it. Nodes that are equal call one function. A kernel may take its place by name.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from blockscale.errors import CombinationError
from blockscale.graph.fused import ROWS
from blockscale.graph.fused_edges import source_of
from blockscale.graph.fused_nodes import Core, Edge, Port, Read, outputs_of, read
from blockscale.graph.onnx_known import known
from blockscale.graph.onnx_quantizers import DOMAIN
from blockscale.graph.onnx_types import dtype_of
from blockscale.graph.view import Node, Value

if TYPE_CHECKING:
    from blockscale.graph.onnx_snapshot import OnnxGraph
    from blockscale.graph.onnx_write import Writer

OLDEST_IR = 8  # functions came with it

# ("in", i): the floats of operand i; ("step", j, k): output k of step j; ("constant", …): contents; or None.
Ref = tuple[Any, ...] | None


@dataclass(frozen=True)
class Step:
    """A node of the model without names."""

    operator: tuple[str, str, str, int | None]
    says: Hashable
    inputs: tuple[Ref, ...]
    outputs: tuple[bool, ...]
    attributes: tuple[ir.Attr, ...] = field(compare=False)


@dataclass(frozen=True)
class Body:
    """What a fused node does between its dequantizes and its quantize."""

    steps: tuple[Step, ...]
    results: tuple[Ref, ...]


def stand_for(graph: OnnxGraph, made: Node, core: Core) -> None:
    """Let a new fused node hold the nodes whose place it takes."""
    reader = _Reader(graph, made, core)
    results = tuple(reader.ref(value) for value in core.results)
    body = Body(tuple(reader.steps), results)
    made.call = replace(made.call, params={**made.call.params, "body": body})


class _Reader:
    def __init__(self, graph: OnnxGraph, made: Node, core: Core) -> None:
        self.graph, self.made, self.core = graph, made, core
        self.steps: list[Step] = []
        self.place_of: dict[Node, int] = {}

    def ref(self, value: Value | None) -> Ref:
        if value is None:
            return None
        node = value.producer
        if node is not None and node in self.core.nodes:
            return "step", self._step(node), value.index
        for i, one in enumerate(self.core.values):
            if one is value:
                return "in", i
        array = known(value)
        if array is not None:
            array = np.asarray(array)
            return "constant", str(array.dtype), array.shape, array.tobytes()
        source = source_of(value)
        if node is not None and source is not value:
            return self.ref(node.operand(0))
        raise CombinationError(f"{self.made.where()}: {value!r} is no operand of what was fused")

    def _step(self, node: Node) -> int:
        if node not in self.place_of:
            origin: ir.Node = node.origin
            inputs = tuple(self.ref(value) for value in node.slots)
            says = self.graph.arguments(node)
            named = tuple(bool(value.name) for value in origin.outputs)
            operator = (origin.domain, origin.op_type, origin.overload, origin.version)
            self.place_of[node] = len(self.steps)
            self.steps.append(Step(operator, says, inputs, named, tuple(origin.attributes.values())))
        return self.place_of[node]


# ------------------------------------------------------------------------------------------ writing


class Functions:
    """Of one model: equal fused nodes call one."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self._names: dict[Hashable, str] = {}

    def name(self, node: Node) -> str:
        parts = read(node)
        present = tuple(value is not None for value in node.operands)
        key = (node.kind, present, node.params["body"], *_ports(parts), parts.compute, len(node.outputs))
        if key not in self._names:
            self._names[key] = self._made(node, parts)
        return self._names[key]

    def _made(self, node: Node, parts: Read) -> str:
        base = name = parts.row.name.replace(".", "_")
        count = 1
        while (DOMAIN, name, "") in self.model.functions:
            count += 1
            name = f"{base}_{count}"
        opsets = {"": self.model.opset_imports.get("", 1), DOMAIN: 1}
        opsets |= {
            step.operator[0]: self.model.opset_imports.get(step.operator[0], 1) for step in _body(node).steps
        }
        graph = _Body(node, parts, opsets).graph
        graph.doc_string = _said(parts)
        self.model.functions[DOMAIN, name, ""] = ir.Function(DOMAIN, name, graph=graph, attributes=[])
        return name


def _body(node: Node) -> Body:
    body: Body = node.params["body"]
    return body


def _ports(parts: Read) -> tuple[Hashable, ...]:
    return tuple((one.port, one.scale is None) for one in (*parts.edges, parts.out))


def _said(parts: Read) -> str:
    """For readers: what is quantized, and how."""
    names = [one.name for one in parts.row.operands]
    given = [f"{name}: {_port_said(edge)}" for name, edge in zip(names, parts.edges, strict=True)]
    return f"{parts.row.name}({', '.join(given)}) → {_port_said(parts.out)}, in {parts.compute}"


def _port_said(edge: Edge) -> str:
    if edge.port is None:
        return "float"
    return f"{edge.port.numbers} in blocks of {'×'.join(map(str, edge.port.block)) or '()'}"


class _Body:
    """The graph of a function."""

    def __init__(self, node: Node, parts: Read, opsets: dict[str, int]) -> None:
        self.node, self.parts = node, parts
        self.nodes: list[ir.Node] = []
        self.count = 0
        self.given: dict[int, ir.Value] = {}  # by place among the operands
        names = parts.row.view_operands.split()
        for i, (name, value) in enumerate(zip(names, node.operands, strict=True)):
            if value is not None:
                self.given[i] = ir.Value(name=name)
        body = _body(node)
        self.floats = [self._floats(i, edge) for i, edge in enumerate(parts.edges)]
        self.floats += [self.given.get(len(parts.edges) + i) for i in range(len(parts.tensors))]
        self.made: list[Sequence[ir.Value]] = []
        for step in body.steps:
            self.made.append(self._step(step))
        first, *also = [self.value(ref) for ref in body.results]
        results = [*self._quantized(first), *also]
        outputs = [self._own(value) for value in results if value is not None]
        for name, output in zip(outputs_of(node, parts.row), outputs, strict=True):
            output.name = name
        self.graph = ir.Graph(
            list(self.given.values()), outputs, nodes=self.nodes, opset_imports=opsets, name=parts.row.name
        )

    def add(
        self, op_type: str, inputs: Sequence[ir.Value | None], attributes: Sequence[ir.Attr] = (),
        domain: str = DOMAIN, count: int = 1, **more: Any,
    ) -> Sequence[ir.Value]:  # fmt: skip
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        made = ir.Node(domain, op_type, given, attributes, num_outputs=count, **more)
        for value in made.outputs:
            self.count += 1
            value.name = f"v{self.count}"
        self.nodes.append(made)
        return made.outputs

    # ------------------------------------------------------------------------------ edges

    def _params(self, index: int) -> tuple[ir.Value | None, ir.Value | None]:
        """Scale and what lies in the place of the zero point, of edge `index`; the output is the last."""
        first = len(self.parts.edges) + len(self.parts.tensors) + 2 * index
        return self.given.get(first), self.given.get(first + 1)

    def _inputs(self, index: int, port: Port) -> list[ir.Value | None]:
        scale, slot = self._params(index)
        return [scale, None, slot] if port.numbers.tensor_scale else [scale, slot]

    def _floats(self, index: int, edge: Edge) -> ir.Value | None:
        given, port = self.given.get(index), edge.port
        if port is None or given is None:
            return given
        inputs = [given, *self._inputs(index, port)]
        if edge.scale is None:
            return self.add("FakeQuantize", inputs, _place(port))[0]
        shape = ir.AttrInt64s("shape", [n if isinstance(n, int) else -1 for n in port.shape])
        dtype = ir.AttrInt64("dtype", int(dtype_of(self.parts.compute)))
        return self.add("Dequantize", inputs, [*_place(port), shape, dtype])[0]

    def _quantized(self, value: ir.Value | None) -> Sequence[ir.Value | None]:
        port, last = self.parts.out.port, len(self.parts.edges)
        if port is None:
            return [value]
        scale, slot = self._params(last)
        if scale is None:
            return self.add("DynamicQuantize", [value, slot], _place(port), count=4)
        return self.add("Quantize", [value, *self._inputs(last, port)], _place(port))

    # ------------------------------------------------------------------------------ steps

    def value(self, ref: Ref) -> ir.Value | None:
        if ref is None:
            return None
        if ref[0] == "in":
            return self.floats[ref[1]]
        if ref[0] == "step":
            return self.made[ref[1]][ref[2]]
        _, dtype, shape, data = ref
        array = np.frombuffer(data, dtype_of(dtype).numpy()).reshape(shape)
        return self.add("Constant", [], [ir.AttrTensor("value", ir.Tensor(array))], "")[0]

    def _step(self, step: Step) -> Sequence[ir.Value]:
        domain, op_type, overload, version = step.operator
        inputs = [self.value(ref) for ref in step.inputs]
        made = self.add(
            op_type, inputs, step.attributes, domain, len(step.outputs), overload=overload, version=version
        )
        for value, named in zip(made, step.outputs, strict=True):
            if not named:
                value.name = ""
        return made

    def _own(self, value: ir.Value) -> ir.Value:
        """Outputs have names of their own, so what is an input too is given through an Identity."""
        return value if value.producer() is not None else self.add("Identity", [value], (), "")[0]


def _place(port: Port) -> list[ir.Attr]:
    return [ir.AttrString("numbers", str(port.numbers)), ir.AttrInt64s("block", list(port.block))]


def fused_call(
    w: Writer, node: Node, operands: list[ir.Value | None]
) -> tuple[str, str, list[ir.Value | None], dict[str, Any]]:
    return DOMAIN, w.functions.name(node), [value for value in operands if value is not None], {}


FUSED_MAKERS = {row.kind: fused_call for row in ROWS}
