"""What passes keep bit for bit is the meaning of a graph: products of decoded operands, by ATen."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def decoded(decoding: None) -> None:
    """In every test."""
