"""quantize_model, fake_quantize_model, optimize, load and compare: calibration, and what they refuse, in words.

That bits are right is tested with the targets (tests/targets).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.errors import (
    ArgumentError,
    BlockscaleError,
    CalibrationError,
    CombinationError,
    DtypeError,
    ExportError,
    FileError,
    RecipeError,
    UnknownNameError,
)
from blockscale.numerics.observers import METHODS, observer
from blockscale.numerics.scheme import scheme_named
from blockscale.passes.log import Log
from models.torch_nets import AUTO, Language, made
from runtime.torch_cases import equal

X = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.linear(x) * mask  # the line that errors name


LINE = rf'File "{re.escape(__file__)}", line {Masked.forward.__code__.co_firstlineno + 1}, in forward'


def quantize(recipe: Any = "int8", **more: Any) -> Any:
    return bs.quantize_model(Masked(), recipe, **({"example_inputs": (X, X)} | more))


# --------------------------------------------------------------------------------------- calibration


@pytest.mark.parametrize("method", METHODS)
def test_static_scales_come_from_the_calibration_set(method: str) -> None:
    """Each is what an observer of the values of the eager model gives."""
    model, _ = made("language model")
    batches = [torch.randint(0, 100, (2, 5), generator=torch.Generator().manual_seed(i)) for i in range(3)]
    seen: list[Tensor] = []
    hook = model.up.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    with torch.no_grad():
        for batch in batches:
            model(batch)
    hook.remove()
    qm = bs.quantize_model(model, "int8", example_inputs=batches[0], calibration=iter(batches), method=method)
    by_hand = observer(method, scheme_named("int8,dynamic=false"), name="up")
    for values in seen:
        by_hand.update(values.numpy())
    scale = qm.state_dict()["model.layer_norm_scale"]
    np.testing.assert_array_equal(scale.numpy().reshape(-1), by_hand.finish().scales.reshape(-1))


def test_ways_to_name_a_method() -> None:
    data = [(X * 3, X), (X, X)]

    def scale(method: Any) -> float:
        return float(quantize(calibration=data, method=method).state_dict()["model.x_scale"])

    def wide(point: Any) -> Any:
        return observer("minmax", point.scheme, name=point.key)

    assert scale("minmax") == scale(wide) == pytest.approx(float(X.abs().max()) * 3 / 127, rel=0.02)
    assert scale(("percentile", {"percentile": 80.0})) < scale("percentile") <= scale("minmax")
    assert scale(("moving_average", {"averaging_constant": 0.5})) < scale("minmax")


def test_every_kind_of_calibration_set() -> None:
    class Reader:
        def __init__(self) -> None:
            self.left = [(X, X), {"x": X * 2, "mask": X}]

        def get_next(self) -> Any:
            return self.left.pop(0) if self.left else None

    expected = quantize(calibration=[(X * 2, X)]).state_dict()["model.x_scale"]
    loader = torch.utils.data.DataLoader(
        list(zip(X.repeat(4, 1) * 2, X.repeat(4, 1), strict=True)), batch_size=2
    )
    for data in (Reader(), loader, ((X * n, X) for n in (1, 2)), [{"x": X * 2, "mask": X}]):
        assert torch.equal(quantize(calibration=data).state_dict()["model.x_scale"], expected)


@pytest.mark.parametrize(
    "recipe", ["mxfp4", "mxfp8-all", "mxint8", "int8-dynamic", "int8-float", "int8-token"]
)
def test_no_calibration_where_no_scale_is_static(recipe: str) -> None:
    def never() -> Iterator[Any]:
        raise AssertionError("nothing needs data")
        yield

    expected = quantize(recipe)(X, X) if recipe != "x" else None
    assert quantize(recipe, calibration=never())(X, X).shape == expected.shape


WRONG_DATA: dict[str, tuple[Any, str]] = {
    "none": (None, r"^'x' takes static scales, which come from data: .*calibration=.*MX"),
    "empty": ([], r"^'x' takes static scales, and the calibration data holds no batch.*read only once"),
    "NaN": ([(X, X), (X / 0 * 0, X)], r"^calibration of 'x', batch 2: 128 NaN and 0 infinite of 128"),
    "infinite": ([(X / 0, X)], r"^calibration of 'x', batch 1: 0 NaN and 128 infinite"),
    "size": (
        [(X[:1], X)],
        r"batch 1, input 'x' has shape \[1, 64\].*takes float32 \[2, 64\]; with dynamic_shapes=",
    ),
    "rank": ([(X[0], X)], r"batch 1, input 'x' has shape \[64\]: the model takes float32 \[2, 64\]$"),
    "dtype": ([(X.double(), X)], r"batch 1, input 'x' is float64: the model takes float32"),
    "no tensor": ([(3.0, X)], r"batch 1, input 'x' is a float: the model takes float32"),
    "too few": ([X], r"batch 1: missing a required argument: 'mask'; the model takes \(x, mask\)"),
    "too many": ([(X, X, X)], r"batch 1: too many positional arguments; the model takes \(x, mask\)"),
    "name": (
        [{"x": X, "msk": X}],
        r"batch 1: missing a required argument: 'mask'|unexpected keyword argument 'msk'",
    ),
    "one batch": (X, "calibration is a single Tensor: put it in a list; each entry is a batch"),
    "a name": ("data", "calibration folder 'data': there is no such folder"),
    "a number": (3, r"calibration is a int: give an iterable of inputs, or an object with get_next\(\)"),
}


@pytest.mark.parametrize("case", WRONG_DATA)
def test_wrong_calibration(case: str) -> None:
    data, message = WRONG_DATA[case]
    with pytest.raises(CalibrationError, match=message):
        quantize(calibration=data)


@pytest.mark.parametrize("case", ["none", "empty", "NaN"])
def test_the_tensor_is_told_with_its_reader_and_the_line(case: str) -> None:
    with pytest.raises(
        CalibrationError, match=rf"\n'x' is input 0 'x' \[2×64\] of linear 'linear' \({LINE}\)$"
    ):
        quantize(calibration=WRONG_DATA[case][0])


def test_data_that_fails_says_so_itself() -> None:
    def broken() -> Iterator[Any]:
        yield X, X
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        quantize(calibration=broken())


WRONG_METHODS: dict[str, tuple[Any, type[Exception], str]] = {
    "name": ("minimax", UnknownNameError, "did you mean 'minmax'"),
    "option": (("percentile", {"percent": 1}), UnknownNameError, "'percent': allowed are percentile, bins"),
    "kind": (3, ArgumentError, r"a method's name, \(name, options\), or a function"),
    "no observer": (lambda point: 3, CombinationError, r"method\('x'\) gave a int; an Observer is wanted"),
}


@pytest.mark.parametrize("case", WRONG_METHODS)
def test_wrong_method(case: str) -> None:
    method, kind, message = WRONG_METHODS[case]
    with pytest.raises(kind, match=message):
        quantize(calibration=[(X, X)], method=method)


# ----------------------------------------------------------------------------------- models and recipes


class Decides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:  # what cannot be traced
            return x
        return -x


class Fails(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(7, 11)


def _line(model: type[nn.Module], offset: int) -> str:
    return rf"at {re.escape(__file__)}:{model.forward.__code__.co_firstlineno + offset} "


def test_a_model_that_cannot_be_exported() -> None:
    with pytest.raises(
        ExportError, match=_line(Decides, 1) + r"\(if x\.sum\(\) > 0:.*\): .*\nWay out: .*torch\.cond"
    ):
        bs.quantize_model(Decides(), "mxfp4", example_inputs=X)
    with pytest.raises(
        ExportError, match=_line(Fails, 1) + r"(?s:.*)invalid for input.*\nWay out: see whether the"
    ):
        bs.quantize_model(Fails(), "mxfp4", example_inputs=X)


R = bs.Rule
WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no inputs": (lambda: bs.fake_quantize_model(Masked(), "mxfp4"), ArgumentError, "a tensor, a tuple of arg"),
    "inputs of another kind": (lambda: quantize(example_inputs=3), ArgumentError, "example_inputs = 'int'"),
    "too few inputs": (
        lambda: quantize(example_inputs=X), ArgumentError, r"required argument: 'mask'; Masked takes \(x.*, mask"
    ),
    "a name of inputs": (
        lambda: quantize(example_inputs={"x": X, "m": X}), ArgumentError, r"= 'x, m': .*Masked takes \(x"
    ),
    "inputs of a program": (
        lambda: bs.quantize_model(torch.export.export(Masked(), (X, X)), "mxfp4", example_inputs=X),
        CombinationError, "example_inputs with a model of type ExportedProgram",
    ),
    "no model": (lambda: bs.quantize_model(3, "mxfp4"), DtypeError, "GraphModule.*ExportedProgram.*onnx_ir.Model"),
    "libraries": (lambda: quantize("mxfp4", libraries=["a.so"]), CombinationError, "they are for ONNX models"),
    "stage": (lambda: quantize("mxfp4", stages=["lifted"]), UnknownNameError, "did you mean 'lift'"),
    "preset": (lambda: quantize("mxfp5"), UnknownNameError, "did you mean"),
    "no recipe": (lambda: quantize(None), ArgumentError, "recipe = None: one, such as 'mxfp4'"),
    "quantized already": (
        lambda: bs.quantize_model(quantize("mxfp4"), "mxfp4"), CombinationError, "quantized already: give the float"
    ),
    "a rule that matches nothing": (
        lambda: quantize([R("mxfp4", name="liner")]), RecipeError, "matches nothing.*'liner'.*'linear'"
    ),
    "an axis": (lambda: quantize([R("mxfp4", role="weight", axis=3)]), RecipeError, rf"weight 1 .*{LINE}.*axis = 3"),
    "no channels": (
        lambda: quantize([R("int8-channel", role="input")]), RecipeError,
        rf"input 0 'x' .*{LINE}.*no output channels; set axis.*Rule\(\"float\", name='linear'",
    ),
    "a number of static scales": (
        lambda: quantize([R("int8-token,dynamic=false", role="input")], dynamic_shapes=({0: AUTO}, {0: AUTO})),
        RecipeError, rf"input 0 'x' \[\?×64\] .*{LINE}.*not known before the run; set dynamic: true",
    ),
    "a dtype": (
        lambda: bs.quantize_model(Masked().double(), "mxfp4", example_inputs=(X.double(), X.double())),
        RecipeError, rf"{LINE}.*its dtype is f64, not f32, bf16, f16: cast it",
    ),
    "gradient": (
        lambda: bs.fake_quantize_model(Masked(), "mxfp4", example_inputs=(X, X), gradient="steep"),
        ArgumentError, "steep",
    ),
    "in place": (lambda: bs.optimize("model.pt2", in_place=True), BlockscaleError, "model.pt2"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_refused(case: str) -> None:
    call, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        call()


def test_operators_that_no_table_knows_are_told() -> None:
    model, x = made("unknown operators")
    entries = bs.quantize_model(model, "mxfp4", example_inputs=x).report.entries
    left = {
        entry["left"]: entry["site"] for entry in entries if entry["stage"] == "annotate" and "left" in entry
    }
    assert {"aten.fft_rfft.default is not known", "aten.linalg_norm.default is not known"} <= left.keys()
    assert "torch_nets.py" in left["aten.fft_rfft.default is not known"]


def test_report() -> None:
    model, ids = made("language model")
    report = bs.quantize_model(model, "mxfp4", example_inputs=ids).report
    assert report.recipe == "mxfp4" and len(report.rules) == 4
    up = next(row for row in report.tensors if row["node"] == "up" and row["role"] == "weight")
    assert (
        up["tensor"] == "up.weight" and up["layout"] == "mxfp4, 32 along axis -1" and up["shape"] == [128, 64]
    )
    assert report.before["linear"] == 3 and "quantize" not in report.before
    assert type(report).from_json(report.to_json()) == report
    text = str(report)
    for line in (
        "recipe    mxfp4",
        "weights   2 × mxfp4",
        "weights   2 × mxint8",
        "of float)",
        "quantize: 0 → ",
    ):
        assert line in text
    with pytest.raises(FileError, match="somewhere: no report of blockscale"):
        type(report).from_json('{"recipe": 3}', "somewhere")


@pytest.mark.parametrize("name", ["no.pt2", "no.onnx", "no.bin"])
def test_load_refuses(name: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError):
        bs.load(tmp_path / name)
    (tmp_path / name).write_text("no model")
    with pytest.raises(
        (FileError, UnknownNameError), match=re.escape(name) if "bin" not in name else r"\.pt2, \.onnx"
    ):
        bs.load(tmp_path / name)


# ------------------------------------------------------------------------------- optimize and compare


def test_optimize_keeps_its_input_and_tells_its_log() -> None:
    model, ids = made("language model")
    fake = bs.fake_quantize_model(torch.export.export(model, (ids,)), "mxfp4-all")
    log = Log()
    done = bs.optimize(fake, log=log, check=True)
    assert equal(done.module()(ids), fake.module()(ids))
    assert log.before["fake_quantize"] == 11 and log.after["fake_quantize"] == 0
    assert log.count("canonicalize") == 11
    assert "blockscale.fake_quantize" in fake.graph_module.code
    assert bs.optimize(fake, stages=["cse"], in_place=True).graph_module.code


class Grid(nn.Module):
    """A linear layer and a reshape of what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return torch.relu(y.transpose(0, 1).reshape(x.shape[1], x.shape[0], -1, 32))


