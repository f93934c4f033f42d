"""Every tensor that an ONNX model quantizes: by operators of ours, of ONNX, of AMD Quark, and inside functions.

Calls of functions that quantize are looked into, each with the types and tensors that it is given. Codes that
one node makes and others decode are one tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from blockscale.errors import FileError
from blockscale.graph import models
from blockscale.graph.args import Unreadable
from blockscale.graph.onnx_facts import facts_in
from blockscale.graph.onnx_quantizers import DOMAIN, READERS
from blockscale.graph.onnx_snapshot import arguments, qualified
from blockscale.graph.onnx_types import constant_tensor, dtype_of, shape_of
from blockscale.graph.ops import QUANTIZERS, moves
from blockscale.graph.overlay import Graph
from blockscale.graph.quant import Quant
from blockscale.graph.view import Meta, Node, Value
from blockscale.report.onnx_layouts import Place, from_name, told, words

# Domains of functions that say our operators in those of ONNX: of each form.
FUNCTIONS = (f"{DOMAIN}.portable", f"{DOMAIN}.native", f"{DOMAIN}.folded")
LARGEST = 1 << 20  # nodes, calls of functions written out: a small file may stand for any number

_MADE = re.compile(r"((_fq|_q|_codes)?_bs\d+)+$|_codes(_\d+)?$")  # what we put behind names of tensors
_KINDS = {"fakequantize": "fake_quantize", "dequantize": "dequantize", "dynamicquantize": "quantize",
          "quantize": "quantize"}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """shape         of the values; a name or None where a size is free. None: not even the rank is known
    layout        in words; empty where the file does not say it
    stored_bytes  of a weight: codes, scales and zero points, or floats where it is quantized at each run
    forms         the operators that quantize and decode it, and the functions of the model they are in
    """

    name: str
    readers: tuple[str, ...]
    role: str
    layout: str
    shape: tuple[int | str | None, ...] | None
    stored_bytes: int | None
    float_bytes: int | None
    elements: int | None
    forms: tuple[str, ...]

    @property
    def ratio(self) -> float | None:
        if self.stored_bytes is None or not self.float_bytes:
            return None
        return self.stored_bytes / self.float_bytes


@dataclass(frozen=True)
class Held:
    """A constant that a quantized weight is stored in, and what it stands for: nothing, if it is a scale."""

    nbytes: int
    size: int
    elements: int = 0
    float_bytes: int = 0


Constants = dict[int, Held]  # by identity of the tensor


def quantized_tensors(model: ir.Model) -> tuple[list[Tensor], Constants]:
    """In the order of the graph, weights and activations."""
    walk = _Walk(model)
    walk.graph(models.snapshot(model), _Frame(None, None))
    tensors = [row.finished() for row in walk.rows.values()]
    constants: Constants = {}
    for row, tensor in zip(walk.rows.values(), tensors, strict=True):
        if row.codes is None:
            constants |= row.constants
        elif tensor.elements is not None and tensor.float_bytes is not None:
            held = row.constants[row.codes]
            stands_for = Held(held.nbytes, held.size, tensor.elements, tensor.float_bytes)
            constants |= {**row.constants, row.codes: stands_for}
    return tensors, constants


@dataclass(frozen=True, eq=False)
class _Frame:
    """A graph that is looked at: the main one, or a function's in one of its calls."""

    call: Node | None
    outer: _Frame | None
    inputs: Mapping[str, Value] = field(default_factory=dict)
    outputs: Mapping[int, Value] = field(default_factory=dict)  # identity of the ir.Value inside → outside

    def inward(self, value: Value) -> tuple[Value, _Frame]:
        """Where it comes from: through moves and casts, and out of functions."""
        frame: _Frame = self
        while True:
            node = value.producer
            if node is not None and (moves(node) or node.kind == "cast") and node.operand(0) is not None:
                value = node.operand(0) or value
            elif node is None and value.const is None and frame.outer and value.name in frame.inputs:
                value, frame = frame.inputs[value.name], frame.outer
            else:
                return value, frame

    def outward(self, value: Value) -> tuple[Value, _Frame]:
        """What it is called by who called the functions that give it."""
        frame: _Frame = self
        while frame.outer is not None and id(value.origin) in frame.outputs:
            value, frame = frame.outputs[id(value.origin)], frame.outer
        return value, frame


@dataclass
class _Row:
    name: str
    role: str
    layout: str
    meta: Meta | None
    readers: dict[str, None] = field(default_factory=dict)
    forms: dict[str, None] = field(default_factory=dict)
    constants: Constants = field(default_factory=dict)
    codes: int | None = None  # which of the constants

    def finished(self) -> Tensor:
        shape = None if self.meta is None else tuple(_size(n) for n in self.meta.shape)
        known = shape is not None and all(isinstance(n, int) for n in shape)
        elements = math.prod(n for n in shape or () if isinstance(n, int)) if known else None
        floats = None
        if elements is not None and self.meta is not None:
            floats = elements * np.dtype(self.meta.dtype).itemsize
        stored = sum(held.nbytes for held in self.constants.values()) if self.role == "weight" else None
        return Tensor(
            self.name, tuple(self.readers), self.role, self.layout, shape, stored, floats, elements,
            tuple(self.forms),
        )  # fmt: skip


