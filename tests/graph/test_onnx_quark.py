"""compat="quark": where AMD Quark 0.13 puts its quantizes (tests/peers asks Quark itself), and how it says them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import blockscale as bs
from blockscale import Rule
from blockscale.errors import BlockscaleError, CombinationError, RecipeError, UnknownNameError
from blockscale.graph.onnx_quantizers import quark_attributes, quark_block, quark_numbers
from blockscale.numerics.formats import MX_ELEMENTS
from blockscale.numerics.scheme import Numbers, numbers_named
from peers.quark_models import MODELS, cnn, inputs_of

# Recorded from amd-quark 0.13: tensors by the axis of their blocks.
PLACED: dict[str, dict[int, str]] = {
    "cnn": {0: "b1 b2 b4", 1: "a1 c1 c2 cat f1 g1 h1 k2 l1 logits m1 p1 r1 t1 v1 w1 w2 w3 w4 x y"},
    "transformer": {
        0: "bk bq bv down g1 g2 n1 n2 up wk wo wq wv",
        1: "diff e erf gate hidden ka kr left mean ot pooled qa qr res1 res2 right table va vr wide",
        2: "cut d k kt ln1 ln2 or proj q u v vt",
        3: "o p qt s sm",
    },
    "tangled": {0: "b c e slope x", 1: "a ab abe chosen late least most soft w y z_relu"},
}


def fakes(model: Any) -> dict[str, tuple[Numbers, tuple[int, ...]]]:
    """Numbers and block by the tensor that is quantized, under its name in the float model."""
    outputs = {value.name for value in model.graph.output}
    found = {}
    for node in ir.from_proto(model).graph:
        if (node.domain, node.op_type) == ("blockscale", "FakeQuantize"):
            end = node.outputs[0] if node.outputs[0].name in outputs else node.inputs[0]
            assert end is not None
            numbers = numbers_named(node.attributes["numbers"].as_string())
            found[str(end.name)] = numbers, tuple(node.attributes["block"].as_ints())
    return found


@pytest.mark.parametrize("name", MODELS)
def test_placement(name: str) -> None:
    by_axis = defaultdict(set)
    for tensor, (numbers, block) in fakes(
        bs.fake_quantize_model(MODELS[name](), "mxint8", compat="quark")
    ).items():
        assert numbers == quark_numbers("int8", 2) and sorted(block)[-1] == 32
        by_axis[block.index(32)].add(tensor)
    assert by_axis == {axis: set(tensors.split()) for axis, tensors in PLACED[name].items()}


@pytest.mark.parametrize("name", MODELS)
def test_quantizing_keeps_the_bits(name: str) -> None:
    model = MODELS[name]()
    fake = bs.quantize_model(bs.fake_quantize_model(model, "mxfp4", compat="quark"), stages=())
    qm = bs.quantize_model(model, "mxfp4", compat="quark")
    results = [made(inputs_of(name)) for made in (fake, qm)]
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in results), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_a_preset_says() -> None:
    def layouts(recipe: Any) -> dict[str, str]:
        made = fakes(bs.fake_quantize_model(cnn(), recipe, compat="quark"))
        return {tensor: numbers.element for tensor, (numbers, _) in made.items()}

    weights = {"w1", "w2", "w3", "w4", "b1", "b2", "b4"}
    mixed = layouts("mxfp4-mxint8")
    assert {t for t, e in mixed.items() if e == "fp4_e2m1"} == weights and set(mixed.values()) > {"mxint8"}
    assert layouts("mxfp4-float") == dict.fromkeys(weights, "fp4_e2m1")
    assert layouts("mxfp4-all") == layouts("mxfp4") == layouts(bs.Scheme(element="fp4_e2m1"))
    assert layouts("mxfp4").keys() == mixed.keys() == layouts([Rule("mxfp4")]).keys()


def test_layouts_may_differ_and_settings_too() -> None:
    """Quark itself makes MXINT8 of all of them. The first operator that touches a tensor decides."""
    recipe = [
        Rule("float", tensor="logits"),
        Rule("mxint8", op_type="Gemm", block=16, rounding="half_away"),
        Rule("mxfp4", role="weight", axis=0, block=8),
        Rule("mxfp6", role=("input", "output")),
    ]
    found = fakes(bs.fake_quantize_model(cnn(), recipe, compat="quark"))
    assert found["w4"] == (quark_numbers("int8", 0), (1, 16))
    assert found["w1"] == (quark_numbers("fp4_e2m1", 2), (8, 1, 1, 1))
    assert found["x"] == (quark_numbers("fp6_e2m3", 2), (1, 32, 1, 1))
    assert "logits" not in found and "b1" not in found


def test_a_single_number_is_told() -> None:
    """Quark writes a node for it that does nothing."""
    qm = bs.quantize_model(MODELS["transformer"](), "mxint8", compat="quark")
    assert any("scaling is one number" in entry.get("left", "") for entry in qm.report.entries)
    assert not any(row["tensor"] == "scaling" for row in qm.report.tensors)


def test_what_it_is_not_for() -> None:
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"recipe": "mxint8", "compat": "quarck"}, UnknownNameError, "did you mean 'quark'"),
        ({"recipe": None, "compat": "quark"}, CombinationError, "without a recipe"),
        ({"recipe": "int8", "compat": "quark"}, CombinationError, "six MX formats"),
        ({"recipe": "mxfp4-int8-token", "compat": "quark"}, CombinationError, r"rule 2 .*six MX formats"),
        ({"recipe": "mxint8,dialect=torchao", "compat": "quark"}, BlockscaleError, "dialect"),
        (
            {"recipe": "mxint8,rule=rceil", "compat": "quark"},
            CombinationError,
            "dialect 'quark': it has floor",
        ),
        ({"recipe": "mxpf4", "compat": "quark"}, UnknownNameError, "did you mean 'mxfp4'"),
        ({"recipe": [Rule("mxint8", name="no")], "compat": "quark"}, RecipeError, "matches nothing"),
    ]
    for arguments, error, message in cases:
        with pytest.raises(error, match=message):
            bs.quantize_model(cnn(), **arguments)


def test_bodies_are_left_alone() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2, 32] x, bool c) => (float[2, 32] y) {
        a = MatMul (x, W)
        y = If (c) <then_branch = t () => (float[2, 32] u) { u = MatMul (a, W) },
                    else_branch = e () => (float[2, 32] v) { v = Identity (a) }>
    }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((32, 32), np.float32), "W"))
    assert set(fakes(bs.fake_quantize_model(model, "mxint8", compat="quark"))) == {"x", "W", "a"}


# --------------------------------------------------------------------------------------- how it is said


@pytest.mark.parametrize("element", MX_ELEMENTS)
@pytest.mark.parametrize("mode", range(3))
@pytest.mark.parametrize(("rank", "axis", "size"), [(1, 0, 32), (4, 1, 16), (3, 2, 5), (2, 0, 8)])
def test_attributes_there_and_back(element: str, mode: int, rank: int, axis: int, size: int) -> None:
    name = "int8" if element == "mxint8" else element
    numbers, block = quark_numbers(name, mode), quark_block(rank, axis, size)
    assert isinstance(numbers, Numbers) and isinstance(block, tuple)
    said = quark_attributes(numbers, block)
    assert isinstance(said, dict)
    assert said | {"rounding_mode": 0} == {
        "element_dtype": name, "axis": axis, "block_size": size, "rounding_mode": 0,
    }  # fmt: skip
    assert said["rounding_mode"] == (mode if name == "int8" else 2)
    assert quark_numbers(said["element_dtype"], said["rounding_mode"]) == numbers
    assert quark_block(rank, said["axis"], said["block_size"]) == block


@pytest.mark.parametrize(
    ("numbers", "block", "why"),
    [
        (numbers_named("mxint8"), (32,), "not what it computes"),
        (numbers_named("int8"), (32,), "not what it computes"),
        (quark_numbers("int8", 2), (2, 2), "one size along one axis"),
        (quark_numbers("int8", 2), (1, 0), "one size along one axis"),
        (quark_numbers("int8", 2), (), "one size along one axis"),
    ],
)
def test_what_it_cannot_say(numbers: Any, block: tuple[int, ...], why: str) -> None:
    assert why in str(quark_attributes(numbers, block))
