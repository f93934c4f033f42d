"""quantize_model on torch models: the bits of the fake-quantized model, from codes, as a module that travels."""

from __future__ import annotations

import copy
import io
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

import blockscale as bs
from blockscale.errors import ArgumentError, CombinationError, FileError
from models.torch_nets import CASES, Case, Language, called, made
from runtime.torch_cases import equal


def quantized(name: str, model: nn.Module, inputs: Any, **more: Any) -> Any:
    case = CASES[name]
    return bs.quantize_model(model, case.recipe, **arguments(case, inputs), **more)


def arguments(case: Case, inputs: Any) -> dict[str, Any]:
    return {"example_inputs": inputs, "dynamic_shapes": case.dynamic, "calibration": [inputs]}


def assert_same(a: Any, b: Any) -> None:
    ones, others = pytree.tree_leaves(a), pytree.tree_leaves(b)
    assert len(ones) == len(others) > 0
    assert all(equal(one, other) for one, other in zip(ones, others, strict=True))


@pytest.fixture
def language() -> tuple[nn.Module, torch.Tensor]:
    return made("language model")


@pytest.mark.usefixtures("decoding")
@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_the_fake_quantized_model(name: str) -> None:
    model, inputs = made(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    qm = quantized(name, model, inputs)
    fake = bs.fake_quantize_model(model, CASES[name].recipe, **arguments(CASES[name], inputs))
    for _ in range(2):
        assert_same(called(qm, inputs), called(fake, inputs))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items() if key != "calls")


def test_weights_are_codes(language: tuple[nn.Module, torch.Tensor]) -> None:
    model, ids = language
    qm = bs.quantize_model(model, "mxfp4", example_inputs=ids)
    state = qm.state_dict()
    floats = {name for name, value in state.items() if value.is_floating_point()}
    assert floats == {"model.up.bias", "model.down.bias", "model.norm.weight", "model.norm.bias"}
    assert state["model.up.weight_codes"].shape == (128, 32)
    assert state["model.up.weight_codes"].dtype == state["model.up.weight_scale"].dtype == torch.uint8
    held = sum(value.nbytes for value in state.values())
    assert qm.report.bytes_after == held
    assert qm.report.bytes_before == sum(p.nbytes for p in model.parameters())
    assert held < 0.2 * qm.report.bytes_before


def test_nothing_is_shared_with_the_given_model(language: tuple[nn.Module, torch.Tensor]) -> None:
    model, ids = language
    qm = bs.quantize_model(model, "mxfp4", example_inputs=ids)
    expected = qm(ids)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(qm(ids), expected)
    assert not any(p.requires_grad for p in qm.parameters()) and not expected.requires_grad
    assert all(p.requires_grad for p in model.parameters())


def test_evaluation_whatever_the_mode_of_the_module() -> None:
    model, x = made("convolutions")
    expected = quantized("convolutions", model, x)(x)
    model.train()
    qm = quantized("convolutions", model, x)
    assert torch.equal(qm(x), expected)
    assert all(module.training for module in model.modules())
    assert not any(module.training for module in qm.modules())


@pytest.mark.parametrize(
    "name", ["static scales", "sizes of the run", "tied weights", "tensor scales", "control flow"]
)
def test_saved_and_loaded(name: str, tmp_path: Path) -> None:
    model, inputs = made(name)
    qm = quantized(name, model, inputs)
    qm.save(tmp_path / "model.pt2")
    loaded = bs.load(tmp_path / "model.pt2")
    assert_same(called(loaded, inputs), called(qm, inputs))
    assert loaded.report == qm.report
    assert list(loaded.state_dict()) == list(qm.state_dict())
    assert_same(called(torch.export.load(tmp_path / "model.pt2").module(), inputs), called(qm, inputs))
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt2"]


@pytest.mark.parametrize("form", ["module", "program", "graph"])
def test_copies(form: str, language: tuple[nn.Module, torch.Tensor]) -> None:
    model, ids = language
    program = torch.export.export(model, (ids,))
    given = {"module": model, "program": program, "graph": program.module()}[form]
    qm = bs.quantize_model(given, "mxfp4", example_inputs=ids if form == "module" else None)
    expected = qm(ids)
    state = {name: value.clone() for name, value in qm.state_dict().items()}
    copies = [copy.deepcopy(qm)]
    if form != "graph":  # torch does not pickle the modules of exported programs
        stream = io.BytesIO()
        torch.save(qm, stream)
        stream.seek(0)
        copies += [pickle.loads(pickle.dumps(qm)), torch.load(stream, weights_only=False)]
    for one in copies:
        assert torch.equal(one(ids), expected)
        assert one.report == qm.report
        for value in one.state_dict().values():
            value.zero_()
    assert all(torch.equal(value, state[name]) for name, value in qm.state_dict().items())


def test_a_loaded_state_is_saved(language: tuple[nn.Module, torch.Tensor], tmp_path: Path) -> None:
    model, ids = language
    one, other = (bs.quantize_model(m, "mxfp4", example_inputs=ids) for m in (model, Language().eval()))
    other.load_state_dict(one.state_dict())
    other.save(tmp_path / "model.pt2")
    assert torch.equal(bs.load(tmp_path / "model.pt2")(ids), one(ids))


