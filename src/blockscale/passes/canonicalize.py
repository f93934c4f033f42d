"""Canonicalize: explicit quantize and dequantize nodes of ours, where not a bit changes.

Foreign quantizers (graph.quantizers knows them by name) become ours where their parameters are known and ours
have their arithmetic; the others stay what they are, with the reason in the log. They still have a Quant, so
the other passes move and combine them. A fake-quantize, also one of ours, becomes a quantize with a
dequantize behind it; what makes its scales from its data (dynamic) still does.

Two things that torch leaves open are not kept: the code of NaN, which decodes to 0 here, and gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blockscale.graph.constants import placed
from blockscale.graph.dims import Dims
from blockscale.graph.overlay import Graph
from blockscale.graph.quant import (
    SCALE_DTYPES,
    Foreign,
    Quant,
    codes_dims,
    codes_dtype,
    logical_meta,
    lost_in_codes,
    quant_of,
    scale_dims,
)
from blockscale.graph.quantizers import our_dequantize, ours
from blockscale.graph.view import Const, Meta, Node, Value
from blockscale.numerics.arrays import TENSOR_DTYPES
from blockscale.numerics.scheme import Numbers
from blockscale.passes.log import Log

STAGE = "canonicalize"


def run(graph: Graph, log: Log, *, split: bool = True) -> None:
    """`split`: fake-quantizes become two nodes; otherwise foreign ones become one of ours."""
    _over(graph, _Canonicalize(graph, log, lambda node: split))


def split_constants(graph: Graph, log: Log) -> None:
    """Fake-quantizes of what is known before the run become two nodes, for `fold`; others stay one."""
    _over(graph, _Canonicalize(graph, log, lambda node: _is_known(graph, node.operand(0))))


def _is_known(graph: Graph, x: Value | None) -> bool:
    return x is not None and placed(graph, x) is not None


def _over(graph: Graph, pass_: _Canonicalize) -> None:
    for node in graph.nodes:
        if node in graph and "quant" in node.params:
            pass_.view(node)
            pass_.meet(node)


@dataclass(frozen=True)
class _Given:
    """What our operators take: numbers and parameters, None where they have none."""

    numbers: Numbers
    scale: Value | None = None
    zero_point: Value | None = None
    tensor_scale: Value | None = None


class _Canonicalize:
    def __init__(self, graph: Graph, log: Log, splits: Callable[[Node], bool]) -> None:
        self.graph, self.log, self.splits = graph, log, splits
        self._constants: dict[Hashable, Value] = {}
        self._placed: dict[Value, Value] = {}

    def view(self, node: Node) -> None:
        """Scales and zero points that are constants behind a view are constants."""
        for slot in node.call.operands[1:]:
            value = None if slot is None else node.slots[slot]
            if slot is None or value is None or value.const is not None:
                continue
            if value not in self._placed:
                known = placed(self.graph, value)
                if known is None or value.meta is None:
                    continue
                self._placed[value] = self.graph.constant(_in_order(known), known.name, value.meta)
            self.graph.set_slot(node, slot, self._placed[value])

    def meet(self, node: Node) -> None:
        foreign = quant_of(node).foreign
        if foreign is None and not (node.kind == "fake_quantize" and self.splits(node)):
            return
        done = self._replace(node, foreign)
        if done.startswith("became"):
            self.log.did(STAGE, node, f"{node.call.name} {done}")
            self.graph.discard([node])
        else:
            self.log.left(STAGE, node, done)

    # ------------------------------------------------------------------------------ one node

    def _replace(self, node: Node, foreign: Foreign | None) -> str:
        """`became …`, or why not."""
        why = self._why_not(node, foreign)
        if why:
            return why
        if foreign is not None and foreign.pair:
            return self._pair(node)
        given = self._given(node, foreign)
        if isinstance(given, str):
            return given
        if node.kind == "quantize":
            return self._quantize(node, given)
        if node.kind == "dequantize":
            return self._dequantize(node, given)
        return self._fake_quantize(node, given)

    def _why_not(self, node: Node, foreign: Foreign | None) -> str:
        quant, meta = quant_of(node), logical_meta(node)
        if foreign is not None and foreign.why:
            return foreign.why
        if meta is None or any(value.meta is None for value in node.outputs):
            return "its shape is not known"
        if any(v in self.graph.mutated for v in (*node.slots, *node.outputs) if v is not None):
            return "it shares memory that the graph writes to"
        if "mask" in quant.outputs and node.outputs[quant.outputs.index("mask")].used:
            return "its mask is used"
        lost = lost_in_codes(quant.numbers)
        if lost and (foreign is None or not (node.kind == "fake_quantize" or foreign.pair)):
            return lost
        codes = node.operand(0)
        if node.kind == "dequantize" and (codes is None or codes.meta is None):
            return "the dtype of its codes is not known"
        dims = codes_dims(meta.shape, quant.numbers)
        return dims if isinstance(dims, str) else ""

    def _quantize(self, node: Node, given: _Given) -> str:
        made = self._quantizer(node, given)
        self.graph.replace(node.outputs[0], made.outputs[0])
        return f"became a quantize of {given.numbers}"

    def _dequantize(self, node: Node, given: _Given) -> str:
        codes = node.operand(0)
        assert codes is not None and codes.meta is not None
        stored = codes_dtype(given.numbers)
        if codes.meta.dtype != stored:
            return f"its codes are {codes.meta.dtype}, ours would be {stored}"
        made = self._dequantizer(node, given, codes)
        self.graph.replace(node.outputs[0], made.outputs[0])
        return f"became a dequantize of {given.numbers}"

    def _fake_quantize(self, node: Node, given: _Given) -> str:
        lost = lost_in_codes(given.numbers)
        if lost or not self.splits(node):
            return self._one(node, given) + (f", one node: {lost}" if lost else "")
        q = self._quantizer(node, given)
        if given.scale is None:
            given = self._measured(q, given)
        dq = self._dequantizer(node, given, q.outputs[0])
        self.graph.replace(node.outputs[0], dq.outputs[0])
        return f"became a quantize and a dequantize of {given.numbers}"

    def _one(self, node: Node, given: _Given) -> str:
        """Fake-quantized at once, by one of ours."""
        gradient = "clipped" if given.scale is not None else "straight"
        quant = ours(given.numbers, quant_of(node).block, gradient=gradient)
        params = {"quant": quant, "gradient": gradient}
        metas = [node.outputs[0].meta]
        made = self.graph.make("fake_quantize", self._operands(node, given), metas, params, near=node)
        self.graph.replace(node.outputs[0], made.outputs[0])
        return f"became a fake_quantize of {given.numbers}"

    def _pair(self, node: Node) -> str:
        """A quantize whose codes mean something to its own dequantizes alone."""
        if node.kind != "quantize":
            return "the quantize that it belongs to is not right before it, or stays"
        quant, users = quant_of(node), node.outputs[0].users
        for user in users:
            if user.kind != "dequantize" or not self._belongs(user, node):
                return f"its codes are read by {user.name}, which is not its dequantize"
            foreign = quant_of(user).foreign
            if foreign is not None and foreign.why:
                return f"its codes are read by {user.name}: {foreign.why}"
        found = self._given(node, quant.foreign)
        if isinstance(found, str):
            return found
        given = found
        lost = lost_in_codes(quant.numbers)
        if lost or not self.splits(node):
            done = self._one(node, given)
            for user in users:
                source = user.operand(0)
                assert source is not None
                self.graph.replace(user.outputs[0], source)
                self.log.did(STAGE, user, f"{user.call.name} is part of the fake_quantize before it")
            self.graph.discard(users)
            return done + (f", one node: {lost}" if lost else "")
        made = self._quantizer(node, given)
        if given.scale is None:
            given = self._measured(made, given)
        for user in users:
            dq = self._dequantizer(user, given, made.outputs[0])
            self.graph.replace(user.outputs[0], dq.outputs[0])
            self.log.did(STAGE, user, f"{user.call.name} became a dequantize of {quant.numbers}")
        self.graph.discard(users)
        return f"became a quantize of {quant.numbers}"

    def _belongs(self, dequantize: Node, quantize: Node) -> bool:
        """Whether it decodes what the other made: in one layout, with one scale and zero point."""
        read, made = quant_of(dequantize), quant_of(quantize)
        if quantize.operand(1) is None and made.scale != "python":
            return read == made
        same = all(self._same(dequantize.operand(i), quantize.operand(i)) for i in (1, 2))
        return same and (read.numbers, read.block, read.scale) == (made.numbers, made.block, made.scale)

    def _same(self, a: Value | None, b: Value | None) -> bool:
        if a is None or b is None or a is b:
            return a is b
        one, other = self._known(a), self._known(b)
        return one is not None and other is not None and a.meta == b.meta and bool(np.all(one == other))

    # ------------------------------------------------------------------------------ nodes of ours

    def _operands(self, node: Node, given: _Given) -> list[Value | None]:
        found = [node.operand(0), given.scale, given.zero_point, given.tensor_scale]
        while found[-1] is None:
            found.pop()
        return found

    def _quantizer(self, node: Node, given: _Given) -> Node:
        """codes; where no scale is given scale, zero_point and tensor_scale too, as our dynamic_quantize."""
        quant, numbers = quant_of(node), given.numbers
        seed = _seed(node)
        x = node.operand(0)
        assert x is not None and x.meta is not None
        dims = codes_dims(x.meta.shape, numbers)
        assert not isinstance(dims, str)
        metas = [Meta(codes_dtype(numbers), dims)]
        fields: dict[str, Any] = {}
        if given.scale is None:
            metas += self._measured_metas(x.meta.shape, quant.block, numbers)
            fields = {
                "outputs": ("codes", "scale", "zero_point", "tensor_scale"),
                "zero_point": None if numbers.zero_point else 0,
            }
        params: dict[str, Any] = {"quant": ours(numbers, quant.block, seed, **fields)}
        if seed:
            params["seed"] = seed
        return self.graph.make(
            "quantize", self._operands(node, given), metas, params, near=node, name=f"{node.name}_q"
        )

    def _measured_metas(self, dims: Dims, block: tuple[int, ...], numbers: Numbers) -> list[Meta]:
        shape = scale_dims(dims, block)
        assert not isinstance(shape, str)
        return [
            Meta(SCALE_DTYPES[numbers.scale], shape),
            Meta("int32", shape if numbers.zero_point else (0,)),
            Meta("float32", () if numbers.tensor_scale else (0,)),
        ]

    def _measured(self, made: Node, given: _Given) -> _Given:
        """What a dynamic quantize makes, for its dequantize."""
        _, scale, zero, t = made.outputs
        numbers = given.numbers
        return _Given(
            numbers, scale, zero if numbers.zero_point else None, t if numbers.tensor_scale else None
        )

    def _dequantizer(self, node: Node, given: _Given, codes: Value) -> Node:
        meta = node.outputs[0].meta
        assert meta is not None
        quant = our_dequantize(given.numbers, quant_of(node).block, meta.dtype)
        operands = [codes, *self._operands(node, given)[1:]]
        return self.graph.make(
            "dequantize", operands, [meta], {"quant": quant}, near=node, name=f"{node.name}_dq"
        )

    # ------------------------------------------------------------------------------ parameters

    def _given(self, node: Node, foreign: Foreign | None) -> _Given | str:
        quant, meta = quant_of(node), logical_meta(node)
        assert meta is not None
        shape = scale_dims(meta.shape, quant.block)
        if isinstance(shape, str):
            return shape
        if foreign is None or (quant.scale != "python" and node.operand(1) is None):  # ours, or dynamic
            params = [node.operand(i) for i in (1, 2, 3)]
            return _Given(quant.numbers, *params)
        if any(not isinstance(n, int) for n in shape):
            return "the number of its scales is known only at run time"
        sizes = tuple(n for n in shape if isinstance(n, int))
        scale = self._scale(node, quant, foreign, sizes)
        zeros = scale if isinstance(scale, str) else self._zeros(node, quant, foreign, sizes)
        if isinstance(scale, str) or isinstance(zeros, str):
            return scale if isinstance(scale, str) else str(zeros)
        numbers = quant.numbers
        if isinstance(zeros, Value):
            return _Given(numbers, scale, zeros)
        if numbers.zero_point:
            low, high = numbers.quant_min or 0, numbers.quant_max or 0
            if not low <= 0 < high:
                return f"its zero point, 0, is not in {low}..{high}"
            numbers = replace(numbers, zero_point=False, rule=None)
        return _Given(numbers, scale)

    def _scale(self, node: Node, quant: Quant, foreign: Foreign, shape: tuple[int, ...]) -> Value | str:
        """A constant of full rank, in the dtype of the scale format."""
        numbers = quant.numbers
        meta = Meta(SCALE_DTYPES[numbers.scale], shape)
        if quant.scale == "python":
            assert foreign.scale is not None
            return self._constant(np.full(shape, foreign.scale, np.float32), meta, f"{node.name}_scale")
        value = node.operand(1)
        assert value is not None
        array = self._known(value)
        if array is None:
            return "its scale is known only at run time, and ours refuse one that is not positive and finite"
        with np.errstate(all="ignore"):
            wide = np.asarray(array).astype(np.float64).reshape(shape)
            narrow = wide.astype(TENSOR_DTYPES[numbers.scale])
            if (narrow.astype(np.float64) != wide).any():
                return f"its scales are not exact in {meta.dtype}"
            if not ((narrow > 0) & np.isfinite(narrow)).all():
                return "a scale is not positive and finite"
        return value if value.meta == meta else self._constant(narrow, meta, value.name)

    def _zeros(
        self, node: Node, quant: Quant, foreign: Foreign, shape: tuple[int, ...]
    ) -> Value | str | None:
        """A constant of full rank, None where all zero points are 0."""
        value = node.operand(2)
        array: Any = np.int64(quant.zero_point or 0) if value is None else self._known(value)
        if array is None:
            return "its zero point is known only at run time"
        array = np.asarray(array)
        if not (array != 0).any():
            return None
        if foreign.zero_only:
            return "its zero points are added before rounding"
        low, high = quant.numbers.quant_min or 0, quant.numbers.quant_max or 0
        wide = array.astype(np.float64)
        if not ((wide == np.rint(wide)) & (wide >= low) & (wide <= high)).all():
            return f"a zero point is no integer in {low}..{high}"
        meta = Meta("int32", shape)
        if value is not None and value.meta == meta:
            return value
        full = np.broadcast_to(array.reshape(()), shape) if array.size == 1 else array.reshape(shape)
        name = f"{node.name}_zero_point" if value is None else value.name
        return self._constant(full.astype(np.int32), meta, name)

    def _known(self, value: Value) -> Any:
        return None if value.const is None or value in self.graph.mutated else value.const.fetch()

    def _constant(self, array: Any, meta: Meta, name: str) -> Value:
        """One for all nodes with the same contents."""
        key = (meta, array.tobytes())
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = self.graph.constant(array, name, meta)
        return found


def _in_order(const: Const) -> Callable[[], Any]:
    return lambda: np.asarray(const.fetch(), order="C")


def _seed(node: Node) -> int:
    """Of one of ours."""
    if quant_of(node).foreign is not None:
        return 0
    return int(node.params.get("seed", quant_of(node).identity[0]))
