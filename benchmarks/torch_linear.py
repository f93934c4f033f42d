"""Quantized nn.Linear in torch, beside torch's own: float32, bfloat16 and int4pack; and a decode step of a small Llama.

Best of many, all in turn in one run, so ratios hold on a busy machine; `us` are microseconds of a call.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import blockscale as bs

SIZE = 4096
ROWS = (1, 16, 128, 512)
RECIPES = (
    "mxfp4-mxint8",
    "mxfp4-float",
    "mxint8",
    "mxfp8",
    "nvfp4",
    "int8-int8-token",
    "int4-g32-int8-token",
)

Run = Callable[[], Any]


def interleaved(runs: dict[str, Run], seconds: float) -> dict[str, float]:
    """The least microseconds of each."""
    for run in runs.values():
        run()
    best = dict.fromkeys(runs, float("inf"))
    end = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < end:
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], (time.perf_counter() - start) * 1e6)
    return best


def table(title: str, best: dict[str, float], base: str) -> None:
    print(f"\n{title}")
    for name, us in best.items():
        print(f"  {name:24} {us:10.1f} us   {best[base] / us:6.2f} × {base}")


def int4pack(linear: nn.Linear, x: Tensor) -> Run | None:
    """torch's own weight-only int4 in groups of 32, where this build has it."""
    operators = torch.ops.aten
    try:
        codes = torch.randint(0, 16, (linear.out_features, linear.in_features), dtype=torch.int32)
        packed = operators._convert_weight_to_int4pack_for_cpu(codes, 1)
        scales = torch.ones(linear.in_features // 32, linear.out_features, 2, dtype=torch.bfloat16)
        half = x.bfloat16()
        operators._weight_int4pack_mm_for_cpu(half, packed, 32, scales)
    except (AttributeError, RuntimeError) as error:
        print(f"int4pack: not here: {str(error).partition(chr(10))[0]}")
        return None
    return lambda: operators._weight_int4pack_mm_for_cpu(half, packed, 32, scales)


def layers(seconds: float) -> None:
    linear = nn.Linear(SIZE, SIZE, bias=False).eval()
    half = nn.Linear(SIZE, SIZE, bias=False).bfloat16().eval()
    ours = {name: bs.quantize_model(linear, [*_rules(name)]) for name in RECIPES}
    for rows in ROWS:
        x = torch.randn(rows, SIZE)
        narrow = x.bfloat16()
        runs: dict[str, Run] = {
            "torch float32": lambda x=x: linear(x),
            "torch bfloat16": lambda x=narrow: half(x),
        }
        if (theirs := int4pack(linear, x)) is not None:
            runs["torch int4pack"] = theirs
        runs |= {name: lambda one=one, x=x: one(x) for name, one in ours.items()}
        table(
            f"Linear {SIZE}², M = {rows}, threads {torch.get_num_threads()}",
            interleaved(runs, seconds),
            "torch float32",
        )


def _rules(name: str) -> tuple[bs.Rule, ...]:
    return bs.Recipe.preset(name).rules


def overhead(seconds: float) -> None:
    linear = nn.Linear(32, 32, bias=False).eval()
    x = torch.randn(1, 32)
    runs: dict[str, Run] = {"torch float32": lambda: linear(x)}
    ours = {name: bs.quantize_model(linear, [*_rules(name)]) for name in RECIPES[:2]}
    runs |= {name: lambda one=one: one(x) for name, one in ours.items()}
    table("Overhead: Linear 32², M = 1", interleaved(runs, seconds), "torch float32")


def llama(seconds: float) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16,
        num_key_value_heads=16, vocab_size=32000,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    half = LlamaForCausalLM(config).bfloat16().eval()
    ours = bs.quantize_model(model, "mxfp4-mxint8")
    ids = torch.randint(0, 32000, (1, 32))

    def step(one: Any) -> Run:
        cache = one(ids, use_cache=True).past_key_values
        one(ids[:, :1], past_key_values=cache, use_cache=True)

        def run() -> None:
            cache.crop(-1)
            one(ids[:, :1], past_key_values=cache, use_cache=True)

        return run

    runs = {"torch float32": step(model), "torch bfloat16": step(half), "mxfp4-mxint8": step(ours)}
    table(
        f"Llama, one token, threads {torch.get_num_threads()}", interleaved(runs, seconds), "torch bfloat16"
    )
    report = ours.blockscale_report
    print(
        f"  stored {report.bytes_after / report.bytes_before:.3f} of float32; packed weights are as much again"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    given = parser.parse_args()
    torch.manual_seed(0)
    with torch.inference_mode():
        for threads in given.threads:
            torch.set_num_threads(threads)
            overhead(given.seconds)
            layers(given.seconds)
            llama(given.seconds)


if __name__ == "__main__":
    main()
