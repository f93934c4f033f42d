"""What a torch call does beside computing: drawing at random, writing to memory, sharing it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch
from torch import fx

from blockscale.graph.overlay import Graph
from blockscale.graph.view import Node, Value


class Facts:
    """What the schema and the tags of an overload say, looked at once.

    writes   arguments that it writes to
    shares   whether a result may have memory of an operand
    strides  whether it reads memory by strides of its own, so that the operand must stay in its place
    random   whether it draws
    plain    whether no call of it draws or writes, whatever its arguments
    fresh_sizes  whether a size of its result depends on data: a new symbol at every run on fake tensors
    """

    __slots__ = (
        "defaults", "fresh_sizes", "name", "names", "plain", "pure", "random", "shares", "strides", "writes",
    )  # fmt: skip

    def __init__(self, overload: torch._ops.OpOverload) -> None:
        self.name = str(overload)
        qualified = overload.name()  # type: ignore[no-untyped-call]
        schema, tags = overload._schema, overload.tags
        self.names = [a.name for a in schema.arguments]
        given = {a.name: _default(a) for a in schema.arguments if a.has_default_value()}
        self.defaults = {name: value for name, value in given.items() if value is not None}
        self.writes = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        if self.name == "aten.detach_.default":  # behind each torch.tensor(…); it writes no value
            self.writes = []
        self.random = torch.Tag.nondeterministic_seeded in tags
        self.fresh_sizes = bool({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(tags))
        self.shares = (
            any(r.alias_info is not None for r in schema.returns)
            or torch.Tag.maybe_aliasing_or_mutating in tags
            or "_unsafe_view" in self.name
            or torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "CompositeImplicitAutograd")
        )
        self.strides = "as_strided" in self.name or "_reshape_alias" in self.name
        self.pure = not self.writes and bool(schema.returns) and "sym_constrain" not in self.name
        draws = self.random or self.name in _ONLY_IF
        self.plain = not (draws or self.writes or self.strides)


# c10::ScalarType in order: schemas hold the default of a dtype argument as its number.
_DTYPES = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
    torch.float64, torch.complex32, torch.complex64, torch.complex128, torch.bool, torch.qint8, torch.quint8,
    torch.qint32, torch.bfloat16,
)  # fmt: skip


def _default(argument: Any) -> Any:
    value = argument.default_value
    is_dtype = str(argument.real_type) == "ScalarType" and isinstance(value, int)
    return _DTYPES[value] if is_dtype and value < len(_DTYPES) else value


@lru_cache(maxsize=4096)
def facts_of(overload: torch._ops.OpOverload) -> Facts:
    return Facts(overload)


# Operators that draw or write only where an argument says so: its name, and what it is when they do not.
_ONLY_IF: dict[str, tuple[str, Any]] = {
    "aten.dropout.default": ("train", False),
    "aten.feature_dropout.default": ("train", False),
    "aten.alpha_dropout.default": ("train", False),
    "aten.scaled_dot_product_attention.default": ("dropout_p", 0.0),
    "aten.batch_norm.default": ("training", False),
    "aten.instance_norm.default": ("use_input_stats", False),
}
_RUNNING = ("running_mean", "running_var")


def is_calm(facts: Facts, node: fx.Node) -> bool:
    """Whether this call neither draws nor writes where its operator might."""
    if facts.name not in _ONLY_IF:
        return not facts.random
    name, calm = _ONLY_IF[facts.name]
    given = dict(zip(facts.names, node.args, strict=False)) | node.kwargs
    return bool(given.get(name, facts.defaults.get(name)) == calm)


def calm_argument(facts: Facts) -> tuple[str, Any] | None:
    """The argument that says whether this operator draws or writes, and what it is when it does not."""
    return _ONLY_IF.get(facts.name)


def written_arguments(facts: Facts, node: fx.Node) -> list[str]:
    """Names of the arguments whose memory must be left alone because of this call."""
    if facts.strides:
        return facts.names[:1]
    if facts.writes or is_calm(facts, node):
        return facts.writes
    return [name for name in _RUNNING if name in facts.names]


# ------------------------------------------------------------------------- what has no schema


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ARITHMETIC = _words(
    "add sub mul floordiv truediv mod neg pow eq ne lt le gt ge sym_max sym_min sym_not sym_float sym_int "
    "sym_ite sym_sqrt getitem"
)
_FUNCTIONAL_BODIES = _words(
    "cond while_loop scan map_impl associative_scan flex_attention invoke_subgraph out_dtype strict_mode "
    "wrap_with_set_grad_enabled wrap_with_autocast hints_wrapper wrap_activation_checkpoint "
    "tag_activation_checkpoint"
)


def is_arithmetic(target: Callable[..., Any]) -> bool:
    """A function of Python or of sizes that only computes."""
    home = getattr(target, "__module__", "")
    return target.__name__ in _ARITHMETIC and home in ("_operator", "torch", "torch._C", "math")


def may_write(node: fx.Node, module: fx.GraphModule) -> bool:
    """Whether a call of a module, a method or a Python function may write to its operands."""
    if node.kwargs.get("inplace") or node.kwargs.get("out") is not None:
        return True
    if node.op == "call_module":
        return module_writes(module.get_submodule(str(node.target)))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name.startswith("i") and getattr(operator, name, None) is node.target
    return in_place or name == "setitem" or (name.endswith("_") and not name.endswith("__"))


def module_writes(module: torch.nn.Module) -> bool:
    if isinstance(module, fx.GraphModule):
        return any(_call_writes(node, module) for node in module.graph.nodes)
    known = type(module).__module__.startswith("torch.")
    return not known or any(getattr(m, "inplace", False) for m in module.modules())


def _call_writes(node: fx.Node, module: fx.GraphModule) -> bool:
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(written_arguments(facts_of(node.target), node))
    return node.op.startswith("call") and may_write(node, module)


def is_functional(name: str) -> bool:
    """Whether a higher-order operator does no more than run its bodies."""
    return name in _FUNCTIONAL_BODIES


def is_pure_control(name: str, bodies: Iterable[Graph]) -> bool:
    """Whether it does no more than run its bodies, and they only compute."""
    return is_functional(name) and all(
        node.call.pure or node.kind in ("output", "assert") for body in bodies for node in body.nodes
    )


# Operators whose bodies get what they are called with → where that stands. A loop's body gets what it made.
_HANDED: dict[str, Callable[[fx.Node], Any]] = {
    "cond": lambda node: node.args[3],
    "wrap_with_set_grad_enabled": lambda node: node.args[2:],
}


def handed(node: fx.Node, body: fx.GraphModule) -> dict[str, fx.Node]:
    """The inputs of a body, by name, that are values of the graph around it each time it runs."""
    operands = _HANDED.get(getattr(node.target, "__name__", ""))
    if operands is None:
        return {}
    inputs = body.graph.find_nodes(op="placeholder")
    pairs = zip(inputs, operands(node), strict=False)
    return {one.name: given for one, given in pairs if isinstance(given, fx.Node)}


# ------------------------------------------------------------------------- shared memory


def sharing(written: list[Value]) -> set[Value]:
    """All values that may share memory with a written one."""
    found: set[Value] = set()
    pending = list(written)
    while pending:
        value = pending.pop()
        if value in found:
            continue
        found.add(value)
        producer = value.producer
        if producer is not None and _shares(producer):
            pending += [v for v in producer.slots if v is not None]
        for user in value.users:
            if _shares(user):
                pending += user.outputs
    return found


# Of operators that torch composes of others, so that schemas say nothing: what these give is computed anew.
_FRESH = frozenset((
    "linear", "matmul", "conv", "conv_transpose", "sdpa", "layer_norm", "rms_norm", "softmax", "embedding",
))  # fmt: skip


def _shares(node: Node) -> bool:
    target = node.origin.target
    if node.kind in _FRESH:
        return False
    return (
        not isinstance(target, torch._ops.OpOverload)
        or facts_of(target).shares
        or bool(facts_of(target).writes)
    )
