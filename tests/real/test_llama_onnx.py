"""The Llama of test_count and test_llama as torch.onnx.export writes it: with and without the exporter's own
optimizer, sizes known only at run time. It runs on onnx's reference evaluator.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
import pytest
import torch

from blockscale.graph import models
from blockscale.graph.onnx_quantizers import DOMAIN
from blockscale.model_api import fake_quantize_model
from blockscale.numerics.layout import bind
from blockscale.numerics.scheme import scheme_named
from blockscale.passes import Log, optimize
from blockscale.runtime.onnx_reference import Runner
from passes.onnx_graphs import assert_equal, run
from real.llama import Dim, Llama, ids
from real.through import quantizes

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)

INPUTS = [[ids().numpy()], [ids(3, 11, seed=1).numpy()], [ids(1, 1).numpy()]]
EACH, LEFT = 14, 8  # as in test_count


@pytest.fixture(scope="module", params=[False, True], ids=["as written", "optimized by the exporter"])
def exported(request: pytest.FixtureRequest) -> Iterator[ir.Model]:
    logging.disable(logging.WARNING)  # of libraries that the exporter looks for
    sizes = {0: Dim("batch", max=16), 1: Dim("sequence", max=32)}
    with torch.no_grad():
        program = torch.onnx.export(
            Llama(), (ids(),), dynamo=True, optimize=request.param, dynamic_shapes=(sizes,), verbose=False
        )
    logging.disable(logging.NOTSET)
    assert program is not None
    yield program.model


def before_each(model: ir.Model, layout: str) -> ir.Model:
    """A dynamic quantize before each linear layer of the decoder."""
    model = models.copied(model)
    scheme = scheme_named(layout)
    for count, node in enumerate(_linear_layers(model)):
        x = node.inputs[0]
        assert x is not None and x.shape is not None
        place = {"numbers": str(scheme.numbers), "block": list(bind(scheme, (1,) * len(x.shape)).block)}
        fake = ir.node("FakeQuantize", [x], place, domain=DOMAIN, name=f"fake{count}")
        fake.outputs[0].name, fake.outputs[0].shape, fake.outputs[0].type = f"fake{count}", x.shape, x.type
        model.graph.insert_before(node, fake)
        node.replace_input_with(0, fake.outputs[0])
    model.opset_imports[DOMAIN] = 1
    return model


def _linear_layers(model: ir.Model) -> list[ir.Node]:
    """Products with a weight of a layer, transposed or not."""
    found = []
    for node in model.graph:
        weight = node.inputs[1] if node.op_type == "MatMul" else None
        maker = weight.producer() if weight is not None else None
        if maker is not None and maker.op_type == "Transpose":
            weight = maker.inputs[0]
        if weight is not None and weight.is_initializer() and "lm_head" not in str(node.metadata_props):
            found.append(node)
    return found


@pytest.mark.parametrize("layout", ["mxfp8", pytest.param("int8-token", marks=pytest.mark.full)])
def test_no_more_than_8_remain_and_none_stands_free(exported: ir.Model, layout: str) -> None:
    model = before_each(exported, layout)
    assert quantizes(model) == EACH
    log = Log()
    combined = optimize(model, stages=("cse", "lift", "cse"), log=log, check=True)
    assert quantizes(combined) <= LEFT, log
    fused = optimize(model, log=log, check=True)
    assert quantizes(fused) == 0, log
    names = Counter(node.op_type.rstrip("_0123456789") for node in fused.graph if node.domain == DOMAIN)
    assert (names["rms_norm_quantize"], names["add_rms_norm_quantize"]) == (1, 3)
    assert names["matmul"] >= EACH
    for inputs in INPUTS:
        wanted = run(model, inputs)
        assert_equal(run(combined, inputs), wanted)
        assert_equal(run(fused, inputs), wanted)


MORE = [
    pytest.param(name, marks=pytest.mark.full) for name in ("mxfp4", "mxfp6-mxfp8", "nvfp4", "int4-g32-float")
]


@pytest.mark.parametrize("preset", ["int8", "mxint8-all", *MORE])
def test_presets_keep_every_bit_of_the_fake_quantized_model(exported: ir.Model, preset: str) -> None:
    name = Runner(exported).inputs[0]
    batches = [{name: array} for array in INPUTS[0]]
    model = fake_quantize_model(exported, preset, calibration=batches if preset == "int8" else None)
    log = Log()
    after = optimize(model, log=log, check=True)
    for inputs in INPUTS:
        assert_equal(run(after, inputs), run(model, inputs))
    for node in models.snapshot(after).nodes:
        if node.kind == "fake_quantize":  # of attention's scores
            assert "known only at run time" in "".join(e.left for e in log.entries if e.node == node.name)
    assert sum(node.op_type.startswith(("matmul", "linear")) for node in after.graph) >= EACH


def test_it_is_the_model_of_torch(exported: ir.Model) -> None:
    with torch.no_grad():
        wanted = Llama()(torch.from_numpy(INPUTS[1][0])).numpy()
    (logits,) = run(exported, INPUTS[1])
    np.testing.assert_allclose(logits, wanted, atol=1e-5)
