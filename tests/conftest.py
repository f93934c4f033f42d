"""Settings that every test shares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

# No deadlines: machines are shared, and a slow moment is not a wrong result. The same examples every time;
# `fuzz` looks for new ones.
settings.register_profile("house", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, max_examples=20_000)
settings.load_profile("house")


@pytest.fixture
def decoding() -> Iterator[None]:
    """Products of torch by decoded weights: the meaning of a graph, which passes keep bit for bit."""
    from blockscale.runtime import torch_products

    with torch_products.decoding():
        yield
