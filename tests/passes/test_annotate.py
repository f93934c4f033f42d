"""Annotate: which tensor gets which layout, on a torch program and on the ONNX model of the same block."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.errors import RecipeError
from blockscale.graph.models import snapshot
from blockscale.graph.plan import Plan, Point
from blockscale.passes.annotate import annotate
from blockscale.passes.log import Log
from models.attention import AUTO, onnx_model, program
from models.onnx_nets import CASES

R = bs.Rule
Row = tuple[str, str, int]  # operator, role, index


def planned(recipe: Any, model: Any = None, log: Log | None = None) -> Plan:
    return annotate(snapshot(program() if model is None else model), recipe, log)


def layouts(plan: Plan) -> dict[Row, str]:
    """What is quantized, and how."""
    return {
        (a.operand.node, a.operand.role, a.operand.index): str(a.scheme.numbers).partition(",")[0]
        for a in plan.assignments if a.scheme is not None
    }  # fmt: skip


def point(plan: Plan, key: str) -> Point:
    return next(one for one in plan.points if one.key == key)


def exported(module: nn.Module, *inputs: Tensor, dynamic: Any = None) -> Any:
    return torch.export.export(module.eval(), inputs, dynamic_shapes=dynamic)


LINEAR = ("q", "kv", "out")
INPUTS = {(name, "input", 0) for name in (*LINEAR, "head")}
WEIGHTS = {(name, "weight", 1) for name in LINEAR}
EMBED, HEAD = ("embed", "weight", 0), ("head", "weight", 1)


class TestPresets:
    @pytest.mark.parametrize(
        ("preset", "weight", "inputs", "head"),
        [
            ("mxfp4", "mxfp4", "mxfp4", "mxint8"), ("mxfp6", "mxfp6", "mxfp6", "mxint8"),
            ("mxfp8", "mxfp8", "mxfp8", "mxfp8"), ("mxint8", "mxint8", "mxint8", "mxint8"),
            ("nvfp4", "nvfp4", "nvfp4", "mxint8"), ("mxfp4-mxint8", "mxfp4", "mxint8", "mxint8"),
            ("mxfp4-float", "mxfp4", None, "mxint8"), ("int4-g32-float", "int4", None, "int8"),
            ("int8", "int8", "int8", "int8"), ("int4-g32-int8-token", "int4", "int8", "int8"),
        ],
    )  # fmt: skip
    def test_which_tensors(self, preset: str, weight: str, inputs: str | None, head: str) -> None:
        found = layouts(planned(preset))
        expected = dict.fromkeys(WEIGHTS, weight) | {EMBED: head, HEAD: head}
        if inputs is not None:
            expected |= dict.fromkeys(INPUTS, inputs)
        assert found == expected

    @pytest.mark.parametrize("preset", ["mxfp4-all", "mxfp4-mxint8-all", "int8-all"])
    def test_all_takes_every_activation(self, preset: str) -> None:
        plan = planned(preset)
        found = layouts(plan)
        activations = {
            (a.operand.node, a.operand.role, a.operand.index)
            for a in plan.assignments if a.operand.role in ("input", "output")
        }  # fmt: skip
        assert activations <= found.keys()
        assert {("matmul", "input", 0), ("matmul", "input", 1), ("matmul_1", "input", 1)} <= activations
        assert {("add", "input", 0), ("add", "input", 1), ("add", "output", 0)} <= activations
        assert {("norm", "input", 0), ("softmax", "output", 0), ("head", "output", 0)} <= activations
        assert not any(role == "bias" for _, role, _ in found)
        kind = "mxint8" if "mxint8" in preset else preset.removesuffix("-all")
        assert {found[row] for row in activations} == {kind}

    def test_int8_is_static_per_tensor_and_per_channel(self) -> None:
        plan = planned("int8")
        for name in ("rms_norm", "matmul_1", "add"):
            assert point(plan, name).block == (0, 0, 0) and point(plan, name).is_static
        for name in ("q.weight", "kv.weight", "out.weight", "head.weight", "embed.weight"):
            assert point(plan, name).block == (1, 0) and not point(plan, name).is_static
        assert {one.key for one in plan.static()} == {"rms_norm", "matmul_1", "add"}

    def test_blocks_run_along_what_is_reduced(self) -> None:
        plan = planned("mxfp4-all")
        assert point(plan, "rms_norm").block == (1, 1, 32)
        assert point(plan, "getitem_1").block == (1, 32, 1)  # V, on the right of a product
        assert point(plan, "q.weight").block == (1, 32)
        assert ("matmul", "input", 1) in _rows(point(plan, "linear_1"))  # Kᵀ: what the output already is

    def test_on_onnx(self) -> None:
        found = layouts(planned("mxfp4", onnx_model()))
        expected = dict.fromkeys([(n, "weight", 1) for n in ("q", "k", "v", "out")], "mxfp4")
        expected |= dict.fromkeys([(n, "input", 0) for n in ("q", "k", "v", "out", "y")], "mxfp4")
        assert found == expected | {("embed", "weight", 0): "mxint8", ("y", "weight", 1): "mxint8"}
        plan = planned("mxfp4-all", onnx_model())
        assert {("scores", "input", 0), ("scores", "input", 1), ("add", "output", 0)} <= layouts(plan).keys()
        assert point(plan, "Q").block == (32, 1) and point(plan, "v").block == (1, 32, 1)
        static = planned("int8", onnx_model())
        assert point(static, "Q").block == (0, 1) and point(static, "norm").block == (0, 0, 0)

    def test_convolutions_on_onnx(self) -> None:
        import onnx_ir

        plan = planned("mxfp6", onnx_ir.from_proto(CASES["convolutions"].proto()))
        assert point(plan, "x").block == (1, 32, 1, 1) and point(plan, "W").block == (1, 32, 1, 1)
        assert point(plan, "L").block == (1, 32)  # transB


def _rows(one: Point) -> set[Row]:
    return {(edge.operand.node, edge.operand.role, edge.operand.index) for edge in one.edges}


class TestPoints:
    def test_readers_that_want_one_layout_share_it(self) -> None:
        plan = planned("mxfp4")
        assert _rows(point(plan, "rms_norm")) == {("q", "input", 0), ("kv", "input", 0)}

    def test_readers_that_want_others_do_not(self) -> None:
        rules = [
            R("mxfp8", name="q", role="input"),
            R("mxint8", name="kv", role="input"),
            R("mxfp4", use="linear"),
        ]
        plan = planned(rules)
        by_scheme = {str(p.scheme): _rows(p) for p in plan.points if p.value.name == "rms_norm"}
        assert by_scheme == {"mxfp8": {("q", "input", 0)}, "mxint8": {("kv", "input", 0)}}
        assert {p.key for p in plan.points if p.value.name == "rms_norm"} == {"rms_norm", "rms_norm#2"}

    @pytest.mark.parametrize("setting", [{"rounding": "half_up"}, {"rule": "ceil"}, {"block": 16}, {"axis": -2},
                                         {"dialect": "microxcaling"}])  # fmt: skip
    def test_every_field_of_a_scheme_makes_another_layout(self, setting: dict[str, Any]) -> None:
        rules = [R("mxfp8", name="q", role="input", **setting), R("mxfp8", name="kv", role="input")]
        assert len(planned(rules).points) == 2

    def test_an_output_is_one_layout_for_all_its_readers(self) -> None:
        plan = planned("mxfp8-all")
        one = point(plan, "embedding")
        assert one.is_output
        assert _rows(one) == {("embed", "output", 0), ("norm", "input", 0), ("add", "input", 0)}

    def test_a_reader_of_an_output_may_want_another_layout(self) -> None:
        plan = planned([R("mxfp8", role="output", name="norm"), R("mxint8", name="q", role="input")])
        one, other = (p for p in plan.points if p.value.name == "rms_norm")
        assert one.is_output and str(one.scheme) == "mxfp8" and _rows(one) == {("norm", "output", 0)}
        assert not other.is_output and _rows(other) == {("q", "input", 0)}

    def test_reshapes_carry_the_layout_of_an_output(self) -> None:
        class Heads(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.Linear(64, 64), nn.Linear(32, 32)

            def forward(self, x: Tensor) -> Tensor:
                return self.b(self.a(x).view(2, 2, 32))

        rules = [R("mxfp8", name="a", role="output"), R("mxfp8", name="b", role="input")]
        plan = planned(rules, exported(Heads(), torch.randn(2, 64)))
        assert _rows(point(plan, "linear")) == {("a", "output", 0), ("b", "input", 0)}
        rules[1] = R("mxfp8", name="b", role="input", block=16)
        assert len(planned(rules, exported(Heads(), torch.randn(2, 64))).points) == 2

    def test_what_is_written_to_is_another_tensor_for_each_reader(self) -> None:
        class Writes(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)
                self.register_buffer("seen", torch.zeros(2, 32))

            def forward(self, x: Tensor) -> Tensor:
                y = self.a(self.seen)
                self.seen.add_(x)
                return y + self.b(self.seen)

        plan = planned(
            [R("mxfp8", role=("input", "weight"), use="linear")], exported(Writes(), torch.randn(2, 32))
        )
        assert [len(p.edges) for p in plan.points if p.value.name not in ("a.weight", "b.weight")] == [1, 1]


class TestShapes:
    def test_sizes_of_the_run(self) -> None:
        assert point(planned("mxfp4"), "add").value.meta.shape[2] == 64
        assert planned("mxfp4").assignments[0].operand.shape == (100, 64)
        norm = next(a.operand for a in planned("mxfp4").assignments if a.operand.node == "norm")
        assert norm.shape == (None, None, 64)

    def test_static_scales_whose_number_is_not_known_are_refused(self) -> None:
        with pytest.raises(
            RecipeError, match=r"input 0 'rms_norm' \[\?×\?×64\] of linear 'q' \(.*attention\.py"
        ):
            planned([R("int8-token,dynamic=false", name="q", role="input")])
        known = planned([R("int8-token,dynamic=false", name="q", role="input")], program(dynamic=False))
        assert point(known, "rms_norm").block == (1, 1, 0)

    def test_a_vector_has_no_channels(self) -> None:
        with pytest.raises(
            RecipeError, match=r"bias 2 'kv\.bias' \[128\] .*cannot take int8-channel: it has no output"
        ):
            planned([R("int8-channel", role="bias")])
        assert point(planned([R("int8", role="bias", name="kv")]), "kv.bias").block == (0,)

    def test_products_of_vectors(self) -> None:
        class Dot(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.w = nn.Parameter(torch.randn(64))

            def forward(self, x: Tensor) -> Tensor:
                return x @ self.w

        plan = planned("mxfp8", exported(Dot(), torch.randn(2, 64)))
        assert point(plan, "w").block == (32,) and point(plan, "x").block == (1, 32)

    @pytest.mark.parametrize("dynamic", [None, ({0: AUTO},)])
    def test_convolutions(self, dynamic: Any) -> None:
        net = exported(nn.Sequential(nn.Conv2d(64, 8, 3), nn.Conv2d(8, 8, 3, groups=8)), torch.randn(2, 64, 8, 8),
                       dynamic=dynamic)  # fmt: skip
        plan = planned("mxfp4-float", net)
        assert point(plan, "0.weight").block == (1, 32, 1, 1)
        static = planned("int8", net)
        assert point(static, "0.weight").block == (1, 0, 0, 0) and point(static, "1.weight").block == (
            1,
            0,
            0,
            0,
        )
        assert point(static, "input").block == (0, 0, 0, 0)


class TestLog:
    def test_every_tensor_with_the_rule_that_hit(self) -> None:
        log = Log()
        planned("mxfp4", log=log)
        told = [entry.did for entry in log.entries if entry.did]
        assert len(told) == 9
        assert any(text.startswith("weight 1: mxfp4") and "by rule 3 (mxfp4" in text for text in told)

    def test_unknown_operators_are_left(self) -> None:
        class Strange(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a = nn.Linear(32, 32)

            def forward(self, x: Tensor) -> Tensor:
                return torch.fft.rfft(self.a(x)).abs()

        log = Log()
        planned("mxfp4", exported(Strange(), torch.randn(2, 32)), log)
        left, then = log.reasons("annotate")
        assert left.left == "aten.fft_rfft.default is not known" and "test_annotate.py" in left.site
        assert "complex" in then.left

    def test_nothing_is_changed(self) -> None:
        model = program()
        code = model.graph_module.code
        graph = snapshot(model)
        annotate(graph, "mxfp4-all")
        assert not any(one.changed for one in graph.walk()) and model.graph_module.code == code

    def test_explained(self) -> None:
        text = str(planned("mxfp4").explain())
        assert "embed     embedding  weight 0  embed.weight  100×64   1     mxint8, 32 along axis -1" in text
        assert np.all(
            [row.rule_number is None for row in planned("mxfp4").explain().rows if row.operand.role == "bias"]
        )
