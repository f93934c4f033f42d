"""Run the peers' own code on numpy arrays [blocks, n]."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

Array = Any
FLOAT8 = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2", "fp4_e2m1": "float4_e2m1fn_x2"}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Peers warn when imported; nothing here can change that."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _torch(x: Array, dtype: str = "") -> Any:
    import torch

    t = torch.from_numpy(np.ascontiguousarray(x))
    return t.to(getattr(torch, dtype)) if dtype else t


def _peer_name(element: str) -> str:
    return "int8" if element == "mxint8" else element


# ----------------------------------------------------------------------------- AMD Quark


@functools.cache
def _quark_library() -> str:
    """Quark's op library for ONNX Runtime; the first import compiles it (g++, ninja)."""
    with quiet():
        from quark.onnx.operators import custom_ops

        return str(custom_ops.get_library_path())


@functools.cache
def _quark_session(op: str, rank: int, half: bool, settings: tuple[tuple[str, Any], ...]) -> Any:
    import onnxruntime
    from onnx import TensorProto, helper

    domain = "com.vai.quantize" if op.endswith("FixNeuron") else "com.amd.quark"
    kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    shape = [f"d{i}" for i in range(rank)]
    node = helper.make_node(op, ["x"], ["y"], domain=domain, **dict(settings))
    x, y = (helper.make_tensor_value_info(name, kind, shape) for name in "xy")
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(domain, 1)]
    model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets)
    model.ir_version = 10
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(_quark_library())
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    serialized = model.SerializeToString()
    return onnxruntime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])


def _quark(op: str, x: Array, **settings: Any) -> Array:
    session = _quark_session(op, x.ndim, x.dtype == np.float16, tuple(settings.items()))
    return session.run(None, {"x": np.array(x, order="C")})[0]  # a copy: it may write to its input


def quark(
    x: Array, element: str, mode: int = 2, axis: int = -1, block: int = 32,
    op: str = "MXQuantizeDequantize",
) -> Array:  # fmt: skip
    """float32 or float16 of any rank, by the op in ONNX Runtime."""
    return _quark(op, x, element_dtype=_peer_name(element), axis=axis, block_size=block, rounding_mode=mode)


def quark_bfp(x: Array, op: str = "BFPQuantizeDequantize", **settings: Any) -> Array:
    """The same for block floating point; what is not given is as Quark has it."""
    return _quark(op, x, **settings)


# ----------------------------------------------------------------------------- microxcaling, TICO


def microxcaling(x: Array, element: str, rounding: str, axis: int = -1, block: int = 32) -> Array:
    """TICO's copy of microxcaling 1.1.0."""
    with quiet():
        from tico.utils.mx import mx_ops
    return mx_ops._quantize_mx(
        _torch(x).clone(), 8, _peer_name(element), shared_exp_method="max", axes=[axis],
        block_size=block, round=rounding,
    ).numpy()  # fmt: skip


def tico(x: Array, element: str, rounding: str, axis: int = -1) -> Array:
    """The same as TICO's registered operator."""
    import torch

    with quiet():
        import tico  # noqa: F401  (registers it)
    op = torch.ops.circle_custom.mx_fake_quantize
    return op(_torch(x), _peer_name(element), axis, shared_exp_method="max", round=rounding).numpy()


# ----------------------------------------------------------------------------- torchao


@functools.cache
def _torchao() -> tuple[Any, Any, Any]:
    with quiet():
        from torchao.prototype.mx_formats import mx_tensor, nvfp4_tensor
        from torchao.prototype.mx_formats.config import ScaleCalculationMode
    return mx_tensor, nvfp4_tensor, ScaleCalculationMode


def torchao_mx(x: Array, element: str, rule: str, dtype: str) -> tuple[Array, Array, Array]:
    """Stored bytes, scale bytes, values (of `dtype`, as float32)."""
    import torch

    mx_tensor, _, mode = _torchao()
    form = getattr(torch, FLOAT8[element]) if element in FLOAT8 else element
    scale, data = mx_tensor.to_mx(_torch(x, dtype), form, 32, mode(rule))
    y = mx_tensor.to_dtype(data, scale, form, 32, getattr(torch, dtype))
    return data.view(torch.uint8).numpy(), scale.view(torch.uint8).numpy(), y.float().numpy()


