"""The demo's words and tables."""

from __future__ import annotations

import math

from blockscale.report.demo import Model, PresetResult, best_of_size, by_size

SHOWN_WORST = ("mxfp4", "nvfp4", "int4-g32", "mxfp8_e4m3", "int8")
BAR = 20

Table = tuple[list[str], list[list[str]]]


def opening(model: Model) -> str:
    share = 100 * model.embedding_size / model.size
    return (
        f"{model.name}: {len(model.weights)} weight tensors, {model.size / 1e6:.1f} M weights, "
        f"{model.nbytes / 1e6:.1f} MB as they come.\n"
        f"Every tensor of two dimensions or more is quantized, embeddings included ({share:.0f} % of the "
        "weights);\n"
        f"the other {model.kept} (norms, biases, indices: {model.kept_bytes / 1e6:.2f} MB) stay as they are."
    )


def presets(model: Model, results: list[PresetResult]) -> Table:
    best = {one.preset for one in best_of_size(results)}
    top = max((one.sqnr_db for one in results if math.isfinite(one.sqnr_db)), default=1.0)
    head = ["preset", "", "bits a weight", "MB", "smaller by", "SQNR dB", "", "M weights/s"]
    rows = [
        [one.preset, "*" if one.preset in best else "", f"{one.bits_per_weight:.3f}",
         f"{one.nbytes / 1e6:.2f}", f"{model.nbytes / one.nbytes:.2f} ×", f"{one.sqnr_db:.2f}",
         bar(one.sqnr_db / top), f"{one.weights_per_second / 1e6:,.0f}"]
        for one in by_size(results)
    ]  # fmt: skip
    return head, rows


def bar(share: float) -> str:
    return "█" * round(BAR * min(max(share, 0.0), 1.0))


def worst(results: list[PresetResult]) -> Table:
    """The three tensors that lose most, in a few presets."""
    rows = []
    for one in by_size(results):
        if one.preset in SHOWN_WORST:
            for place, tensor in enumerate(one.worst[:3]):
                shape = " × ".join(map(str, tensor.shape))
                rows.append(
                    [one.preset if place == 0 else "", tensor.name, shape, f"{tensor.sqnr_db:.2f}",
                     f"{tensor.sqnr_db - one.sqnr_db:+.2f}"]
                )  # fmt: skip
    return ["preset", "suffers most", "shape", "SQNR dB", "to all weights"], rows


def closing(results: list[PresetResult]) -> str:
    spread = {one.preset: one.sqnr_db - one.worst[0].sqnr_db for one in results}
    uneven = max(results, key=lambda one: spread[one.preset])
    lines = [
        "*     no other preset is as small and as close to the weights",
        "SQNR  power of the weights over that of the error, in decibels: 6 dB are one bit; it is not yet "
        "accuracy",
        "speed of quantize, scales chosen and codes packed, in memory",
        "",
        f"Least even is {uneven.preset}: {uneven.worst[0].name} is {spread[uneven.preset]:.1f} dB below all "
        "weights together:",
        "look there before one scheme is chosen for every tensor.",
        "",
        "Next: blockscale presets · blockscale bench codec · blockscale inspect FILE.safetensors · README.md",
    ]
    return "\n".join(lines)
