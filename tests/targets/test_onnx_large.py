"""Models beyond 2 GB, whose weights lie in a file with a hole: nothing reads them all at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

SIZE, COUNT = 16384, 3  # of 1 GiB each
CODE = """
import sys, blockscale as bs

def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith("RssAnon"))

def quantized(model, compat=None):
    import onnx, onnx_ir, onnxruntime
    before = anonymous()
    qm = bs.quantize_model(model, "mxfp4-float", compat=compat)
    grown = anonymous() - before
    assert grown < 200, f"{grown} MB"
    assert qm.report.bytes_before > 1 << 31, qm.report
    return qm
"""


def large(folder: Path, opset: int) -> Path:
    data = folder / "weights.bin"
    data.touch()
    os.truncate(data, COUNT * SIZE * SIZE * 4)
    weights, nodes = [], []
    for i in range(COUNT):
        place = {"location": "weights.bin", "offset": i * SIZE * SIZE * 4, "length": SIZE * SIZE * 4}
        weight = TensorProto(
            name=f"W{i}", data_type=TensorProto.FLOAT, dims=[SIZE, SIZE], data_location=TensorProto.EXTERNAL
        )
        for key, value in place.items():
            weight.external_data.add(key=key, value=str(value))
        weights.append(weight)
        nodes.append(helper.make_node("MatMul", [f"x{i}", f"W{i}"], [f"x{i + 1}"]))
    nodes.append(helper.make_node("Dropout", [f"x{COUNT}"], ["y"], ratio=0.5))  # another one since opset 12
    edges = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", SIZE])] for name in ("x0", "y")]
    graph = helper.make_graph(nodes, "large", *edges, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    path = folder / "large.onnx"
    path.write_bytes(model.SerializeToString())
    assert onnx.load(path, load_external_data=False).graph.initializer[0].dims == [SIZE, SIZE]
    return path


def run(code: str, *arguments: object) -> None:
    subprocess.run([sys.executable, "-c", CODE + code, *map(str, arguments)], check=True)


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for its memory")


@needs_proc
def test_quantizing_reads_no_weights(tmp_path: Path) -> None:
    """Nor does what comes before it, a conversion to a newer opset included."""
    run("quantized(sys.argv[1])\nquantized(sys.argv[1], 'quark')", large(tmp_path, opset=11))


@needs_proc
@pytest.mark.full
def test_saving_packs_one_weight_after_the_other(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    run("quantized(sys.argv[1]).save(sys.argv[2])", large(tmp_path, opset=17), out)
    assert out.stat().st_size < 0.18 * COUNT * SIZE * SIZE * 4
