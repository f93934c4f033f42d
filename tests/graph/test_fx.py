"""The FX adapter: what ATen calls mean, in the forms that exports have, and that nothing is lost on the way back."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import blockscale.runtime.torch_ops  # noqa: F401  the operators exist
from blockscale.errors import DtypeError
from blockscale.graph import models
from blockscale.graph.fx import snapshot
from blockscale.graph.ops import OPS
from blockscale.graph.overlay import Graph
from blockscale.graph.view import Node
from blockscale.numerics.moves import (
    Abs,
    Cat,
    Expand,
    Flip,
    Move,
    MulPow2,
    Neg,
    Pad,
    Permute,
    Relu,
    Repeat,
    Reshape,
    Roll,
    Same,
    Slice,
    Split,
)
from blockscale.passes import pipeline
from passes.fx_graphs import Builder, assert_sound, ours

pytestmark = [pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")]  # torch's own
F = torch.nn.functional
aten = torch.ops.aten


class _Run(torch.nn.Module):
    def __init__(self, run: Callable[..., Any], constants: tuple[Tensor, ...]) -> None:
        super().__init__()
        for i, constant in enumerate(constants):
            self.register_buffer(f"c{i}", constant)
        self.count, self.run = len(constants), run

    def forward(self, *x: Tensor) -> Any:
        return self.run(*x, *(getattr(self, f"c{i}") for i in range(self.count)))


def exported(run: Callable[..., Any], *inputs: Tensor, constants: tuple[Tensor, ...] = ()) -> Any:
    return torch.export.export(_Run(run, constants), inputs)


def calls(g: Graph) -> list[Node]:
    return [node for node in g.nodes if node.kind not in ("output", "assert")]


# ------------------------------------------------------------------------- moves

X = torch.arange(48.0).reshape(2, 4, 6)
MOVES: list[tuple[Callable[[Tensor], Any], list[Move]]] = [
    (lambda x: x.view(8, 6), [Reshape((8, 6))]),
    (lambda x: x.reshape(-1), [Reshape((48,))]),
    (lambda x: x.flatten(1), [Reshape((2, 24))]),
    (lambda x: x.unflatten(2, (2, 3)), [Reshape((2, 4, 2, 3))]),
    (lambda x: x.unsqueeze(-1).squeeze(-1), [Reshape((2, 4, 6, 1)), Reshape((2, 4, 6))]),
    (lambda x: x[None].squeeze(), [Reshape((1, 2, 4, 6)), Reshape((2, 4, 6))]),
    (lambda x: x.permute(2, 0, -2), [Permute((2, 0, 1))]),
    (lambda x: x.transpose(-1, 0), [Permute((2, 1, 0))]),
    (lambda x: x.movedim(0, 2), [Permute((1, 2, 0))]),
    (lambda x: x.swapaxes(0, 1), [Permute((1, 0, 2))]),
    (lambda x: x[0].t(), [Permute((1, 0))]),
    (lambda x: x[:, 1:3], [Slice(1, 1, 3)]),
    (lambda x: x[..., ::2], [Slice(2, 0, None, 2)]),
    (lambda x: x[:, -1:], [Slice(1, -1)]),
    (lambda x: x.narrow(2, 1, 4), [Slice(2, 1, 5)]),
    (lambda x: x.split(2, 1), [Split(1, (2, 2))]),
    (lambda x: x.split([1, 5], -1), [Split(2, (1, 5))]),
    (lambda x: x.chunk(4, 2), [Split(2, (2, 2, 2))]),
    (lambda x: torch.cat([x, x], -1), [Cat(2)]),
    (lambda x: x[:, :1].expand(2, 4, 6), [Slice(1, 0, 1), Expand((2, 4, 6))]),
    (lambda x: x.repeat(1, 2, 1), [Repeat((1, 2, 1))]),
    (lambda x: x.flip(0, -1), [Flip((0, 2))]),
    (lambda x: x.roll(3, 1), [Roll((3,), (1,))]),
    (lambda x: F.pad(x, (1, 2, 0, 3)), [Pad(((0, 0), (0, 3), (1, 2)))]),
    (lambda x: -x, [Neg()]),
    (lambda x: x.abs(), [Abs()]),
    (lambda x: x.relu(), [Relu()]),
    (lambda x: x * 0.25, [MulPow2(-2)]),
    (lambda x: x / 4, [MulPow2(-2)]),
    (lambda x: x.contiguous(), []),
    (lambda x: x.clone(), [Same()]),
    (lambda x: x.to(torch.float32) + 0, []),
    (lambda x: F.dropout(x, 0.5, training=False), [Same()]),
]


@pytest.mark.parametrize("case", range(len(MOVES)))
def test_moves(case: int) -> None:
    """What a move is, and that it does to elements what the operator does."""
    run, wanted = MOVES[case]
    program = exported(run, X)
    g = snapshot(program)
    moves = [node.params["move"] for node in calls(g) if "move" in node.params]
    found = [m for m in moves if not (isinstance(m, Slice) and (m.start, m.stop, m.step) == (0, None, 1))]
    assert len(found) >= len(wanted) and all(map(same_move, found, wanted)), f"{found} is not {wanted}"
    assert all(known(node) for node in calls(g))
    assert_moves_are_true(g, program.module()(X))


def test_decomposed_moves_are_read_too() -> None:
    """All but roll, which becomes arithmetic on indices."""
    runs = [run for run, wanted in MOVES if not any(isinstance(move, Roll) for move in wanted)]
    program = exported(lambda x: [run(x) for run in runs], X).run_decompositions()
    g = snapshot(program)
    assert not [node for node in calls(g) if node.kind == "raw" and "select" not in node.call.name]
    assert_moves_are_true(g, torch.utils._pytree.tree_leaves(program.module()(X)))


def same_move(found: Move, wanted: Move) -> bool:
    """By what they do to elements: spellings are free."""
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, Cat):
        return found.axis % 3 == wanted.axis  # type: ignore[attr-defined]
    return True


def known(node: Node) -> bool:
    return all(value.meta is not None for value in node.outputs)


def assert_moves_are_true(g: Graph, result: Any) -> None:
    """Each node's move, applied to what came in, is what torch gives."""
    values: dict[Any, Any] = {}
    for value in g.inputs:
        values[value] = X.numpy()
    for node in calls(g):
        move = node.params.get("move")
        sources = [values.get(v) for v in node.slots if v is not None]
        if move is None or any(source is None for source in sources):
            continue
        made = move.apply(sources if isinstance(move, Cat) else sources[0])
        values.update(zip(node.outputs, made if isinstance(move, Split) else [made], strict=True))
    (output,) = [node for node in g.nodes if node.kind == "output"]
    for value, tensor in zip(
        output.slots, result if isinstance(result, tuple | list) else [result], strict=True
    ):
        if value in values:
            assert torch.equal(torch.from_numpy(values[value].copy()), tensor)


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (lambda x: F.pad(x, (1, 1), value=1.0), "pads with something other than 0"),
        (lambda x: F.pad(x, (-1, 1)), "it crops"),
        (lambda x: x.roll(2), "rolls the flattened tensor"),
        (lambda x: x.repeat(2, 1, 1, 1), "it adds dimensions"),
        (lambda x: F.dropout(x, 0.5, training=True), "drops at random"),
        (lambda x: torch.add(x, x, alpha=2), "alpha is not 1"),
    ],
)
def test_what_cannot_be_said_is_raw_with_a_reason(run: Callable[[Tensor], Tensor], why: str) -> None:
    (node,) = calls(snapshot(exported(run, X)))
    assert node.kind == "raw" and why in node.params["why"]


