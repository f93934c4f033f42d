"""What the peer tests share: our codecs under one face, and counted comparisons.

`make test-peers` sets BLOCKSCALE_REQUIRE_PEERS=1: then a peer that cannot be imported fails the tests.
"""

from __future__ import annotations

import importlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from conformance.data import assert_same
from peers.ours import CODECS, Ours

REQUIRED = os.environ.get("BLOCKSCALE_REQUIRE_PEERS") == "1"
Need = Callable[[str], Any]
Compare = Callable[..., None]

_compared: Counter[str] = Counter()
_left_out: dict[str, Counter[str]] = defaultdict(Counter)


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:
        if REQUIRED:
            raise
        pytest.skip(f"{module} is not here ({error}); run `make test-peers`")


@pytest.fixture(scope="session")
def need() -> Need:
    """Import a peer, or skip the test."""
    return _import


@pytest.fixture(params=CODECS)
def ours(request: pytest.FixtureRequest) -> Ours:
    if request.param == "native":
        _import("blockscale.numerics.native")
    return CODECS[request.param]()


@pytest.fixture
def compare(request: pytest.FixtureRequest) -> Compare:
    """compare(ours, theirs, x): all the same, to the bit, but for what is left out and counted.

    left_out: a boolean array for each reason, True where values are not compared. Together they may take
    `share` of the values; what is left must be `least` values.
    """

    def check(
        mine: Any, theirs: Any, x: Any = None, *, left_out: Mapping[str, Any] | None = None,
        share: float = 0.0, least: int = 1, what: str = "values",
    ) -> None:  # fmt: skip
        mine, theirs = np.asarray(mine), np.asarray(theirs)
        assert mine.shape == theirs.shape
        masks = {reason: np.broadcast_to(mask, mine.shape) for reason, mask in (left_out or {}).items()}
        out = np.any([np.zeros(mine.shape, bool), *masks.values()], axis=0)
        compared, omitted = int((~out).sum()), int(out.sum())
        counts = {reason: int(mask.sum()) for reason, mask in masks.items() if mask.any()}
        row = f"{request.node.originalname.removeprefix('test_')} [{request.getfixturevalue('ours').name}]"
        _compared[row] += compared
        _left_out[row].update(counts)
        assert_same(mine[~out], theirs[~out], None if x is None else x[~out], what)
        assert omitted <= share * mine.size, f"{omitted} of {mine.size} left out: {counts}"
        assert compared >= least, f"only {compared} compared"

    return check


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not _compared:
        return
    terminalreporter.section("values compared with peers, bit for bit")
    for row, compared in _compared.items():
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in _left_out[row].items())
        terminalreporter.line(f"{row:36} {compared:>13,}{reasons and '; left out: ' + reasons}")
    terminalreporter.line(f"{sum(_compared.values()):,} in all")
