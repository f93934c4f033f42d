"""What a model writes to as it runs: kept apart, so that looking at a model leaves it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import fx
from torch.utils import _pytree as pytree

from blockscale.graph.fx_effects import module_writes

T = TypeVar("T")


class State:
    """The buffers of one of several runs that share them. What a batch writes is there for the next one of
    this run (caches, counters), and for nobody else.
    """

    def __init__(self, module: fx.GraphModule, runs: fx.GraphModule) -> None:
        """`runs` is a copy of `module` that shares its buffers."""
        bodies = [one for one in module.modules() if isinstance(one, fx.GraphModule)]
        self._writes = any(module_writes(one) for one in bodies)
        self._buffers = [b for b in runs.buffers() if not b.is_inference()] if self._writes else []
        self._mine: dict[int, torch.Tensor] = {}  # what was written, by the place of its buffer

    def inputs(self, given: T) -> T:
        """Copies, where the model may write to what it is given."""
        return pytree.tree_map_only(torch.Tensor, torch.clone, given) if self._writes else given

    @contextmanager
    def own(self) -> Iterator[None]:
        """For one batch; takes no gradients."""
        before = [(buffer, buffer.clone()) for buffer in self._buffers]
        for i, values in self._mine.items():
            self._buffers[i].copy_(values)
        versions = [buffer._version for buffer in self._buffers]
        try:
            yield
        finally:
            for i, (buffer, values) in enumerate(before):
                if buffer._version != versions[i]:
                    self._mine[i] = buffer.clone()
                if i in self._mine:
                    buffer.copy_(values)
