"""Torch operators by their qualified names."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from blockscale.errors import UnknownNameError


@lru_cache(maxsize=4096)
def overload_named(name: str) -> Any:
    """Of "aten.linear.default", `torch.ops.aten.linear.default`."""
    namespace, operator, overload = name.split(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), operator), overload)
    except AttributeError:
        loaded = [f"{namespace}.{one}" for one in dir(getattr(torch.ops, namespace)) if one[0] != "_"]
        raise UnknownNameError("torch operator", name, loaded[:20], " and what is loaded later") from None
