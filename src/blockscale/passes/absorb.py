"""Absorb: quantizes that undo a dequantize go, and what stands between works on codes.

    Q(f(DQ(c))) = f'(c)    f none, or it selects among its values: relu, clamp, max_pool, and for one scale
                           what only puts elements elsewhere, cat too

Both have the same static parameters, and every code survives DQ and Q (numerics.round_trip tries them), so
DQ is strictly monotone on codes and the intermediate rounding and saturation cannot be seen. A dynamic
quantize goes only where it stands directly on the dequantize of its equal, and would find its scales again.
Parameters that differ are a requantize, and stay.
"""

from __future__ import annotations

from blockscale.graph import survival
from blockscale.graph.on_codes import PLACED, SELECTS, OnCodes
from blockscale.graph.ops import reads_size
from blockscale.graph.overlay import Graph
from blockscale.graph.quant import layout_of, quant_of
from blockscale.graph.survival import numbers_alike, same_contents
from blockscale.graph.view import Node
from blockscale.numerics.layout import Layout
from blockscale.numerics.moves import Cat
from blockscale.passes.log import Log

STAGE = "absorb"
LONGEST = 256  # operators between that are looked through


def run(graph: Graph, log: Log) -> None:
    absorber = _Absorber(graph, log)
    for node in graph.nodes:
        if node.kind == "quantize" and node.outputs and node in graph:
            absorber.meet(node)


class _Absorber:
    def __init__(self, graph: Graph, log: Log) -> None:
        self.graph, self.log = graph, log
        self.on_codes = OnCodes(graph)
        self._ends: dict[
            Node, Node | None
        ] = {}  # what is walked up to from each node; None where it is no one

    def meet(self, node: Node) -> None:
        paths = _paths(node, self._ends)
        if paths is None:
            return
        sources, between = paths
        why = next((why for source in sources if (why := self._why_not(node, source, between))), "")
        if not why:
            find = self._dynamic if node.operand(1) is None else self._static
            why = find(node, sources, between)
        if why:
            self.log.left(STAGE, node, why)
        else:
            over = f" over {', '.join(one.name for one in between)}" if between else ""
            names = ", ".join(source.name for source in sources)
            self.log.did(STAGE, node, f"absorbed{over}: the codes of {names} stay what they are")
            self.graph.discard([node])

    def _why_not(self, node: Node, source: Node, between: list[Node]) -> str:
        for one in (node, source):
            if quant_of(one).foreign is not None or not one.call.pure:
                return f"{one.call.name} is no operator of ours"
        if numbers_alike(node) != numbers_alike(source):
            return f"{source.name} decodes {quant_of(source).numbers}: a requantize"
        for one in (source, *between, node):
            values = [*one.slots, *one.outputs]
            if any(value in self.graph.mutated for value in values if value is not None):
                return f"{one.name} shares memory that the graph writes to"
        for one in between:
            if _is_shared(one):
                return f"the float result of {one.name} is used elsewhere too"
        dtype = survival.dtype_of(source.outputs[0])
        if survival.dtype_of(node.operand(0)) != dtype:
            return "the dtype changes on the way"
        return "" if dtype in survival.FORMATS else "its floats are of an unknown dtype"

    # ------------------------------------------------------------------------------ dynamic

    def _dynamic(self, node: Node, sources: list[Node], between: list[Node]) -> str:
        """Q(DQ(Q(x))) = Q(x): its outputs are those of the quantize that came first."""
        if between:
            return f"its scales are measured after {between[0].name}"
        why = survival.dynamic_loss(node, sources[0])
        codes = sources[0].operand(0)
        if not why and codes is not None and codes.producer is not None:
            for mine, its in zip(node.outputs, codes.producer.outputs, strict=True):
                self.graph.replace(mine, its)
        return why

    # ------------------------------------------------------------------------------ static

    def _static(self, node: Node, sources: list[Node], between: list[Node]) -> str:
        if quant_of(node).outputs != ("codes",):
            return "it gives more than codes"
        for source in sources:
            why = self._loses(node, source, len(sources) > 1)
            if why:
                return why
        layout = layout_of(sources[0], self.graph.alphabet)
        steps = []
        for one in between:
            step = self.on_codes.step(one, layout, sources[0]) if isinstance(layout, Layout) else layout
            if isinstance(step, str):
                return f"{one.name}: {step}"
            steps.append(step)
        codes = {source.outputs[0]: source.slots[source.call.operands[0] or 0] for source in sources}
        for one, step in zip(between, steps, strict=True):
            given = [made for v in one.operands if v in codes and (made := codes[v]) is not None]
            made = codes[one.outputs[0]] = self.on_codes.apply(one, step, given)
            sizes = [use for use in one.outputs[0].uses if reads_size(use[0])]
            self.graph.replace(one.outputs[0], made, sizes)
        last, x = None, node.operand(0)
        if x is not None:
            last = codes[x]
        assert last is not None
        self.graph.replace(node.outputs[0], last)
        return ""

    def _loses(self, node: Node, source: Node, several: bool) -> str:
        """Why codes that `source` decodes are not those that `node` makes of their values."""
        for i in (1, 2, 3):
            if not same_contents(node.operand(i), source.operand(i)):
                return f"{source.name} has other parameters: a requantize"
        layout = layout_of(source, self.graph.alphabet)
        if isinstance(layout, str):
            return layout
        if not layout.per_tensor and several:
            return "the scales of its parts would have to follow a cat"
        if not layout.per_tensor and quant_of(node).block != quant_of(source).block:
            return f"its blocks are {quant_of(node).block}, those of {source.name} {quant_of(source).block}"
        return survival.static_loss(node, source)


def _is_shared(one: Node) -> bool:
    """Whether several nodes use its float result, and not its size alone."""
    first = None
    for user, _ in one.outputs[0].uses:
        if user.kind != "assert" and not reads_size(user):
            if first not in (None, user):
                return True
            first = user
    return False


def _paths(node: Node, ends: dict[Node, Node | None]) -> tuple[list[Node], list[Node]] | None:
    """The dequantizes that `node` gets its values from, and what stands between, in order; None where more does.

    What lies above a node that is used twice, and which another quantize was led to, is left out: `node` stays
    where it is for that node alone.
    """
    sources: dict[Node, None] = {}
    between: dict[Node, None] = {}
    seen: set[Node] = set()
    pending = [(node.operand(0), False)]
    while pending:
        x, done = pending.pop()
        one = x.producer if x is not None else None
        if len(seen) > LONGEST:
            return None
        if x is None or one is None or (not done and ends.get(one, one) is None):
            ends.update((below, None) for below in seen if below not in between)
            return None
        if not done and one not in seen and (end := ends.get(one)) is not None and _is_shared(one):
            sources[end] = between[one] = None
        elif one.kind == "dequantize":
            sources[one] = None
        elif done:
            between[one] = None
        elif one in seen:
            continue
        elif (
            not one.call.pure
            or x.index
            or not (type(one.params.get("move")) in PLACED or one.kind in SELECTS)
        ):
            ends.update((below, None) for below in seen if below not in between)
            return None
        else:
            seen.add(one)
            operands = one.operands if isinstance(one.params.get("move"), Cat) else one.operands[:1]
            pending += [(x, True), *((operand, False) for operand in operands)]
    if len(sources) == 1:
        ends.update(dict.fromkeys(between, next(iter(sources))))
    return list(sources), list(between)
