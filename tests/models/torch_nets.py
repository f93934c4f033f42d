"""Small torch models for tests of whole flows: each with inputs, odd in its own way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

AUTO = torch.export.Dim.AUTO


class Language(nn.Module):
    """Embedding, norm, residual and head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.norm = nn.LayerNorm(64)
        self.up = nn.Linear(64, 128)
        self.down = nn.Linear(128, 64)
        self.head = nn.Linear(64, 100, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = x + self.down(torch.relu(self.up(self.norm(x))))
        return self.head(x)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 64)
        self.mix = nn.Linear(64, 64)
        self.head = nn.Linear(64, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.mix(self.embed(ids)))


class Twice(nn.Module):
    """One module called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.same(torch.tanh(self.same(x)))


class Named(nn.Module):
    """A dict out, an input left out, and one that is called as a function of Python is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 32)

    def forward(self, input: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        y = self.linear(input)
        return {"y": y if mask is None else y * mask, "x": input}


class Counter(nn.Module):
    """Writes to a buffer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return self.linear(x) * self.calls


class Unknown(nn.Module):
    """Operators that no table knows, between others."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        spectrum = torch.fft.rfft(self.linear(x)).abs()
        return spectrum, torch.linalg.norm(spectrum)


class Branches(nn.Module):
    """Control flow."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda a, b: a @ b, lambda a, b: (a * b) @ b, (x, y))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Dropout(0.5),
        nn.Conv2d(32, 32, 3, groups=32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    recipe: str
    dynamic: Any = None


def _ids(high: int) -> Tensor:
    return torch.randint(0, high, (2, 5))


CASES = {
    "language model": Case(Language, lambda: _ids(100), "mxfp4"),
    "static scales": Case(Language, lambda: _ids(100), "int8"),
    "every activation": Case(Language, lambda: _ids(100), "mxfp4-mxint8-all"),
    "tensor scales": Case(Language, lambda: _ids(100), "nvfp4"),
    "weights alone": Case(Language, lambda: _ids(100), "int4-g32-float"),
    "zero points": Case(Language, lambda: _ids(100), "uint8-all"),
    "sizes of the run": Case(Language, lambda: _ids(100), "mxfp6-all", ({0: AUTO, 1: AUTO},)),
    "tied weights": Case(Tied, lambda: _ids(50), "mxint8"),
    "tied weights in two layouts": Case(Tied, lambda: _ids(50), "int8"),
    "one module twice": Case(Twice, lambda: torch.randn(3, 64), "mxfp8"),
    "names": Case(Named, lambda: {"input": torch.randn(2, 64)}, "int8"),
    "a buffer that is written": Case(Counter, lambda: torch.randn(2, 64), "mxfp4"),
    "unknown operators": Case(Unknown, lambda: torch.randn(2, 64), "mxfp4"),
    "control flow": Case(Branches, lambda: (torch.randn(32, 32), torch.randn(32, 32)), "mxfp8-all"),
    "convolutions": Case(convolutions, lambda: torch.randn(2, 3, 8, 8), "int8"),
    "convolutions in blocks": Case(convolutions, lambda: torch.randn(2, 3, 8, 8), "mxfp4"),
    "attention": Case(
        lambda: nn.MultiheadAttention(64, 4, batch_first=True), lambda: (torch.randn(2, 5, 64),) * 3, "mxfp4-all"
    ),
    "a transformer layer": Case(
        lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), lambda: torch.randn(2, 5, 64), "mxfp4"
    ),
    "bfloat16": Case(lambda: nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).bfloat16(),
                     lambda: torch.randn(2, 64).bfloat16(), "mxfp4"),
    "float16": Case(lambda: nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).half(),
                    lambda: torch.randn(2, 64).half(), "int8"),
    "ragged blocks": Case(lambda: nn.Sequential(nn.Linear(50, 33), nn.Tanh(), nn.Linear(33, 7)),
                          lambda: torch.randn(3, 50), "mxfp4"),
    "a vector": Case(lambda: nn.Linear(64, 32), lambda: torch.randn(64), "mxfp4"),
    "one number": Case(lambda: nn.Linear(1, 1), lambda: torch.randn(3, 1), "mxfp4"),
}  # fmt: skip


def made(name: str, seed: int = 0) -> tuple[nn.Module, Any]:
    """The model in evaluation, and inputs."""
    torch.manual_seed(seed)
    case = CASES[name]
    return case.make().eval(), case.inputs()


def called(model: Any, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)
