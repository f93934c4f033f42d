"""blockscale: a quantization compiler for block-scaled numbers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockscale import errors
    from blockscale import onnxruntime as onnxruntime
    from blockscale.api import Recipe, Rule, choose_params, dequantize, fake_quantize, quantize
    from blockscale.model_api import compare, fake_quantize_model, load, optimize, quantize_model
    from blockscale.numerics.formats import FORMATS
    from blockscale.numerics.layout import Layout
    from blockscale.numerics.scheme import PRESETS, Numbers, Scheme
    from blockscale.tensor import QuantizedTensor

__version__ = "0.1.0"

__all__ = [
    "FORMATS",
    "PRESETS",
    "Layout",
    "Numbers",
    "QuantizedTensor",
    "Recipe",
    "Rule",
    "Scheme",
    "__version__",
    "choose_params",
    "compare",
    "dequantize",
    "errors",
    "fake_quantize",
    "fake_quantize_model",
    "load",
    "optimize",
    "quantize",
    "quantize_model",
]

# Where a name lives. Loaded when first asked for: `blockscale --help` and the tools need no compiled core.
_HOME = {
    "FORMATS": "numerics.formats",
    "PRESETS": "numerics.scheme",
    "Layout": "numerics.layout",
    "Numbers": "numerics.scheme",
    "QuantizedTensor": "api",  # which also teaches it to dequantize codes of torch
    "Recipe": "api",  # which also teaches it to read models
    "Rule": "api",
    "Scheme": "numerics.scheme",
    "choose_params": "api",
    "compare": "model_api",
    "dequantize": "api",
    "fake_quantize": "api",
    "fake_quantize_model": "model_api",
    "load": "model_api",
    "optimize": "model_api",
    "quantize": "api",
    "quantize_model": "model_api",
}


if not TYPE_CHECKING:  # or a misspelt name would pass as Any

    def __getattr__(name: str) -> Any:
        # onnxruntime is not in __all__: `from blockscale import *` would hide the real one.
        if name in ("errors", "onnxruntime"):
            return import_module(f"blockscale.{name}")
        if name not in _HOME:
            raise AttributeError(f"module 'blockscale' has no attribute {name!r}")
        value = getattr(import_module(f"blockscale.{_HOME[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
