"""What is written: the same model where nothing was edited, the same bits where something was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from blockscale.graph.onnx import commit, copied, snapshot
from blockscale.graph.quant import quant_of
from blockscale.numerics.moves import Permute
from blockscale.passes.pipeline import OPTIMIZE, optimize
from blockscale.runtime.onnx_reference import Runner
from passes.onnx_graphs import Builder, assert_equal, assert_sound, example, op_types, run
from passes.proof import is_input, proven, shape

# ------------------------------------------------------------------------------------------ nothing edited

PLAIN = """
<ir_version: 10, opset_import: ["" : 18, "my.domain" : 3, "mine" : 1]>
agraph (float[N, 4] x, bool c, float[4] w) => (float[N, 4] y, float[N, 4] z)
<float[4] w = {1, 2, 3, 4}, float[2, 2] idle = {1, 2, 3, 4}>
{
    k = Constant <value = float[4] {1, 0, -1, 2}> ()
    a = Add (x, w)
    y = If (c) <
        then_branch = g1 () => (float[N, 4] t) { t = Mul (a, k) },
        else_branch = g2 () => (float[N, 4] e) { i = Identity (a)  e = my.domain.Strange <level = 3> (i) }
    >
    z, unused = mine.pair (a)
}
<domain: "mine", opset_import: ["" : 18]>
pair (p) => (q, r) { q = Relu (p)  r = Neg (p) }
"""


def test_without_edits_the_model_is_what_it_was() -> None:
    model = ir.from_proto(onnx.parser.parse_model(PLAIN))
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert commit(snapshot(model), model) is model
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    assert ir.to_proto(copied(model)).SerializeToString(deterministic=True) == before
    assert ir.to_proto(optimize(model)).SerializeToString(deterministic=True) == before


def test_weights_are_not_read_and_not_copied() -> None:
    def fetch() -> ir.TensorProtocol:
        raise AssertionError("a weight was read")

    b = Builder()
    x = b.input(2, 4, 1 << 12)
    weight = ir.Value(name="w", shape=ir.Shape([1 << 12, 1 << 20]), type=ir.TensorType(ir.DataType.FLOAT))
    weight.const_value = ir.LazyTensor(fetch, ir.DataType.FLOAT, weight.shape, name="w")  # type: ignore[arg-type]
    b.graph.register_initializer(weight)
    y = b.call("MatMul", b.fake(x, "mxfp4"), weight)
    z = b.call("MatMul", b.fake(x, "mxfp4"), weight)
    after = optimize(b.done(y, z), check=True)
    assert op_types(after) == ["matmul", "Identity"]
    assert after.graph.initializers["w"].const_value is weight.const_value


def test_external_data_stay_where_they_are(tmp_path: Path) -> None:
    b = Builder()
    x = b.input(3, 64)
    weight = b.constant(example((64, 64), 2))
    model = b.done(b.call("MatMul", b.fake(x, "mxint8"), weight), b.fake(x, "mxint8"))
    ir.save(model, tmp_path / "model.onnx", external_data="model.data")
    loaded = ir.load(tmp_path / "model.onnx")
    proof = proven(loaded, b.examples, stages=OPTIMIZE)
    assert isinstance(proof.after.graph.initializers[weight.name].const_value, ir.ExternalTensor)
    assert proof.kinds["quantize"] == 1


# ------------------------------------------------------------------------------------------ bodies


def _all_names(model: ir.Model) -> list[str]:
    graphs = [model.graph, *model.graph.subgraphs()]
    names = [str(value.name) for graph in graphs for value in graph.inputs]
    names += [name for graph in graphs for name in graph.initializers]
    return names + [str(v.name) for graph in graphs for node in graph for v in node.outputs if v.name]


def test_names_are_unique_in_all_bodies() -> None:
    b = Builder()
    x = b.input(2, 4, 64)
    which = b.given(np.array(True))
    y = b.move(x, Permute((1, 0, 2)))
    bodies = []
    for name in ("then", "other"):
        inner = b.body(name)
        z = inner.move(inner.call("Neg", y), Permute((1, 0, 2)))
        bodies.append(inner.finish(inner.call("Add", inner.fake(z, "mxfp4"), inner.fake(z, "mxfp4"))))
    outer = b.call("Add", b.fake(y, "mxfp4"), b.fake(y, "mxfp4"))
    model = b.done(b.branch(which, *bodies), outer)
    proof = proven(model, b.examples, [b.examples[0], np.array(False)], stages=OPTIMIZE)
    names = _all_names(proof.after)
    assert len(set(names)) == len(names)
    assert proof.kinds["quantize"] == 3
    nodes = [node.name for node in proof.after.graph.all_nodes()]
    assert len(set(nodes)) == len(nodes)


def test_what_a_body_takes_from_outside_may_become_another_value() -> None:
    b = Builder()
    x = b.input(2, 4, 64)
    which = b.given(np.array(True))
    a, twin = b.fake(x, "mxfp4"), b.fake(x, "mxfp4")
    bodies = []
    for name in ("then", "other"):
        inner, deeper = b.body(name), b.body(f"{name}_deeper")
        other = b.body(f"{name}_else")
        deep = inner.branch(
            which, deeper.finish(deeper.call("Add", twin, a)), other.finish(other.call("Neg", twin))
        )
        bodies.append(inner.finish(inner.call("Abs", deep) if name == "then" else deep))
    model = b.done(b.branch(which, *bodies))
    proof = proven(model, b.examples, [b.examples[0], np.array(False)], stages=OPTIMIZE)
    assert proof.kinds["quantize"] == 1


LOOP = """
<ir_version: 10, opset_import: ["" : 18, "blockscale" : 1]>
agraph (float[4, 64] x, int64 n, bool go) => (float[4, 64] y, float[T, 4, 64] all)
{
    p = blockscale.FakeQuantize <numbers = "mxfp4", block = [1, 32]> (x)
    q = blockscale.FakeQuantize <numbers = "mxfp4", block = [1, 32]> (x)
    y, all = Loop (n, go, p) <
        body = step (int64 i, bool on, float[4, 64] state) => (bool still, float[4, 64] next, float[4, 64] seen) {
            still = Identity (on)
            a = blockscale.FakeQuantize <numbers = "mxint8", block = [1, 32]> (state)
            b = blockscale.FakeQuantize <numbers = "mxint8", block = [1, 32]> (state)
            c = Add (a, b)
            next = Add (c, q)
            seen = Mul (b, q)
        }
    >
}
"""

SCAN = """
<ir_version: 10, opset_import: ["" : 18, "blockscale" : 1]>
agraph (float[4, 64] start, float[3, 4, 64] x) => (float[4, 64] y, float[3, 4, 64] all)
{
    y, all = Scan <num_scan_inputs = 1, body = step (float[4, 64] state, float[4, 64] one)
        => (float[4, 64] next, float[4, 64] seen) {
            t = Transpose <perm = [1, 0]> (one)
            u = blockscale.FakeQuantize <numbers = "mxfp8", block = [32, 1]> (t)
            back = Transpose <perm = [1, 0]> (u)
            v = blockscale.FakeQuantize <numbers = "mxfp8", block = [1, 32]> (one)
            next = Add (state, back)
            seen = Mul (v, back)
        }
    > (start, x)
}
"""


@pytest.mark.parametrize("text", [LOOP, SCAN], ids=["Loop", "Scan"])
def test_bodies_that_run_more_than_once(text: str) -> None:
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    x = example((4, 64), 1)
    inputs = [x, np.array(3), np.array(True)] if text is LOOP else [x, example((3, 4, 64), 2)]
    proof = proven(model, inputs, stages=OPTIMIZE)
    quantizes = sum(node.kind == "quantize" for graph in proof.graph.walk() for node in graph.nodes)
    assert quantizes == (2 if text is LOOP else 1)


# ------------------------------------------------------------------------------------------ outputs


def test_outputs_keep_their_names_whatever_they_become() -> None:
    b = Builder()
    x = b.input(2, 4, 64)
    a, c = b.fake(x, "mxfp4"), b.fake(x, "mxfp4")
    moved = b.move(b.fake(b.move(x, Permute((1, 0, 2))), "mxfp4"), Permute((1, 0, 2)))
    model = b.done(a, c, moved, x, b.constant(np.ones(3, np.float32)))
    names = [value.name for value in model.graph.outputs]
    proof = proven(model, b.examples, stages=OPTIMIZE)
    assert [value.name for value in proof.after.graph.outputs] == names
    assert proof.kinds["quantize"] == 1


def test_outputs_that_change_places() -> None:
    """Each becomes what the other was."""
    b = Builder()
    x = b.input(4)
    model = b.done(b.call("Neg", x), b.call("Abs", x))
    graph = snapshot(model)
    (output,) = [node for node in graph.nodes if node.kind == "output"]
    neg, absolute = output.slots
    graph.set_slot(output, 0, absolute)
    graph.set_slot(output, 1, neg)
    names = [value.name for value in model.graph.outputs]
    wanted = run(copied(model), b.examples)[::-1]
    after = commit(graph, model)
    assert_sound(after, b.examples)
    assert [value.name for value in after.graph.outputs] == names
    assert_equal(run(after, b.examples), wanted)


def test_an_output_may_become_an_input_a_constant_or_one_given_already() -> None:
    b = Builder()
    x = b.input(4)
    model = b.done(b.call("Neg", x), b.call("Abs", x), b.call("Relu", x))
    graph = snapshot(model)
    (output,) = [node for node in graph.nodes if node.kind == "output"]
    ones = np.ones(4, np.float32)
    graph.set_slot(output, 0, graph.inputs[0])
    graph.set_slot(output, 1, graph.constant(ones, "ones", graph.inputs[0].meta))  # type: ignore[arg-type]
    graph.set_slot(output, 2, graph.inputs[0])
    after = commit(graph, model)
    assert_sound(after, b.examples)
    assert_equal(run(after, b.examples), [b.examples[0], ones, b.examples[0]])


# ------------------------------------------------------------------------------------------ constants


def test_an_initializer_that_may_be_given_is_no_constant() -> None:
    """Equal contents now; whoever runs the model may give another."""
    b = Builder()
    x = b.input(4, 64)
    scales = [b.constant(np.full((4, 2), 0.5, np.float32)) for _ in range(2)]
    b.graph.inputs.append(scales[0])
    a, c = (b.quantize(x, "int8-g32", None, scale) for scale in scales)
    model = b.done(b.dequantize([a, scales[0]], x, "int8-g32"), b.dequantize([c, scales[1]], x, "int8-g32"))
    proof = proven(model, stages=OPTIMIZE)
    assert proof.kinds["quantize"] == 2
    name = str(scales[0].name)
    for given_too in ({}, {name: np.full((4, 2), 2.0, np.float32)}):
        inputs = {"x1": b.examples[0], **given_too}
        assert_equal(list(Runner(proof.after).run(inputs).values()), list(Runner(model).run(inputs).values()))


def test_scales_in_initializers_and_in_constant_nodes_are_the_same() -> None:
    b = Builder()
    x = b.input(4, 64)
    scales = np.full((4, 2), 0.5, np.float32)
    flat = [b.constant(scales.reshape(-1)), b.constant_node(scales.reshape(-1))]
    same = [b.constant(scales), b.constant_node(scales)]
    same_again = [
        b.call("Reshape", one, sizes)
        for one, sizes in zip(flat, (b.ints([4, 2]), b.ints([4, -1])), strict=True)
    ]
    pairs = [b.dequantize([b.quantize(x, "int8-g32", None, s), s], x, "int8-g32") for s in same + same_again]
    proof = proven(b.done(*pairs), b.examples, stages=OPTIMIZE)
    assert (proof.kinds["quantize"], proof.kinds["dequantize"]) == (1, 1)


def test_constant_nodes_that_come_too_late_go_to_the_front() -> None:
    b = Builder()
    x = b.input(2, 4, 64)
    y = b.move(x, Permute((1, 0, 2)))
    late = b.constant_node(np.full((4, 2, 2), 0.5, np.float32))
    z = b.dequantize([b.quantize(y, "int8-g32", None, late), late], y, "int8-g32")
    again = b.constant_node(np.full((4, 2, 2), 0.5, np.float32))
    w = b.dequantize([b.quantize(y, "int8-g32", None, again), again], y, "int8-g32")
    proof = proven(b.done(z, w), b.examples, stages=OPTIMIZE)
    assert proof.kinds["quantize"] == 1 and shape(proof.the("quantize").operand(0)) == (2, 4, 64)


# ------------------------------------------------------------------------------------------ shapes


def test_sizes_with_names() -> None:
    b = Builder()
    x = b.input(2, 5, 64, dynamic=(0, 1))
    y = b.call("Reshape", x, b.ints([0, 0, 2, 32]))
    z = b.call("Transpose", y, perm=[0, 2, 1, 3])
    outs = [b.fake(z, "mxfp4"), b.fake(z, "mxfp4"), b.fake(z, "int8-token")]
    proof = proven(b.done(*outs), b.examples, [example((3, 1, 64), 4)], stages=OPTIMIZE)
    assert proof.kinds["quantize"] == 2
    assert all(
        is_input(node.operand(0))
        for node in proof.nodes("quantize")
        if "mxfp4" in str(quant_of(node).numbers)
    )


def test_a_model_without_shapes_gets_them() -> None:
    b = Builder()
    x = b.input(2, 4, 64)
    y = b.move(x, Permute((1, 0, 2)))
    model = b.done(b.fake(y, "mxfp4"), b.fake(y, "mxfp4"))
    proto = ir.to_proto(model)
    del proto.graph.value_info[:]
    bare = ir.from_proto(proto)
    assert all(v.shape is None for node in bare.graph for v in node.outputs if not v.is_graph_output())
    after = optimize(bare, check=True)
    assert op_types(after).count("DynamicQuantize") == 1
    assert_equal(run(after, b.examples), run(model, b.examples))


def test_sizes_without_names_are_known_to_be_those_of_the_input() -> None:
    b = Builder()
    x = b.input(2, 5, 64, dynamic=(0, 1))
    y = b.call("Transpose", b.call("Relu", x), perm=[1, 0, 2])
    model = b.done(b.fake(y, "mxfp4"), b.fake(y, "mxfp4"))
    for value in (x, *(v for node in model.graph for v in node.outputs)):
        value.shape = ir.Shape([None, None, 64])
    graph = snapshot(model)
    relu, transpose = graph.nodes[:2]
    first, second, _ = shape(relu.operand(0))
    assert first != second
    assert shape(relu.outputs[0]) == (first, second, 64) and shape(transpose.outputs[0]) == (
        second,
        first,
        64,
    )
    proof = proven(model, b.examples, [example((3, 1, 64), 4)], stages=OPTIMIZE)
    assert all(dim is None for value in proof.after.graph.inputs for dim in b.sizes(value)[:2])


def test_wide_nodes_are_made_anew() -> None:
    b = Builder()
    x = b.input(1, 64)
    parts = [b.fake(x, "mxfp4") if i % 2 else b.call("Neg", x) for i in range(100)]
    y = b.call("Concat", *parts, axis=0)
    proof = proven(b.done(y, b.call("Relu", y)), b.examples, stages=("cse",))
    assert proof.kinds["fake_quantize"] == 1 and proof.kinds["neg"] == 1


# ------------------------------------------------------------------------------------------ left alone

UNTOUCHED = """
<ir_version: 10, opset_import: ["" : 18, "my.domain" : 1, "blockscale" : 1]>
agraph (float[2, 64] x) => (float[2, 64] y, float[2, 64] z)
{
    a = my.domain.Odd <level = 2, mode = "b"> (x)
    b = my.domain.Odd <level = 2, mode = "b"> (x)
    c = blockscale.FakeQuantize <numbers = "mxfp4", block = [1, 32]> (x)
    d = blockscale.FakeQuantize <numbers = "mxfp4", block = [1, 32]> (x)
    y = my.domain.Odd <level = 3> (a, c)
    z = my.domain.Odd <level = 3> (b, d)
}
"""


def test_operators_of_unknown_domains_pass_through() -> None:
    """Nobody knows what they do: equal ones are not one."""
    model = ir.from_proto(onnx.parser.parse_model(UNTOUCHED))
    after = optimize(model)
    odd = [(node.op_type, dict(node.attributes)) for node in after.graph if node.domain == "my.domain"]
    assert odd == [
        (node.op_type, dict(node.attributes)) for node in model.graph if node.domain == "my.domain"
    ]
    assert op_types(after).count("DynamicQuantize") == 1


def test_functions_are_left_as_they_are_and_calls_of_them_are_operators() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 18, "mine" : 1, "blockscale" : 1]>
    agraph (float[2, 64] x) => (float[2, 64] y, float[2, 64] z)
    {
        a = mine.twice (x)
        b = mine.twice (x)
        y = blockscale.FakeQuantize <numbers = "mxfp4", block = [1, 32]> (a)
        z = blockscale.FakeQuantize <numbers = "mxfp4", block = [1, 32]> (b)
    }
    <domain: "mine", opset_import: ["" : 18, "blockscale" : 1]>
    twice (p) => (r) { q = blockscale.FakeQuantize <numbers = "mxint8", block = [1, 32]> (p)  r = Add (q, q) }
    """
    model = ir.from_proto(onnx.parser.parse_model(text))
    before = ir.to_proto(model).functions[0].SerializeToString(deterministic=True)
    after = optimize(model, check=True)
    assert op_types(after).count("twice") == 1 and op_types(after).count("DynamicQuantize") == 1
    assert ir.to_proto(after).functions[0].SerializeToString(deterministic=True) == before
    x = example((2, 64))
    assert_equal(run(after, [x]), run(model, [x]))


def test_random_operators_are_not_combined() -> None:
    b = Builder()
    like = b.input(2, 64)
    made = [b.call("RandomNormalLike", like, seed=float(i)) for i in (1, 1)]
    after = optimize(b.done(*made), check=True)
    assert op_types(after).count("RandomNormalLike") == 2


def test_the_path_of_onnx_never_imports_torch(tmp_path: Path) -> None:
    b = Builder()
    x = b.input(2, 4, 64)
    y = b.move(x, Permute((1, 0, 2)))
    ir.save(b.done(b.fake(y, "mxfp4"), b.fake(y, "mxfp4")), tmp_path / "model.onnx")
    code = """
import sys, numpy, onnx_ir
from blockscale.passes.pipeline import optimize
from blockscale.runtime.onnx_reference import Runner
model = optimize(onnx_ir.load(sys.argv[1]), check=True)
assert sum(node.op_type == "DynamicQuantize" for node in model.graph) == 1
Runner(model).run({"x1": numpy.zeros((2, 4, 64), "float32")})
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "model.onnx")], check=True, timeout=100)
