"""Fake-quantize: a plan written into its graph, against the arithmetic done by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import blockscale as bs
from blockscale.errors import ArgumentError, CalibrationError, ScaleError
from blockscale.graph.models import commit, copied, snapshot
from blockscale.graph.plan import Plan
from blockscale.numerics import native
from blockscale.numerics.calibration import Calibrated
from blockscale.numerics.layout import bind
from blockscale.passes.annotate import annotate
from blockscale.passes.fake_quantize import fake_quantize
from blockscale.passes.log import Log
from blockscale.runtime.onnx_reference import Runner
from models.attention import IDS, Block, onnx_model, program
from models.onnx_nets import random
from runtime.torch_cases import equal

R = bs.Rule
fq = bs.fake_quantize


class Residual(nn.Module):
    """x is read by a product and by an addition; so is what the first product gives."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        return x + y + self.b(y)


X = torch.from_numpy(random(4, 64))


@pytest.fixture
def residual() -> Residual:
    torch.manual_seed(0)
    return Residual().eval()


def written(module: nn.Module, recipe: Any, scales: Any = None, log: Log | None = None, **more: Any) -> Any:
    model = copied(torch.export.export(module, (X,)))
    graph = snapshot(model)
    fake_quantize(annotate(graph, recipe), scales, log, **more)
    return commit(graph, model)


def count(model: Any) -> int:
    return sum("fake_quantize" in str(node.target) for node in model.graph.nodes)


def linear(x: Tensor, layer: Any, weight: Any = lambda w: w) -> Tensor:
    return F.linear(x, weight(layer.weight), layer.bias)


class TestValues:
    def test_inputs_and_weights(self, residual: Residual) -> None:
        model = written(residual, "mxint8")
        y = linear(fq(X, "mxint8"), residual.a, lambda w: fq(w, "mxint8"))
        z = linear(fq(y, "mxint8"), residual.b, lambda w: fq(w, "mxint8"))
        assert equal(model.module()(X), X + y + z)  # additions read what is not quantized
        assert count(model) == 4

    def test_an_output_is_quantized_once_for_all_that_read_it(self, residual: Residual) -> None:
        model = written(residual, [R("mxint8", name="a", role="output"), R("mxint8", name="b", role="input")])
        y = fq(linear(X, residual.a), "mxint8")
        assert equal(model.module()(X), X + y + linear(y, residual.b))
        assert count(model) == 1

    def test_a_reader_with_another_layout_quantizes_again(self, residual: Residual) -> None:
        model = written(residual, [R("mxint8", name="a", role="output"), R("mxfp4", name="b", role="input")])
        y = fq(linear(X, residual.a), "mxint8")
        assert equal(model.module()(X), X + y + linear(fq(y, "mxfp4"), residual.b))
        assert count(model) == 2

    def test_mixed_layouts_stay_different(self, residual: Residual) -> None:
        rules = [
            R("mxfp4", name="a", role="weight"), R("nvfp4", name="b", role="weight"),
            R("mxint8,rounding=half_up", name="a", role="input"), R("int8-token", name="b", role="input"),
        ]  # fmt: skip
        model = written(residual, rules)
        y = linear(fq(X, "mxint8", rounding="half_up"), residual.a, lambda w: fq(w, "mxfp4"))
        z = linear(fq(y, "int8-token"), residual.b, lambda w: fq(w, "nvfp4"))
        assert equal(model.module()(X), X + y + z)

    def test_residual_adds_and_attention_with_all(self) -> None:
        torch.manual_seed(0)
        block = Block().eval()

        def q(x: Tensor, axis: int = -1) -> Tensor:
            return fq(x, "mxint8", axis=axis)

        def layer(x: Tensor, one: Any) -> Tensor:
            return q(linear(x, one, q))

        x = q(F.embedding(IDS, q(block.embed.weight)))
        h = q(block.norm(x))
        k, v = layer(h, block.kv).chunk(2, -1)
        s = q(q(layer(h, block.q) @ k.transpose(1, 2)) / 8)
        o = q(q(s.softmax(-1)) @ q(v, -2))
        expected = layer(q(x + layer(o, block.out)), block.head)
        model = bs.fake_quantize_model(program(), "mxint8-all")
        assert equal(model.module()(IDS), expected)

    def test_the_same_on_onnx(self) -> None:
        model = onnx_model()
        ids = IDS.numpy()
        w = {name: value.const_value.numpy() for name, value in model.graph.initializers.items()}

        def q(x: Any, axis: int = -1) -> Any:
            return fq(x, "mxint8", axis=axis)

        plain = Runner(model)
        found = Runner(bs.fake_quantize_model(model, [R("mxint8", use="embedding"), R("mxint8", name="y")]))
        names = [value.name for value in model.graph.outputs]
        assert names == ["y"] and model.graph.num_nodes() == 12
        embedded = onnx_model()
        embedded.graph.initializers["E"].const_value = _tensor(q(w["E"]))
        embedded.graph.initializers["H"].const_value = _tensor(q(w["H"], 0))
        embedded.graph.outputs[0] = next(node.outputs[0] for node in embedded.graph if node.name == "add")
        added = Runner(embedded).run({"ids": ids})["add"]
        np.testing.assert_array_equal(found.run({"ids": ids})["y"], np.matmul(q(added), q(w["H"], 0)))
        assert not np.array_equal(found.run({"ids": ids})["y"], plain.run({"ids": ids})["y"])


