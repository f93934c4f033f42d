"""Q–DQ pairs as notes on values: notes made fake-quantizes again give the same bits, and are where they belong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from blockscale.errors import GraphError
from blockscale.graph import invariants, models, notes
from blockscale.graph.notes import Note, stored
from blockscale.graph.overlay import Graph
from blockscale.passes import pipeline
from blockscale.passes.log import Log
from passes import fx_graphs, onnx_graphs
from passes.fx_graphs import Builder, aten
from passes.proof import assert_same

INT8 = "int8,dynamic=false"
UINT8 = "uint8,dynamic=false"


def noted(model: Any, inputs: Any, *, again: bool = True) -> tuple[Graph, Log]:
    """The graph with notes; expanded, the model gives the same bits. `again`: carried notes are quantized anew."""
    log = Log()
    graph = models.snapshot(models.copied(model))
    pipeline.run(graph, pipeline.METADATA, log, check=True)
    for carried in {False, again}:
        after = models.copied(model)
        other = models.snapshot(after)
        pipeline.run(other, pipeline.METADATA, Log())
        for one in other.walk():
            notes.expand(one, carried=carried)
        invariants.check(other, "expand")
        after = models.commit(other, after)
        models.check(after, "writing")
        if isinstance(after, torch.fx.GraphModule):
            fx_graphs.assert_sound(after)
        assert_same(model, after, inputs)
    return graph, log


def kinds(graph: Graph) -> list[str]:
    return [node.kind for node in graph.nodes if node.kind != "output"]


def by_name(graph: Graph, kind: str) -> Note:
    """The note on the result of the only node of a kind."""
    (node,) = [node for node in graph.nodes if node.kind == kind]
    return graph.notes[node.outputs[0]]


def stores(graph: Graph) -> list[Note | None]:
    return [node.params["note"] for node in graph.nodes if node.kind == "store"]


def static(
    b: Any, x: Any, scheme: str, shape: tuple[int, ...], block: Any = None, scale: float = 0.25
) -> Any:
    """Quantized with given parameters and decoded again."""
    n = int(np.prod(shape))
    given = [
        b.constant((torch.linspace(0.5, 1.5, n) * scale if n > 1 else torch.full((1,), scale)).reshape(shape))
    ]
    if scheme.startswith("uint"):
        given.append(b.constant(torch.full(shape, 3, dtype=torch.int32)))
    return b.dequantize([b.quantize(x, scheme, block, *given), *given], x, scheme, block)


def measured(b: Any, x: Any, scheme: str, block: Any = None) -> Any:
    codes, scale, zero, t = b.measure(x, scheme, block)
    numbers = fx_graphs.scheme_named(scheme)
    return b.dequantize([codes, scale, zero if numbers.zero_point else None, t if numbers.tensor_scale else None],
                        x, scheme, block)  # fmt: skip


def product(b: Builder, x: Any, n: int = 8) -> Any:
    return b.call(aten.linear.default, x, b.constant(fx_graphs.example((n, x.meta["val"].shape[-1]), 7)))


# -------------------------------------------------------------------------- one pair


@pytest.mark.parametrize(
    "scheme", ["mxfp4", "mxint8", "mxfp8-g16", "int8-token", "uint8-token", "nvfp4", INT8, UINT8]
)
def test_a_pair_becomes_a_note_on_the_producer(scheme: str) -> None:
    b = Builder()
    x = b.call(aten.relu.default, b.input(4, 64))
    y = static(b, x, scheme, (1, 1)) if "dynamic" in scheme else measured(b, x, scheme)
    graph, log = noted(b.done(product(b, y)), b.examples)
    assert kinds(graph) == ["relu", "linear"]
    note = by_name(graph, "relu")
    assert note.measured == ("dynamic" not in scheme)
    assert note.numbers.element == fx_graphs.scheme_named(scheme).element
    assert log.count("fold_metadata") == 1


def test_what_a_fake_quantize_says_is_a_note() -> None:
    b = Builder()
    y = b.fake(b.call(aten.relu.default, b.input(4, 64)), "mxfp4,dialect=quark")  # it has no codes
    graph, _ = noted(b.done(product(b, y)), b.examples)
    assert by_name(graph, "relu").numbers.dialect == "quark"


@pytest.mark.parametrize(("scheme", "block", "shape", "axis"), [
    ("mxfp4", None, None, 2), ("mxint8", [32, 1, 1], None, 0), ("mxfp4", [1, 4, 1], None, 1),
    (INT8, [0, 1, 0], (1, 4, 1), 1), (INT8, [0, 0, 0], (1, 1, 1), None), (INT8, [0, 0, 1], (1, 1, 64), 2),
    (INT8, [1, 4, 32], (2, 1, 2), None),
])  # fmt: skip
def test_axes_are_counted_from_the_front(scheme: str, block: Any, shape: Any, axis: int | None) -> None:
    b = Builder()
    x = b.call(aten.relu.default, b.input(2, 4, 64))
    y = measured(b, x, scheme, block) if shape is None else static(b, x, scheme, shape, block)
    graph, _ = noted(b.done(product(b, y)), b.examples)
    assert by_name(graph, "relu").axis == axis


def test_sizes_known_only_at_run_time() -> None:
    b = Builder()
    x = b.call(aten.relu.default, b.input(4, 64, dynamic=(0,)))
    graph, _ = noted(b.done(product(b, measured(b, x, "mxfp4"))), b.examples)
    note = by_name(graph, "relu")
    assert (note.axis, note.layout) == (1, None)


# -------------------------------------------------------------------------- several users (error 9)


def test_a_float_user_keeps_the_float_value() -> None:
    b = Builder()
    x = b.call(aten.relu.default, b.input(4, 64))
    graph, log = noted(b.done(product(b, measured(b, x, "mxfp4")), b.call(aten.tanh.default, x)), b.examples)
    assert kinds(graph) == ["relu", "store", "linear", "tanh"]
    assert [str(note.numbers) for note in stores(graph) if note] == ["mxfp4"]
    assert "reads floats" in str(log)


def test_the_float_user_may_be_a_result() -> None:
    b = Builder()
    x = b.call(aten.relu.default, b.input(4, 64))
    graph, _ = noted(b.done(product(b, measured(b, x, "mxfp4")), x), b.examples)
    assert kinds(graph) == ["relu", "store", "linear"]


def test_two_quantizers_get_each_its_own() -> None:
    b = Builder()
    x = b.call(aten.relu.default, b.input(4, 64))
    y = (
        product(b, measured(b, x, "mxfp4")),
        product(b, measured(b, x, "mxint8")),
        product(b, measured(b, x, "mxfp4")),
    )
    graph, _ = noted(b.done(*y), b.examples)
    assert sorted(str(note.numbers) for note in stores(graph) if note) == ["mxfp4", "mxint8"]
    (relu,) = [node for node in graph.nodes if node.kind == "relu"]
    assert relu.outputs[0] not in graph.notes


def test_equal_pairs_share_the_note() -> None:
    b = Builder()
    x = b.call(aten.relu.default, b.input(4, 64))
    y = product(b, static(b, x, INT8, (1, 1))), product(b, static(b, x, INT8, (1, 1)))
    graph, _ = noted(b.done(*y), b.examples)
    assert kinds(graph) == ["relu", "linear", "linear"]
    assert len(graph.notes) == 1


def test_codes_that_others_use_stay_nodes() -> None:
    b = Builder()
    x = b.call(aten.relu.default, b.input(4, 64))
    codes, scale, *_ = b.measure(x, "mxfp8")
    y = b.dequantize([codes, scale], x, "mxfp8")
    graph, log = noted(b.done(product(b, y), codes, product(b, measured(b, x, "mxint8"))), b.examples)
    assert kinds(graph).count("quantize") == 1
    assert kinds(graph).count("store") == 1  # of mxint8: the quantize that stays reads floats
    assert "its codes are used by" in str(log)


@pytest.mark.parametrize("wrong", ["scale", "dtype", "run time"])
def test_pairs_that_stay(wrong: str) -> None:
    b = Builder()
    x = b.call(aten.relu.default, b.input(4, 64))
    scale = b.given(torch.full((1, 1), 0.5)) if wrong == "run time" else b.constant(torch.full((1, 1), 0.5))
    q = b.quantize(x, INT8, None, scale)
    other = b.constant(torch.full((1, 1), 0.25)) if wrong == "scale" else scale
    like = b.input(4, 64, dtype=torch.bfloat16) if wrong == "dtype" else x
    graph, log = noted(b.done(b.call(aten.tanh.default, b.dequantize([q, other], like, INT8))), b.examples)
    assert kinds(graph).count("quantize") == 1
    assert not graph.notes
    assert wrong in str(log).replace("another dtype", "dtype")


# -------------------------------------------------------------------------- chains (error 10)


@pytest.mark.parametrize(("one", "other"), [("mxint8", INT8), (INT8, "mxint8"), (INT8, UINT8), ("mxint8", "mxfp4"),
                                            (INT8, INT8 + ",quant_min=-100")])  # fmt: skip
@pytest.mark.parametrize("between", [False, True])
def test_both_steps_of_a_requantize_stay(one: str, other: str, between: bool) -> None:
    def quantized(x: Any, scheme: str) -> Any:
        return static(b, x, scheme, (1, 1)) if "dynamic" in scheme else measured(b, x, scheme)

    b = Builder()
    x = b.call(aten.relu.default, b.input(4, 64))
    y = quantized(x, one)
    z = quantized(y, other)
    results = [product(b, z), *([product(b, y)] if between else [])]
    graph, log = noted(b.done(*results), b.examples)
    assert sorted(kinds(graph)) == sorted(["relu", "store", "linear", *(["linear"] if between else [])])
    assert str(by_name(graph, "relu").numbers).startswith(one.partition(",")[0])
    (note,) = stores(graph)
    assert note is not None and str(note.numbers).startswith(other.partition(",")[0])
    assert "requantize" in str(log)


# -------------------------------------------------------------------------- moves (error 11)


@pytest.mark.parametrize(("scheme", "axis"), [("mxint8", 3), ("mxfp4-g8", 3)])
def test_the_axis_is_remapped_through_a_permute(scheme: str, axis: int) -> None:
    b = Builder()
    x = b.call(aten.relu.default, b.input(2, 3, 4, 64))
    y = b.call(aten.permute.default, measured(b, x, scheme), [0, 3, 1, 2])
    graph, _ = noted(b.done(b.call(aten.tanh.default, y)), b.examples)
    assert by_name(graph, "relu").axis == axis
    note = by_name(graph, "permute")
    assert (note.axis, note.carried, note.shape) == (1, True, (2, 64, 3, 4))


def test_static_scales_follow_a_permute() -> None:
    b = Builder()
    x = b.call(aten.relu.default, b.input(2, 3, 4))
    y = b.call(aten.permute.default, static(b, x, UINT8, (1, 3, 1), [0, 1, 0]), [1, 2, 0])
    graph, _ = noted(b.done(b.call(aten.tanh.default, y)), b.examples)
    note = by_name(graph, "permute")
    assert (note.axis, note.scales.shape, note.zero_points.shape) == (0, (3, 1, 1), (3, 1, 1))
    np.testing.assert_array_equal(note.scales.reshape(-1), by_name(graph, "relu").scales.reshape(-1))


def test_reshape_split_and_cat_carry_notes() -> None:
    b = Builder()
    x = b.call(aten.relu.default, b.input(4, 64))
    y = b.call(aten.reshape.default, measured(b, x, "mxint8"), [4, 2, 32])
    parts = b.items(b.call(aten.split_with_sizes.default, y, [1, 3], 0))
    z = b.call(aten.cat.default, parts[::-1], 0)
    graph, _ = noted(b.done(b.call(aten.tanh.default, z)), b.examples)
    assert kinds(graph) == ["relu", "reshape", "split", "cat", "tanh"]
    assert by_name(graph, "cat").axis == 2
    assert sum(note.carried for note in graph.notes.values()) == 4


def test_what_the_scales_cannot_follow_is_stored_as_floats() -> None:
    b = Builder()
    x = b.call(aten.relu.default, b.input(4, 64))
    y = b.call(aten.reshape.default, measured(b, x, "mxint8"), [16, 16])
    graph, log = noted(b.done(b.call(aten.tanh.default, y)), b.examples)
    assert len(graph.notes) == 1
    assert "stored as floats" in str(log)


def test_a_pair_behind_a_move_that_carries_its_note() -> None:
    b = Builder()
    x = b.call(aten.relu.default, b.input(4, 64))
    y = b.call(aten.transpose.int, measured(b, x, "mxint8"), 0, 1)
    z = measured(b, y, "mxint8", [32, 1])
    graph, log = noted(b.done(b.call(aten.tanh.default, z)), b.examples)
    assert kinds(graph) == ["relu", "permute", "tanh"]
    assert by_name(graph, "permute").carried
    assert "already" in str(log)


def test_a_pair_behind_a_move_that_asks_for_more() -> None:
    b = Builder()
    x = b.call(aten.relu.default, b.input(4, 64))
    y = b.call(aten.transpose.int, measured(b, x, "mxint8"), 0, 1)
    graph, _ = noted(b.done(b.call(aten.tanh.default, measured(b, y, "mxfp4", [1, 4]))), b.examples)
    note = by_name(graph, "permute")
    assert (note.carried, str(note.numbers), note.axis) == (False, "mxfp4", 1)


# -------------------------------------------------------------------------- borders and constants


def test_inputs_and_results_stay_floats() -> None:
    b = Builder()
    x = b.input(4, 64)
    y = measured(b, product(b, measured(b, x, "mxint8")), "mxfp4")
    graph, _ = noted(b.done(y), b.examples)
    assert kinds(graph) == ["store", "linear", "store"]
    assert [None if note is None else str(note.numbers) for note in stores(graph)] == ["mxint8", None]
    assert all(value not in graph.notes for value in graph.inputs)
    (output,) = [node for node in graph.nodes if node.kind == "output"]
    assert all(value not in graph.notes for value in output.slots)


def test_results_that_are_moved_stay_floats() -> None:
    b = Builder()
    y = b.call(aten.transpose.int, measured(b, b.call(aten.relu.default, b.input(4, 64)), "mxint8"), 0, 1)
    graph, _ = noted(b.done(y, y), b.examples)
    assert stores(graph) == [None]


@pytest.mark.parametrize(
    ("scheme", "block", "shape"), [("mxfp4", None, None), (INT8, [1, 0], (8, 1)), ("int4-g32", None, None)]
)
def test_weights(scheme: str, block: Any, shape: Any) -> None:
    b = Builder()
    w = b.constant(fx_graphs.example((8, 64), 3))
    decoded = measured(b, w, scheme) if shape is None else static(b, w, scheme, shape, block)
    y = b.call(aten.linear.default, b.input(4, 64), decoded)
    graph, _ = noted(b.done(y), b.examples)
    assert kinds(graph) == ["linear"]
    ((value, note),) = graph.notes.items()
    assert value.const is not None
    codes, given = stored(value, note)
    assert (codes.shape[0], given.scales.shape[0]) == (8, 8)


def test_a_weight_that_is_used_as_floats_too() -> None:
    b = Builder()
    w = b.constant(fx_graphs.example((8, 64), 3))
    x = b.input(4, 64)
    results = [
        b.call(aten.linear.default, x, y) for y in (measured(b, w, "mxfp4"), w, measured(b, w, "mxint8"))
    ]
    graph, _ = noted(b.done(*results), b.examples)
    assert kinds(graph) == ["linear"] * 3
    assert sorted(str(note.numbers) for note in graph.notes.values()) == ["mxfp4", "mxint8"]


def test_a_weight_of_known_codes_and_its_transpose() -> None:
    b = Builder()
    codes = b.constant(torch.arange(-128, 128, dtype=torch.int8).reshape(4, 64))
    given = [b.constant(torch.rand(4, 1) + 0.5)]
    like, x = b.input(4, 64), b.input(2, 64)
    w = b.call(aten.t.default, b.dequantize([codes, *given], like, INT8, [1, 0]))
    graph, _ = noted(b.done(b.call(aten.mm.default, x, w)), b.examples)
    note = by_name(graph, "permute")
    assert (note.axis, note.carried, note.scales.shape) == (1, True, (1, 4))
    ((value, first),) = [(v, n) for v, n in graph.notes.items() if not n.carried]
    np.testing.assert_array_equal(stored(value, first)[0], np.arange(-128, 128, dtype=np.int8).reshape(4, 64))


def test_a_graph_with_notes_is_not_written() -> None:
    b = Builder()
    module = b.done(product(b, measured(b, b.call(aten.relu.default, b.input(4, 64)), "mxfp4")))
    with pytest.raises(GraphError, match="expand_metadata"):
        pipeline.optimize(module, stages=pipeline.METADATA)
    log = Log()
    after = pipeline.optimize(module, stages=(*pipeline.METADATA, "expand_metadata"), log=log, check=True)
    assert_same(module, after, b.examples)
    assert log.count("expand_metadata") == 1


# -------------------------------------------------------------------------- ONNX


def test_onnx() -> None:
    b = onnx_graphs.Builder()
    x = b.input(2, 4, 64)
    y = static(b, x, UINT8, (1, 1, 1))
    h = measured(b, b.call("Relu", y), "mxint8")
    t = b.call("Transpose", h, perm=[0, 2, 1])
    w = b.constant(fx_graphs.example((4, 8), 5).numpy())
    z = b.call("MatMul", t, static(b, w, INT8, (1, 8), [0, 1]))
    graph, _ = noted(b.done(measured(b, z, "mxfp4")), b.examples)
    assert kinds(graph) == ["store", "relu", "permute", "matmul", "store"]
    assert by_name(graph, "permute").axis == 1


def test_a_scalar_of_known_codes() -> None:
    b = Builder()
    x, codes_like = b.call(aten.relu.default, b.input(4, 64)), b.constant(torch.tensor(0.0))
    codes, scale = b.constant(torch.tensor(7, dtype=torch.int8)), b.constant(torch.tensor(0.5))
    scalar = b.dequantize([codes, scale], codes_like, INT8)
    graph, _ = noted(b.done(b.call(aten.add.Tensor, x, scalar)), b.examples)
    ((value, note),) = graph.notes.items()
    assert stored(value, note)[0].shape == ()
