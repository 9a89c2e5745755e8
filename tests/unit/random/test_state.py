"""The state of a generator: 16 bytes."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrt import PhiloxState
from nbrt.errors import ArgumentError, ArgumentTypeError

WORDS = st.integers(0, 2**64 - 1)
OFFSETS = WORDS.map(lambda value: value - value % 4)


@given(WORDS, OFFSETS)
def test_bytes_and_back(seed: int, offset: int) -> None:
    state = PhiloxState(seed, offset)
    assert PhiloxState.from_bytes(state.to_bytes()) == state
    assert pickle.loads(pickle.dumps(state)) == state
    assert state.checked() is state


@given(WORDS, OFFSETS, st.integers(0, 2**70), st.integers(0, 2**70))
def test_advance_in_whole_blocks(seed: int, offset: int, first: int, second: int) -> None:
    state = PhiloxState(seed, offset)
    once, twice = state.advance(first), state.advance(first).advance(second)
    for advanced in (once, twice):
        assert advanced.seed == seed
        assert advanced.checked() is advanced
    assert (once.offset - offset - first) % 2**64 in (0, 1, 2, 3)
    assert state.advance(4 * first).advance(4 * second) == state.advance(4 * (first + second))


def test_the_layout_is_torchs() -> None:
    state = PhiloxState(0x0102030405060708, 0x10)
    assert state.to_bytes() == bytes([8, 7, 6, 5, 4, 3, 2, 1]) + bytes([16, 0, 0, 0, 0, 0, 0, 0])
    assert PhiloxState.from_bytes(state.to_bytes()[:8]) == PhiloxState(state.seed, 0)


@pytest.mark.parametrize("length", [0, 7, 9, 15, 17])
def test_other_lengths_are_refused(length: int) -> None:
    with pytest.raises(ArgumentError, match=f"16 bytes .or 8: a seed., got {length}"):
        PhiloxState.from_bytes(bytes(length))


@pytest.mark.parametrize(
    ("seed", "offset"), [(-1, 0), (2**64, 0), (0, 2), (0, -4), (0, 2**64), (1.5, 0), (0, 4.0)]
)
def test_wrong_parts(seed: Any, offset: Any) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match="expected"):
        PhiloxState(seed, offset).checked()
