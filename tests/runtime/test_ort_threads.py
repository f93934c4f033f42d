"""Many threads on few sessions of the operator library, with shapes and ranks that change, under load."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto as T

from blockscale.numerics.arrays import Array
from runtime.ort_models import chain, constant, model, node, run, session, value

THREADS, RUNS = 16, 1000
RNG = np.random.default_rng(9)


def random(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def of_any_rank() -> tuple[Any, list[dict[str, Array]]]:
    """Quark's operators take every rank."""
    nodes = [
        node("MXQuantizeDequantize", ["x"], ["h"], "com.amd.quark", element_dtype="fp4_e2m1", axis=-1),
        node("MXFixNeuron", ["h"], ["y"], "com.vai.quantize", axis=0, block_size=16, rounding_mode=2),
    ]
    shapes = ((7,), (3, 64), (2, 5, 33), (1, 2, 3, 40), (0, 4), (129, 70), (2, 1, 2, 1, 35), (1, 1))
    return model(nodes, [value("x", T.FLOAT)], [value("y", T.FLOAT)]), [{"x": random(*s)} for s in shapes]


def of_two_dimensions() -> tuple[Any, list[dict[str, Array]]]:
    """Every operator of ours; the largest input is worth several threads."""
    texts = ("mxfp4", "nvfp4", "uint8", "mxfp8,rule=mse")
    chains = [chain(f"n{i}", text, (1, 32), (-1, 64), "f32", seed=i) for i, text in enumerate(texts)]
    codes = RNG.integers(0, 256, (64, 12), np.uint8)
    product = node(
        "MatMul", ["x", "codes", "scales"], ["p"], numbers="mxfp4", block=[32, 1], shape=[64, 24],
        x_numbers="mxint8", x_block=32,
    )  # fmt: skip
    constants = [constant("codes", codes), constant("scales", RNG.integers(120, 130, (2, 24), np.uint8))]
    nodes = [one for made, _ in chains for one in made] + [product]
    values = [one for _, known in chains for one in known] + [value("p", T.FLOAT)]
    made = model(nodes, [value("x", T.FLOAT, ["a", 64])], values, constants)
    return made, [{"x": random(rows, 64)} for rows in (1, 2, 3, 17, 64, 0, 900)]


@pytest.mark.parametrize("threads", [1, 2])
def test_sixteen_threads_on_two_sessions(threads: int) -> None:
    cases = []
    for made, feeds in (of_any_rank(), of_two_dimensions()):
        on = session(made, threads)
        cases += [(on, one, run(on, one)) for one in feeds]

    def many(worker: int) -> int:
        order = np.random.default_rng(worker)
        wrong = 0
        for which in order.integers(0, len(cases), RUNS):
            on, feeds, wanted = cases[which]
            found = run(on, feeds)
            wrong += any(found[name].tobytes() != array.tobytes() for name, array in wanted.items())
        return wrong

    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as load:
        try:
            with ThreadPoolExecutor(THREADS) as pool:
                assert sum(pool.map(many, range(THREADS))) == 0
        finally:
            load.kill()


def test_sessions_come_and_go_while_others_run() -> None:
    made, feeds = of_any_rank()
    wanted = [run(session(made), one)["y"] for one in feeds]

    def many(worker: int) -> bool:
        same = True
        for _ in range(15):
            on = session(made)
            found = [run(on, one)["y"] for one in feeds]
            same &= all(a.tobytes() == b.tobytes() for a, b in zip(found, wanted, strict=True))
        return same

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(many, range(8)))
