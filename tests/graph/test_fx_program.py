"""Exported programs: what is lifted is constant, what is new gets into signature and state, bodies are graphs too."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

import blockscale.runtime.torch_ops  # noqa: F401  the operators exist
from blockscale.graph import models
from blockscale.passes import pipeline
from blockscale.passes.log import Log

# torch's own, of copying a program and of tracing bodies
pytestmark = [pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")]

ours = torch.ops.blockscale
STAGES = ("canonicalize", "cse", "lift", "cse", "fold", "sink", "cse")
BLOCK = [1, 32]


def fake(x: Tensor, numbers: str = "mxfp8", block: list[int] | None = None) -> Tensor:
    y: Tensor = ours.fake_quantize(x, numbers, BLOCK if block is None else block)
    return y


class Module(torch.nn.Module):
    """What `run` says, on a weight and two buffers."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weight = torch.nn.Parameter(torch.randn(8, 64, generator=generator))
        self.register_buffer("scale", torch.full((1, 1), 0.25))
        self.register_buffer("same", torch.full((1, 1), 0.25), persistent=False)
        self.register_buffer("count", torch.zeros(4, 64))
        self.run = run

    def forward(self, *x: Tensor) -> Any:
        return self.run(self, *x)


def exported(run: Callable[..., Any], *inputs: Tensor, **more: Any) -> ExportedProgram:
    torch._dynamo.reset()  # bodies that were traced with other sizes get symbols
    return torch.export.export(Module(run), inputs or (data(),), **more)