# ------------------------------------------------------------------------- other kinds

W, B = torch.randn(8, 6), torch.randn(8)
IMAGE, KERNEL = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)
GAIN = torch.rand(6)
KINDS: list[tuple[str, Callable[..., Any], tuple[Tensor, ...], tuple[Tensor, ...], set[str]]] = [
    ("linear", lambda x, w, b: F.linear(x, w, b), (X,), (W, B), {"matmul", "linear"}),
    ("linear", lambda x, w: F.linear(x, w), (X[0],), (W,), {"matmul"}),
    ("matmul", lambda x, w: x @ w, (X,), (W.T.contiguous(),), {"matmul"}),
    ("matmul", lambda x, y: torch.bmm(x, y), (X, X.mT.contiguous()), (), {"matmul"}),
    ("matmul", lambda x, w, b: torch.addmm(b, x, w), (X[0],), (W.T.contiguous(), B), {"matmul"}),
    ("conv", lambda x, w: F.conv2d(x, w, padding=1), (IMAGE,), (KERNEL,), {"conv"}),
    ("conv", lambda x, w: F.conv2d(x, w, padding="same"), (IMAGE,), (KERNEL,), {"conv"}),
    ("conv", lambda x, w: F.conv1d(x, w), (X,), (torch.randn(5, 4, 3),), {"conv"}),
    ("embedding", lambda i, w: F.embedding(i, w), (torch.tensor([[1, 2]]),), (W,), {"embedding"}),
    ("layer_norm", lambda x, w: F.layer_norm(x, (6,), w), (X,), (GAIN,), {"layer_norm"}),
    ("rms_norm", lambda x, w: F.rms_norm(x, (6,), w), (X,), (GAIN,), {"rms_norm", "mul"}),
    ("add", lambda x: x + x, (X,), (), {"add"}),
    ("sub", lambda x: x - 2, (X,), (), {"sub"}),
    ("mul", lambda x: x * 3, (X,), (), {"mul"}),
    ("div", lambda x: x / x, (X,), (), {"div"}),
    ("pow", lambda x: x**2, (X,), (), {"pow"}),
    ("rsqrt", lambda x: x.rsqrt(), (X,), (), {"rsqrt"}),
    ("sqrt", lambda x: x.sqrt(), (X,), (), {"sqrt"}),
    ("reciprocal", lambda x: x.reciprocal(), (X,), (), {"reciprocal"}),
    ("gelu", lambda x: F.gelu(x), (X,), (), {"gelu"}),
    ("sigmoid", lambda x: x.sigmoid(), (X,), (), {"sigmoid"}),
    ("tanh", lambda x: x.tanh(), (X,), (), {"tanh"}),
    ("erf", lambda x: x.erf(), (X,), (), {"erf"}),
    ("silu", lambda x: F.silu(x), (X,), (), {"sigmoid", "silu"}),
    ("softmax", lambda x: x.softmax(-1), (X,), (), {"softmax"}),
    ("mean", lambda x: x.mean(-1, keepdim=True), (X,), (), {"mean"}),
    ("cast", lambda x: x.to(torch.bfloat16), (X,), (), {"cast"}),
    ("hardtanh", lambda x: F.hardtanh(x), (X,), (), {"hardtanh"}),
    ("hardtanh", lambda x: x.clamp(0, 3), (X,), (), {"hardtanh"}),
    ("sdpa", lambda q: F.scaled_dot_product_attention(q, q, q), (torch.randn(1, 2, 4, 8),), (), {"matmul", "sdpa"}),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(KINDS)))
