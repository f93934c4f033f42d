"""Training with fake-quantizes, and quantizing what was trained."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs

R = bs.Rule


@pytest.mark.usefixtures("decoding")
@pytest.mark.parametrize("gradient", ["straight", "clipped"])
def test_a_fake_quantized_model_trains_and_is_quantized_as_it_is(gradient: str) -> None:
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    data = torch.randn(64, 32)
    target = teacher(data).detach()
    fake = bs.fake_quantize_model(
        model, "int8-uint8" if gradient == "clipped" else "mxfp4", example_inputs=data, calibration=[data],
        gradient=gradient,
    )  # fmt: skip
    assert all(a is b for a, b in zip(fake.parameters(), model.parameters(), strict=True))
    optimizer = torch.optim.Adam(fake.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(fake(data), target)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]
    qm = bs.quantize_model(fake)
    assert torch.equal(qm(data), fake(data))
    assert "fake_quantize" in qm.report.before and "fake_quantize" not in qm.report.after
    assert {"model.0.weight_codes", "model.2.weight_codes"} <= qm.state_dict().keys()
    assert not torch.equal(qm(data), model(data))


def test_gradients_stop_where_values_are_clipped() -> None:
    class Identity(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(4))

        def forward(self, x: Tensor) -> Tensor:
            return torch.nn.functional.linear(x, self.weight)

    small = torch.tensor([[1.0, -0.5, 0.25, 0.0]])
    large = torch.tensor([[9.0, -0.5, 0.25, -7.0]])
    for gradient, expected in (("straight", [1, 1, 1, 1]), ("clipped", [0, 1, 1, 0])):
        fake = bs.fake_quantize_model(
            Identity(), [R("int8,dynamic=false", role="input")], example_inputs=small, calibration=[small],
            gradient=gradient,
        )  # fmt: skip
        x = large.clone().requires_grad_()
        fake(x).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [expected]


def test_a_model_in_training_stays_so_when_fake_quantized() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.5)).train()
    x = torch.ones(4, 32)
    assert (bs.fake_quantize_model(model, "mxfp8", example_inputs=x)(x) == 0).any()
    assert not (bs.quantize_model(model, "mxfp8", example_inputs=x)(x) == 0).any()


def test_what_was_trained_is_quantized_as_in_evaluation() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(32, 32, 3), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.InstanceNorm1d(32), nn.Conv1d(32, 8, 1)
    )
    x = torch.randn(4, 32, 8)
    fake = bs.fake_quantize_model(model.train(), "mxfp8", example_inputs=x)
    code = fake.code
    for _ in range(3):
        fake(x * 3 + 1).sum().backward()
    model.load_state_dict({name: fake.state_dict()[name] for name in model.state_dict()})
    expected = bs.quantize_model(model, "mxfp8", example_inputs=x)(x)
    qm = bs.quantize_model(fake)
    assert torch.equal(qm(x), expected) and torch.equal(qm(x), expected)
    assert fake.code == code and not torch.equal(fake(x), fake(x))
