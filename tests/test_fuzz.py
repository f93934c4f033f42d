"""Any bytes as attacks (`fuzzing/attacks.py`); `make fuzz` tries many more than `make test`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing.attacks import attack_api, attack_core, attack_header
from fuzzing.memory import Fenced

# Of one length: short ones leave all that follows to the first option.
attacks = st.binary(min_size=400, max_size=400)


@given(data=attacks)
def test_fuzz_core(data: bytes) -> None:
    attack_core(data)


@given(data=attacks)
def test_fuzz_api(data: bytes) -> None:
    attack_api(data)


@given(data=st.binary(max_size=300))
def test_fuzz_header(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    attack_header(data, tmp_path_factory.getbasetemp())


def test_fences_hold() -> None:
    part = Fenced(b"12345")
    assert bytes(part.content()) == b"12345"
    part.check()
    part._map[part._slack - 1] = 0
    with pytest.raises(AssertionError, match="before the first byte"):
        part.check()