@pytest.mark.usefixtures("decoding")
@pytest.mark.parametrize("scheme", ["mxfp4", "nvfp4"])
@pytest.mark.parametrize("count", [4, 5])
def test_as_many_sizes_of_the_run_as_there_are(count: int, scheme: str) -> None:
    torch.manual_seed(0)
    model, x = Grid(), torch.randn(*range(2, 2 + count), 64)
    shapes = (dict.fromkeys(range(count), AUTO),)
    quantized = bs.quantize_model(model, scheme, example_inputs=x, dynamic_shapes=shapes)
    fake = bs.fake_quantize_model(model, scheme, example_inputs=x, dynamic_shapes=shapes)
    for sizes in (x.shape[:-1], [3] * count):
        y = torch.randn(*sizes, 64)
        assert equal(quantized(y), fake(y))


def test_compare_finds_the_worst_tensor_first() -> None:
    model, ids = made("language model")
    batches = [ids, torch.flip(ids, (0,)), ids[:1]]
    found = bs.compare(
        model, bs.quantize_model(model, "mxfp4", example_inputs=ids, dynamic_shapes=({0: AUTO},)), batches
    )
    assert found.batches == 3 and not found.equal
    assert [row.sqnr for row in found.rows] == sorted(row.sqnr for row in found.rows)
    by_name = {row.tensor: row for row in found.rows}
    assert {"embedding", "linear", "linear_1", "linear_2", "output 0"} <= by_name.keys()
    (output,) = found.outputs
    assert output.tensor == "output 0" and output.elements == 5 * 5 * 100
    assert 10 < by_name["linear"].sqnr < by_name["embedding"].sqnr < 60
    assert str(found).splitlines()[0].split() == [
        "tensor",
        "SQNR",
        "dB",
        "cosine",
        "max",
        "error",
        "of",
        "peak",
    ]


