"""Fake-quantized models made by hand, layer by layer: an account of what a preset means that uses none of
the compiler. Weights are replaced by their fake-quantized values; inputs are fake-quantized in pre-hooks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import blockscale as bs


@dataclass(frozen=True)
class Meaning:
    """Layouts of the weights, of the inputs (None: float), and of embeddings and the head."""

    weight: str
    input: str | None
    wide: str
    static: bool = False


MEANING = {
    "mxfp4": Meaning("mxfp4", "mxfp4", "mxint8"),
    "mxfp8": Meaning("mxfp8", "mxfp8", "mxfp8"),
    "mxint8": Meaning("mxint8", "mxint8", "mxint8"),
    "nvfp4": Meaning("nvfp4", "nvfp4", "mxint8"),
    "int8": Meaning("int8-channel", "int8", "int8-channel", static=True),
    "int8-dynamic": Meaning("int8-channel", "int8", "int8-channel"),
    "int8-int8-token": Meaning("int8-channel", "int8-token", "int8-channel"),
    "int4-g32-float": Meaning("int4-g32", None, "int8-channel"),
    "mxfp4-mxint8": Meaning("mxfp4", "mxint8", "mxint8"),
}

Convs = nn.Conv1d, nn.Conv2d
Scales = dict[str, Tensor]


def by_hand(
    model: nn.Module, preset: str, calibration: Sequence[tuple[Any, ...]] = (), head: str | None = None,
    constant: Sequence[str] = (),
) -> nn.Module:  # fmt: skip
    """A copy of `model`; `head` is the name of the linear that makes the outputs, `constant` names embeddings
    of what is known before the run: their results are constants, which no recipe quantizes.
    """
    meaning = MEANING[preset]
    scales = measured(model, calibration) if meaning.static else {}
    result = copy.deepcopy(model).requires_grad_(False)  # or torch.matmul takes another way, with other bits
    done: set[int] = set()
    for name, module in layers(result):
        if name.rpartition(".")[2] in constant:
            continue
        if id(module.weight) not in done:  # or a tied weight would be rounded twice
            done.add(id(module.weight))
            wide = isinstance(module, nn.Embedding) or name == head
            with torch.no_grad():
                module.weight.copy_(weight_of(module, meaning.wide if wide else meaning.weight))
        if meaning.input is not None and not isinstance(module, nn.Embedding):
            module.register_forward_pre_hook(
                partial(_fake_quantize_input, meaning.input, axis_of(module), scales.get(name))
            )
    return result


def layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Embedding, *Convs)):
            yield name, module


def axis_of(module: nn.Module) -> int:
    """The dimension that a product adds up over: channels of a convolution, else the last."""
    return 1 if isinstance(module, Convs) else -1


def weight_of(module: Any, layout: str) -> Tensor:
    if layout == "int8-channel":
        return bs.fake_quantize(module.weight, layout)
    return bs.fake_quantize(module.weight, layout, axis=axis_of(module))


def measured(model: nn.Module, calibration: Sequence[tuple[Any, ...]]) -> Scales:
    """One scale for the input of each layer, from the extremes over all calls of the float model."""
    seen: dict[str, list[Tensor]] = {}
    handles = [
        module.register_forward_pre_hook(
            lambda _, args, name=name: seen.setdefault(name, []).append(args[0].flatten())
        )
        for name, module in layers(model)
        if not isinstance(module, nn.Embedding)
    ]
    with torch.no_grad():
        for args in calibration:
            model(*args)
    for handle in handles:
        handle.remove()
    return {name: bs.choose_params(torch.cat(values), "int8").scales for name, values in seen.items()}


def _fake_quantize_input(
    layout: str, axis: int, scale: Tensor | None, module: nn.Module, args: tuple[Any, ...]
) -> tuple[Any, ...]:
    x = args[0]
    if scale is not None:
        made = bs.fake_quantize(x, f"{layout},dynamic=false", scale=scale)
    elif layout.startswith("int8"):
        made = bs.fake_quantize(x, layout)
    else:
        made = bs.fake_quantize(x, layout, axis=axis)
    return made, *args[1:]
