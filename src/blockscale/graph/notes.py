"""Quantization as metadata of tensors, for targets whose operators take quantized tensors (Circle, TICO).

`graph.notes` maps values to notes. What a note means:

    a note            whoever reads the value reads DQ(Q(value)): it is stored as codes
    with `codes`      a constant whose codes are known; its contents are DQ(codes)
    `carried`         nothing is quantized: its codes are those of its operand, put elsewhere
    no note           floats; an operator with quantized operands and a float result computes on DQ of them

A node of kind `store` is a copy of its operand that is stored in another way: as codes of its note (a
QUANTIZE; of an operand with a note a requantize), or without one as floats (a DEQUANTIZE).
Notes hold arrays, not values of the graph, so that a mention is not a use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from blockscale.graph.dims import Alphabet, Dims
from blockscale.graph.overlay import Graph
from blockscale.graph.quant import codes_dims, codes_dtype
from blockscale.graph.quantizers import our_dequantize, ours
from blockscale.graph.survival import FORMATS
from blockscale.graph.view import Meta, Node, Value
from blockscale.numerics import native
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import Numbers

STORE = "store"


@dataclass(frozen=True, eq=False)
class Note:
    """How a tensor is stored. Equal by what it says, arrays by their bits.

    numbers, block  its layout on `shape`, whose sizes may be symbols
    scales, zero_points, tensor_scale  arrays of full rank; without scales they are measured, by numbers.rule
    codes           of a constant, as they are stored
    """

    numbers: Numbers
    block: tuple[int, ...]
    shape: Dims
    scales: Any = None
    zero_points: Any = None
    tensor_scale: Any = None
    codes: Any = None
    carried: bool = False

    @property
    def axis(self) -> int | None:
        """From the front: along which blocks run (MX, NVFP4), or scales differ (affine). None: none, or several."""
        whole = 0 if self.numbers.family == "affine" else 1
        found = [
            i for i, (n, b) in enumerate(zip(self.shape, self.block, strict=True)) if b != whole and n != 1
        ]
        return found[0] if len(found) == 1 else self._only(whole)

    def _only(self, whole: int) -> int | None:
        """Where dimensions of 1 count."""
        found = [i for i, b in enumerate(self.block) if b != whole]
        return found[0] if len(found) == 1 else None

    @property
    def measured(self) -> bool:
        return self.scales is None

    @property
    def layout(self) -> Layout | None:
        """None where a size is known only at run time."""
        known = tuple(n for n in self.shape if isinstance(n, int))
        return Layout(self.numbers, known, self.block) if len(known) == len(self.shape) else None

    def layout_on(self, alphabet: Alphabet) -> Layout:
        return Layout(self.numbers, alphabet.numbers(self.shape), self.block)

    @property
    def params(self) -> native.Stored | None:
        return (
            None if self.scales is None else native.Stored(self.scales, self.zero_points, self.tensor_scale)
        )

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """All that decides values."""
        arrays = (self.scales, self.zero_points, self.tensor_scale, self.codes)
        bits = tuple(None if a is None else (str(a.dtype), a.shape, a.tobytes()) for a in arrays)
        return self.numbers, self.block, self.shape, bits

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Note):
            return NotImplemented
        return self.key == other.key and self.carried == other.carried

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        place = "per tensor" if not any(self.block) else f"in blocks of {self.block}"
        return f"{self.numbers} {place}"


def stored(value: Value, note: Note) -> tuple[Any, native.Stored]:
    """Codes and parameters of a constant with a note, in the form in which they are stored."""
    assert value.const is not None and note.layout is not None
    if note.codes is not None and note.params is not None:
        return note.codes, note.params
    x = np.asarray(value.const.fetch(), order="C")
    return native.quantize(x, note.layout, note.params)


def decoder(note: Note, layout: Layout, dtype: str) -> Callable[[], Any]:
    """What makes the contents of a constant from its codes."""

    def fetch() -> Any:
        assert note.params is not None
        return native.dequantize(note.codes, layout, note.params, FORMATS[dtype])

    return fetch


# ------------------------------------------------------------------------------ back to nodes


def expand(graph: Graph, *, carried: bool = False) -> None:
    """Notes as fake-quantizes and dequantizes again, with the same results.

    carried  also what is only carried, as if it were quantized once more (for tests: that changes nothing
             where the note is right and codes survive)
    """
    notes, graph.notes = graph.notes, {}
    anchors = {value: user for value in notes for user, _ in value.uses}
    for value, note in notes.items():
        uses = list(value.uses)
        if not uses or (note.carried and not carried):
            continue
        producer = value.producer
        near = anchors[value] if producer is None else producer
        made = (
            _decoded(graph, value, note, near) if note.codes is not None else _faked(graph, value, note, near)
        )
        graph.replace(value, made, uses)
    for node in graph.nodes:
        if node.kind == STORE and node.slots[0] is not None:
            graph.replace(node.outputs[0], node.slots[0])
    graph.sweep()


def _faked(graph: Graph, value: Value, note: Note, near: Node) -> Value:
    quant = ours(note.numbers, note.block)
    operands = [value, *_params(graph, note, value.name)]
    return graph.make("fake_quantize", operands, [value.meta], {"quant": quant}, near=near).outputs[0]


def _decoded(graph: Graph, value: Value, note: Note, near: Node) -> Value:
    assert value.meta is not None
    dims = codes_dims(value.meta.shape, note.numbers)
    assert not isinstance(dims, str)
    codes = graph.constant(note.codes, f"{value.name}_codes", Meta(codes_dtype(note.numbers), dims))
    params = {"quant": our_dequantize(note.numbers, note.block, value.meta.dtype)}
    operands = [codes, *_params(graph, note, value.name)]
    return graph.make("dequantize", operands, [value.meta], params, near=near).outputs[0]


def _params(graph: Graph, note: Note, name: str) -> list[Value | None]:
    made: list[Value | None] = []
    for part in ("scales", "zero_points", "tensor_scale"):
        array = getattr(note, part)
        meta = None if array is None else Meta(str(array.dtype), tuple(array.shape))
        made.append(None if meta is None else graph.constant(array, f"{name}_{part}", meta))
    while made and made[-1] is None:
        made.pop()
    return made
