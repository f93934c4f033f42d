"""The public surface: frozen names, both array libraries alike, and errors that say what to pass."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import blockscale as bs
from blockscale.errors import (
    ArgumentError,
    AxisError,
    CombinationError,
    DtypeError,
    OutError,
    ScaleError,
    ShapeError,
    UnknownNameError,
)
from blockscale.numerics.scheme import scheme_named

NAMES = (*bs.PRESETS, "fp8_e4m3-channel", "int5-g4", "int12-g8,scale=bf16", "mxfp4,dialect=microxcaling")
STORED = tuple(name for name in NAMES if not scheme_named(name).why_no_codes)
X = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)


def test_names_are_frozen() -> None:
    assert bs.__all__ == [
        "FORMATS", "PRESETS", "Layout", "Numbers", "QuantizedTensor", "Recipe", "Rule", "Scheme",
        "__version__", "choose_params", "compare", "dequantize", "errors", "fake_quantize",
        "fake_quantize_model", "load", "optimize", "quantize", "quantize_model",
    ]  # fmt: skip
    assert dir(bs) == sorted(bs.__all__)
    assert all(getattr(bs, name) is not None for name in bs.__all__)


def test_misspelt_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fake_quantise'"):
        bs.fake_quantise  # type: ignore[attr-defined]  # noqa: B018


def test_functions_load_no_framework() -> None:
    code = (
        "import sys, numpy, blockscale as bs\n"
        "bs.quantize(numpy.ones((2, 32), numpy.float32), 'mxfp4').dequantize()\n"
        "assert not {'torch', 'onnx'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", STORED)
def test_quantize_is_fake_quantize_in_two_steps(name: str) -> None:
    expected = bs.fake_quantize(X, name)
    assert expected.dtype == X.dtype
    q = bs.quantize(X, name)
    np.testing.assert_array_equal(q.dequantize(), expected)
    np.testing.assert_array_equal(bs.dequantize(q), expected)
    out = np.empty_like(X)
    assert bs.dequantize(q, out=out) is out
    params = bs.choose_params(X, name)
    given = {
        "scale": params.scales,
        "zero_point": params.zero_points,
        "tensor_scale": params.tensor_scale,
    }
    np.testing.assert_array_equal(bs.fake_quantize(X, name, **given), expected)
    np.testing.assert_array_equal(bs.quantize(X, name, **given).dequantize(), expected)
    bound = q.layout
    np.testing.assert_array_equal(bs.fake_quantize(X, bound), expected)


@pytest.mark.parametrize("name", NAMES)
def test_torch_gives_torch_and_the_same_bits(name: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X)
    expected = bs.fake_quantize(X, name)
    found = bs.fake_quantize(x, name)
    assert isinstance(found, torch.Tensor)
    np.testing.assert_array_equal(found.numpy(), expected)
    if name not in STORED:
        with pytest.raises(CombinationError, match="no stored form"):
            bs.quantize(x, name)
        return
    q = bs.quantize(x, name)
    assert all(isinstance(part, torch.Tensor) for part in (q.codes, q.scales))
    np.testing.assert_array_equal(q.dequantize().numpy(), expected)
    assert bs.dequantize(q, torch.bfloat16).dtype == torch.bfloat16
    np.testing.assert_array_equal(q[1:3].dequantize().numpy(), expected[1:3])
    params = bs.choose_params(x, name)
    given = {
        "scale": params.scales,
        "zero_point": params.zero_points,
        "tensor_scale": params.tensor_scale,
    }
    np.testing.assert_array_equal(bs.quantize(x, name, **given).dequantize().numpy(), expected)


def test_torch_compile_and_export() -> None:
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return bs.fake_quantize(x, "mxfp4", axis=0) * 2

    x = torch.from_numpy(X)
    expected = Model()(x)
    compiled = torch.compile(Model(), fullgraph=True, backend="eager")
    assert torch.equal(compiled(x), expected)
    batch = torch.export.Dim("batch")
    program = torch.export.export(Model(), (x,), dynamic_shapes=({0: batch},))
    assert torch.equal(program.module()(x), expected)
    assert torch.equal(program.module()(x[:3]), Model()(x[:3]))


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(None, "float32"), ("bf16", "bfloat16"), ("float16", "float16"), (np.float16, "float16"),
     (ml_dtypes.bfloat16, "bfloat16"), (np.dtype(np.float32), "float32")],
)  # fmt: skip
def test_dequantize_dtypes(dtype: Any, expected: str) -> None:
    assert bs.quantize(X, "mxfp4").dequantize(dtype).dtype.name == expected


def test_keywords_change_the_scheme() -> None:
    scheme = bs.Scheme(element="fp4_e2m1", axis=0, block=2, rule="rceil")
    by_name = bs.fake_quantize(X, "mxfp4", axis=0, block=2, rule="rceil")
    np.testing.assert_array_equal(by_name, bs.fake_quantize(X, scheme))
    layout = bs.quantize(X, "mxfp4").layout
    np.testing.assert_array_equal(
        bs.fake_quantize(X, layout, rounding="toward_zero"),
        bs.fake_quantize(X, "mxfp4", rounding="toward_zero"),
    )


def test_a_given_scale_may_be_short() -> None:
    step = bs.fake_quantize(X, "int8", scale=np.full((1, 1), 0.5, np.float32))
    np.testing.assert_array_equal(bs.fake_quantize(X, "int8", scale=0.5), step)
    rows = np.full((4,), 0.5, np.float32)
    np.testing.assert_array_equal(bs.fake_quantize(X, "int8-channel", scale=rows), step)
    np.testing.assert_array_equal(bs.fake_quantize(X, "int8", scale=rows[:, None]), step)
    shifted = bs.fake_quantize(X, "uint8", scale=0.5, zero_point=128)
    np.testing.assert_array_equal(shifted, step)
    q = bs.quantize(X, "int8", scale=np.full((4, 2), 0.5, np.float32))
    assert q.layout.block == (1, 32)


def test_out_in_place() -> None:
    x = X.copy()
    assert bs.fake_quantize(x, "mxfp4", out=x) is x
    np.testing.assert_array_equal(x, bs.fake_quantize(X, "mxfp4"))


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: bs.fake_quantize([1.0, 2.0], "mxfp4"), DtypeError, "list.*numpy.asarray"),
    (lambda: bs.quantize(np.ma.masked_array(X), "mxfp4"), DtypeError, "MaskedArray"),
    (lambda: bs.fake_quantize(X.astype(np.float64), "mxfp4"), DtypeError, "float64.*cast"),
    (lambda: bs.fake_quantize(X, "mxfp5"), UnknownNameError, "did you mean 'mxfp"),
    (lambda: bs.fake_quantize(X, 7), ArgumentError, "a Scheme or a Layout"),  # type: ignore[arg-type]
    (lambda: bs.fake_quantize(X, "mxfp4", axis=5), AxisError, "from -2 to 1"),
    (lambda: bs.fake_quantize(X, bs.quantize(X, "mxfp4").layout, axis=0), CombinationError, "its blocks"),
    (lambda: bs.fake_quantize(X, "mxfp4", scale=3.0), ScaleError, "e8m0 codes"),
    (lambda: bs.fake_quantize(X, "mxfp4", scale=[1]), ScaleError, "e8m0 codes"),
    (lambda: bs.fake_quantize(X, "int8", scale=[0.5]), DtypeError, "or a number"),
    (lambda: bs.fake_quantize(X, "int8-channel", scale=0.5), ScaleError, "one entry a block"),
    (lambda: bs.fake_quantize(X, "int8", scale=0.0), ScaleError, "positive"),
    (lambda: bs.fake_quantize(X, "int8", scale=1e60), ScaleError, "finite"),
    (lambda: bs.fake_quantize(X, "int8", zero_point=3), ScaleError, "no scale is given"),
    (lambda: bs.fake_quantize(X, "uint8", scale=0.5), ScaleError, "zero_point"),
    (lambda: bs.fake_quantize(X, "uint8", scale=0.5, zero_point=1.5), ScaleError, "an integer"),
    (lambda: bs.fake_quantize(X, "uint8", scale=0.5, zero_point=1000), ScaleError, "from 0 to 255"),
    (lambda: bs.quantize(X, "nvfp4", tensor_scale="1"), DtypeError, "tensor_scale"),
    (lambda: bs.quantize(X, "nvfp4", tensor_scale=True), DtypeError, "tensor_scale .* of a bool"),
    (lambda: bs.fake_quantize(X, "int8", scale=True), DtypeError, "scale .* of a bool"),
    (lambda: bs.fake_quantize(X, "uint8", scale=0.5, zero_point=True), DtypeError, "zero_point .* bool"),
    (lambda: bs.fake_quantize(X, "mxfp4", rounding="stochastic", seed=True), ArgumentError, "seed = True"),
    (lambda: bs.fake_quantize(X, "mxfp4", rule=["floor"]), UnknownNameError, "allowed are floor"),  # type: ignore[arg-type]
    (lambda: bs.fake_quantize(X, "mxfp4", axis={}), AxisError, "a tuple of integers"),  # type: ignore[arg-type]
    (lambda: bs.fake_quantize(X, "int4-g" + "9" * 5000), UnknownNameError, "allowed are"),
    (lambda: bs.fake_quantize(X, "nvfp4", scale=np.full((4, 4), 0x81, np.uint8), tensor_scale=1.0),
     ScaleError, "from 0x00 to 0x7F"),
    (lambda: bs.quantize(X, "mxfp4").dequantize("f16", out=np.empty_like(X)), OutError, "f16, as asked"),
    (lambda: bs.quantize(X, "mxfp4")[::0], ArgumentError, "cannot be zero"),
    (lambda: bs.quantize(X, "mxfp4")["a":], ArgumentError, "index"),  # type: ignore[misc]
    (lambda: bs.Layout("mxfp4", (4, 64), (1, 32)), ArgumentError, "scheme_named"),  # type: ignore[arg-type]
    (lambda: bs.Layout(bs.Scheme(element="fp4_e2m1"), (4.0, 64), (1, 32)), ShapeError, "integers"),  # type: ignore[arg-type]
    (lambda: bs.Layout(bs.Scheme(element="fp4_e2m1"), (1,) * 65, (1,) * 65), ShapeError, "at most 64"),
    (lambda: bs.quantize(X, "nvfp4", tensor_scale=-1.0), ScaleError, "positive"),
    (lambda: bs.quantize(X, "mxfp4", tensor_scale=1.0), ScaleError, "only NVFP4"),
    (lambda: bs.quantize(X, "mxfp4", dialect="quark"), CombinationError, "fake_quantize"),
    (lambda: bs.fake_quantize(X, "mxfp4", dialect="quark", scale=np.zeros((4, 2), np.uint8)),
     CombinationError, "no codes, so none of its scales"),
    (lambda: bs.fake_quantize(X, "mxfp4", out=np.empty(3)), OutError, "like x"),
    (lambda: bs.quantize(X, "mxfp4").dequantize("int8"), DtypeError, "float32"),
    (lambda: bs.quantize(X, "mxfp4").dequantize(out=[1]), OutError, "numpy array"),
    (lambda: bs.dequantize(X), DtypeError, "QuantizedTensor"),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(REFUSED)))
def test_refusals(index: int) -> None:
    call, error, text = REFUSED[index]
    with pytest.raises(error, match=text):
        call()


def test_libraries_are_not_mixed() -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X)
    with pytest.raises(DtypeError, match="numpy array, as x is"):
        bs.fake_quantize(X, "mxfp4", scale=torch.zeros(4, 2, dtype=torch.uint8))
    with pytest.raises(OutError):
        bs.fake_quantize(X, "mxfp4", out=torch.empty(4, 64))
    with pytest.raises(OutError, match="numpy array"):
        bs.quantize(X, "mxfp4").dequantize(out=torch.empty(4, 64))
    with pytest.raises(DtypeError, match="torch tensor"):
        bs.fake_quantize(x, "int8", scale=np.ones((1, 1), np.float32))
    with pytest.raises(OutError, match="torch tensor"):
        bs.fake_quantize(x, "mxfp4", out=X)
    with pytest.raises(OutError, match="torch tensor"):
        bs.quantize(x, "mxfp4").dequantize(out=X)
    with pytest.raises(ArgumentError, match="seed = None"):
        bs.fake_quantize(x, "mxfp4", rounding="stochastic", seed=None)  # type: ignore[arg-type]