def torchao_nvfp4(x: Array, tensor_scale: Any) -> tuple[Array, Array, Array]:
    """Stored bytes, scale bytes, values."""
    import torch

    _, nvfp4, _ = _torchao()
    t = torch.tensor(float(tensor_scale), dtype=torch.float32)
    scale, data = nvfp4.nvfp4_quantize(_torch(x), 16, t)
    y = nvfp4.NVFP4Tensor(data, scale, 16, torch.float32, t).dequantize(torch.float32)
    return data.numpy(), scale.view(torch.uint8).numpy(), y.numpy()


def torchao_tensor_scale(x: Array) -> Any:
    import torch

    _, nvfp4, _ = _torchao()
    return np.float32(nvfp4.per_tensor_amax_to_scale(torch.amax(torch.abs(_torch(x)))).item())


def torchao_quantize_affine(x: Array, group: int, scale: Array, zero: Array, low: int, high: int) -> Array:
    import torch

    with quiet():
        from torchao.quantization.quant_primitives import quantize_affine
    zero = _torch(zero.astype(np.int32))
    return quantize_affine(_torch(x), (1, group), _torch(scale), zero, torch.int32, low, high).numpy()


def torchao_dequantize_affine(q: Array, group: int, scale: Array, zero: Array, low: int, high: int) -> Array:
    import torch

    with quiet():
        from torchao.quantization.quant_primitives import dequantize_affine
    q, zero = _torch(q.astype(np.int32)), _torch(zero.astype(np.int32))
    block = (1, group)
    return dequantize_affine(q, block, _torch(scale), zero, torch.int32, low, high).numpy()


def torchao_choose_qparams(x: Array, rule: str, low: int, high: int) -> tuple[Array, Array]:
    """float32 scale and zero point of each row."""
    import torch

    with quiet():
        from torchao.quantization.quant_primitives import MappingType, choose_qparams_affine
    mapping = {"no_clip": "SYMMETRIC_NO_CLIPPING_ERR"}.get(rule, rule.upper())
    block = (1, x.shape[1])
    scale, zero = choose_qparams_affine(
        _torch(x), MappingType[mapping], block, torch.int32, low, high, keepdim=True
    )
    return scale.numpy(), zero.numpy().astype(np.int64)


# ----------------------------------------------------------------------------- ggml, gguf


@functools.cache
def _ggml() -> Any:
    """libggml-base.so, from $BLOCKSCALE_GGML or beside pywhispercpp's module."""
    folder = os.environ.get("BLOCKSCALE_GGML")
    if not folder:
        spec = importlib.util.find_spec("_pywhispercpp")
        assert spec is not None and spec.origin is not None
        folder = str(Path(spec.origin).parent)
    library = ctypes.CDLL(str(Path(folder) / "libggml-base.so"))
    for name in ("quantize_row_mxfp4_ref", "dequantize_row_mxfp4"):
        function = getattr(library, name)
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        function.restype = None
    return library


def ggml(x: Array) -> Array:
    """float32 [blocks, 32] → bytes [blocks, 17]."""
    x = np.ascontiguousarray(x, np.float32)
    stored = np.zeros((len(x), 17), np.uint8)
    _ggml().quantize_row_mxfp4_ref(x.ctypes.data, stored.ctypes.data, x.size)
    return stored


def ggml_dequantize(stored: Array) -> Array:
    stored = np.ascontiguousarray(stored)
    y = np.empty((len(stored), 32), np.float32)
    _ggml().dequantize_row_mxfp4(stored.ctypes.data, y.ctypes.data, y.size)
    return y


def gguf(x: Array) -> Array:
    from gguf import GGMLQuantizationType, quants

    with np.errstate(all="ignore"):
        return quants.quantize(np.ascontiguousarray(x), GGMLQuantizationType.MXFP4)


def gguf_dequantize(stored: Array) -> Array:
    from gguf import GGMLQuantizationType, quants

    with np.errstate(all="ignore"):
        return quants.dequantize(stored, GGMLQuantizationType.MXFP4)
