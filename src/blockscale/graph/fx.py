"""torch.fx graphs and exported programs → overlays. `fx_write.commit` goes back.

An exported program's parameters, buffers and lifted constants are placeholders; its signature says so,
and here they are constants like the `get_attr` of a GraphModule.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from blockscale.errors import DtypeError
from blockscale.graph.args import Args, Unreadable
from blockscale.graph.dims import Alphabet
from blockscale.graph.fused import FUSED_OPS, ROW_OF
from blockscale.graph.fused_read import READ_FUSED
from blockscale.graph.fx_effects import (
    Facts,
    facts_of,
    handed,
    is_arithmetic,
    is_calm,
    is_functional,
    is_pure_control,
    may_write,
    sharing,
    written_arguments,
)
from blockscale.graph.fx_meta import complete
from blockscale.graph.fx_tensors import array_of, meta_of
from blockscale.graph.ops import KIND_OF_ATEN
from blockscale.graph.overlay import Graph
from blockscale.graph.quantizers import READERS
from blockscale.graph.read_aten import READ as READ_ATEN
from blockscale.graph.view import NOTHING, Call, Const, Meta, Node, Value

Model = fx.GraphModule | ExportedProgram

READ = READ_ATEN | READ_FUSED
_ROWS = FUSED_OPS | KIND_OF_ATEN

_LIFTED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def snapshot(model: Model) -> Graph:
    """The overlay of a GraphModule or an ExportedProgram; nothing but metadata that it lacks is changed."""
    if isinstance(model, ExportedProgram):
        return _Reader(model.graph_module, Alphabet(), _lifted(model)).graph
    if isinstance(model, fx.GraphModule):
        return _Reader(model, Alphabet(), {}).graph
    raise DtypeError(
        "model", type(model).__name__, "a torch.fx.GraphModule or a torch.export.ExportedProgram"
    )


def _lifted(program: ExportedProgram) -> dict[str, Const]:
    """Placeholder name → its contents; buffers that the program writes to are no constants."""
    written = set(program.graph_signature.buffers_to_mutate.values())
    result = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind in _LIFTED and spec.target not in written:
            target = str(spec.target)
            table = program.state_dict if target in program.state_dict else program.constants
            if target in table:
                result[spec.arg.name] = _const(table, target)
    return result


def _const(table: Any, target: str) -> Const:
    return Const(lambda: array_of(table[target]), target)


class _Reader:
    """One pass over an fx.Graph."""

    def __init__(
        self, module: fx.GraphModule, alphabet: Alphabet, lifted: dict[str, Const], prefix: str = ""
    ) -> None:
        self.module = module
        self.lifted = lifted
        self.graph = Graph("", alphabet)
        self.graph.prefix = prefix
        self.graph.origin = module
        self.graph.arguments = lru_cache(maxsize=None)(lambda node: _literal(node.origin))
        self.graph.written = self._written
        self.graph.lacks = _lacks
        self.graph.fusible = ROW_OF
        self.value_of: dict[fx.Node, Value] = {}
        self.several: dict[fx.Node, Node] = {}  # nodes whose outputs are read by getitem
        self.written: list[Value] = []
        self.bodies_of: dict[fx.Node, list[Graph]] = {}
        self.handed: dict[Value, list[Value]] = {}  # constants, and what bodies call them
        self.submodules = dict(module.named_modules())
        complete(module)
        for order, node in enumerate(module.graph.nodes, 1):
            getattr(self, node.op, self.call_other)(node, order)
        self.graph.mutated = sharing(self.written)
        for value in self.graph.mutated:
            value.const = None  # what it holds changes
            for inside in self.handed.get(value, ()):
                inside.const = None

    # ------------------------------------------------------------------------------ what is no call

    def placeholder(self, node: fx.Node, order: int) -> None:
        const = self.lifted.get(node.name)
        value = Value(const.name if const else node.name, _meta(node), const=const, origin=node)
        self.value_of[node] = value
        (self.graph.add_constant if const else self.graph.add_input)(value)

    def get_attr(self, node: fx.Node, order: int) -> None:
        found: Any = self.module
        for part in str(node.target).split("."):
            found = getattr(found, part)
        const = None
        meta = _meta(node)
        if isinstance(found, torch.Tensor):
            const = Const(partial(array_of, found), str(node.target))
            meta = meta or meta_of(found)
        self.value_of[node] = self.graph.add_constant(Value(str(node.target), meta, const=const, origin=node))

    def output(self, node: fx.Node, order: int) -> None:
        self._node(node, order, Call("output", "output", (), pure=False), self._slots(node), None)

    def call_other(self, node: fx.Node, order: int) -> None:
        slots = self._slots(node)
        self._node(node, order, self._unschemed(node, slots), slots, _output_metas(node))

    # ------------------------------------------------------------------------------ calls

    def call_function(self, node: fx.Node, order: int) -> None:
        if node.target is operator.getitem and node.args[0] in self.several:
            made = self.several[node.args[0]]  # type: ignore[index]
            index: Any = node.args[1]
            value = made.outputs[index]
            if value.origin is None:
                value.origin, value.name = node, node.name
            self.value_of[node] = value
            return
        slots = self._slots(node)
        outs = _output_metas(node)
        call = self._call(node, slots, outs)
        self._node(node, order, call, slots, outs)

    def _slots(self, node: fx.Node) -> list[Value | None]:
        return [self.value_of[leaf] for leaf in leaves(node)]

    def _node(
        self, node: fx.Node, order: int, call: Call, slots: list[Value | None], outs: list[Meta | None] | None
    ) -> None:
        scope = _scope(node)
        made = Node(call, slots, node.name, order, node, _site(scope, node.meta.get("stack_trace")))
        made.scope = scope
        if outs is not None:
            several = _is_several(node)
            made.outputs = [
                Value(node.name, meta, made, i, origin=None if several else node)
                for i, meta in enumerate(outs)
            ]
            if several:
                self.several[node] = made
            elif outs:
                self.value_of[node] = made.outputs[0]
        self.graph.add_node(made)
        if node in self.bodies_of:
            self.graph.bodies += [(made, body) for body in self.bodies_of.pop(node)]

    def _call(self, node: fx.Node, slots: list[Value | None], outs: list[Meta | None]) -> Call:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            return self._unschemed(node, slots)
        facts = facts_of(target)
        name = facts.name
        pure = facts.pure and (facts.plain or is_calm(facts, node))
        writes = () if facts.plain else written_arguments(facts, node)
        if writes:
            args = _args(node, facts, slots, outs, self.graph.alphabet)
            self.written += [v for argument in writes for v in args.values(argument)]
            return Call("raw", name, (), pure=pure)
        row, reader = _ROWS.get(name), READERS.get(name)
        why = ""
        if row is not None or reader is not None:
            args = _args(node, facts, slots, outs, self.graph.alphabet)
            try:
                if reader is not None:
                    kind, operands, quant = reader(args)
                    return Call(kind, name, tuple(args.slot(n) for n in operands), {"quant": quant}, pure)
                assert row is not None
                params = READ[row.kind](name, args) if row.kind in READ else {}
                return Call(row.kind, name, _operands(row.aten[name], args), params, pure)
            except Unreadable as reason:
                why = str(reason)
        return Call("raw", name, (), {"why": why} if why else NOTHING, pure)

    def _written(self, node: Node) -> Mapping[str, Any]:
        target = node.origin.target
        if not isinstance(target, torch._ops.OpOverload):
            return NOTHING
        return _args(node.origin, facts_of(target), node.slots, [], self.graph.alphabet).others

    def _unschemed(self, node: fx.Node, slots: list[Value | None]) -> Call:
        """Python functions and operators with bodies; also call_module and call_method."""
        target: Any = node.target
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        if isinstance(target, torch._ops.HigherOrderOperator):
            bodies = self._bodies(node)
            pure = is_pure_control(name, bodies)
            inputs_written = any(
                v in body.mutated for body in bodies for v in (*body.inputs, *body.constants)
            )
            if inputs_written or not (pure or is_functional(name)):
                self.written += [v for v in slots if v is not None]
            return Call("raw", name, (), pure=pure)
        if node.op == "call_function" and is_arithmetic(target) and "out" not in node.kwargs:
            return Call("raw", name, ())
        if may_write(node, self.module):
            self.written += [v for v in slots if v is not None]
        return Call("raw", f"{node.op}:{name}", (), pure=False)

    def _bodies(self, node: fx.Node) -> list[Graph]:
        """The graphs that the operator runs, which become bodies of its node."""
        found = []
        for leaf in leaves(node):
            body = self.submodules.get(str(leaf.target)) if leaf.op == "get_attr" else None
            if isinstance(body, fx.GraphModule):
                path = f"{self.graph.prefix}{leaf.target}."
                found.append(self._body(body, path, handed(node, body)))
        self.bodies_of[node] = found
        return found

    def _body(self, body: fx.GraphModule, path: str, given: dict[str, fx.Node]) -> Graph:
        """What is a constant here is one there, under another name."""
        values = {name: self.value_of[one] for name, one in given.items()}
        lifted = {name: value.const for name, value in values.items() if value.const is not None}
        reader = _Reader(body, self.graph.alphabet, lifted, path)
        for inside in reader.graph.constants:
            if inside.origin.name in lifted:
                self.handed.setdefault(values[inside.origin.name], []).append(inside)
        return reader.graph


def _lacks(kind: str, dtype: str) -> bool:
    """torch keeps, views and copies every type; it computes with few."""
    if kind == "flip":
        return dtype.startswith("float8") or dtype in ("uint16", "uint32", "uint64")
    computes = kind in ("neg", "abs", "relu", "flip_bit", "clear_bit")
    return computes and (dtype.startswith("float8") or dtype in ("uint16", "uint32", "uint64"))


def _operands(names: str, args: Args) -> tuple[int | None, ...]:
    words = names.split()
    if len(words) == 1 and isinstance(args.tensors.get(words[0]), list):
        return args.slot_list(words[0])
    return tuple(args.slot(word) for word in words)


# ------------------------------------------------------------------------------------------ arguments


_SEVERAL = (list, tuple)  # isinstance is faster with it than with a union
_PLAIN = frozenset((int, float, bool, str, type(None), torch.dtype))


def leaves(node: fx.Node) -> list[fx.Node]:
    """The nodes among its arguments, in order, repeats included."""
    found: list[fx.Node] = []
    _add_leaves(node.args, found)
    if node.kwargs:
        _add_leaves(node.kwargs.values(), found)
    return found


def _add_leaves(arguments: Iterable[Any], found: list[fx.Node]) -> None:
    for argument in arguments:
        if argument.__class__ in _PLAIN:
            continue
        if isinstance(argument, fx.Node):
            found.append(argument)
        elif isinstance(argument, _SEVERAL):
            _add_leaves(argument, found)
        elif isinstance(argument, dict):
            _add_leaves(argument.values(), found)
        elif isinstance(argument, slice):
            _add_leaves((argument.start, argument.stop, argument.step), found)


def _args(
    node: fx.Node, facts: Facts, slots: list[Value | None], outs: list[Meta | None], alphabet: Alphabet
) -> Args:
    """Arguments by name; a size that is computed in the graph becomes its Value."""
    tensors: dict[str, Any] = {}
    others: dict[str, Any] = dict(facts.defaults)
    rest = iter(range(len(slots)))  # the slots, in order of the nodes among the arguments

    def place(argument: Any) -> Any:
        if argument.__class__ in _PLAIN:
            return argument
        if isinstance(argument, fx.Node):
            return _Slot(next(rest))
        if isinstance(argument, _SEVERAL):
            return [place(item) for item in argument]
        return argument

    bound: Iterable[tuple[str, Any]] = zip(facts.names, node.args, strict=False)
    for name, argument in (*bound, *node.kwargs.items()) if node.kwargs else bound:
        if argument.__class__ in _PLAIN:
            others[name] = argument
            continue
        placed = place(argument)
        if isinstance(placed, _Slot):
            value = slots[placed.index]
            if value is not None and value.meta is None and isinstance(_val(value.origin), _SIZES):
                others[name] = value
            else:
                tensors[name] = placed.index
        elif isinstance(placed, list) and any([isinstance(p, _Slot) for p in placed]):
            if all(isinstance(p, _Slot) or p is None for p in placed) and _is_tensors(placed, slots):
                tensors[name] = [None if p is None else p.index for p in placed]
            else:
                others[name] = [slots[p.index] if isinstance(p, _Slot) else p for p in placed]
        else:
            others[name] = placed
    return Args(slots, tensors, others, outs, alphabet)


_SIZES = (torch.SymInt, int)


class _Slot:
    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


def _is_tensors(placed: list[Any], slots: list[Value | None]) -> bool:
    values = [slots[p.index] for p in placed if p is not None]
    return any(v is not None and v.meta is not None for v in values)


def _literal(node: fx.Node) -> Any:
    """The arguments with nodes left out, hashable: what two equal calls have in common."""
    kwargs = sorted(node.kwargs.items())
    return _hashable(node.args), tuple((name, _hashable(value)) for name, value in kwargs)


def _hashable(argument: Any) -> Any:
    if isinstance(argument, fx.Node):
        return "%"
    if isinstance(argument, _SEVERAL):
        return tuple([_hashable(item) for item in argument])
    if isinstance(argument, dict):
        return tuple((key, _hashable(value)) for key, value in argument.items())
    # 1 == 1.0 == True, and they mean different things.
    return (type(argument).__name__, repr(argument) if isinstance(argument, float | slice) else argument)


# ------------------------------------------------------------------------------------------ metadata


def _val(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, fx.Node) else None


def _meta(node: fx.Node) -> Meta | None:
    found = node.meta.get("val")
    if found is None:
        found = node.meta.get("tensor_meta")
    return meta_of(found)


def _output_metas(node: fx.Node) -> list[Meta | None]:
    found = node.meta.get("val")
    several = _is_several(node)
    if isinstance(found, _SEVERAL):
        return [meta_of(item) for item in found] if several else [None]
    if several:
        return [None] * (1 + max(int(user.args[1]) for user in node.users))  # type: ignore[arg-type]
    returns = node.target._schema.returns if isinstance(node.target, torch._ops.OpOverload) else (None,)
    return [_meta(node)] if returns or node.users else []


def _is_several(node: fx.Node) -> bool:
    """Whether getitem reads its outputs, and nothing else does."""
    found = node.meta.get("val")
    if found is not None and not isinstance(found, _SEVERAL):
        return False
    if not all(user.target is operator.getitem and user.args[0] is node for user in node.users):
        return False
    if found is not None:
        return True
    indices = [user.args[1] for user in node.users]
    return bool(indices) and all(isinstance(i, int) and i >= 0 for i in indices)


def _scope(node: fx.Node) -> str:
    """Path of the innermost module; torch counts the further calls of a module as `key@1`, …"""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    key = next(reversed(stack))
    return _path(str(key), str(stack[key][0]))


@lru_cache(maxsize=4096)
def _path(key: str, path: str) -> str:
    _, again, count = key.rpartition("@")
    return path.removeprefix("L['self'].").replace("L__self___", "") + (again + count if again else "")


_TORCH = os.path.dirname(torch.__file__) + os.sep


def _site(scope: str, trace: str | None) -> str:
    """Module path and source line, as far as torch kept them; the line in the model, not in torch."""
    line = _line(trace) if trace else ""
    return f"{scope}, {line}" if scope and line else scope or line


@lru_cache(maxsize=4096)
def _line(trace: str) -> str:
    lines = [line.strip() for line in trace.strip().split("\n") if line.strip().startswith("File ")]
    own = [line for line in lines if _TORCH not in line] or lines
    return own[-1] if own else ""
