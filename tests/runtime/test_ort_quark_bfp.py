"""AMD Quark's BFP operators in our operator library: the bits of the runner, which are Quark's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto as T

from blockscale.numerics import native
from blockscale.numerics.arrays import TENSOR_DTYPES, Array
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import numbers_named
from blockscale.runtime.onnx_reference import Runner
from conformance.core_cases import data_for, same_bits
from runtime.ort_models import FLOATS, model, node, run, session, value

NAMES = (("com.amd.quark", "BFPQuantizeDequantize"), ("com.vai.quantize", "BFPFixNeuron"))
PRIME = {"bfp_method": "to_bfp_prime", "block_size": 16}
SETTINGS: list[dict[str, Any]] = [
    {}, {"bit_width": 13, "rounding_mode": 2, "axis": -1}, {"bit_width": 24, "block_size": 5, "rounding_mode": 1},
    {"use_compiler_version_cpu_kernel": 1}, {"convert_to_bfloat_before_bfp": 1}, PRIME,
    PRIME | {"bit_width": 11, "rounding_mode": 2, "axis": -2}, PRIME | {"convert_to_bfloat_before_bfp": 1},
    {"bfp_method": "to_bfp_prime_shared", "sub_block_size": 4, "sub_block_shift_bits": 2},
]  # fmt: skip
SHAPES = ((3, 40), (2, 35, 3), (1, 1), (2, 16, 4, 3), (0, 3))


def by(x: Array, name: tuple[str, str], **settings: Any) -> Any:
    kind = FLOATS[next(key for key, dtype in TENSOR_DTYPES.items() if dtype == x.dtype)]
    one = node(name[1], ["x"], ["y"], name[0], **settings)
    return model([one], [value("x", kind, x.shape)], [value("y", kind)])


def data(shape: tuple[int, ...], tensor_format: str, seed: int) -> Array:
    return data_for(numbers_named("bfp16,dialect=quark"), shape, tensor_format, seed)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("tensor_format", ["f32", "f16"])
def test_bits_of_the_runner(tensor_format: str, settings: dict[str, Any]) -> None:
    for i, shape in enumerate(SHAPES):
        x = data(shape, tensor_format, i)
        proto = by(x, NAMES[i % 2], **settings)
        assert same_bits(run(session(proto), {"x": x})["y"], Runner(proto).run({"x": x})["y"]).all(), shape


def test_one_dimension_has_no_axis_and_bfloat16_is_widened() -> None:
    x = data((77,), "f32", 3)
    for axis in (1, 5):
        proto = by(x, NAMES[0], axis=axis)
        assert same_bits(run(session(proto), {"x": x})["y"], Runner(proto).run({"x": x})["y"]).all()
    x = data((5, 64), "bf16", 4)
    layout = Layout(numbers_named("mx9,dialect=quark"), x.shape, (1, 16))
    found = run(session(by(x, NAMES[0], **PRIME, rounding_mode=2)), {"x": x})["y"]
    assert same_bits(found, native.fake_quantize(x, layout)).all()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"bit_width": 9}, "bit_width = 9"), ({"bit_width": 25}, "from 10 to 24"),
        ({"rounding_mode": 3}, "rounding_mode"),
        ({"bfp_method": "to_mx"}, "bfp_method"), ({"axis": 2}, "axis"), ({"block_size": 0}, "block_size"),
        ({"use_compiler_version_cpu_kernel": 1, "bit_width": 13}, "16, where"),
        (PRIME | {"sub_block_size": 3}, "multiple"),
        (PRIME | {"sub_block_size": 0}, "sub_block_size"), (PRIME | {"sub_block_shift_bits": 9}, "sub_shift"),
    ],
)  # fmt: skip
def test_what_quark_does_not_define_is_refused(settings: dict[str, Any], why: str) -> None:
    x = np.zeros((2, 64), np.float32)
    with pytest.raises(Exception, match=why):
        session(by(x, NAMES[0], **settings))


def test_other_shapes_on_one_session() -> None:
    one = node(NAMES[0][1], ["x"], ["y"], NAMES[0][0], **PRIME)
    on = session(model([one], [value("x", T.FLOAT)], [value("y", T.FLOAT)]))
    numbers = numbers_named("mx9,dialect=quark,rounding=half_away")
    for shape in ((3, 64), (64,), (2, 70, 3), (1, 2, 3, 4)):
        x = data(shape, "f32", len(shape))
        block = tuple(16 if i == min(1, len(shape) - 1) else 1 for i in range(len(shape)))
        assert same_bits(run(on, {"x": x})["y"], native.fake_quantize(x, Layout(numbers, shape, block))).all()
