"""The operator library for ONNX Runtime.

    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(blockscale.onnxruntime.library_path())

It has the operators of the domain `blockscale` (see graph/onnx_quantizers.py) and those that AMD Quark
writes: com.amd.quark::MXQuantizeDequantize and BFPQuantizeDequantize, com.vai.quantize::MXFixNeuron and
BFPFixNeuron. Neither onnxruntime nor onnx is imported here.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from blockscale.errors import ArgumentError, InstallationError

__all__ = ["library_path"]

_SUFFIX = {"win32": ".dll", "cygwin": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
_NAME = f"libblockscale_onnxruntime{_SUFFIX}"


def library_path(device: str = "cpu") -> str:
    """Where the library lies, for SessionOptions.register_custom_ops_library."""
    if device != "cpu":
        raise ArgumentError(
            "device", device,
            "'cpu'; on another device run the portable form of the model, which needs no library "
            "(or keep these operators on the CPU provider beside that of the device)",
        )  # fmt: skip
    # It is installed beside the compiled core, which in an editable installation is not beside this file.
    core = find_spec("blockscale._core")
    if core is None or core.origin is None:
        raise InstallationError("blockscale has no compiled core here: reinstall it (pip install blockscale)")
    path = Path(core.origin).with_name(_NAME)
    if not path.is_file():
        raise InstallationError(
            f"{path} is missing: reinstall blockscale (pip install --force-reinstall blockscale)"
        )
    return str(path)