def data(rows: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(rows, 64, generator=torch.Generator().manual_seed(seed))


def optimized(program: ExportedProgram, *inputs: Tensor, stages: Any = STAGES) -> ExportedProgram:
    """After passes: the same results, also when it is saved and loaded, and when it is decomposed."""
    given = inputs or (data(),)
    expected = outcome(program, given)
    after = pipeline.optimize(program, stages=stages, check=True)
    assert isinstance(after, ExportedProgram)
    file = io.BytesIO()
    torch.export.save(after, file)
    file.seek(0)
    for one in (after, torch.export.load(file), after.run_decompositions(), program):
        found = outcome(one, given)
        assert len(found) == len(expected) and all(
            torch.equal(a, b) for a, b in zip(found, expected, strict=True)
        )
    return after


def outcome(program: ExportedProgram, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Results of two runs one after the other, which show what was written to, and what became of the inputs."""
    module = program.module()
    buffer = getattr(module, "count", None)
    if buffer is not None:
        buffer.zero_()  # programs share their state
    given = [x.clone() for x in inputs]
    found = [t for _ in range(2) for t in torch.utils._pytree.tree_leaves(module(*given))]
    return [t.detach().clone() for t in [*found, *given]]


def kinds(program: ExportedProgram) -> list[str]:
    return [node.kind for one in models.snapshot(program).walk() for node in one.nodes]


def lifted(program: ExportedProgram) -> set[str]:
    kinds_ = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    return {str(spec.target) for spec in program.graph_signature.input_specs if spec.kind in kinds_}


# ------------------------------------------------------------------------- nothing to do


def test_without_edits_nothing_changes() -> None:
    program = exported(lambda m, x: torch.nn.functional.linear(fake(x), m.weight))
    before = str(program.graph), program.graph_signature
    assert models.commit(models.snapshot(program), program) is program
    assert (str(program.graph), program.graph_signature) == before


def test_the_given_program_stays_as_it_is() -> None:
    program = exported(lambda m, x: [fake(x.view(2, 2, 64), block=[1, 1, 32]) for _ in range(3)])
    text, signature, state = (
        str(program.graph),
        copy.deepcopy(program.graph_signature),
        dict(program.state_dict),
    )
    after = optimized(program)
    assert (str(program.graph), dict(program.state_dict)) == (text, state)
    assert str(program.graph_signature) == str(signature)
    assert str(after.graph) != text


# ------------------------------------------------------------------------- constants


def test_weights_become_codes_in_signature_and_state() -> None:
    program = exported(lambda m, x: torch.nn.functional.linear(fake(x), fake(m.weight)))
    after = optimized(program)
    assert "weight" not in after.state_dict
    codes = [name for name, tensor in after.state_dict.items() if tensor.dtype == torch.uint8]
    assert len(codes) == 2 and set(codes) <= lifted(after)
    assert all(name.startswith("weight") for name in codes)
    assert set(after.state_dict) <= lifted(after) | {"count", "scale"}


def test_a_weight_that_is_read_as_floats_too_stays() -> None:
    after = optimized(exported(lambda m, x: (torch.nn.functional.linear(x, fake(m.weight)), m.weight + 1)))
    assert {"weight"} < lifted(after)


def test_equal_scales_in_two_buffers_are_one() -> None:
    """They are placeholders, not attributes: also one that is not persistent, and one made in forward."""

    def run(m: Any, x: Tensor) -> list[Tensor]:
        made = torch.full((1, 1), 0.25)
        literal = torch.tensor([[0.25]])
        scales = (m.scale, m.same, literal, made)
        return [ours.quantize(x, "int8,dynamic=false", [0, 0], scale) for scale in scales]

    after = optimized(exported(run))
    assert kinds(after).count("quantize") == 2  # what torch.full makes is no constant before the run


def test_new_names_do_not_collide() -> None:
    class Taken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(data(8, 3))
            self.weight_codes = torch.nn.Parameter(data(8, 4))
            self.register_buffer("b_weight_scale", torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return (
                torch.nn.functional.linear(x, fake(self.weight))
                + self.weight_codes.sum()
                + self.b_weight_scale
            )

    after = optimized(torch.export.export(Taken(), (data(),)))
    assert {"weight_codes", "b_weight_scale"} <= lifted(after)
    assert len(after.state_dict) == 4


# ------------------------------------------------------------------------- memory that is written to


def _buffer(m: Any, x: Tensor) -> list[Tensor]:
    before = fake(m.count)
    m.count.add_(x)
    return [before, fake(m.count), fake(m.count)]


def _buffer_through_a_view(m: Any, x: Tensor) -> list[Tensor]:
    row = m.count[0]
    before = fake(m.count.view(2, 2, 64), block=[1, 1, 32])
    row.add_(x[0])
    return [before, fake(m.count.view(2, 2, 64), block=[1, 1, 32])]


def _input(m: Any, x: Tensor) -> list[Tensor]:
    before = fake(x)
    x.mul_(2)
    return [before, fake(x)]


@pytest.mark.parametrize("decomposed", [False, True], ids=["in place", "functional"])
@pytest.mark.parametrize("run", [_buffer, _buffer_through_a_view, _input])
def test_what_is_written_to_is_no_constant(run: Callable[..., Any], decomposed: bool) -> None:
    """Either by operators that write, or, once decomposed, by results that the signature writes back."""
    program = exported(run)
    if decomposed:
        program = program.run_decompositions()
        signature = program.graph_signature
        assert signature.buffers_to_mutate or signature.user_inputs_to_mutate
    after = optimized(program)
    assert kinds(after).count("quantize") + kinds(after).count("fake_quantize") >= 2


def test_results_that_are_inputs_or_weights() -> None:
    after = optimized(exported(lambda m, x: (x, m.weight, fake(x), fake(x))))
    assert kinds(after).count("quantize") == 1


# ------------------------------------------------------------------------- bodies


def _without_grad(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        views = [fake(x.view(2, 2, 64), block=[1, 1, 32]) for _ in range(2)]
        y = views[0] + views[1]
    return y + fake(m.weight).sum()


def _branch(x: Tensor) -> Tensor:
    return fake(x) + fake(x)


def _other(x: Tensor) -> Tensor:
    return fake(x * 2, "int8", [1, 0])


def _cond(m: Any, x: Tensor) -> Tensor:
    y: Tensor = torch.cond(x.sum() > 0, _branch, _other, (x,))
    return y


def _loop(m: Any, x: Tensor) -> Tensor:
    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        twice = fake(y) + fake(y)
        return i + 1, twice

    _, y = torch._higher_order_ops.while_loop(
        lambda i, y: i < 2, body, (torch.zeros((), dtype=torch.int64), x)
    )
    return y


def _map(m: Any, x: Tensor) -> Tensor:
    def body(row: Tensor) -> Tensor:
        return fake(row.view(1, 64)) + fake(row.view(1, 64))

    y: Tensor = torch._higher_order_ops.map(body, x)
    return y


@pytest.mark.parametrize(("run", "before"), [(_without_grad, 3), (_cond, 3), (_loop, 2), (_map, 2)])
def test_bodies_are_optimized_too(run: Callable[..., Any], before: int) -> None:
    program = exported(run)
    assert len(models.snapshot(program).bodies) >= 1
    assert kinds(program).count("fake_quantize") == before
    after = pipeline.optimize(program, stages=pipeline.COMBINE, check=True)
    assert kinds(after).count("fake_quantize") == before - 1
    for x in (data(), -data().abs(), data().abs()):
        assert torch.equal(after.module()(x), program.module()(x))
    file = io.BytesIO()
    torch.export.save(after, file)
    file.seek(0)
    assert torch.equal(torch.export.load(file).module()(data()), program.module()(data()))


@pytest.mark.parametrize("run", [_without_grad, _cond, _loop, _map])
def test_bodies_with_constants_of_their_own(run: Callable[..., Any]) -> None:
    """Canonical form and folding in bodies."""
    program = exported(run)
    after = pipeline.optimize(program, stages=STAGES, check=True)
    for x in (data(), -data().abs()):
        assert torch.equal(after.module()(x), program.module()(x))


# ------------------------------------------------------------------------- sizes of the run


def test_dynamic_shapes() -> None:
    def run(m: Any, x: Tensor) -> list[Tensor]:
        flat = x.view(-1, 64)
        three = [fake(flat) for _ in range(3)]
        return [*three, fake(x, block=[1, 1, 32]), torch.nn.functional.linear(three[0], fake(m.weight))]

    x = torch.randn(2, 3, 64)
    dims = {0: torch.export.Dim("b", min=1, max=64), 1: torch.export.Dim("t", min=1, max=64)}
    program = exported(run, x, dynamic_shapes=((dims,),))
    after = pipeline.optimize(program, stages=STAGES, check=True)
    assert kinds(after).count("quantize") == 1
    for shape in ((2, 3, 64), (5, 1, 64), (1, 7, 64)):
        x = torch.randn(shape)
        for a, b in zip(after.module()(x), program.module()(x), strict=True):
            assert torch.equal(a, b)
    assert after.range_constraints == program.range_constraints


def test_decomposed_programs() -> None:
    def run(m: Any, x: Tensor) -> list[Tensor]:
        rows = x.reshape(2, 2, 64).transpose(0, 1).reshape(4, 64)
        return [fake(rows), fake(rows), torch.nn.functional.linear(fake(x), fake(m.weight))]

    program = exported(run).run_decompositions()
    after = optimized(program)
    assert kinds(after).count("quantize") == 1 + 0


def test_a_log_of_a_program_names_lines_of_the_model() -> None:
    program = exported(lambda m, x: [fake(x), fake(x)])
    log = Log()
    pipeline.optimize(program, log=log, stages=pipeline.COMBINE)
    (entry,) = [entry for entry in log.entries if entry.did]
    assert "test_fx_program.py" in entry.site
