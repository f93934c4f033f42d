"""Models of one quantizer, and their results by the numpy core and by stock ONNX Runtime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from blockscale.numerics import native
from blockscale.numerics.layout import Layout
from blockscale.numerics.scheme import Numbers
from blockscale.runtime.ort import array_of

TYPES = {
    "f32": (np.dtype(np.float32), ir.DataType.FLOAT), "f16": (np.dtype(np.float16), ir.DataType.FLOAT16),
    "bf16": (np.dtype(ml_dtypes.bfloat16), ir.DataType.BFLOAT16),
}  # fmt: skip


def model(
    op_type: str, inputs: dict[str, Any], outputs: int, numbers: Numbers, block: tuple[int, ...],
    opset: int = 18, shapes: bool = True, names: tuple[str, ...] = (), like: tuple[Any, ...] = (),
    **more: Any,
) -> ir.Model:  # fmt: skip
    """`inputs` in order, None where one is left out; their shapes are known, or just the rank.

    Outputs have types and shapes of `like`, or of the first input.
    """
    values = []
    for name, array in inputs.items():
        if array is None:
            values.append(None)
            continue
        dims = array.shape if shapes else [f"{name}{i}" for i in range(array.ndim)]
        dtype = ir.DataType.from_numpy(array.dtype)
        values.append(ir.Value(name=name, shape=ir.Shape(dims), type=ir.TensorType(dtype)))
    while values and values[-1] is None:
        values.pop()
    settings = {"numbers": str(numbers), "block": list(block), **more}
    attributes = [
        ir.AttrInt64s(key, value) if isinstance(value, list) else
        ir.AttrString(key, value) if isinstance(value, str) else ir.AttrInt64(key, value)
        for key, value in settings.items()
    ]  # fmt: skip
    node = ir.Node("blockscale", op_type, values, attributes, num_outputs=outputs, name="q")
    for i, value in enumerate(node.outputs):
        value.name = names[i] if names else f"y{i}"
        first = like[i] if like else next(iter(inputs.values()))
        value.type = ir.TensorType(ir.DataType.from_numpy(first.dtype))
        value.shape = ir.Shape(first.shape if shapes else [f"y{i}_{axis}" for axis in range(first.ndim)])
    given = [value for value in values if value is not None]
    graph = ir.Graph(
        given, list(node.outputs), nodes=[node], opset_imports={"": opset, "blockscale": 1}, name="g"
    )
    return ir.Model(graph, ir_version=10)


def on_onnxruntime(proto: Any, inputs: dict[str, Any], *, plain: bool = True) -> list[Any]:
    """With the optimizations that a session has by default, or with none."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if plain:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    given = {name: _value(array) for name, array in inputs.items() if array is not None}
    found = session.run_with_ort_values(None, given)
    return [array_of(one) for one in found]


def _value(array: Any) -> Any:
    array = np.ascontiguousarray(array).reshape(array.shape)
    if array.dtype == ml_dtypes.bfloat16:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, int(ir.DataType.BFLOAT16))
    return ort.OrtValue.ortvalue_from_numpy(array)


def layout_of(numbers: Numbers, shape: tuple[int, ...], block: tuple[int, ...]) -> Layout:
    return Layout(numbers, shape, block)


def same(found: Any, expected: Any) -> None:
    """Bit for bit; any NaN is one NaN."""
    assert found.dtype == expected.dtype and found.shape == expected.shape, (
        found.dtype,
        found.shape,
        expected.shape,
    )
    if expected.dtype.kind in "iu":
        np.testing.assert_array_equal(found, expected)
        return
    wide, want = found.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(wide, want)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(wide)[number], np.signbit(want)[number])


def patterns(shape: tuple[int, ...], kind: str, seed: int = 0) -> Any:
    """Every kind of bit pattern: normal blocks, tiny ones, huge ones, and NaN and Inf now and then."""
    rng = np.random.default_rng((seed, *shape))
    dtype = TYPES[kind][0]
    bits = np.uint32 if kind == "f32" else np.uint16
    raw = np.asarray(rng.integers(0, np.iinfo(bits).max, shape, bits, endpoint=True)).view(dtype)
    with np.errstate(all="ignore"):
        usual = np.asarray(rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 20, shape)).astype(dtype)
    coarse = np.asarray(rng.integers(-64, 65, shape) * 0.125).astype(dtype)  # ties
    which = rng.integers(0, 40, shape)
    out = np.where(which < 16, usual, coarse)
    out = np.where(which == 39, raw, out)
    out = np.where(which == 38, np.array(-0.0, dtype), out)
    with np.errstate(all="ignore"):
        scale = 2.0 ** rng.choice([0, 0, 0, -140, -126, -110, 100], (*shape[:-1], 1) if shape else ())
        return np.asarray(out.astype(np.float64) * scale).astype(dtype)


def expected_fake(x: Any, layout: Layout, params: Any = None, tensor_scale: float | None = None) -> Any:
    return native.fake_quantize(x, layout, params, tensor_scale=tensor_scale)