def test_kinds(case: int) -> None:
    kind, run, inputs, constants, _ = KINDS[case]
    (node,) = [n for n in calls(snapshot(exported(run, *inputs, constants=constants))) if n.kind == kind]
    assert len(node.call.operands) <= max(len(OPS[kind].tensors), 3)


def test_kinds_that_are_decomposed() -> None:
    inputs = [x for _, _, given, constants, _ in KINDS for x in (*given, *constants)]

    def all_of_them(*x: Tensor) -> list[Tensor]:
        made, rest = [], iter(x)
        for _, run, given, constants, _ in KINDS:
            made.append(run(*[next(rest) for _ in (*given, *constants)]))
        return made

    program = exported(all_of_them, *[x.clone() for x in inputs])
    found = {node.kind for node in calls(snapshot(program.run_decompositions()))}
    assert all(found & decomposed for *_, decomposed in KINDS), found


# ------------------------------------------------------------------------- there and back


def test_without_edits_nothing_changes() -> None:
    b = Builder()
    x = b.input(2, 4, 64, dynamic=[0])
    view = b.call(aten.view.default, x, [-1, 64])
    parts = b.items(b.call(aten.split_with_sizes.default, view, [32, 32], 1))
    module = b.done(*b.measure(view, "mxfp4"), parts[1], b.call(aten.add.Tensor, parts[0], 1.0, alpha=2))
    text, nodes = str(module.graph), list(module.graph.nodes)
    assert models.commit(snapshot(module), module) is module
    assert str(module.graph) == text and list(module.graph.nodes) == nodes


