"""The state of a generator: 16 bytes."""

from __future__ import annotations

import csv
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrt import PhiloxState
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.random.state import checked_seed, philox_block

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
    ("seed", "offset"),
    [(-(2**63) - 1, 0), (2**64, 0), (0, 2), (0, -4), (0, 2**64), (1.5, 0), (0, 4.0)],
)
def test_wrong_parts(seed: Any, offset: Any) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match="expected"):
        PhiloxState(seed, offset).checked()


def test_negative_seeds_are_torchs() -> None:
    # torch.manual_seed documents 0xffff_ffff_ffff_ffff + seed.
    assert checked_seed(-1) == 2**64 - 2
    assert checked_seed(-(2**63)) == 2**63 - 1


def test_the_block_function_has_the_published_answers() -> None:
    path = Path(__file__).parents[2] / "data" / "philox4x32_kat.csv"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    rows = [row for row in csv.DictReader(lines) if row["rounds"] == "10"]
    assert rows
    for row in rows:
        counter, key, block = (
            sum(int(row[f"{kind}{place}"], 16) << 32 * place for place in range(words))
            for kind, words in (("c", 4), ("k", 2), ("w", 4))
        )
        assert philox_block(counter, key) == block


@given(WORDS, OFFSETS)
def test_children_differ_and_depend_on_everything(seed: int, offset: int) -> None:
    state = PhiloxState(seed, offset)
    children = state.split(16)
    assert len({child.seed for child in children} | {seed}) == 17
    assert all(child.offset == 0 for child in children)
    assert children[:3] == state.split(3)
    assert state.fold_in(5) == children[5]
    assert state.fold_in(2**64 - 1) not in children
    assert state.advance(4).split(16)[0] != children[0]
    assert state.split(0) == ()


@pytest.mark.parametrize("number", [-1, 2**64])
def test_numbers_that_cannot_be_folded_in(number: int) -> None:
    with pytest.raises(ArgumentError, match="expected data in"):
        PhiloxState(1).fold_in(number)


def test_wrong_splits() -> None:
    with pytest.raises(ArgumentError, match="n >= 0"):
        PhiloxState(1).split(-1)
    with pytest.raises(ArgumentTypeError, match="n of type int"):
        PhiloxState(1).split(1.5)  # type: ignore[arg-type]
