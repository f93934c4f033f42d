"""The demo's words and tables."""

from __future__ import annotations

from blockscale.report.demo import Model, PresetResult, best_of_size

SHOWN_WORST = ("mxfp8_e4m3", "mxfp4", "nvfp4", "int8", "int4-g32")

Table = tuple[list[str], list[list[str]]]


def opening(model: Model) -> str:
    share = 100 * model.embedding_size / model.size
    return (
        f"{model.name}: {len(model.weights)} weight tensors, {model.size / 1e6:.1f} M weights, "
        f"{model.nbytes / 1e6:.1f} MB as float.\n"
        f"Every tensor of two dimensions or more is quantized, embeddings included ({share:.0f} % of the "
        "weights);\n"
        f"the other {model.kept} (norms, biases, indices: {model.kept_bytes / 1e6:.2f} MB) stay as they are."
    )


def presets(model: Model, results: list[PresetResult]) -> Table:
    best = {one.preset for one in best_of_size(results)}
    head = [
        "preset",
        "bits a weight",
        "MB",
        "smaller by",
        "SQNR dB",
        "best of its size",
        "seconds",
        "G weights/s",
    ]
    rows = [
        [one.preset, f"{one.bits_per_weight:.3f}", f"{one.nbytes / 1e6:.2f}",
         f"{model.nbytes / one.nbytes:.2f} ×", f"{one.sqnr_db:.2f}", "*" if one.preset in best else "",
         f"{one.seconds:.3f}", f"{one.weights_per_second / 1e9:.2f}"]
        for one in results
    ]  # fmt: skip
    return head, rows


def worst(results: list[PresetResult]) -> Table:
    """The five tensors that lose most, in a few presets."""
    rows = []
    for one in results:
        if one.preset in SHOWN_WORST:
            for place, tensor in enumerate(one.worst):
                shape = " × ".join(map(str, tensor.shape))
                rows.append(
                    [one.preset if place == 0 else "", tensor.name, shape, f"{tensor.sqnr_db:.2f}",
                     f"{tensor.sqnr_db - one.sqnr_db:+.2f}"]
                )  # fmt: skip
    return ["preset", "suffers most", "shape", "SQNR dB", "to all weights"], rows


def closing(results: list[PresetResult]) -> str:
    best = best_of_size(results)
    spread = {one.preset: one.sqnr_db - one.worst[0].sqnr_db for one in results}
    uneven = max(results, key=lambda one: spread[one.preset])
    lines = [
        "SQNR is the power of the weights over that of the error, in decibels: 6 dB are one bit.",
        "Best of their size (*: no other preset is as small and closer), from small to close:",
        *(f"    {one.preset:<12} {one.bits_per_weight:.2f} bits  {one.sqnr_db:.1f} dB" for one in best),
        f"Least even: {uneven.preset}, where {uneven.worst[0].name} is {spread[uneven.preset]:.1f} dB below "
        "all weights together:\nlook there first before choosing one scheme for every tensor.",
        "SQNR of weights is not yet accuracy of the model.",
        "Next: blockscale presets · blockscale bench codec · blockscale inspect FILE.safetensors · README.md",
    ]
    return "\n".join(lines)
