"""quantize_model without example_inputs: the module stays one, its linear layers and embeddings hold codes."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.errors import ArgumentError, CalibrationError, CombinationError, RecipeError
from blockscale.runtime import torch_packed, torch_products
from blockscale.runtime.torch_modules import QuantizedEmbedding, QuantizedLinear
from models.torch_nets import Language, Tied
from runtime.torch_cases import equal


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


IDS = torch.tensor([[1, 5, 99], [0, 7, 7]])


@pytest.mark.parametrize("recipe", ["mxfp4", "mxfp4-mxint8", "mxfp4-float", "nvfp4", "int8", "int8-int8-token",
                                    "int4-g32-float", "uint8", "mxfp8"])  # fmt: skip
def test_the_same_as_the_graph(recipe: str) -> None:
    """On decoded weights bit for bit; on kernels too, since what they are given is the same."""
    model = Language().eval()
    data = [IDS, IDS.flip(0)]
    one = bs.quantize_model(model, recipe, calibration=data)
    graph = bs.quantize_model(model, recipe, example_inputs=IDS, calibration=data)
    assert type(one) is Language and type(one.up) is QuantizedLinear and type(one.embed) is QuantizedEmbedding
    with torch_products.decoding():
        assert equal(one(IDS), graph(IDS))
    assert torch.allclose(one(IDS), graph(IDS), rtol=1e-4, atol=1e-5)
    assert type(model.up) is nn.Linear


def test_no_float_weight_is_kept() -> None:
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).eval()
    floats = [weakref.ref(one.weight) for one in model if isinstance(one, nn.Linear)]
    quantized = bs.quantize_model(model, "mxfp4-mxint8")
    graph = bs.quantize_model(model, "mxfp4-mxint8", example_inputs=torch.randn(2, 256))
    x = torch.randn(2, 256)
    quantized(x), graph(x)
    del model
    gc.collect()
    assert all(one() is None for one in floats)
    for one in (quantized, graph):
        held = sum(t.nbytes for t in (*one.parameters(), *one.buffers()) if t.is_floating_point())
        assert held == 4 * (512 + 256)  # biases
    report = quantized.blockscale_report
    assert report.bytes_after < 0.2 * report.bytes_before


def test_copies_and_states() -> None:
    model = bs.quantize_model(Language(), "mxfp4-mxint8")
    want = model(IDS)
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    other = bs.quantize_model(Language(), "mxfp4-mxint8")
    assert not equal(other(IDS), want)
    other.load_state_dict(model.state_dict())
    for one in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(stream, weights_only=False),
        other,
    ):
        assert equal(one(IDS), want)
        with torch.no_grad():
            one.up.weight_codes.zero_()
    assert equal(model(IDS), want)
    assert {name.rpartition(".")[2] for name in model.state_dict()} == {
        "weight_codes",
        "weight_scale",
        "bias",
        "weight",
    }  # fmt: skip  (the last is of the norm)


def test_compiled_and_exported() -> None:
    model = bs.quantize_model(Language(), "mxfp4-mxint8")
    want = model(IDS)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.inference_mode():
        assert equal(compiled(IDS), want) and equal(model(IDS), want)
    before = {id(one) for one in torch_packed.kept()}
    compiled(IDS)
    assert {id(one) for one in torch_packed.kept()} <= before
    program = torch.export.export(model, (IDS,))
    stream = io.BytesIO()
    torch.export.save(program, stream)
    stream.seek(0)
    assert equal(torch.export.load(stream).module()(IDS), want)


def test_to_another_dtype_keeps_the_scales() -> None:
    model = bs.quantize_model(nn.Sequential(nn.Linear(64, 32)), "int8-int8-token")
    codes, scale = model[0].weight_codes.clone(), model[0].weight_scale.clone()
    model.to(torch.bfloat16)
    assert equal(model[0].weight_codes, codes) and equal(model[0].weight_scale, scale)
    assert model[0].bias.dtype is torch.bfloat16
    assert model(torch.randn(3, 64).bfloat16()).dtype is torch.bfloat16
    assert not model.train().training or not model[0].training


def test_weights_that_are_shared() -> None:
    model = bs.quantize_model(Tied(), "mxint8")
    assert model.embed.weight_codes is model.head.weight_codes
    assert model.embed.weight.shape == (50, 64)
    twice = bs.quantize_model(Tied(), "mxfp4")
    assert twice.head.layout.numbers.element == "mxint8"


class Odd(nn.Linear):
    """A subclass, which may do otherwise."""


def test_what_is_left_is_said() -> None:
    model = nn.Sequential(nn.Linear(32, 32), Odd(32, 32), nn.Linear(32, 32), nn.Linear(32, 8))
    model[2].register_forward_hook(lambda *_: None)
    made = bs.quantize_model(model, "mxfp4")
    assert [type(one) for one in made] == [QuantizedLinear, Odd, nn.Linear, QuantizedLinear]
    left = {entry["node"]: entry["left"] for entry in made.blockscale_report.entries if entry.get("left")}
    assert "Odd" in left["1"] and "hooks" in left["2"]
    assert made[3].layout.numbers.element == "mxint8"  # the head


@pytest.mark.parametrize(("make", "kind", "message"), [
    (lambda: bs.quantize_model(nn.ReLU(), "mxfp4"), ArgumentError, "nn.Linear or nn.Embedding"),
    (lambda: bs.quantize_model(Language(), "mxfp4-all"), CombinationError, "no outputs; give example_inputs"),
    (lambda: bs.quantize_model(Language(), "mxfp4", dynamic_shapes=({},)), CombinationError, "example_inputs"),
    (lambda: bs.quantize_model(Language(), "int8"), CalibrationError, "static scales"),
    (lambda: bs.quantize_model(Language(), "mxfp4,dialect=quark-float"), CombinationError, "example_inputs"),
    (lambda: bs.quantize_model(Language(), [bs.Rule("mxfp4", name="upp")]), RecipeError, "up"),
    (lambda: bs.quantize_model(bs.quantize_model(Language(), "mxfp4"), "mxfp4"), CombinationError, "already"),
])  # fmt: skip
def test_refusals(make: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()


def test_only_the_rows_that_are_asked_for_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    from blockscale.runtime import torch_cpu

    for layout in ("mxint8", "int8-token", "int8", "mxfp4", "nvfp4", "int8-channel"):
        embedding = nn.Embedding(300, 64)
        made: Any = bs.quantize_model(embedding, [bs.Rule(layout, kind="embedding", role="weight")])
        want = made.weight[IDS.clamp(max=299)]
        sizes: list[Tensor] = []
        plain = torch_cpu.dequantize_into
        monkeypatch.setattr(
            torch_cpu, "dequantize_into", lambda y, *a, f=plain, s=sizes: (s.append(y), f(y, *a))[1]
        )
        assert equal(made(IDS), want)
        assert [tuple(one.shape) for one in sizes] == [(6, 64)]
        monkeypatch.undo()
        with pytest.raises(ArgumentError, match="index"):
            made(torch.tensor([300]))
