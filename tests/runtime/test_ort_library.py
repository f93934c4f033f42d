"""The operator library under ONNX Runtime: the bits of the codec, for every number, place and dtype."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper

from blockscale.graph.onnx_quantizers import quark_numbers
from blockscale.numerics import native
from blockscale.numerics.arrays import TENSOR_DTYPES, Array
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import Numbers, numbers_named
from conformance.core_cases import PLACES, all_numbers, data_for, placed, same_bits, thinned
from runtime.ort_models import FLOATS, QUARK, chain, constant, model, node, run, session, value

PART = 9  # of how many numbers each place takes one in the quick tests


def assert_bits_of_the_core(
    numbers: list[Numbers], shape: tuple[int, ...], block: tuple[int, ...], tensor_format: str
) -> None:
    """One session with a chain of every operator for each of the numbers, all on one tensor."""
    seed = 7
    x = data_for(numbers[0], shape, tensor_format, zlib.crc32(repr((shape, block)).encode()) % 1000)
    nodes, values = [], []
    for i, one in enumerate(numbers):
        made, known = chain(f"n{i}", str(one), placed(one, shape, block).block, shape, tensor_format, seed)
        nodes += made
        values += known
    on = session(model(nodes, [value("x", FLOATS[tensor_format], shape)], values))
    found = run(on, {"x": x})
    for i, one in enumerate(numbers):
        wanted = by_the_core(x, placed(one, shape, block), tensor_format, seed)
        for letter, array in wanted.items():
            given = found[f"n{i}_{letter}"]
            assert given.dtype == array.dtype and given.shape == array.shape, (str(one), letter, given.shape)
            assert same_bits(given, array).all(), (str(one), letter, shape, block, tensor_format)


def by_the_core(x: Array, layout: Layout, tensor_format: str, seed: int) -> dict[str, Array]:
    wanted = {"f": native.fake_quantize(x, layout, seed=seed)}
    if layout.numbers.why_no_codes:
        return wanted
    codes, stored = native.quantize(x, layout, seed=seed)
    zeros, t = stored.zero_points, stored.tensor_scale
    return wanted | {
        "c": codes, "q": codes, "s": stored.scales, "y": native.dequantize(codes, layout, stored, tensor_format),
        "z": np.empty(0, np.int32) if zeros is None else zeros,
        "t": np.empty(0, np.float32) if t is None else np.asarray(t),
    }  # fmt: skip


CASES = [(i, name) for i in range(len(PLACES)) for name in TENSOR_DTYPES]


@pytest.mark.parametrize(("place", "tensor_format"), CASES)
def test_bits_of_the_core(place: int, tensor_format: str) -> None:
    shape, block = PLACES[place]
    part = (place * len(TENSOR_DTYPES) + list(TENSOR_DTYPES).index(tensor_format)) % PART
    assert_bits_of_the_core(list(thinned(all_numbers())[part::PART]), shape, block, tensor_format)


@pytest.mark.full
@pytest.mark.parametrize(("place", "tensor_format"), CASES)
@pytest.mark.parametrize("part", range(8))
def test_bits_of_the_core_in_full(place: int, tensor_format: str, part: int) -> None:
    shape, block = PLACES[place]
    assert_bits_of_the_core(list(all_numbers()[part::8]), shape, block, tensor_format)


@pytest.mark.parametrize(
    "text", ["mxfp4", "mxint8,rule=rceil", "nvfp4", "uint8", "int4,scale=bf16", "mxfp6,rounding=stochastic"]
)
@pytest.mark.parametrize("threads", [1, 4])
def test_large_tensors_on_the_threads_of_the_runtime(text: str, threads: int) -> None:
    shape, block = (513, 1030), (1, 32)
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    nodes, values = chain("n", text, block, shape, "f32", seed=1 << 40)
    found = run(session(model(nodes, [value("x", T.FLOAT, ["a", "b"])], values), threads), {"x": x})
    for letter, array in by_the_core(x, Layout(numbers_named(text), shape, block), "f32", 1 << 40).items():
        assert same_bits(found[f"n_{letter}"], array).all()


SHAPES = ((), (1,), (33,), (5, 40), (3, 40, 2), (2, 3, 35, 2), (2, 1, 3, 34, 2), (0, 3), (3, 0))
PLACES_OF_QUARK = [
    (s, axis) for s in SHAPES for axis in range(-2, 3) if len(s) < 2 or -len(s) <= axis < len(s)
]


@pytest.mark.parametrize(("shape", "axis"), PLACES_OF_QUARK)
def test_the_operators_of_quark(shape: tuple[int, ...], axis: int) -> None:
    rank = len(shape)
    for tensor_format, (domain, op_type) in ((name, one) for name in TENSOR_DTYPES for one in QUARK):
        for element in ("int8", "fp8_e4m3", "fp8_e5m2", "fp6_e2m3", "fp6_e3m2", "fp4_e2m1"):
            mode = (axis + rank) % 3
            numbers = quark_numbers(element, mode)
            assert not isinstance(numbers, str)
            attributes = {"element_dtype": element, "axis": axis, "block_size": 8, "rounding_mode": mode}
            one = node(op_type, ["x"], ["y"], domain, **attributes)
            kind = FLOATS[tensor_format]
            on = session(model([one], [value("x", kind, shape if rank else None)], [value("y", kind)]))
            x = data_for(numbers, shape, tensor_format, axis + 9)
            block = tuple(8 if i == (0 if rank == 1 else axis % rank) else 1 for i in range(rank))
            wanted = x if x.size == 1 else native.fake_quantize(x, Layout(numbers, shape, block))
            assert same_bits(run(on, {"x": x})["y"], wanted).all(), (element, tensor_format)


def test_defaults_of_quark() -> None:
    for domain, op_type in QUARK:
        on = session(
            model([node(op_type, ["x"], ["y"], domain)], [value("x", T.FLOAT)], [value("y", T.FLOAT)])
        )
        for shape in ((3, 64), (64,), (2, 70, 3), (1, 2, 3, 4)):  # other shapes and ranks on one session
            x = np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)
            block = tuple(32 if i == min(1, len(shape) - 1) else 1 for i in range(len(shape)))
            layout = Layout(numbers_named("mxint8,dialect=quark,rounding=half_away"), shape, block)
            assert same_bits(run(on, {"x": x})["y"], native.fake_quantize(x, layout)).all()


@pytest.mark.parametrize("op_type", ["FakeQuantize", "MXQuantizeDequantize", "DynamicQuantize", "MatMul"])
def test_shapes_that_the_runtime_does_not_know(op_type: str) -> None:
    """What comes after, an Add of a vector, is not taken for a vector."""
    place = {"numbers": "mxint8", "block": [1, 32]}
    w = np.eye(64, dtype=np.float32)
    codes = native.quantize(w, Layout(numbers_named("mxint8"), (64, 64), (32, 1)))
    made = {
        "FakeQuantize": [node("FakeQuantize", ["a"], ["b"], **place)],
        "MXQuantizeDequantize": [node("MXQuantizeDequantize", ["a"], ["b"], "com.amd.quark")],
        "DynamicQuantize": [
            node("DynamicQuantize", ["a"], ["c", "s"], **place),
            node("Dequantize", ["c", "s"], ["b"], shape=[-1, -1], dtype=T.FLOAT, **place),
        ],
        "MatMul": [
            node("MatMul", ["a", "wc", "ws"], ["b"], numbers="mxint8", block=[32, 1], shape=[64, 64],
                 x_numbers="mxint8", x_block=32),
        ],
    }[op_type]  # fmt: skip
    nodes = [
        helper.make_node("Reshape", ["x", "sizes"], ["a"]), *made,
        helper.make_node("Add", ["b", "bias"], ["d"]), node("FakeQuantize", ["d"], ["y"], **place),
    ]  # fmt: skip
    constants = [
        constant("bias", np.ones(64, np.float32)),
        constant("wc", codes[0]),
        constant("ws", codes[1].scales),
    ]
    known = [value("c", np.int8), value("s", np.uint8), value("b", T.FLOAT)]
    inputs = [value("x", T.FLOAT, ["n"]), value("sizes", T.INT64, ["r"])]
    on = session(model(nodes, inputs, [value("y", T.FLOAT)], constants, known))
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    layout = Layout(numbers_named("mxint8"), x.shape, (1, 32))
    wanted = native.fake_quantize(native.fake_quantize(x, layout) + np.float32(1), layout)
    found = run(on, {"x": x.ravel(), "sizes": np.array([3, 64])})["y"]
    assert found.shape == x.shape
    np.testing.assert_allclose(found, wanted, atol=0.04)
