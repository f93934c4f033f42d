"""What the tests of passes share: FX graphs built node by node, run and compared before and after.

Metadata comes from fake tensors as torch.export's does, so sizes may be symbolic.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils import _pytree as pytree

import blockscale.runtime.torch_ops  # noqa: F401  the operators exist
from blockscale.graph.fx import snapshot
from blockscale.graph.fx_program import commit
from blockscale.graph.overlay import Graph
from blockscale.numerics.layout import bind
from blockscale.numerics.moves import Move
from blockscale.numerics.scheme import Scheme, scheme_named
from blockscale.passes import cse, lift, sink
from blockscale.passes.log import Log, counts
from numerics.moving import mixed
from passes.fx_moves import moved
from runtime.torch_cases import equal

ours = torch.ops.blockscale
aten = torch.ops.aten
Stage = Callable[[Graph, Log], None]
MOTION: tuple[Stage, ...] = (cse.run, lift.run, cse.run, sink.run, cse.run)


class Builder:
    """An fx.Graph that grows; every node knows its metadata at once."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(shape_env=ShapeEnv())
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.examples: list[Tensor] = []

    def input(self, *shape: int, dtype: torch.dtype = torch.float32, dynamic: Sequence[int] = ()) -> fx.Node:
        """A float input; the sizes of the `dynamic` dimensions are symbols."""
        return self.given(example(shape, len(self.examples)).to(dtype), dynamic)

    def given(self, tensor: Tensor, dynamic: Sequence[int] = ()) -> fx.Node:
        self.examples.append(tensor)
        sizes = [DimDynamic.DYNAMIC if i in dynamic else DimDynamic.STATIC for i in range(tensor.dim())]
        context = StatelessSymbolicContext(dynamic_sizes=sizes, constraint_sizes=[None] * tensor.dim())
        node = self.graph.placeholder(f"x{len(self.examples)}")
        node.meta["val"] = self.mode.from_tensor(tensor, symbolic_context=context)
        return node

    def constant(self, tensor: Tensor) -> fx.Node:
        name = f"buffer{len(dict(self.root.named_buffers()))}"
        self.root.register_buffer(name, tensor)
        node = self.graph.get_attr(name)
        node.meta["val"] = self.mode.from_tensor(tensor, static_shapes=True)
        return node

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        with self.mode:
            value = target(*fx.map_arg(args, _val), **fx.map_arg(kwargs, _val))
        node = self.graph.call_function(target, args, kwargs)
        node.meta["val"] = value
        return node

    def move(self, x: Any, move: Move) -> Any:
        """Of one node, or of a list for Cat; a list of nodes for Split."""
        return moved(self, x, move)

    def size(self, x: fx.Node, dim: int) -> Any:
        """The size as an argument: a number, or a node that reads it."""
        size = x.meta["val"].shape[dim]
        return self.call(aten.sym_size.int, x, dim) if isinstance(size, torch.SymInt) else size

    def sizes(self, x: fx.Node) -> list[Any]:
        return [self.size(x, i) for i in range(x.meta["val"].dim())]

    def items(self, node: fx.Node) -> list[fx.Node]:
        made = []
        for i, value in enumerate(node.meta["val"]):
            item = self.graph.call_function(operator.getitem, (node, i))
            item.meta["val"] = value
            made.append(item)
        return made

    # ------------------------------------------------------------------------ quantizers

    def place(
        self, x: fx.Node, scheme: str | Scheme, block: Sequence[int] | None = None
    ) -> tuple[str, list[int]]:
        found = scheme_named(scheme) if isinstance(scheme, str) else scheme
        rank = x.meta["val"].dim()
        return str(found.numbers), list(block if block is not None else bind(found, (1,) * rank).block)

    def measure(
        self, x: fx.Node, scheme: str | Scheme, block: Sequence[int] | None = None, *given: Any
    ) -> list[fx.Node]:
        """codes, scale, zero point and tensor scale of a dynamic quantize."""
        return self.items(self.call(ours.dynamic_quantize.default, x, *self.place(x, scheme, block), *given))

    def fake(
        self, x: fx.Node, scheme: str | Scheme, block: Sequence[int] | None = None, *given: Any
    ) -> fx.Node:
        return self.call(ours.fake_quantize.default, x, *self.place(x, scheme, block), *given)

    def quantize(
        self, x: fx.Node, scheme: str | Scheme, block: Sequence[int] | None, scale: fx.Node, *more: Any
    ) -> fx.Node:
        return self.call(ours.quantize.default, x, *self.place(x, scheme, block), scale, *more)

    def dequantize(
        self,
        q: Sequence[fx.Node | None],
        like: fx.Node,
        scheme: str | Scheme,
        block: Sequence[int] | None = None,
    ) -> fx.Node:
        """`like` has the shape and the dtype of the result."""
        numbers, block = self.place(like, scheme, block)
        params = [*q[1:], None, None, None][:3]
        return self.call(
            ours.dequantize.default,
            q[0],
            *params,
            numbers,
            self.sizes(like),
            block,
            dtype=like.meta["val"].dtype,
        )

    def done(self, *outputs: Any) -> fx.GraphModule:
        self.graph.output(outputs)
        module = fx.GraphModule(self.root, self.graph)
        module.graph.lint()
        return module


