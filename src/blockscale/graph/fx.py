"""torch.fx graphs and exported programs → overlays. `fx_write.commit` goes back.

An exported program's parameters, buffers and lifted constants are placeholders; its signature says so,
and here they are constants like the `get_attr` of a GraphModule.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from blockscale.errors import DtypeError
from blockscale.graph.args import Args, Unreadable
from blockscale.graph.dims import Alphabet, Dim, parsed
from blockscale.graph.ops import KIND_OF_ATEN
from blockscale.graph.overlay import Graph
from blockscale.graph.quantizers import READERS
from blockscale.graph.read_aten import READ
from blockscale.graph.view import NOTHING, Call, Const, Meta, Node, Value

Model = fx.GraphModule | ExportedProgram

_LIFTED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def snapshot(model: Model) -> Graph:
    """The overlay of a GraphModule or an ExportedProgram; nothing is changed."""
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

    def __init__(self, module: fx.GraphModule, alphabet: Alphabet, lifted: dict[str, Const]) -> None:
        self.module = module
        self.lifted = lifted
        self.graph = Graph("", alphabet)
        self.graph.origin = module
        self.graph.arguments = lambda node: _literal(node.origin)
        self.value_of: dict[fx.Node, Value] = {}
        self.several: dict[fx.Node, Node] = {}  # nodes whose outputs are read by getitem
        self.written: list[Value] = []
        for order, node in enumerate(module.graph.nodes, 1):
            getattr(self, node.op, self.call_other)(node, order)
        self.graph.mutated = _aliases(self.graph, self.written)

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
            meta = meta or _meta_of(found)
        self.value_of[node] = self.graph.add_constant(Value(str(node.target), meta, const=const, origin=node))

    def output(self, node: fx.Node, order: int) -> None:
        self._node(node, order, Call("output", "output", (), pure=False), self._slots(node), None)

    def call_other(self, node: fx.Node, order: int) -> None:
        """call_module and call_method: nothing is known of them, not even that they are pure."""
        call = Call("raw", f"{node.op}:{node.target}", (), pure=False)
        self._node(node, order, call, self._slots(node), [_meta(node)])

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
        made = Node(call, slots, node.name, order, node, _site(node))
        made.scope = _scope(node)
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
        self._bodies(node, made)

    def _call(self, node: fx.Node, slots: list[Value | None], outs: list[Meta | None]) -> Call:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            name = getattr(target, "__name__", str(target))
            pure = (
                isinstance(target, torch._ops.HigherOrderOperator)
                or target is operator.getitem
                or name in _ARITHMETIC
            )
            return Call("raw", name, (), pure=pure)
        name, facts = str(target), _facts(target)
        if facts.writes:
            self.written += [v for v in _written(node, facts, slots) if v is not None]
            return Call("raw", name, (), pure=False)
        row, reader = KIND_OF_ATEN.get(name), READERS.get(name)
        why = ""
        if row is not None or reader is not None:
            args = _args(node, facts, slots, outs, self.graph.alphabet)
            try:
                if reader is not None:
                    kind, operands, quant = reader(args)
                    return Call(
                        kind, name, tuple(args.slot(n) for n in operands), {"quant": quant}, facts.pure
                    )
                assert row is not None
                params = READ[row.kind](name, args) if row.kind in READ else {}
                return Call(row.kind, name, _operands(row.aten[name], args), params, facts.pure)
            except Unreadable as reason:
                why = str(reason)
        return Call("raw", name, (), {"why": why} if why else NOTHING, facts.pure)

    def _bodies(self, node: fx.Node, made: Node) -> None:
        if not isinstance(node.target, torch._ops.HigherOrderOperator):
            return
        for leaf in leaves(node):
            if leaf.op == "get_attr":
                body = self.module.get_submodule(str(leaf.target)) if _is_module(self.module, leaf) else None
                if isinstance(body, fx.GraphModule):
                    self.graph.bodies.append((made, _Reader(body, self.graph.alphabet, {}).graph))


_ARITHMETIC = frozenset(
    (
        "add",
        "sub",
        "mul",
        "floordiv",
        "truediv",
        "mod",
        "neg",
        "pow",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "sym_max",
        "sym_min",
    )
)


def _is_module(module: fx.GraphModule, node: fx.Node) -> bool:
    return any(name == node.target for name, _ in module.named_modules())


def _operands(names: str, args: Args) -> tuple[int | None, ...]:
    words = names.split()
    if len(words) == 1 and isinstance(args.tensors.get(words[0]), list):
        return args.slot_list(words[0])
    return tuple(args.slot(word) for word in words)


# ------------------------------------------------------------------------------------------ arguments


class _Facts:
    """What the schema of an overload says, looked at once."""

    __slots__ = ("defaults", "names", "pure", "writes")

    def __init__(self, overload: torch._ops.OpOverload) -> None:
        arguments = overload._schema.arguments
        self.names = [a.name for a in arguments]
        self.defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
        self.writes = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
        random = torch.Tag.nondeterministic_seeded in overload.tags
        returns = bool(overload._schema.returns)
        self.pure = not self.writes and not random and returns and "sym_constrain" not in str(overload)
        self.pure |= str(overload) == "aten.dropout.default"


@lru_cache(maxsize=4096)
def _facts(overload: torch._ops.OpOverload) -> _Facts:
    return _Facts(overload)


def leaves(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes among its arguments, in order, repeats included."""
    for argument in node.args:
        yield from _leaves_of(argument)
    for argument in node.kwargs.values():
        yield from _leaves_of(argument)


