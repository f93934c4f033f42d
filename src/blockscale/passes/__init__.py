"""One idea a file. A pass takes an overlay, edits it, and says what it did, what it left alone, and why."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockscale.passes.log import Log
    from blockscale.passes.pipeline import lift_combine, optimize

__all__ = ["Log", "lift_combine", "optimize"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'blockscale.passes' has no attribute {name!r}")
        home = "log" if name == "Log" else "pipeline"
        return getattr(import_module(f"blockscale.passes.{home}"), name)
