"""Rules on ONNX models: every setting reaches its node, layouts may differ, and the bits stay those of the rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import blockscale as bs
from blockscale import Rule
from blockscale.numerics.layout import bind
from blockscale.numerics.native import fake_quantize
from blockscale.numerics.scheme import Numbers, numbers_named, refined, scheme_named
from blockscale.runtime.onnx_reference import Runner

F = np.float32
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 16, 6, 6] x) => (float[N, 10] logits) {
    [stem] c = Conv <pads = [1, 1, 1, 1]> (x, W, B) r = Relu (c) [body] d = Conv (r, V)
    [sum] s = Add (d, d) [pool] p = GlobalAveragePool (s) [flat] f = Flatten (p)
    [mix] m = MatMul (f, M) [fc] logits = Gemm <transB = 1> (m, H, b)
}"""
WEIGHTS = {"W": (40, 16, 3, 3), "B": (40,), "V": (48, 40, 3, 3), "M": (48, 64), "H": (10, 64), "b": (10,)}


def array(name: str) -> Any:
    return np.random.default_rng(len(name) + ord(name[0])).standard_normal(WEIGHTS[name]).astype(F)


def model() -> onnx.ModelProto:
    proto = onnx.parser.parse_model(TEXT)
    proto.graph.initializer.extend(numpy_helper.from_array(array(name), name) for name in WEIGHTS)
    proto.graph.node[2].name = "/body/Conv"  # as torch's exporter writes it
    return proto


def fakes(recipe: Any) -> dict[str, tuple[Numbers, tuple[int, ...]]]:
    """Numbers and block of each tensor that is quantized."""
    found = {}
    for node in ir.from_proto(bs.fake_quantize_model(model(), recipe)).graph:
        if node.op_type == "FakeQuantize":
            source = node.inputs[0]
            assert source is not None
            numbers = numbers_named(node.attributes["numbers"].as_string())
            found[str(source.name)] = numbers, tuple(node.attributes["block"].as_ints())
    return found


X = np.random.default_rng(7).standard_normal((2, 16, 6, 6)).astype(F)


def bits(recipe: Any) -> None:
    """Quantized is fake-quantized, and a weight is what the codec makes of it."""
    fake = bs.fake_quantize_model(model(), recipe)
    qm = bs.quantize_model(model(), recipe)
    qm.runner = "reference"  # whose products have the same order, whether a weight is a constant or not
    np.testing.assert_array_equal(qm(X), next(iter(Runner(fake).run({"x": X}).values())))


SETTINGS: list[tuple[str, dict[str, Any], dict[str, tuple[int, ...]]]] = [
    ("mxfp4", {}, {"W": (1, 32, 1, 1), "M": (32, 1), "H": (1, 32), "c": (0,)}),
    ("mxfp4", {"block": 8}, {"W": (1, 8, 1, 1), "M": (8, 1), "H": (1, 8)}),
    ("mxfp6", {"block": 16}, {"W": (1, 16, 1, 1), "M": (16, 1), "H": (1, 16)}),
    ("mxint8", {"block": 5}, {"W": (1, 5, 1, 1), "M": (5, 1), "H": (1, 5)}),
    ("mxfp8", {"axis": 0}, {"W": (32, 1, 1, 1), "M": (32, 1), "H": (32, 1)}),
    ("mxfp8", {"axis": -1, "block": 3}, {"W": (1, 1, 1, 3), "M": (1, 3), "H": (1, 3)}),
    ("mxfp4", {"rule": "rceil"}, {}),
    ("mxint8", {"rounding": "half_away", "dialect": "quark"}, {}),
    ("mxfp4", {"dialect": "torchao"}, {}),
    ("int8-channel", {}, {"W": (1, 0, 0, 0), "M": (0, 1), "H": (1, 0)}),
]


@pytest.mark.parametrize(("layout", "settings", "blocks"), SETTINGS)
def test_settings(layout: str, settings: dict[str, Any], blocks: dict[str, tuple[int, ...]]) -> None:
    rule = Rule(layout, role="weight", **settings)
    found = fakes([rule])
    assert found.keys() == {"W", "V", "M", "H"} and rule.scheme is not None
    assert {numbers for numbers, _ in found.values()} == {rule.scheme.numbers}
    for name, block in blocks.items():
        if name in found:
            shape = WEIGHTS[name]
            assert [b or n for b, n in zip(found[name][1], shape, strict=True)] == [
                b or n for b, n in zip(block, shape, strict=True)
            ]
    bits([rule])


def test_layouts_differ() -> None:
    """What AMD Quark makes MXINT8 of."""
    recipe = bs.Recipe(
        [
            Rule("float", op_type="Add"),
            Rule("mxfp6", op_type="Conv", block=16),
            Rule("mxint8", name="fc"),
            Rule("mxfp4,rule=rceil", op_type=("Gemm", "MatMul")),
        ]
    )
    found = {name: (numbers.element, block) for name, (numbers, block) in fakes(recipe).items()}
    assert found == {
        "x": ("fp6_e2m3", (1, 16, 1, 1)), "W": ("fp6_e2m3", (1, 16, 1, 1)),
        "r": ("fp6_e2m3", (1, 16, 1, 1)), "V": ("fp6_e2m3", (1, 16, 1, 1)),
        "f": ("fp4_e2m1", (1, 32)), "M": ("fp4_e2m1", (32, 1)),
        "m": ("mxint8", (1, 32)), "H": ("mxint8", (1, 32)),
    }  # fmt: skip
    bits(recipe)
    bits(bs.Recipe.from_yaml(recipe.to_yaml()))


def test_weights_are_what_the_codec_makes_of_them() -> None:
    qm = bs.quantize_model(model(), [Rule("mxfp4", role="weight", block=8, dialect="quark")], stages=())
    scheme = refined(scheme_named("mxfp4,dialect=quark"), axis=1, block=8)
    made = next(n for n in qm.model.graph if n.op_type == "FakeQuantize" and n.inputs[0].name == "V")
    np.testing.assert_array_equal(
        next(iter(Runner(_giving(qm.model, made.outputs[0])).run({"x": X}).values())),
        fake_quantize(array("V"), bind(scheme, WEIGHTS["V"])),
    )


def _giving(model: ir.Model, value: ir.Value) -> ir.Model:
    copy = model.clone()
    made = next(v for node in copy.graph for v in node.outputs if v.name == value.name)
    copy.graph.outputs[:] = [made]
    return copy


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        ([Rule("float", name="stem")], {"W", "x"}),
        ([Rule("float", name="re:/body/.*")], {"V", "r"}),  # the name that the model has
        ([Rule("float", name="body")], {"V", "r"}),  # and the path that is made of it
        ([Rule("float", op_type="Conv")], {"W", "V", "x", "r"}),
        ([Rule("float", kind="gemm")], {"H", "m"}),
        ([Rule("float", between=("r", "s"))], {"V", "r"}),
        ([Rule("float", between=("stem", "pool"))], {"W", "V", "x", "r"}),
        ([Rule("float", tensor="?", op_type="MatMul")], {"M", "f"}),
    ],
)
def test_leaving_out(rules: list[Rule], left: set[str]) -> None:
    every = {"x", "W", "r", "V", "f", "M", "m", "H"}
    assert fakes([*rules, Rule("mxfp8", use="linear")]).keys() == every - left


def test_weights_only() -> None:
    assert fakes("mxfp4-float").keys() == {"W", "V", "M", "H"}
    assert {"c", "r", "d", "s", "p", "logits_1"} <= fakes("mxfp8-all").keys()  # outputs keep their names