def _tensor(array: Any) -> Any:
    import onnx_ir

    return onnx_ir.Tensor(array)


class TestStatic:
    RULES = (
        R("int8,dynamic=false", name="a", role="input"),
        R("uint8,dynamic=false", name="b", role="input"),
    )

    def plan(self, residual: Residual) -> Plan:
        return annotate(snapshot(torch.export.export(residual, (X,))), list(self.RULES))

    def scales(self, residual: Residual) -> dict[str, Calibrated]:
        found = {}
        for point, values in zip(self.plan(residual).static(), (X, residual.a(X).detach()), strict=True):
            stored = native.choose_params(values.numpy(), bind(point.scheme, tuple(values.shape)))
            found[point.key] = Calibrated(stored.scales, stored.zero_points)
        return found

    def test_values(self, residual: Residual) -> None:
        scales = self.scales(residual)
        assert set(scales) == {"x", "linear"}
        model = written(residual, list(self.RULES), scales)
        given = {key: {"scale": torch.from_numpy(one.scales)} for key, one in scales.items()}
        y = linear(fq(X * 9, "int8", **given["x"]), residual.a)
        zero = torch.from_numpy(scales["linear"].zero_points)
        z = linear(fq(y, "uint8", **given["linear"], zero_point=zero), residual.b)
        assert equal(model.module()(X * 9), X * 9 + y + z)  # beyond what was seen it saturates
        assert {"x_scale", "linear_scale", "linear_zero_point"} <= set(model.state_dict)

    def test_refused(self, residual: Residual) -> None:
        scales = self.scales(residual)
        line = r"\(.*test_fake_quantize\.py.*in forward"
        with pytest.raises(
            CalibrationError, match=rf"2 of 2 tensors .* first for input 0 'x' .*{line}.*dynamic=True"
        ):
            written(residual, list(self.RULES))
        with pytest.raises(CalibrationError, match=r"1 of 2 tensors .* first for input 0 'linear' \[4×64\]"):
            written(residual, list(self.RULES), {"x": scales["x"]})
        with pytest.raises(ArgumentError, match=r"'liner': no tensor of the plan.*did you mean 'linear'"):
            written(residual, list(self.RULES), scales | {"liner": scales["x"]})
        wrong = Calibrated(np.ones((4, 1), np.float32), None)
        with pytest.raises(ScaleError, match=r"scale of 'x' = 'float32\[4, 1\]': float32\[1, 1\] for int8"):
            written(residual, list(self.RULES), scales | {"x": wrong})
        none = Calibrated(scales["linear"].scales, None)
        with pytest.raises(ScaleError, match=r"zero_point of 'linear' = 'none': int32\[1, 1\] for uint8"):
            written(residual, list(self.RULES), scales | {"linear": none})

    def test_nvfp4_takes_its_tensor_scale(self, residual: Residual) -> None:
        rules = [R("nvfp4", name="a", role="input", dynamic=False)]
        model = written(residual, rules, {"x": Calibrated(None, None, np.float32(0.01))})
        y = linear(fq(X, "nvfp4", tensor_scale=0.01), residual.a)
        assert equal(model.module()(X), X + y + residual.b(y))


def test_gradient_is_written(residual: Residual) -> None:
    model = written(residual, "mxfp8", gradient="clipped")
    assert all(
        node.kwargs.get("gradient") == "clipped"
        for node in model.graph.nodes
        if "fake_quantize" in str(node.target)
    )


def test_log_says_who_reads(residual: Residual) -> None:
    log = Log()
    written(residual, "mxfp4-all", log=log)
    told = {
        entry.node.partition("_fq")[0]: entry.did for entry in log.entries if entry.stage == "fake_quantize"
    }
    assert told["linear"] == "mxfp4 on linear for a, add, b"
    assert told["a.weight"] == "mxfp4 on a.weight for a" and len(told) == 7


def test_checks_of_metadata_read_what_they_read_before() -> None:
    class Asserted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x).to(torch.float32) * 2

    asserted = Asserted()
    model = written(asserted, [R("mxint8", role="output", name="a")])
    (check,) = [node for node in model.graph.nodes if "_assert_tensor_metadata" in str(node.target)]
    assert check.args[0].name == "linear"
    assert equal(model.module()(X), fq(asserted.a(X), "mxint8") * 2)