def _val(node: fx.Node) -> Any:
    return node.meta["val"]


def example(shape: Sequence[int], seed: int = 0) -> Tensor:
    """Many magnitudes, halves, zeros of both signs, NaN and Inf."""
    return torch.from_numpy(mixed(seed, tuple(shape)))


# -------------------------------------------------------------------------- run, compare, check


def optimize(module: fx.GraphModule, stages: Sequence[Stage] = MOTION) -> Log:
    """`module`, changed in place."""
    graph = snapshot(module)
    log = Log(before=counts(graph))
    for stage in stages:
        stage(graph, log)
    log.after = counts(graph)
    commit(graph, module)
    return log


def run(module: Any, inputs: Sequence[Tensor]) -> list[Any]:
    """All results, and what became of the inputs."""
    given = [x.clone() for x in inputs]
    results = pytree.tree_leaves(module(*given))
    return [*results, *given]


def assert_equal(a: Sequence[Any], b: Sequence[Any]) -> None:
    """The same bits; any NaN equals any other."""
    assert len(a) == len(b)
    for i, (one, other) in enumerate(zip(a, b, strict=True)):
        if isinstance(one, Tensor):
            assert equal(one, other), f"result {i}:\n{one}\n{other}"
        else:
            assert one == other, f"result {i}"


def assert_proven(
    module: fx.GraphModule,
    inputs: Sequence[Tensor],
    *others: Sequence[Tensor],
    stages: Sequence[Stage] = MOTION,
) -> tuple[Log, fx.GraphModule]:
    """Motion changes no bit on `inputs` (nor on `others`), leaves a sound graph, and quantizes no more."""
    after = copy.deepcopy(module)
    log = optimize(after, stages)
    assert_sound(after)
    for given in (inputs, *others):
        assert_equal(run(module, given), run(after, given))
    assert quantized_elements(after) <= quantized_elements(module)
    return log, after


def assert_sound(module: fx.GraphModule) -> None:
    """The graph is in order, and its metadata is what running it on fake tensors gives."""
    module.graph.lint()
    nodes = list(module.graph.nodes)
    (mode,) = {v.fake_mode for n in nodes if isinstance(v := n.meta.get("val"), FakeTensor)}
    _Recomputed(module, mode).run(
        *[n.meta["val"] for n in nodes if n.op == "placeholder"], enable_io_processing=False
    )


class _Recomputed(fx.Interpreter):
    """Runs on fake tensors and compares every result with the metadata of its node."""

    def __init__(self, module: fx.GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(module)
        self.mode = mode

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        found = super().get_attr(target, args, kwargs)
        return self.mode.from_tensor(found, static_shapes=True) if isinstance(found, Tensor) else found

    def run_node(self, n: fx.Node) -> Any:
        with self.mode:
            result = super().run_node(n)
        if n.op != "output":
            assert "val" in n.meta, f"{n} has no metadata"
            assert facts(n.meta["val"]) == facts(result), f"{n.format_node()}"
        return result


def facts(value: Any) -> Any:
    """Of a fake tensor what metadata tells; other values as they are."""
    if isinstance(value, list | tuple):
        return [facts(item) for item in value]
    if isinstance(value, Tensor):
        return value.dtype, list(map(str, value.shape)), list(map(str, value.stride())), value.device
    return str(value)


def targets(module: fx.GraphModule) -> list[str]:
    """Names of the operators called, in order, without getitem."""
    calls = [n for n in module.graph.nodes if n.op == "call_function" and n.target is not operator.getitem]
    return [str(n.target).removesuffix(".default").rpartition(":")[2] for n in calls]


def count(module: fx.GraphModule, name: str) -> int:
    return sum(target.split(".")[1:2] == [name] for target in targets(module))


def quantized_elements(module: fx.GraphModule) -> int:
    """How many elements are quantized in a run, by the sizes of the examples."""
    total = 0
    for node in module.graph.nodes:
        if node.target in (ours.dynamic_quantize.default, ours.quantize.default, ours.fake_quantize.default):
            shape = node.args[0].meta["val"].shape
            total += math.prod(n.node.hint if isinstance(n, torch.SymInt) else n for n in shape)
    return total
