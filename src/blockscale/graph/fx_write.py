"""Overlays → the torch.fx graph they were taken from: live edits replayed at once, one recompile.

New nodes get metadata by running them on fake tensors, once for each operator with given shapes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._prims_common import is_contiguous_or_false

from blockscale.errors import CombinationError
from blockscale.graph.fx import leaves
from blockscale.graph.fx_effects import facts_of
from blockscale.graph.fx_make import maker_of
from blockscale.graph.fx_meta import fake_mode
from blockscale.graph.fx_tensors import tensor_of
from blockscale.graph.overlay import Graph
from blockscale.graph.view import Made, Node, Value

_aten = torch.ops.aten
_ORDERED = (_aten.view.default, _aten._unsafe_view.default, _aten.view.dtype)


class Writer:
    """Replays one overlay onto its fx.Graph."""

    def __init__(
        self, graph: Graph, module: fx.GraphModule, add_constant: Callable[..., fx.Node] | None = None,
        results: dict[Any, Any] | None = None,
    ) -> None:  # fmt: skip
        self.overlay, self.module, self.fx = graph, module, module.graph
        self.add_constant = add_constant or self._buffer
        self.known_sizes: dict[tuple[fx.Node, int], fx.Node] = {}
        self.results = {} if results is None else results  # of calls on fake tensors; bodies share them
        self.facts: dict[int, tuple[Any, Any]] = {}  # by the id of metadata, which it keeps alive
        self.mode = fake_mode(self.fx)
        self.head = _last_input(self.fx)  # constants go behind it, in front of all that may need them
        self.cursor: fx.Node | None = None
        self.hoisted: set[fx.Node] = set()
        self.restrided: set[fx.Node] = set()  # of the model, with other strides than they had

    def commit(self) -> None:
        self.overlay.sweep()
        nodes = self.overlay.nodes
        turns = iter([n for n in nodes if n.origin is not None and n.origin.op != "output"])
        turns = iter(sorted(turns, key=lambda n: n.order))
        emitted: set[Node] = set()
        turn = next(turns, None)
        for node in nodes:
            emitted.add(node)
            if node.origin is None:
                self._create(node)
                continue
            in_turn = node is turn
            if not in_turn and node.origin.op != "output":
                self._after_cursor(node.origin)
            while turn is not None and turn in emitted:
                turn = next(turns, None)
            if node.origin.op != "output":
                self.cursor = node.origin
            self._outputs_of(node)
            rewired = node.dirty and self._rewire(node)
            if rewired or (self.restrided and not self.restrided.isdisjoint(leaves(node.origin))):
                self._restride(node.origin)
        self._erase(emitted)

    # ------------------------------------------------------------------------------ placing

    def _after_cursor(self, node: fx.Node) -> None:
        at = self.cursor or self.head
        if at.next is not node:
            at.append(node)
        self.cursor = node

    def _place(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> fx.Node:
        with self.fx.inserting_after(self.cursor or self.head):
            self.cursor = self.fx.create_node("call_function", target, args, kwargs, name=name)
        return self.cursor

    def _outputs_of(self, node: Node) -> None:
        """getitem nodes right behind what they read: new nodes may need them earlier than old ones did."""
        for i, value in enumerate(node.outputs):
            origin = value.origin
            if origin is None and value.uses:  # that nobody read before
                self._item(node.origin, i, value)
            elif isinstance(origin, fx.Node) and origin is not node.origin:
                self._after_cursor(origin)

    def _node_of(self, value: Value) -> fx.Node:
        if value.origin is None:
            if value.const is None:
                raise AssertionError(f"{value!r} is used before it is made")
            value.origin = self.add_constant(value)
        if value.origin.op == "get_attr" and value.origin not in self.hoisted:
            self._hoist(value.origin)
        found: fx.Node = value.origin
        return found

    def _hoist(self, constant: fx.Node) -> None:
        self.hoisted.add(constant)
        self.head.append(constant)
        self.head = constant

    def _buffer(self, value: Value) -> fx.Node:
        assert value.const is not None
        path, leaf = owner_of(self.module, value.name)
        tensor = tensor_of(value.const.fetch())
        owner = self.module.get_submodule(path)
        name = free_name(owner, leaf)
        owner.register_buffer(name, tensor)
        made = self.fx.get_attr(f"{path}.{name}" if path else name)
        self._hoist(made)
        made.meta["val"] = self.fake(tensor)
        return made

    # ------------------------------------------------------------------------------ nodes

    def _rewire(self, node: Node) -> bool:
        """Whether its operands have other metadata, or lie otherwise, than before."""
        origin = node.origin
        before = leaves(origin)
        args, kwargs = self._filled(origin, node.slots)
        origin.args = args
        if kwargs:
            origin.kwargs = kwargs
        after = leaves(origin)
        if len(before) != len(after) or not self.restrided.isdisjoint(before):
            return True
        return any(
            a is not b and self._facts(a) != self._facts(b) for a, b in zip(before, after, strict=True)
        )

    def _filled(self, template: fx.Node, slots: list[Value | None]) -> tuple[Any, Any]:
        """The arguments of `template` with its nodes replaced by `slots`, in order."""
        rest = iter(slots)

        def fill(argument: Any) -> Any:
            if isinstance(argument, fx.Node):
                value = next(rest)
                return None if value is None else self._node_of(value)
            if isinstance(argument, list | tuple):
                return type(argument)(fill(item) for item in argument)
            if isinstance(argument, dict):
                return {key: fill(item) for key, item in argument.items()}
            if isinstance(argument, slice):
                return slice(fill(argument.start), fill(argument.stop), fill(argument.step))
            return argument

        args = tuple(fill(argument) for argument in template.args)
        return args, {key: fill(argument) for key, argument in template.kwargs.items()}

    def _create(self, node: Node) -> None:
        made = node.made_by
        assert isinstance(made, Made)
        if made.like is not None:
            template = made.like.origin
            args, kwargs = self._filled(template, node.slots)
            target = template.target
            if made.changes:
                args, kwargs = self._changed(target, args, kwargs, made.changes, node)
        else:
            maker = maker_of(node)
            if maker is None:
                raise CombinationError(f"{node.where()}: no torch operator is known for kind {node.kind!r}")
            operands = [None if v is None else self._node_of(v) for v in node.operands]
            target, args, kwargs = maker(self, node, operands)
        created = self._place(target, args, kwargs, node.name)
        self._as_it_lies(created)
        self._meta(created, node)
        if len(node.outputs) == 1 and not isinstance(created.meta.get("val"), list | tuple):
            node.outputs[0].origin = created
        else:
            for i, value in enumerate(node.outputs):
                if value.uses:
                    self._item(created, i, value)
        node.origin = created

    def _item(self, source: fx.Node, index: int, value: Value) -> None:
        item = self._place(operator.getitem, (source, index), {}, value.name)
        found = source.meta.get("val")
        if found is not None:
            item.meta["val"] = found[index]
        value.origin = item

    def _changed(
        self,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        changes: Mapping[str, Any],
        node: Node,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        names = [a.name for a in target._schema.arguments]
        listed = list(args)
        for name, value in changes.items():
            value = self.literal(value, node)
            if name in names and names.index(name) < len(listed):
                listed[names.index(name)] = value
            else:
                kwargs = {**kwargs, name: value}
        return tuple(listed), kwargs

    def literal(self, value: Any, node: Node) -> Any:
        """Sizes as the graph can write them."""
        from blockscale.graph.dims import Sym

        if isinstance(value, tuple | list) and any(isinstance(v, Sym) for v in value):
            return [self.size(v, node) for v in value]
        return list(value) if isinstance(value, tuple) else value

    def size(self, dim: Any, node: Node) -> Any:
        """An integer, or a node that reads the size from an operand of `node` or of what made it."""
        if isinstance(dim, int):
            return dim
        seen: list[Value] = [v for v in node.slots if v is not None] + self.overlay.inputs
        for value in seen:
            if value.meta is None:
                continue
            for i, n in enumerate(value.meta.shape):
                if n == dim:
                    return self.size_of(self._node_of(value), i)
            if value.producer is not None and len(seen) < 64:
                seen += [v for v in value.producer.slots if v is not None and v not in seen]
        raise CombinationError(f"{node.where()}: no tensor in reach has a dimension of size {dim}")

    def size_of(self, source: fx.Node, index: int) -> fx.Node:
        key = source, index
        if key not in self.known_sizes:
            self.known_sizes[key] = self._place(
                torch.ops.aten.sym_size.int, (source, index), {}, f"{source.name}_size_{index}"
            )
            found = source.meta["val"].shape[index] if "val" in source.meta else None
            self.known_sizes[key].meta["val"] = found
        return self.known_sizes[key]

    # ------------------------------------------------------------------------------ metadata

    def fake(self, tensor: torch.Tensor) -> Any:
        if self.mode is None:
            return tensor.to("meta")
        return self.mode.from_tensor(tensor, static_shapes=True)

    def _meta(self, created: fx.Node, node: Node) -> None:
        near = node.made_by.like.origin if node.made_by and node.made_by.like else None
        if near is not None:
            created.meta.update({k: near.meta[k] for k in _PLACES if k in near.meta})
        made = self._result(created)
        if made is not None:
            created.meta["val"] = made

    def _result(self, node: fx.Node) -> Any:
        """What a call gives on fake tensors, None where that cannot be known; once for equal metadata."""
        if self.mode is None or any("val" not in n.meta for n in leaves(node)):
            return None
        key = (self.mode, node.target, self._frozen(node.args), self._frozen(node.kwargs))
        if key not in self.results:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            with self.mode:
                self.results[key] = node.target(*args, **kwargs)  # type: ignore[operator]
        return self.results[key]

    def _frozen(self, argument: Any) -> Any:
        """Arguments with tensors replaced by what decides the metadata of a result."""
        if argument.__class__ in _PLAIN:
            return argument.__class__, argument
        if isinstance(argument, fx.Node):
            return self._facts(argument)
        if isinstance(argument, _SEVERAL):
            return tuple([self._frozen(item) for item in argument])
        if isinstance(argument, dict):
            return tuple([(key, self._frozen(value)) for key, value in argument.items()])
        return (type(argument), repr(argument))

    def _facts(self, node: fx.Node) -> Any:
        found = node.meta.get("val")
        known = self.facts.get(id(found))
        if known is None:
            known = self.facts[id(found)] = found, _facts_of(found)
        return known[1]

    # ------------------------------------------------------------------------------ strides

    def _as_it_lies(self, node: fx.Node) -> None:
        """A view of what does not lie in order is written as a reshape; a cast of bits gets a copy in order."""
        if node.target not in _ORDERED:
            return
        source: Any = node.args[0]
        found = source.meta.get("val")
        if isinstance(found, torch.Tensor) and is_contiguous_or_false(found):
            return
        if node.target is not _aten.view.dtype:
            node.target = _aten.reshape.default
            node.args, node.kwargs = (*node.args, *node.kwargs.values()), {}
            return
        with self.fx.inserting_before(node):
            copy = self.fx.call_function(
                _aten.clone.default, (source,), {"memory_format": torch.contiguous_format}
            )
        copy.meta["val"] = self._result(copy)
        node.args = (copy, *node.args[1:])

    def _restride(self, node: fx.Node) -> None:
        """Strides of a node of the model whose operands are others, or lie otherwise, than before."""
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or facts_of(target).fresh_sizes:
            return
        self._as_it_lies(node)
        old, made = node.meta.get("val"), self._result(node)
        if old is None or made is None or _strides(old) == _strides(made):
            return
        node.meta["val"] = made
        self.restrided.add(node)
        for item in node.users if isinstance(made, list | tuple) else ():
            if item.target is operator.getitem:
                item.meta["val"] = made[item.args[1]]
                self.restrided.add(item)

    # ------------------------------------------------------------------------------ what is left over

    def _erase(self, live: set[Node]) -> None:
        kept = {node.origin for node in live}
        for node in reversed(self.fx.nodes):
            if node.op in ("placeholder", "output") or node in kept or node.users:
                continue
            if node.op == "get_attr" or node.target is operator.getitem or node.op.startswith("call"):
                self.fx.erase_node(node)


def _strides(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_strides(item) for item in value]
    return [str(n) for n in value.stride()] if isinstance(value, torch.Tensor) else None


def _last_input(graph: fx.Graph) -> fx.Node:
    """An unlifted program has its parameters (get_attr) before its inputs.

    One of PT2E has calls there as well, dequantizes of weights: inputs then go to the front.
    """
    inputs: list[fx.Node] = list(graph.find_nodes(op="placeholder"))
    if not inputs:
        root: fx.Node = graph._root
        return root
    first = next((node for node in graph.nodes if node.op == "call_function"), inputs[-1])
    if first < inputs[-1]:
        for node in reversed(inputs):
            graph._root.append(node)
    return inputs[-1]


_PLACES = ("nn_module_stack", "stack_trace", "source_fn_stack")
_PLAIN = frozenset((int, bool, str, type(None), torch.dtype))
_SEVERAL = (list, tuple)


def _facts_of(found: Any) -> Any:
    """What decides the metadata of a result; sizes known only at run time by their names, lest guards arise."""
    if isinstance(found, torch.Tensor):
        return found.dtype, _named(found.shape), _named(found.stride()), found.device
    return str(found)


def _named(sizes: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([n if n.__class__ is int else str(n) for n in sizes])


def owner_of(module: torch.nn.Module, name: str) -> tuple[str, str]:
    """The submodule that a constant called `name` belongs to, and its name there."""
    path, _, leaf = name.rpartition(".")
    try:
        module.get_submodule(path)
    except AttributeError:
        return "", name
    return path, leaf


def free_name(module: torch.nn.Module, hint: str) -> str:
    base = "".join(c if c.isalnum() else "_" for c in hint) or "constant"
    base = f"_{base}" if base[0].isdigit() else base
    name, count = base, 0
    while hasattr(module, name):
        count += 1
        name = f"{base}_{count}"
    return name
