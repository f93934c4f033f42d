"""Steps before quantizing: onnxruntime gives the same bits before and after, batch norms within roundings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import blockscale as bs
from blockscale.errors import ArgumentError, CombinationError, RecipeError, UnknownNameError
from blockscale.graph.onnx_opset import to_opset
from blockscale.graph.onnx_prepare import AUTO, STEPS, prepared

F = np.float32


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(F)


def model(text: str, opset: int = 17, domains: str = "", **weights: Any) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}{domains}]> {text}')
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), k) for k, v in weights.items())
    return proto


def run(proto: onnx.ModelProto | ir.Model, **inputs: Any) -> list[Any]:
    """Without optimizations of its own, which round as they like."""
    proto = ir.to_proto(proto) if isinstance(proto, ir.Model) else proto
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def after(proto: onnx.ModelProto, *steps: str) -> tuple[ir.Model, list[str]]:
    before = proto.SerializeToString()
    made = prepared(ir.from_proto(proto), steps or "auto")
    assert proto.SerializeToString() == before
    onnx.checker.check_model(ir.to_proto(made.model), full_check=True)
    return made.model, [node.op_type for node in made.model.graph]


def same(proto: onnx.ModelProto, *steps: str, **inputs: Any) -> list[str]:
    made, types = after(proto, *steps)
    for a, b in zip(run(proto, **inputs), run(made, **inputs), strict=True):
        np.testing.assert_array_equal(a, b)
    return types


# --------------------------------------------------------------------------------------- batch norms

BN = "BatchNormalization <epsilon = 1e-3>"
NORM = {
    "s": random(6, seed=1) + 1, "t": random(6, seed=2), "m": random(6, seed=3), "v": np.abs(random(6, seed=4)) + F(0.1)
}  # fmt: skip
FOLDED: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "Conv": ("c = Conv <pads = [1, 1, 1, 1]> (x, W, b)", (2, 4, 5, 5), {"W": random(6, 4, 3, 3), "b": random(6)}),
    "Conv, groups, no bias": ("c = Conv <group = 2> (x, W)", (2, 4, 5, 5), {"W": random(6, 2, 3, 3)}),
    "Conv, one dimension": ("c = Conv (x, W)", (2, 4, 9), {"W": random(6, 4, 3)}),
    "ConvTranspose": ("c = ConvTranspose (x, W, b)", (2, 4, 5, 5), {"W": random(4, 6, 3, 3), "b": random(6)}),
    "ConvTranspose, groups": ("c = ConvTranspose <group = 2> (x, W)", (2, 4, 5), {"W": random(4, 3, 3)}),
    "Gemm": (
        "c = Gemm <transB = 1, alpha = 0.5, beta = 2.0> (x, W, b)", (3, 8), {"W": random(6, 8), "b": random(6)},
    ),
    "Gemm, a bias of one": ("c = Gemm (x, W, b)", (3, 8), {"W": random(8, 6), "b": random(1)}),
    "MatMul": ("c = MatMul (x, W)", (3, 8), {"W": random(8, 6)}),
}  # fmt: skip


def normalized(case: str) -> tuple[onnx.ModelProto, Any]:
    product, shape, weights = FOLDED[case]
    sizes = ", ".join(map(str, shape))
    dims = ", ".join("abcd"[: len(shape)])
    text = f"g (float[{sizes}] x) => (float[{dims}] y) {{ {product} n = {BN} (c, s, t, m, v) y = Relu (n) }}"
    return model(text, **weights, **NORM), random(*shape, seed=9)


@pytest.mark.parametrize("case", FOLDED)
def test_batch_norms_join_the_weight_in_front(case: str) -> None:
    """The formula in float64 rounded once, and what the model gives within roundings of the products."""
    proto, x = normalized(case)
    made, types = after(proto)
    assert types == ["Gemm" if case == "MatMul" else case.split(",")[0], "Relu"]
    (expected,), (found,) = run(proto, x=x), run(made, x=x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
    arrays = {name: value.const_value.numpy() for name, value in made.graph.initializers.items()}
    factor = NORM["s"].astype(float) / np.sqrt(NORM["v"].astype(float) + float(F(1e-3)))
    if case.startswith("Conv,") or case == "Conv":
        weight = FOLDED[case][2]["W"].astype(float) * factor.reshape(-1, *(1,) * (len(x.shape) - 1))
        np.testing.assert_array_equal(arrays["n_weight"], weight.astype(F))
    assert all(array.dtype == F for array in arrays.values()) and len(arrays) == 2


LEFT = {
    "others read": (f"c = Conv (x, W) y = {BN} (c, s, t, m, v) z = Relu (c)", "others read"),
    "in training": (
        "c = Conv (x, W) y, p, q = BatchNormalization <training_mode = 1> (c, s, t, m, v) z = Relu (y)", "in training",
    ),
    "no product": (f"c = Relu (x) y = {BN} (c, s4, t4, m4, v4) z = Relu (y)", "does not follow"),
    "no constant": (f"c = Conv (x, W) u = Relu (s) y = {BN} (c, u, t, m, v) z = Relu (y)", "no constants"),
    "not finite": (f"c = Conv (x, W) y = {BN} (c, s, t, m, neg) z = Relu (y)", "not finite"),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
def test_batch_norms_that_stay(case: str) -> None:
    body, why = LEFT[case]
    weights = NORM | {"W": random(6, 4, 3, 3), "neg": -NORM["v"]} | {f"{k}4": v[:4] for k, v in NORM.items()}
    proto = model(
        f"g (float[2, 4, 5, 5] x) => (float[a, b, c, d] y, float[e, f, h, i] z) {{ {body} }}", **weights
    )
    made = prepared(ir.from_proto(proto), ["batch_norm"])
    (told,) = [one for one in made.told if one.step == "batch_norm"]
    assert why in told.left and "BatchNormalization" in [node.op_type for node in made.model.graph]


def test_large_weights_are_folded_when_they_are_read() -> None:
    proto = model(
        f"g (float[1, 64, 3, 3] x) => (float[a, b, c, d] y) {{ c = Conv (x, W) y = {BN} (c, s, s, s, s) }}",
        W=random(64, 64, 3, 3), s=np.abs(random(64)) + 1,
    )  # fmt: skip
    made, _ = after(proto)
    assert isinstance(made.graph.initializers["y_weight"].const_value, ir.LazyTensor)


def test_a_report_tells_of_it() -> None:
    proto, x = normalized("Gemm")
    qm = bs.quantize_model(proto, "mxfp8")
    told = [entry for entry in qm.report.entries if entry["stage"] == "prepare"]
    assert [entry["did"] for entry in told if "BatchNormalization" in entry["node"]] == [
        "folded into the weight in front of it, 'c' is gone"
    ]
    rough = bs.quantize_model(proto, "mxfp8", prepare="none")
    assert qm(x).shape == rough(x).shape and bs.compare(proto, qm, [{"x": x}]).outputs[0].sqnr > 20


# --------------------------------------------------------------------------------------- constants

FOLDABLE = {
    "shapes": "n = Shape (W) p = Gather <axis = 0> (n, zero) q = Unsqueeze (p, axis) r = Concat <axis = 0> (q, minus)"
    " y = Reshape (x, r)",
    "a part of a shape": "n = Shape <start = 1> (x) m = Concat <axis = 0> (n, minus) y = Reshape (x, m)",
    "a size": "n = Size (W) f = Cast <to = 1> (n) h = Sqrt (f) y = Div (x, h)",
    "a mask": "r = Range (zero, four, one) c = GreaterOrEqual (r, two) k = Where (c, half, three) y = Mul (x, k)",
    "filled": "k = ConstantOfShape <value = float[1] {0.1}> (axis4) m = Mul (k, half) n = Neg (m) y = Add (x, n)",
    "moved": "t = Transpose (V) s = Slice (t, axis0, axis2, axis) u = Squeeze (s) y = Add (x, u)",
    "split": "a, b = Split <axis = 0> (V) c = Concat <axis = 0> (b, a) f = Flatten (c) e = Expand (f, full)"
    " y = Sub (x, e)",
}  # fmt: skip
CONSTANTS: dict[str, Any] = {
    "W": random(4, 4), "V": random(4, 1), "zero": 0, "one": 1, "two": 2, "four": 4, "axis": np.array([0]),
    "axis4": np.array([4]), "axis0": np.array([0]), "axis2": np.array([1]), "minus": np.array([-1]),
    "half": F(0.5), "three": F(1 / 3), "full": np.array([4, 4]),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDABLE)
def test_constants_are_computed(case: str) -> None:
    body = FOLDABLE[case]
    used = {
        k: v for k, v in CONSTANTS.items() if any(f"{sign}{k}{end}" in body for sign in "( " for end in ",)")
    }
    proto = model(f"g (float[4, 4] x) => (float[a, b] y) {{ {body} }}", **used)
    assert len(same(proto, x=random(4, 4, seed=5))) == 1


STAYS = {
    "roundings of its own": "e = Exp (V) y = Add (x, e)",
    "a large result": "e = Expand (V, big) s = Slice (e, axis0, axis4, axis0) y = Add (x, s)",
    "out of range": "e = Cast <to = 3> (far) g = Cast <to = 1> (e) y = Add (x, g)",
    "a negative quotient": "e = Div (minus, two) g = Cast <to = 1> (e) y = Add (x, g)",
}


@pytest.mark.parametrize("case", STAYS)
def test_constants_that_are_not_computed(case: str) -> None:
    more = {"big": np.array([1 << 15, 4]), "far": F(300.7)}
    body = STAYS[case]
    used = {
        k: v for k, v in (CONSTANTS | more).items() if any(f"{a}{k}{b}" in body for a in "( " for b in ",)")
    }
    used = {k: (v.T.copy() if k == "V" and case != "roundings of its own" else v) for k, v in used.items()}
    proto = model(f"g (float[4, 4] x) => (float[a, b] y) {{ {body} }}", **used)
    assert len(same(proto, x=random(4, 4, seed=5))) > 1


def test_weights_are_not_moved() -> None:
    proto = model(
        "g (float[2, 256] x) => (float[2, 256] y) { t = Transpose (W) y = MatMul (x, t) }", W=random(256, 256)
    )
    assert same(proto, x=random(2, 256)) == ["Transpose", "MatMul"]


# --------------------------------------------------------------------------------------- what does nothing


def test_what_does_nothing_goes() -> None:
    """Also where it gives an output of the model, which keeps its name."""
    text = """g (float[2, 4] x) => (float[2, 4] y, float[2, 4] same, float[2, 4] z) {
        i = Identity (x) d = Dropout (i, ratio) m = MatMul (d, W) e, mask = Dropout (m)
        y = Identity (e) same = Identity (x) unread = MatMul (d, U) z = Sigmoid (d)
    }"""
    proto = model(text, W=random(4, 4), U=random(4, 4), ratio=F(0.5), dead=random(8))
    types = same(proto, x=random(2, 4))
    assert types == ["MatMul", "Identity", "Sigmoid"]  # an input that is an output needs one
    made, _ = after(proto)
    assert set(made.graph.initializers) == {"W"}
    assert all(node.name for node in made.graph)
    assert after(proto, "names")[1] == [node.op_type for node in proto.graph.node]


def test_rules_about_what_is_gone() -> None:
    proto = model(
        "g (float[2, 32] x) => (float[2, 32] y) { [skip] i = Identity (x) y = MatMul (i, W) }",
        W=random(32, 32),
    )
    assert bs.quantize_model(proto, [bs.Rule("mxfp8", between=("i", "y"))], prepare="none").report.tensors
    for rule in (
        bs.Rule("mxfp8", between=("i", "y")),
        bs.Rule("mxfp8", name="skip"),
        bs.Rule("mxfp8", tensor="i"),
    ):
        with pytest.raises(
            RecipeError, match=r"\nskip: Identity removed, 'i' is 'x' \(prepare='none' leaves"
        ):
            bs.quantize_model(proto, [rule])


def test_half_precision() -> None:
    """Roundings are those of the dtype."""
    x = random(2, 4, 5, 5)
    weights = {k: v.astype(np.float16) for k, v in (NORM | {"W": random(6, 4, 3, 3)}).items()}
    text = (
        f"g (float16[2, 4, 5, 5] x) => (float16[a, b, c, d] y) {{ c = Conv (x, W) y = {BN} (c, s, t, m, v) }}"
    )
    half = model(text, **weights)
    made, types = after(half)
    assert types == ["Conv"]
    (expected,), (found,) = (run(one, x=x.astype(np.float16)) for one in (half, made))
    np.testing.assert_allclose(found, expected, rtol=0, atol=4e-3 * np.abs(expected).max())


def test_what_is_random_or_trains_stays() -> None:
    text = """g (float[2, 4] x) => (float[2, 4] y) {
        d = Dropout (x, ratio, train) r = RandomNormalLike (x) u = other.Thing (x) y = Relu (d)
    }"""
    proto = model(text, domains=', "other" : 1', ratio=F(0.5), train=np.array(True))
    assert after(proto)[1] == ["Dropout", "RandomNormalLike", "Thing", "Relu"]


def test_bodies_keep_what_they_take() -> None:
    text = """g (float[2, 4] x, bool c) => (float[2, 4] y) {
        i = Identity (x) k = Add (one, one) d = Dropout (i)
        y = If (c) <then_branch = t () => (float[2, 4] a) { a = Mul (d, k) },
                    else_branch = e () => (float[2, 4] b) { j = Identity (i) b = Add (j, k) }>
    }"""
    proto = model(text, one=F(1.25))
    for flag in (True, False):
        assert same(proto, x=random(2, 4), c=np.array(flag)) == ["If"]


def test_inputs_with_defaults_are_constants_on_demand() -> None:
    proto = model(
        "g (float[2, 32] x, float[32, 32] W) => (float[2, 32] y) { y = MatMul (x, W) }", W=random(32, 32)
    )
    assert [v.name for v in after(proto)[0].graph.inputs] == ["x", "W"]
    assert [v.name for v in after(proto, "defaults")[0].graph.inputs] == ["x"]
    weights = [
        [row["role"] for row in bs.quantize_model(proto, "mxfp8-all", prepare=steps).report.tensors]
        for steps in ("auto", (*AUTO, "defaults"))
    ]
    assert "weight" not in weights[0] and "weight" in weights[1]


def test_shapes_are_stated_and_names_of_sizes_stay() -> None:
    body = "a = Relu (x) b = Transpose <perm = [1, 0, 2]> (a) y = MatMul (b, W)"
    text = f"g (float[batch, seq, 8] x) => (float[p, q, r] y) {{ {body} }}"
    made, _ = after(model(text, W=random(8, 16)))
    shapes = {str(v.name): [str(n) for n in v.shape or ()] for node in made.graph for v in node.outputs}
    assert shapes["a"] == ["batch", "seq", "8"] and shapes["b"] == ["seq", "batch", "8"]


# --------------------------------------------------------------------------------------- versions


OLD: dict[str, tuple[int, str, dict[str, Any]]] = {
    "Softmax over the rest": (11, "y = Softmax <axis = 1> (x)", {}),
    "attributes that are inputs now": (
        10, "a = Clip <min = -0.5, max = 0.5> (x) b = Dropout (a) y = Unsqueeze <axes = [0]> (b)", {},
    ),
    "sums": (12, "y = ReduceSum <axes = [1], keepdims = 1> (x)", {}),
    "Upsample": (9, "u = Unsqueeze <axes = [0]> (x) y = Upsample <mode = \"nearest\"> (u, scales)",
                 {"scales": np.array([1, 1, 2, 2], F)}),
    "weights": (9, "y = MatMul (x, W)", {"W": random(5, 2000)}),
    "nothing but the number": (12, "a = Sigmoid (x) y = Transpose (a)", {}),
}  # fmt: skip


@pytest.mark.parametrize("target", [13, 24])
@pytest.mark.parametrize("case", OLD)
def test_opsets_are_converted(case: str, target: int) -> None:
    opset, body, weights = OLD[case]
    proto = model(f"g (float[3, 4, 5] x) => (float y) {{ {body} }}", opset, **weights)
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    proto = onnx.shape_inference.infer_shapes(proto, strict_mode=True)
    proto.metadata_props.add(key="who", value="me")
    made = to_opset(ir.from_proto(proto), target)
    assert made.opset_imports[""] == target and made.metadata_props["who"] == "me"
    onnx.checker.check_model(ir.to_proto(made))
    x = random(3, 4, 5)
    np.testing.assert_array_equal(run(proto, x=x)[0], run(made, x=x)[0])
    assert [v.name for v in made.graph.inputs] == ["x"] and set(made.graph.initializers) >= set(weights)


def test_newer_ones_stay() -> None:
    made = ir.from_proto(model("g (float[2] x) => (float[2] y) { y = Relu (x) }", 21))
    assert to_opset(made, 13) is made


IMPOSSIBLE: dict[str, tuple[int, str, str]] = {
    "no way": (
        7, "n = Relu (x) y = BatchNormalization <spatial = 0> (n, s, s, s, s)",
        r"operator BatchNormalization \(without a name\) of opset 7 cannot be brought to opset 13: .*spatial",
    ),
    "no operator": (11, "y = Foo (x)", "operator Foo .* of opset 11 cannot be brought .*no registered schema"),
    "in a body": (
        11, "y = If (c) <then_branch = t () => (float[4, 4] a) { a = Softmax (x) }, "
        "else_branch = e () => (float[4, 4] b) { b = Relu (x) }>", "Softmax .* of opset 11 lies in a body.*opset 13",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_what_cannot_be_converted_is_refused(case: str) -> None:
    opset, body, why = IMPOSSIBLE[case]
    proto = model(f"g (float[1, 4, 4] x, bool c, float[1] s) => (float[1, 4, 4] y) {{ {body} }}", opset)
    with pytest.raises(CombinationError, match=f"{why}.*[eE]xport the model with opset 13"):
        bs.quantize_model(proto, "mxfp8-all")


def test_functions_survive() -> None:
    text = """g (float[4, 4] x) => (float[4, 4] y) { z = loc.F (x) d = Dropout (z) y = Softmax (d) }
    <domain: "loc", opset_import: ["" : 11]> F (a) => (b) { b = Relu (a) }"""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 11, "loc" : 1]> {text}')
    made = to_opset(ir.from_proto(proto), 13)
    np.testing.assert_array_equal(run(proto, x=random(4, 4))[0], run(made, x=random(4, 4))[0])


def test_old_models_are_quantized(tmp_path: Path) -> None:
    body = """c = Conv (x, W) r = Clip <min = 0.0> (c) p = GlobalAveragePool (r) s = Squeeze <axes = [2, 3]> (p)
        y = Gemm (s, V, b)"""
    text = f"g (float[2, 3, 8, 8] x) => (float[2, 4] y) {{ {body} }}"
    proto = model(text, 9, W=random(32, 3, 3, 3), V=random(32, 4), b=random(4))
    onnx.save(proto, tmp_path / "old.onnx")
    x = random(2, 3, 8, 8)
    qm = bs.quantize_model(tmp_path / "old.onnx", "mxfp8-all")
    assert bs.compare(prepared(ir.from_proto(proto), "auto").model, qm, [{"x": x}]).outputs[0].sqnr > 20
    with pytest.raises(CombinationError, match=r"opset 9.*prepare"):
        bs.quantize_model(tmp_path / "old.onnx", "mxfp8-all", prepare="none")


# --------------------------------------------------------------------------------------- the switch


def test_the_switch() -> None:
    proto, _ = normalized("Gemm")
    given = ir.from_proto(proto)
    assert prepared(given, "none").model is given and prepared(given, ()).model is given
    assert set(AUTO) == set(STEPS) - {"defaults"}
    for wrong, error in (("fold", ArgumentError), (["fold"], UnknownNameError), (3, ArgumentError)):
        with pytest.raises(error, match="prepare"):
            bs.quantize_model(proto, "mxfp8", prepare=wrong)


def test_a_model_with_quantizes_of_its_own_stays_as_it_is() -> None:
    proto, _ = normalized("Gemm")
    fake = bs.fake_quantize_model(proto, "mxfp8", prepare="none")
    qm = bs.quantize_model(fake)
    assert "batch_norm" in qm.report.before and qm.report.after["batch_norm"] == 1


def test_steps_are_for_onnx() -> None:
    torch = pytest.importorskip("torch")
    linear, x = torch.nn.Linear(32, 32), torch.zeros(1, 32)
    with pytest.raises(CombinationError, match="prepare with a model of torch"):
        bs.quantize_model(linear, "mxfp8", example_inputs=x, prepare="none")
    with pytest.raises(CombinationError, match="compat='quark' with a model of torch"):
        bs.quantize_model(linear, "mxfp8", example_inputs=x, compat="quark")
