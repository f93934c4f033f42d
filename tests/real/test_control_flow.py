"""Bodies of control flow in real exports are quantized and optimized like what is around them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

import blockscale as bs
from blockscale.errors import ExportError
from blockscale.graph import models
from blockscale.model_api import quantize_model
from blockscale.passes import Log, optimize
from passes.proof import KINDS
from real.by_hand import by_hand
from real.llama import Llama, exported, ids
from real.through import assert_same, through

pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")


class Chosen(nn.Module):
    """One of two branches, each with linear layers of its own that read one tensor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = (nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        def one(x: Tensor) -> Tensor:
            return self.first(x) + self.second(x.reshape(-1, 64)).reshape(x.shape)

        def other(x: Tensor) -> Tensor:
            return self.third(x).relu()

        x = torch.cond(x.sum() > 0, one, other, (x,))
        return self.first(x)

    def in_python(self, x: Tensor) -> Tensor:
        """The same without torch.cond, which compiles its branches and leaves out their hooks."""
        x = self.first(x) + self.second(x) if x.sum() > 0 else self.third(x).relu()
        return self.first(x)


class Written(nn.Module):
    """A buffer that the model writes to is no constant, in a branch either."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.linspace(-1, 1, 64 * 64).reshape(64, 64))

    def forward(self, x: Tensor) -> Tensor:
        def one(x: Tensor) -> Tensor:
            return x @ bs.fake_quantize(self.kept, "mxfp4")

        self.kept.mul_(0.5)
        return torch.cond(x.sum() > 0, one, torch.neg, (x,))


def test_both_branches_of_a_cond() -> None:
    model = Chosen().eval()
    inputs = [(torch.ones(2, 5, 64),), (-torch.ones(2, 5, 64),)]
    program = exported(model, args=inputs[0])
    (by_branch, _) = through(program, "mxfp4", inputs)
    assert_same(by_branch, by_hand(model, "mxfp4").in_python, inputs)
    for preset in ("mxfp4", "int8", "mxfp4-mxint8-all"):
        quantized, proof = through(program, preset, inputs, inputs)
        inside = list(models.snapshot(quantized).walk())[1:]
        assert len(inside) == 2
        assert all(any(node.kind in KINDS for node in body.nodes) for body in inside)
        for body in list(proof.graph.walk())[1:]:
            assert not any(node.kind == "fake_quantize" for node in body.nodes)
    assert not torch.equal(*(torch.stack([program.module()(*args) for args in inputs])))


def test_what_a_model_writes_to_is_no_constant_in_a_branch() -> None:
    x = torch.ones(4, 64)
    program = exported(Written(), args=(x,))
    after = optimize(program, check=True).module()
    first, second = after(x), after(x)
    assert torch.equal(second, first / 2)


def test_a_body_without_gradients() -> None:
    """torch.no_grad around the rotary embedding becomes a body where gradients are on."""
    model = Llama(layers=1)
    program: ExportedProgram = torch.export.export(model, (ids(),))
    assert "wrap_with_set_grad_enabled" in str(program.graph)
    quantized, _ = through(program, "mxfp4-mxint8", [(ids(),), (ids(seed=1),)])
    again = through(exported(model), "mxfp4-mxint8", [(ids(),)])[0]
    assert_same(quantized, again, [(ids(),)])


class Depending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.linear(x)
        return x


def test_control_flow_that_depends_on_data_is_an_error_with_its_line() -> None:
    with pytest.raises(ExportError) as caught:
        quantize_model(Depending(), "mxfp4", example_inputs=torch.ones(2, 64))
    said = str(caught.value)
    assert "Depending" in said
    assert "test_control_flow.py" in said
    assert "if x.sum() > 0" in said
    assert "torch.cond" in said


class Found(nn.Module):
    """As many rows as the data has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        rows = x[:, 0].nonzero().squeeze(1)
        made: Tensor = self.linear(x.index_select(0, rows))
        return made


def test_sizes_that_depend_on_data_stay_symbols() -> None:
    x = torch.randn(6, 64)
    x[2] = 0
    program = exported(Found().eval(), args=(x,))
    log = Log()
    for preset in ("mxfp4", "int8-int8-token", "mxint8-all"):
        quantized, _ = through(program, preset, [(x,), (x.flip(0),)])
        optimize(quantized, log=log, check=True)
    assert all(entry.left for entry in log.reasons())
