"""Runs in arrays: the same indices in the same order as Python's own ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbrt
from nbrt.index_sets import RunArrays
from nbrt.random import Runs
from nbrt.random.subsets import MAX_BLOCKS as MANY
from nbrt.random.subsets import axis_regions, long_list, run_table, runs_of
from nbrt.testing.latch import Latch

SIZE = 60
slices = st.builds(slice, st.integers(-2, SIZE), st.integers(-2, SIZE + 2), st.integers(1, 3))
runs = st.builds(Runs, st.integers(0, 9), st.integers(0, 4), st.integers(0, 4), st.integers(1, 9))
lists = st.lists(slices | runs, min_size=1, max_size=5)


def listed(index: Any) -> list[int]:
    if isinstance(index, slice):
        return list(range(SIZE))[index]
    if isinstance(index, Runs):
        start, length, count, step = index
        return [start + i * step + j for i in range(count) for j in range(length)]
    return [one for part in index for one in listed(part)]


def elements(found: RunArrays) -> list[int]:
    return [s + j for s, n in zip(*map(np.ndarray.tolist, found), strict=True) for j in range(n)]


@given(lists)
def test_a_long_list_takes_the_same_indices(index: list[Any]) -> None:
    many = index * (MANY + 1)
    found = long_list(many, SIZE)
    if found is None:
        assert not listed(many)
    elif isinstance(found, Runs):
        assert listed(found) == listed(many)
        assert axis_regions(found, SIZE, 0)
    else:
        assert elements(found) == listed(many)
        assert found.size == len(listed(many))


@given(lists)
def test_pieces_have_the_same_runs(index: list[Any]) -> None:
    pieces = axis_regions(index, SIZE, 0)
    if pieces:
        found = runs_of(pieces)
        assert found is not None
        assert elements(found) == listed(index)


@given(lists, lists)
def test_a_table_takes_the_elements_of_the_product(rows: list[Any], columns: list[Any]) -> None:
    both = [axis_regions(index, SIZE, 0) for index in (rows, columns)]
    if not all(both):
        return
    table = run_table(7, [(runs_of(both[0]), SIZE), (runs_of(both[1]), 1)], "cpu:0")
    assert table is not None
    runs = RunArrays(table.starts, np.diff(table.begins))
    found = [one + turn * table.step for turn in range(table.count) for one in elements(runs)]
    assert found == [7 + SIZE * i + j for i in listed(rows) for j in listed(columns)]
    assert table.size == runs.size
    assert not (np.concatenate(runs) % table.unit).any()


def test_what_is_equal_and_equally_spaced_is_runs() -> None:
    spaced = [slice(3 * i, 3 * i + 2) for i in range(MANY + 1)]
    assert long_list(spaced, 200) == Runs(0, 2, MANY + 1, 3)
    assert long_list(spaced[:MANY], 200) is None


def test_what_is_equal_at_one_place_is_a_table() -> None:
    same = [slice(3, 5)] * (MANY + 1)
    found = long_list(same, 9)
    assert isinstance(found, RunArrays)
    assert elements(found) == listed(same)


FAR = (Runs(0, 1, 2, 2**63 - 1), Runs(10**400, 1), Runs(0, 1, 1, 2**63), Runs(0, 1, 3, -(10**30)))


@pytest.mark.parametrize("far", FAR, ids=range(len(FAR)))
def test_numbers_that_would_wrap_around_are_left_to_pieces(far: Runs) -> None:
    assert long_list([*(Runs(4 * i * i, 1) for i in range(MANY)), far], 2**62) is None


def test_a_table_in_host_memory_waits_for_no_stream() -> None:
    stream = nbrt.Stream("cpu:1")
    with Latch() as latch, nbrt.stream(stream):
        latch.hold(stream)
        runs = RunArrays(np.array([0, 5]), np.array([2, 1]))
        table = run_table(3, [(runs, 1)], "cpu:1")
        assert table is not None
        assert table.starts.tolist() == [3, 8]
    stream.synchronize()


def test_too_many_runs_make_no_table() -> None:
    many = [slice(0, 2), slice(3, 9), Runs(100, 1, 2**40, 3)] * MANY
    assert long_list(many, 2**60) is None
    assert runs_of(axis_regions([Runs(0, 1, 2**40, 2)], 2**60, 0)) is None
    wide = RunArrays(np.arange(0, 9000, 3), np.full(3000, 2))
    assert run_table(0, [(wide, 2**20), (wide, 1)], "cpu:0") is None
