"""Fold Q–DQ pairs into quantization metadata: notes on the values themselves (graph.notes).

For targets whose operators take quantized tensors. It runs before any motion, which takes pairs apart.

    x – Q – DQ → users        users read x, and x has a note
    … x is read as floats too, or by another quantizer: each gets a copy of x with its note (`store`)
    … x has a note already: a requantize, also between MX and affine; both steps stay
    x an input of the model, or DQ(x) an output: floats at the border, a store within
    DQ of constant codes      a constant with a note that has the codes

Then notes are carried over what only puts elements elsewhere, with the axis where it then is. Pairs whose
parameters are known only at run time stay as they are, and read floats.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blockscale.graph import notes
from blockscale.graph.note_moves import carried
from blockscale.graph.notes import STORE, Note, decoder
from blockscale.graph.ops import reads_size
from blockscale.graph.overlay import Graph
from blockscale.graph.quant import layout_of, logical_meta, quant_of
from blockscale.graph.survival import FORMATS, contents, numbers_alike, same_contents
from blockscale.graph.view import Node, Value
from blockscale.numerics import round_trip
from blockscale.numerics.moves import Cat
from blockscale.numerics.through import PLACING
from blockscale.passes.log import Log

STAGE = "fold_metadata"


def run(graph: Graph, log: Log) -> None:
    folder = _Folder(graph, log)
    nodes = graph.nodes
    for node in nodes:
        if node.kind == "dequantize":
            folder.constant(node)
    groups: dict[Value, list[Node]] = {}
    for node in nodes:
        x = node.operand(0) if node.kind in ("quantize", "fake_quantize") else None
        if x is not None:
            groups.setdefault(x, []).append(node)
    for x, members in groups.items():
        folder.group(x, members)
    for node in graph.nodes:
        if type(node.params.get("move")) in (*PLACING, Cat):
            folder.carry(node)
    for node in graph.nodes:
        if node.kind == "output":
            folder.output(node)
    graph.sweep()
    graph.notes = {value: note for value, note in graph.notes.items() if value.uses}


def expand(graph: Graph, log: Log) -> None:
    """The stage that makes fake-quantizes of notes, so that a graph with notes can be written and run."""
    for value, note in graph.notes.items():
        if value.producer is not None and not note.carried:
            log.did("expand_metadata", value.producer, f"its note became a fake_quantize of {note}")
    notes.expand(graph)


@dataclass(frozen=True)
class _Pair:
    """A quantizer, its note, and the values that are decoded from it."""

    node: Node
    note: Note
    decoded: tuple[Value, ...]


class _Folder:
    def __init__(self, graph: Graph, log: Log) -> None:
        self.graph, self.log = graph, log

    # ------------------------------------------------------------------------------ pairs

    def group(self, x: Value, members: list[Node]) -> None:
        """All quantizers of one value."""
        pairs: dict[Note, list[_Pair]] = {}
        taken: set[Node] = set()
        for node in members:
            pair = self._pair(node, x)
            if isinstance(pair, str):
                self.log.left(STAGE, node, pair)
            else:
                pairs.setdefault(pair.note, []).append(pair)
                taken.add(node)
        floats = [user for user in x.users if user not in taken and not reads_size(user)]
        now = members[0].operand(0)  # x, or what it has become
        assert now is not None
        for note, found in pairs.items():
            alone = not floats and len(pairs) == 1 and now not in self.graph.notes
            value = self._noted(now, note, found[0].node, alone)
            for pair in found:
                for old in pair.decoded:
                    self.graph.replace(old, value)
                why = "" if value is now else self._why_stored(now, floats, len(pairs))
                self.log.did(STAGE, pair.node, f"{value!r} is stored as {note}{why}")
                self.graph.discard([pair.node])

    def _noted(self, x: Value, note: Note, near: Node, alone: bool) -> Value:
        """A value with the note: x itself, a constant of the same contents, or a stored copy."""
        if x.const is not None and x not in self.graph.notes and x not in self.graph.mutated:
            if not alone:
                assert x.meta is not None
                x = self.graph.constant(x.const.fetch, x.const.name or x.name, x.meta)
        elif not alone or x.producer is None:
            x = self.graph.make(
                STORE, [x], [x.meta], {"note": note}, near=near, name=f"{x.name}_stored"
            ).outputs[0]
        self.graph.notes[x] = note
        return x

    def _why_stored(self, x: Value, floats: list[Node], count: int) -> str:
        if x in self.graph.notes:
            return ", a requantize"
        if floats:
            return f", a copy: {floats[0].name} reads floats"
        return ", a copy: it is quantized in several ways" if count > 1 else ", a copy: it comes from outside"

    def _pair(self, node: Node, x: Value) -> _Pair | str:
        quant = quant_of(node)
        if quant.foreign is not None or not node.call.pure:
            return f"{node.call.name} is no operator of ours"
        if quant.numbers.rounding == "stochastic":
            return "stochastic rounding is no property of a tensor"
        layout = layout_of(node, self.graph.alphabet)
        if isinstance(layout, str):
            return layout
        params = self._params(node)
        if isinstance(params, str):
            return params
        if node.kind == "fake_quantize":
            decoded = list(node.outputs)
        else:
            users = dict.fromkeys(user for value in node.outputs for user in value.users)
            why = next((why for user in users if (why := self._not_its_own(user, node))), "")
            if why or not users:
                return why or "its codes are not used"
            decoded = [user.outputs[0] for user in users]
        for value in (x, *node.slots, *decoded):
            if value in self.graph.mutated:
                return f"{value!r} shares memory that the graph writes to"
        assert x.meta is not None
        if any(value.meta != x.meta for value in decoded):
            return "it is decoded to another dtype or shape"
        return _Pair(node, _note(node, params), tuple(decoded))

    def _not_its_own(self, user: Node, node: Node) -> str:
        """Why `user` is not a dequantize of all that the quantize `node` makes; empty if it is."""
        if user.kind != "dequantize" or quant_of(user).foreign is not None:
            return f"its codes are used by {user.name}"
        alike = numbers_alike(user) == numbers_alike(node) and quant_of(user).block == quant_of(node).block
        made = dict(zip(quant_of(node).outputs, node.outputs, strict=False))
        if not alike or user.operand(0) is not made["codes"]:
            return f"{user.name} decodes them otherwise"
        for i, name in ((1, "scale"), (2, "zero_point"), (3, "tensor_scale")):
            given, used = node.operand(i), user.operand(i)
            if used is not made.get(name) and not same_contents(given, used) and not (used is None is given):
                return f"{user.name} decodes them with another {name.replace('_', ' ')}"
        return ""

    def _params(self, node: Node) -> list[Any] | str:
        """Arrays of scales, zero points, tensor scale; None where there are none."""
        found = []
        for value in (*node.operands[1:4], None, None, None)[:3]:
            array = contents(value)
            if value is not None and (array is None or value in self.graph.mutated):
                return f"{value!r} is known only at run time"
            found.append(array if array is None or array.shape != (0,) else None)
        return found

    def constant(self, node: Node) -> None:
        """DQ of codes that are known."""
        codes, layout = node.operand(0), layout_of(node, self.graph.alphabet)
        meta, params = node.outputs[0].meta, self._params(node)
        if codes is None or codes.const is None or codes in self.graph.mutated or meta is None:
            return
        if isinstance(layout, str) or isinstance(params, str) or quant_of(node).foreign is not None:
            self.log.left(
                STAGE, node, "its parameters are known only at run time, or it is no operator of ours"
            )
            return
        fetch = codes.const.fetch
        note = replace(_note(node, params), codes=np.asarray(fetch(), order="C"))
        value = self.graph.constant(decoder(note, layout, meta.dtype), codes.const.name or codes.name, meta)
        self.graph.replace(node.outputs[0], value)
        self.graph.notes[value] = note
        self.log.did(STAGE, node, f"{value!r} is stored as {note}")

    # ------------------------------------------------------------------------------ around pairs

    def carry(self, node: Node) -> None:
        """The result of a move has the note of its operand, as it is after the move."""
        graph, move = self.graph, node.params["move"]
        sources = node.operands if isinstance(move, Cat) else node.operands[:1]
        found = [graph.notes[v] for v in sources if v is not None and v in graph.notes]
        written = any(v in graph.mutated for v in (*sources, *node.outputs) if v is not None)
        if not found or len(found) != len(sources) or written:
            return
        made = carried(move, found, graph.alphabet)
        if isinstance(made, str):
            self.log.left(STAGE, node, f"its result is stored as floats: {made}")
            return
        for value, note in zip(node.outputs, made, strict=True):
            own = graph.notes.get(value)
            if own is None:
                graph.notes[value] = note
                self.log.did(STAGE, node, f"{value!r} carries {note}")
            elif own.key == note.key and value.meta is not None and not _drifts(note, value.meta.dtype):
                graph.notes[value] = note
                self.log.did(STAGE, node, f"{value!r} is stored as {note} already")

    def output(self, node: Node) -> None:
        """Results of the graph are floats."""
        made: dict[Value, Value] = {}
        for slot, value in enumerate(node.slots):
            if value is None or value not in self.graph.notes:
                continue
            if value not in made:
                made[value] = self.graph.make(
                    STORE, [value], [value.meta], {"note": None}, near=node, name=f"{value.name}_floats"
                ).outputs[0]
            self.graph.set_slot(node, slot, made[value])


def _note(node: Node, params: list[Any]) -> Note:
    meta, quant = logical_meta(node), quant_of(node)
    assert meta is not None
    scales, zeros, tensor_scale = params
    if scales is not None and scales.ndim != len(meta.shape):
        scales = scales.reshape((1,) * len(meta.shape))
        zeros = None if zeros is None else zeros.reshape(scales.shape)
    return Note(quant.numbers, quant.block, meta.shape, scales, zeros, tensor_scale)


def _drifts(note: Note, dtype: str) -> str:
    """Why what is stored so already might be other codes when it is quantized so again."""
    if note.params is None:
        return round_trip.drifts(note.numbers, FORMATS[dtype])
    return round_trip.lost(note.numbers, note.params, FORMATS[dtype], made=False)