def test_a_copy_is_another_graph_with_the_same_weights() -> None:
    b = Builder()
    w = b.constant(torch.randn(8, 64))
    module = b.done(b.fake(w, "mxfp4"), b.fake(w, "mxfp4"))
    text = str(module.graph)
    after = pipeline.optimize(module, stages=("cse",), check=True)
    assert after is not module and str(module.graph) == text != str(after.graph)
    assert after.buffer0 is module.buffer0


def test_getitem_is_no_node() -> None:
    b = Builder()
    made = b.measure(b.input(4, 64), "uint8-token")
    g = snapshot(b.done(made[2], made[0]))
    (node,) = calls(g)
    assert [value.used for value in node.outputs] == [True, False, True, False]


def test_sizes_that_are_computed_are_kept() -> None:
    b = Builder()
    x = b.input(6, 64, dynamic=[0])
    n = b.call(operator.floordiv, b.size(x, 0), 1)
    views = [b.call(aten.view.default, x, [n, 2, 32]) for _ in range(2)]
    module = b.done(*[b.fake(view, "mxfp4") for view in views])
    after = pipeline.optimize(module, stages=pipeline.COMBINE, check=True)
    assert_sound(after)
    for rows in (6, 1, 9):
        given = torch.randn(rows, 64)
        for one, other in zip(after(given), module(given), strict=True):
            assert torch.equal(one, other)


def test_asserts_and_aliases_are_looked_through() -> None:
    b = Builder()
    x = b.input(2, 4, 64)
    view = b.call(aten.view.default, b.call(aten.alias.default, x), [8, 64])
    b.call(aten._assert_tensor_metadata.default, view, dtype=torch.float32)
    same = b.call(aten.to.dtype, b.call(aten.detach.default, view), torch.float32)
    module = b.done(b.fake(same, "mxfp4"), b.fake(x, "mxfp4"))
    after = pipeline.optimize(module, stages=pipeline.COMBINE, check=True)
    quantizers = [n for n in after.graph.nodes if n.target is ours.fake_quantize.default]
    assert len(quantizers) == 1 and quantizers[0].args[0].op == "placeholder"


def test_unlifted_modules_and_plain_traces() -> None:
    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(64, 8)

        def forward(self, x: Tensor) -> Any:
            return self.linear(x), torch.relu(x).view(-1), x.chunk(2)[1]

    x = torch.randn(4, 64)
    traced = fx.symbolic_trace(Plain())
    for module in (traced, torch.export.export(Plain(), (x,)).module()):
        after = pipeline.optimize(module, check=True)
        for one, other in zip(after(x), module(x), strict=True):
            assert torch.equal(one, other)


def test_other_models_are_refused() -> None:
    with pytest.raises(DtypeError, match=r"torch\.export\.export"):
        pipeline.optimize(torch.nn.Linear(2, 2))
    with pytest.raises(DtypeError, match="GraphModule"):
        snapshot("a file")  # type: ignore[arg-type]