def test_modes(language: tuple[nn.Module, torch.Tensor]) -> None:
    model, ids = language
    qm = bs.quantize_model(model, "mxfp4", example_inputs=ids)
    expected = qm(ids)
    assert qm.eval() is qm and qm.to("cpu") is qm and qm.float() is qm
    with torch.inference_mode():
        assert torch.equal(qm(ids), expected)
    for change in (qm.train, qm.requires_grad_):
        with pytest.raises(CombinationError, match="does not train: its weights are codes"):
            change()
    for change in (qm.half, qm.bfloat16, lambda: qm.to("meta")):
        with pytest.raises(CombinationError, match="quantize that"):
            change()
    assert torch.equal(qm(ids), expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["language model", "static scales"])
def test_compiled(name: str) -> None:
    model, inputs = made(name)
    qm = quantized(name, model, inputs)
    compiled = torch.compile(qm, backend="aot_eager", fullgraph=True)
    assert_same(called(compiled, inputs), called(qm, inputs))


def test_sizes_of_the_run() -> None:
    model, ids = made("sizes of the run")
    qm = quantized("sizes of the run", model, ids)
    fake = bs.fake_quantize_model(model, "mxfp6-all", **arguments(CASES["sizes of the run"], ids))
    for shape in ((3, 9), (7, 2), (2, 33)):
        other = torch.randint(0, 100, shape)
        assert torch.equal(qm(other), fake(other))


def test_an_input_given_twice_is_two_inputs() -> None:
    class Difference(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(32, 32)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.linear(a) - b

    x, y = torch.randn(2, 32), torch.randn(2, 32)
    qm = bs.quantize_model(Difference(), "mxfp8", example_inputs=(x, x))
    assert torch.equal(qm(x, y) + y, qm(x, torch.zeros_like(y)) - y + y)
    assert not torch.equal(qm(x, y), qm(y, y))


class TestForms:
    """What may be given beside modules, and what comes out."""

    def test_program_and_graph_stay_as_they_are(self, language: tuple[nn.Module, torch.Tensor]) -> None:
        model, ids = language
        program = torch.export.export(model, (ids,))
        expected = bs.quantize_model(model, "mxfp4-all", example_inputs=ids)(ids)
        for given in (program, program.module()):
            code = given.graph_module.code if given is program else given.code
            assert torch.equal(bs.quantize_model(given, "mxfp4-all")(ids), expected)
            assert (given.graph_module.code if given is program else given.code) == code
        assert torch.equal(program.module()(ids), model(ids))

    def test_bodies_stay_as_they_are(self) -> None:
        model, inputs = made("control flow")
        program = torch.export.export(model, inputs)
        code = program.graph_module.true_graph_0.code
        qm = bs.quantize_model(program, "mxfp8-all")
        assert program.graph_module.true_graph_0.code == code
        assert "quantize" in qm.program.graph_module.true_graph_0.code

    def test_file(self, language: tuple[nn.Module, torch.Tensor], tmp_path: Path) -> None:
        model, ids = language
        torch.export.save(torch.export.export(model, (ids,)), tmp_path / "float.pt2")
        expected = bs.quantize_model(model, "mxfp4", example_inputs=ids)(ids)
        assert torch.equal(bs.quantize_model(tmp_path / "float.pt2", "mxfp4")(ids), expected)
        with pytest.raises(FileError, match=r"not written by blockscale; .* quantize_model takes it"):
            bs.load(tmp_path / "float.pt2")

    def test_graph_without_shapes(self) -> None:
        graph = fx.symbolic_trace(nn.Sequential(nn.Linear(64, 64)))
        x = torch.randn(2, 64)
        with pytest.raises(ArgumentError, match="knows no shapes"):
            bs.quantize_model(graph, "mxfp4")
        qm = bs.quantize_model(graph, "mxfp4", example_inputs=x)
        assert math.isfinite(qm(x).sum())

    def test_graph_has_no_file(self, language: tuple[nn.Module, torch.Tensor], tmp_path: Path) -> None:
        model, ids = language
        qm = bs.quantize_model(torch.export.export(model, (ids,)).module(), "mxfp4")
        with pytest.raises(CombinationError, match="no signature to be saved with; quantize a module"):
            qm.save(tmp_path / "model.pt2")

    def test_foreign_quantizes_without_a_recipe(self) -> None:
        class Foreign(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.fake_quantize_per_tensor_affine(x, 0.5, 0, -128, 127) * 2

        x = torch.randn(4, 8)
        qm = bs.quantize_model(Foreign(), example_inputs=x)
        assert torch.equal(qm(x), Foreign()(x))
        assert qm.report.recipe == "as the model was given"
        assert qm.report.after["quantize"] == 1


def test_files_are_whole(language: tuple[nn.Module, torch.Tensor], tmp_path: Path, monkeypatch: Any) -> None:
    model, ids = language
    qm = bs.quantize_model(model, "mxfp4", example_inputs=ids)
    with pytest.raises(FileError, match="cannot be written: No such file or directory"):
        qm.save(tmp_path / "nowhere" / "model.pt2")
    with pytest.raises(ArgumentError, match=r"ends in \.pt2"):
        qm.save(tmp_path / "model.onnx")
    qm.save(tmp_path / "model.pt2")
    size = (tmp_path / "model.pt2").stat().st_size

    def dies(program: Any, file: Any, **_: Any) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.export, "save", dies)
    with pytest.raises(KeyboardInterrupt):
        qm.save(tmp_path / "model.pt2")
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt2"]
    assert (tmp_path / "model.pt2").stat().st_size == size