def _size(n: Any) -> int | str | None:
    text = str(n)
    return n if isinstance(n, int) else None if "?" in text else text


class _Walk:
    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.rows: dict[Any, _Row] = {}
        self.holding = _holding(model)
        self.snapshots: dict[Any, Any] = {}

    def graph(self, graph: Graph, frame: _Frame) -> None:
        for one in graph.walk():
            for node in one.nodes:
                self.node(node, one, frame)

    def node(self, node: Node, graph: Any, frame: _Frame) -> None:
        if node.kind in QUANTIZERS:
            self.quantizer(node.kind, node, frame, node.params["quant"], node.operands)
        if node.kind != "raw" or not isinstance(node.origin, ir.Node):
            return
        identifier = node.origin.op_identifier()
        if identifier not in self.model.functions:
            return
        read = _read_call(node, graph)
        if read is not None:
            kind, operands, quant = read
            self.quantizer(kind, node, frame, quant, operands)
        elif node.origin.domain in FUNCTIONS:
            self.function(node, frame)
        elif identifier in self.holding:
            self.called(node, frame)

    # ------------------------------------------------------------------------------ quantizers

    def function(self, node: Node, frame: _Frame) -> None:
        """A function whose name, arguments or notes say which of our operators it is, on what layout."""
        function = self.model.functions[node.origin.op_identifier()]
        notes: dict[str, Any] = dict(function.metadata_props)
        notes |= {a.name: a.value for a in node.origin.attributes.values() if not a.is_ref()}
        squeezed = node.origin.op_type.replace("_", "").lower()
        kind = next((kind for name, kind in _KINDS.items() if squeezed.startswith(name)), None)
        if kind is None:
            return
        self.quantizer(kind, node, frame, told(notes) or from_name(node.origin.op_type), list(node.slots))

    def quantizer(
        self, kind: str, node: Node, frame: _Frame, quant: Quant | Place | None,
        operands: list[Value | None],
    ) -> None:  # fmt: skip
        if not operands or operands[0] is None or not node.outputs:
            return
        source, home = frame.inward(operands[0])
        tensor, where = _tensor(source), source
        is_weight = tensor is not None
        if kind == "quantize" or (kind == "fake_quantize" and not is_weight):
            where, home = frame.outward(node.outputs[0])
        is_made_inside = kind == "quantize" and home is not frame and not is_weight
        name = where.name if is_made_inside else source.name
        value = node.outputs[0] if kind == "dequantize" else operands[0]
        made = _Row(_MADE.sub("", name) or name, "activation", words(quant, is_weight), value.meta)
        layout = made.layout if is_weight and kind != "quantize" else ""  # one weight may have several
        row = self.rows.setdefault((id(home), id(where.origin), layout), made)
        row.meta = row.meta or value.meta
        if tensor is not None:
            row.role, row.codes = "weight", id(tensor)
        row.forms[_form(node, frame)] = None
        for operand in operands:
            tensor = None if operand is None else _tensor(frame.inward(operand)[0])
            if tensor is not None:
                row.constants[id(tensor)] = Held(tensor.nbytes, tensor.size)
        row.readers |= dict.fromkeys(self.readers(node.outputs[0], frame, codes=kind == "quantize"))

    def readers(self, value: Value, frame: _Frame, codes: bool) -> Iterator[str]:
        """Operators that read it, seen through moves; in a function it is the call that reads."""
        if frame.call is not None and id(value.origin) not in frame.outputs:
            while frame.outer is not None and frame.outer.call is not None:
                frame = frame.outer
            if not codes and frame.call is not None:
                yield _named(frame.call)
            return
        value, _ = frame.outward(value)
        for node in value.users:
            if moves(node) and node.outputs:
                yield from self.readers(node.outputs[0], frame, codes)
            elif node.kind == "output":
                yield "output"
            elif not codes or not (node.kind in QUANTIZERS or self.is_call(node)):
                yield _named(node)

    def is_call(self, node: Node) -> bool:
        return isinstance(node.origin, ir.Node) and node.origin.op_identifier() in self.model.functions

    # ------------------------------------------------------------------------------ functions

    def called(self, node: Node, frame: _Frame) -> None:
        metas = tuple(None if value is None else value.meta for value in node.slots)
        said = tuple(sorted((a.name, repr(a.value)) for a in node.origin.attributes.values()))
        key = node.origin.op_identifier(), metas, said
        if key not in self.snapshots:
            self.snapshots[key] = self.written_out(node, metas)
        graph, inputs, outputs = self.snapshots[key]
        given = {name: value for name, value in zip(inputs, node.slots, strict=False) if value is not None}
        taken = {id(inner): outer for inner, outer in zip(outputs, node.outputs, strict=False)}
        self.graph(graph, _Frame(node, frame, given, taken))

    def written_out(
        self, node: Node, metas: tuple[Meta | None, ...]
    ) -> tuple[Graph, list[str], list[ir.Value]]:
        """The function as a graph of its own, with the types and the arguments of this call."""
        function = self.model.functions[node.origin.op_identifier()].clone()
        given = {**function.attributes, **node.origin.attributes}
        for inner in function.all_nodes():
            _say(inner, given)
            _type(inner)
        for value, meta in zip(function.inputs, metas, strict=False):
            if meta is not None:
                value.type, value.shape = ir.TensorType(dtype_of(meta.dtype)), shape_of(meta.shape)
        made = ir.Model(
            function.graph, ir_version=self.model.ir_version, functions=tuple(self.model.functions.values())
        )
        names = [str(value.name) for value in function.inputs]
        return models.snapshot(made), names, list(function.outputs)


