"""MatMul with packed weights: the library against the definition in onnx_ours, and that against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockscale.errors import ArgumentError, BlockscaleError, DtypeError, ScaleError, ShapeError
from blockscale.numerics import native
from blockscale.numerics.arrays import TENSOR_DTYPES, Array
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import numbers_named
from blockscale.runtime.onnx_reference import Runner
from runtime.ort_models import FLOATS, constant, model, node, run, session, value

WEIGHTS = ("mxfp4", "mxfp6", "mxfp8", "mxint8", "nvfp4", "int8", "uint8", "int4", "uint4,scale=f16", "int12")
RNG = np.random.default_rng(21)


def product(
    text: str, k: int, n: int, *, transposed: bool = False, biased: bool = False, block: int = 16,
    tensor_format: str = "f32", shape: Any = None, **attributes: Any,
) -> tuple[Any, Array]:  # fmt: skip
    """A model, and its weight decoded, [K, N]."""
    dtype = TENSOR_DTYPES[tensor_format]
    w = RNG.standard_normal((n, k) if transposed else (k, n)).astype(np.float32)
    layout = Layout(numbers_named(text), w.shape, (1, block) if transposed else (block, 1))
    codes, stored = native.quantize(w, layout)
    constants = [constant("codes", codes), constant("scale", stored.scales)]
    names = ["x", "codes", "scale", "", "", ""]
    for i, (name, array) in enumerate((("zeros", stored.zero_points), ("t", stored.tensor_scale))):
        if array is not None:
            constants.append(constant(name, array))
            names[3 + i] = name
    if biased:
        constants.append(constant("bias", RNG.standard_normal(n).astype(dtype)))
        names[5] = "bias"
    while not names[-1]:
        names.pop()
    settings = {
        "numbers": text,
        "block": list(layout.block),
        "shape": list(w.shape),
        "trans_b": int(transposed),
    }
    kind = FLOATS[tensor_format]
    made = model(
        [node("MatMul", names, ["y"], **settings | attributes)],
        [value("x", kind, shape)],
        [value("y", kind)],
        constants,
    )
    decoded = native.dequantize(codes, layout, stored)
    return made, decoded.T if transposed else decoded


def assert_near(given: Array, wanted: Array, terms: Array) -> None:
    """To 2^-20 of the sum of magnitudes, and one rounding of the dtype."""
    assert given.dtype == wanted.dtype and given.shape == wanted.shape
    of_dtype = {2: 2.0**-7, 4: 2.0**-22}[given.dtype.itemsize]
    a, b = given.astype(np.float64), wanted.astype(np.float64)
    assert (np.abs(a - b) <= terms * 2.0**-18 + np.abs(b) * of_dtype + 1e-30).all()


@pytest.mark.parametrize("text", WEIGHTS)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("tensor_format", list(TENSOR_DTYPES))
def test_products(text: str, transposed: bool, tensor_format: str) -> None:
    for lead, biased, x_numbers in (
        ((3,), False, ""),
        ((2, 5), True, "mxint8"),
        ((), True, "nvfp4"),
        ((0,), True, ""),
    ):
        made, w = product(
            text, 70, 24, transposed=transposed, biased=biased, tensor_format=tensor_format,
            x_numbers=x_numbers, x_block=32 if x_numbers else 0,
        )  # fmt: skip
        x = RNG.standard_normal((*lead, 70)).astype(TENSOR_DTYPES[tensor_format])
        found = run(session(made), {"x": x})["y"]
        wanted = Runner(made).run({"x": x})["y"]
        assert_near(found, wanted, np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64)) + 10)


def test_a_product_is_of_the_decoded_weight() -> None:
    made, w = product("mxfp4", 64, 8, biased=True, x_numbers="int8,rule=no_clip,quant_min=-127")
    x = RNG.standard_normal((5, 64)).astype(np.float32)
    fake = native.fake_quantize(x, Layout(numbers_named("int8,rule=no_clip,quant_min=-127"), x.shape, (1, 0)))
    bias = np.frombuffer(made.graph.initializer[-1].raw_data, np.float32)
    exact = fake.astype(np.float64) @ w.astype(np.float64) + bias
    for found in (run(session(made), {"x": x})["y"], Runner(made).run({"x": x})["y"]):
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("k", "n", "rows"), [(0, 4, 3), (4, 0, 3), (4, 4, 0), (0, 0, 0), (1, 1, 1)])
@pytest.mark.parametrize("biased", [False, True])
def test_sizes_of_nothing(k: int, n: int, rows: int, biased: bool) -> None:
    made, _ = product("int8", k, n, biased=biased)
    x = np.ones((rows, k), np.float32)
    assert (run(session(made), {"x": x})["y"] == Runner(made).run({"x": x})["y"]).all()


def test_what_overflows_is_the_largest_value() -> None:
    made, _ = product("int8", 64, 8, tensor_format="f16")
    x = np.full((1, 64), 6e4, np.float16)
    found = run(session(made), {"x": x})["y"]
    assert np.isfinite(found).all() and (np.abs(found) == np.finfo(np.float16).max).any()
    assert_near(found, Runner(made).run({"x": x})["y"], np.zeros(()))


@pytest.mark.parametrize(("attributes", "says", "error"), [
    ({"shape": [64]}, "shape = '(64)': two sizes, those of the decoded weight", ShapeError),
    ({"shape": [64, -1]}, "shape = '(64, -1)': two sizes", ShapeError),
    ({"shape": [32, 8]}, "codes shape = '(64, 4)': (32, 4) for shape (32, 8)", BlockscaleError),
    ({"trans_b": 2}, "trans_b = 2: 0 (weight [K, N]) or 1 ([N, K])", ArgumentError),
    ({"x_numbers": "mxfp3"}, "x_numbers = 'mxfp3'", BlockscaleError),
    ({"x_numbers": "mxfp4", "x_block": -1}, "x_block = -1", BlockscaleError),
    ({"block": [16]}, "block = '(16)': one entry a dimension of shape (64, 8)", BlockscaleError),
    ({"numbers": "mxint8,dialect=quark"}, "only fake-quantizes", BlockscaleError),
])  # fmt: skip
def test_attributes_that_are_refused(attributes: dict[str, Any], says: str, error: type[Exception]) -> None:
    made, _ = product("mxfp4", 64, 8)
    kept = [one for one in made.graph.node[0].attribute if one.name not in attributes]
    other = node("MatMul", ["x", "codes", "scale"], ["y"], **attributes)
    del made.graph.node[0].attribute[:]
    made.graph.node[0].attribute.extend([*kept, *other.attribute])
    with pytest.raises(Exception, match="blockscale::MatMul 'MatMul_y'") as refused:
        session(made)
    assert says in str(refused.value)
    with pytest.raises(error):
        Runner(made).run({"x": np.ones((2, 64), np.float32)})


def test_operands_that_are_refused() -> None:
    made, _ = product("mxfp4", 64, 8, biased=True)
    for shape in ((2, 63), (), (64, 2)):
        x = np.ones(shape, np.float32)
        with pytest.raises(Exception, match=r"x shape = .*K = 64 in the last dimension"):
            run(session(made), {"x": x})
        with pytest.raises(ShapeError):
            Runner(made).run({"x": x})
    made, _ = product("mxfp4", 64, 8, biased=True, shape=["a", 60])
    with pytest.raises(Exception, match="K = 64 in the last dimension"):
        session(made)
    made, _ = product("mxfp4", 64, 8, biased=True)
    made.graph.initializer[-1].CopyFrom(constant("bias", np.zeros(8, np.float16)))
    with pytest.raises(Exception, match="bias = 'float16': float32"):
        session(made)
    with pytest.raises(DtypeError):
        Runner(made).run({"x": np.ones((2, 64), np.float32)})


def test_a_zero_point_without_a_scale_is_refused() -> None:
    zeros = constant("z", np.zeros((2, 1), np.int32))
    fake = node("FakeQuantize", ["x", "", "z"], ["y"], numbers="uint8", block=[1, 0])
    made = model([fake], [value("x", FLOATS["f32"])], [value("y", FLOATS["f32"])], [zeros])
    x = np.ones((2, 8), np.float32)
    with pytest.raises(Exception, match="zero_point = 'given without scale': both or neither"):
        session(made).run(None, {"x": x})
    with pytest.raises(ScaleError, match="both or neither"):
        Runner(made).run({"x": x})