def test_compare_of_equals(tmp_path: Path) -> None:
    model, ids = made("language model")
    qm = bs.quantize_model(model, "mxfp4", example_inputs=ids)
    qm.save(tmp_path / "model.pt2")
    fake = bs.fake_quantize_model(model, "mxfp4", example_inputs=ids)
    for other in (bs.load(tmp_path / "model.pt2"), fake, torch.export.load(tmp_path / "model.pt2")):
        assert bs.compare(qm, other, iter([ids])).equal
    assert not bs.compare(qm, Language(), [ids]).equal


def test_compare_leaves_torch_as_it_was() -> None:
    """The runs of two models take turns, and each is without gradients and in evaluation."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).train()
    bs.compare(model, bs.quantize_model(model, "mxfp8", example_inputs=X), [X, X])
    assert torch.is_grad_enabled() and all(module.training for module in model.modules())
    fake = bs.fake_quantize_model(model, "mxfp8", example_inputs=X)
    seen = bs.compare(fake, fake, iter([X, X]))
    assert torch.is_grad_enabled() and seen.batches == 2


def test_compare_refuses() -> None:
    model, ids = made("language model")
    with pytest.raises(CalibrationError, match="inputs is a single Tensor: put it in a list"):
        bs.compare(model, model, ids)
    for nothing in ([], iter(())):
        with pytest.raises(ArgumentError, match="inputs = 'no batch'"):
            bs.compare(model, model, nothing)
    with pytest.raises(ArgumentError, match="of the other model, shape"):
        bs.compare(nn.Linear(64, 3), nn.Linear(64, 4), [X])
    with pytest.raises(ArgumentError, match="takes"):
        bs.compare(model, Masked(), [ids])
