"""Convolutional networks made in place: residual blocks, and depthwise with squeeze; random weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def conv_norm(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Residual(nn.Module):
    """As in ResNet: two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = conv_norm(inputs, outputs, 3, stride), conv_norm(outputs, outputs, 3)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else conv_norm(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.first(x).relu())
        return (y + self.shortcut(x)).relu()


class Resnet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 32, 3, 2)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.body = nn.Sequential(Residual(32, 32, 1), Residual(32, 64, 2))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(self.pool(self.stem(x).relu()))
        made: Tensor = self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return made


class Inverted(nn.Module):
    """As in MobileNet: wide, depthwise, squeezed, narrow."""

    def __init__(self, width: int, factor: int) -> None:
        super().__init__()
        wide = width * factor
        self.expand, self.depthwise = conv_norm(width, wide, 1), conv_norm(wide, wide, 3, groups=wide)
        self.squeeze, self.excite = nn.Conv2d(wide, 16, 1), nn.Conv2d(16, wide, 1)
        self.project = conv_norm(wide, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.hardswish(self.depthwise(nn.functional.relu6(self.expand(x))))
        gate = self.excite(self.squeeze(nn.functional.adaptive_avg_pool2d(y, 1)).relu())
        made: Tensor = x + self.project(y * nn.functional.hardsigmoid(gate))
        return made


class Mobilenet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_norm(3, 32, 3, 2)
        self.body = nn.Sequential(Inverted(32, 2), Inverted(32, 3))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(nn.functional.hardswish(self.stem(x)))
        made: Tensor = self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))
        return made


def network(kind: type[nn.Module]) -> nn.Module:
    """With statistics of batches that are not those of a fresh layer."""
    torch.manual_seed(0)
    model = kind()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    return model.eval()


def images(batch: int = 2, size: int = 24, seed: int = 0) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(seed))
