"""Tiny models wait for threads longer than they compute; what passes make of them is compared bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def decoded(decoding: None) -> None:
    """In every test but those of kernels, which ask for them."""