def _holding(model: ir.Model) -> set[Any]:
    """Functions that quantize, or call one that does.

    FileError: one calls itself, or they call each other so often that the model stands for too many nodes.
    """
    found: dict[Any, tuple[bool, int]] = {}

    def read(nodes: Iterable[ir.Node], path: tuple[Any, ...]) -> tuple[bool, int]:
        holds, size = False, 0
        for node in nodes:
            inner = node.op_identifier()
            more = look(inner, path) if inner in model.functions else (False, 1)
            holds |= more[0] or qualified(node) in READERS or (more[1] > 1 and inner[0] in FUNCTIONS)
            size += more[1]
        if size > LARGEST:
            raise FileError(f"the model stands for more than {LARGEST} nodes, functions written out")
        return holds, size + 1

    def look(identifier: Any, path: tuple[Any, ...]) -> tuple[bool, int]:
        if identifier in path:
            raise FileError(f"function {'::'.join(identifier[:2])} of the model calls itself")
        if identifier not in found:
            found[identifier] = read(model.functions[identifier].all_nodes(), (*path, identifier))
        return found[identifier]

    for identifier in model.functions:
        look(identifier, ())
    read(model.graph.all_nodes(), ())
    return {identifier for identifier, (holds, _) in found.items() if holds}


def _say(node: ir.Node, given: Mapping[str, ir.Attr]) -> None:
    """Arguments of the function in the places that refer to them."""
    for attribute in list(node.attributes.values()):
        if attribute.is_ref():
            value = given.get(str(attribute.ref_attr_name))
            if value is None or value.is_ref() or value.value is None:
                node.attributes.pop(attribute.name)
            else:
                node.attributes[attribute.name] = ir.Attr(attribute.name, value.type, value.value)


def _type(node: ir.Node) -> None:
    """In a function nobody says the type of what our Dequantize gives, but it does."""
    if node.op_identifier() != (DOMAIN, "Dequantize", "") or not node.outputs:
        return
    dtype, shape = node.attributes.get("dtype"), node.attributes.get("shape")
    node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT if dtype is None else ir.DataType(dtype.as_int()))
    if shape is not None:
        node.outputs[0].shape = ir.Shape([n if n >= 0 else None for n in shape.as_ints()])


def _read_call(node: Node, graph: Any) -> tuple[str, list[Value | None], Quant] | None:
    """A quantizer that the model brings as a function of the operator's own name."""
    reader = READERS.get(qualified(node.origin))
    facts = facts_in(graph.opsets, node.origin)
    if reader is None or facts is None:
        return None
    outs = [value.meta for value in node.outputs]
    version = graph.opsets.get(node.origin.domain, 1)
    args = arguments(node.origin, facts, node.slots, outs, graph.alphabet, version)
    try:
        kind, names, quant = reader(args)
    except Unreadable:
        return None
    slots = [args.slot(name) for name in names]
    return kind, [None if slot is None else node.slots[slot] for slot in slots], quant


# ------------------------------------------------------------------------------------------ in words


def _named(node: Node) -> str:
    own = _MADE.sub("", node.origin.name or "") if isinstance(node.origin, ir.Node) else ""
    operator = node.call.name.removeprefix("ai.onnx::")
    return f"{own} ({operator})" if own else operator


def _form(node: Node, frame: _Frame) -> str:
    """`blockscale::Dequantize in matmul`, which is a function of ours too."""
    name = node.call.name.removeprefix("ai.onnx::")
    if frame.call is None:
        return name
    while frame.outer is not None and frame.outer.call is not None:
        frame = frame.outer
    assert frame.call is not None
    return f"{name} in {frame.call.call.name.removeprefix(f'{DOMAIN}::')}"


def _tensor(value: Value) -> ir.TensorProtocol | None:
    """What a constant of the model holds."""
    if value.const is None or not isinstance(value.origin, ir.Value):
        return None
    if value.origin.const_value is not None:
        return value.origin.const_value
    made = value.origin.producer()
    return None if made is None else constant_tensor(made)