def _leaves_of(argument: Any) -> Iterator[fx.Node]:
    if isinstance(argument, fx.Node):
        yield argument
    elif isinstance(argument, list | tuple):
        for item in argument:
            yield from _leaves_of(item)
    elif isinstance(argument, dict):
        for item in argument.values():
            yield from _leaves_of(item)
    elif isinstance(argument, slice):
        for item in (argument.start, argument.stop, argument.step):
            yield from _leaves_of(item)


def _args(
    node: fx.Node, facts: _Facts, slots: list[Value | None], outs: list[Meta | None], alphabet: Alphabet
) -> Args:
    """Arguments by name; a size that is computed in the graph becomes its Value."""
    tensors: dict[str, Any] = {}
    others: dict[str, Any] = {name: value for name, value in facts.defaults.items() if value is not None}
    at = 0

    def place(argument: Any) -> Any:
        nonlocal at
        if isinstance(argument, fx.Node):
            at += 1
            return _Slot(at - 1)
        if isinstance(argument, list | tuple):
            return [place(item) for item in argument]
        return argument

    bound = list(zip(facts.names, node.args, strict=False)) + list(node.kwargs.items())
    for name, argument in bound:
        placed = place(argument)
        if isinstance(placed, _Slot):
            value = slots[placed.index]
            tensors[name] = placed.index
            if (
                value is not None
                and value.meta is None
                and isinstance(_val(value.origin), torch.SymInt | int)
            ):
                others[name] = value
                tensors.pop(name)
        elif isinstance(placed, list) and any(isinstance(p, _Slot) for p in placed):
            if all(isinstance(p, _Slot) or p is None for p in placed) and _is_tensors(placed, slots):
                tensors[name] = [None if p is None else p.index for p in placed]
            else:
                others[name] = [slots[p.index] if isinstance(p, _Slot) else p for p in placed]
        else:
            others[name] = placed
    return Args(slots, tensors, others, outs, alphabet)


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
    if isinstance(argument, list | tuple):
        return tuple(_hashable(item) for item in argument)
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
    return _meta_of(found)


def _meta_of(found: Any) -> Meta | None:
    shape = getattr(found, "shape", None)
    if shape is None or not hasattr(found, "dtype"):
        return None
    return Meta(dtype_name(found.dtype), tuple([n if n.__class__ is int else dim_of(n) for n in shape]))


def array_of(tensor: torch.Tensor) -> Any:
    """The same memory as a numpy array, where the tensor is contiguous on the CPU."""
    tensor = tensor.detach().cpu()
    name = dtype_name(tensor.dtype)
    if name.startswith(("bfloat16", "float8", "float4")):
        import ml_dtypes

        plain = torch.uint8 if tensor.element_size() == 1 else torch.int16
        return tensor.contiguous().view(plain).numpy().view(getattr(ml_dtypes, name))
    return tensor.numpy()


_DTYPE_NAMES: dict[torch.dtype, str] = {}


def dtype_name(dtype: torch.dtype) -> str:
    found = _DTYPE_NAMES.get(dtype)
    if found is None:
        found = _DTYPE_NAMES[dtype] = str(dtype).removeprefix("torch.")
    return found


def dim_of(n: Any) -> Dim:
    if isinstance(n, torch.SymInt):
        node = n.node
        if node.is_constant() or node.expr.is_number:
            return int(node.expr)
        return parsed(str(node.expr))
    return int(n)


def _output_metas(node: fx.Node) -> list[Meta | None]:
    found = node.meta.get("val")
    if isinstance(found, list | tuple):
        return [_meta_of(item) for item in found]
    if found is None and _is_several(node):
        indices = [int(user.args[1]) for user in node.users]  # type: ignore[arg-type]
        return [None] * (max(indices) + 1)
    returns = node.target._schema.returns if isinstance(node.target, torch._ops.OpOverload) else (None,)
    return [_meta(node)] if returns or node.users else []


def _is_several(node: fx.Node) -> bool:
    """Whether getitem reads its outputs, and nothing else does."""
    users = node.users
    found = node.meta.get("val")
    if isinstance(found, list | tuple):
        return all(user.target is operator.getitem for user in users)
    return found is None and bool(users) and all(user.target is operator.getitem for user in users)


def _scope(node: fx.Node) -> str:
    """Path of the innermost module; torch counts the further calls of a module as `key@1`, …"""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    key, (path, _) = list(stack.items())[-1]
    _, again, count = str(key).rpartition("@")
    return str(path).removeprefix("L['self'].").replace("L__self___", "") + (again + count if again else "")


_TORCH = os.path.dirname(torch.__file__) + os.sep


def _site(node: fx.Node) -> str:
    """Module path and source line, as far as torch kept them; the line in the model, not in torch."""
    parts = [_scope(node)]
    trace = node.meta.get("stack_trace")
    if trace:
        lines = [line.strip() for line in trace.strip().split("\n") if line.strip().startswith("File ")]
        own = [line for line in lines if _TORCH not in line] or lines
        parts += own[-1:]
    return ", ".join(part for part in parts if part)


# ------------------------------------------------------------------------------------------ mutation


def _written(node: fx.Node, facts: _Facts, slots: list[Value | None]) -> Iterator[Value | None]:
    args = _args(node, facts, slots, [], Alphabet())
    for name in facts.writes:
        found = args.tensors.get(name)
        for slot in found if isinstance(found, list) else [found]:
            if slot is not None:
                yield slots[slot]


_VIEWS = frozenset(("identity", "reshape", "permute", "expand", "slice", "split"))


def _aliases(graph: Graph, written: list[Value]) -> set[Value]:
    """All values that may share memory with a written one."""
    found: set[Value] = set()
    pending = list(written)
    while pending:
        value = pending.pop()
        if value in found:
            continue
        found.add(value)
        producer = value.producer
        if producer is not None and (producer.kind in _VIEWS or not producer.call.pure):
            pending += [v for v in producer.slots if v is not None]
        for user in value.users:
            if user.kind in _VIEWS or not user.call.pure:
                pending += user.outputs
    return found
