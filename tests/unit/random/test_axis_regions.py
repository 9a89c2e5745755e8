"""Slices and runs of an axis, joined: the same indices in the same order, in few pieces."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nbrt.random import Region, Runs
from nbrt.random.subsets import axis_regions

SIZE = 30
slices = st.builds(slice, st.integers(-2, SIZE), st.integers(-2, SIZE + 2), st.integers(1, 3))
runs = st.builds(Runs, st.integers(0, 5), st.integers(0, 4), st.integers(0, 4), st.integers(1, 5))


def listed(index: Any) -> list[int]:
    if isinstance(index, slice):
        return list(range(SIZE))[index]
    start, length, count, step = index
    return [start + i * step + j for i in range(count) for j in range(length)]


def elements(piece: Region) -> list[int]:
    found = itertools.product(
        *(
            range(0, count * step, step)
            for count, step in zip(piece.shape, piece.strides, strict=True)
        )
    )
    return [piece.start + sum(one) for one in found]


@given(st.lists(slices | runs, max_size=8))
def test_the_same_indices_in_the_same_order(index: list[Any]) -> None:
    pieces = axis_regions(index, SIZE, 0)
    assert [i for one in pieces for i in elements(one)] == [i for one in index for i in listed(one)]
    assert all(piece.size for piece in pieces)
    assert len(pieces) <= len(index)


def test_what_repeats_is_one_piece() -> None:
    once = [slice(0, 2), slice(5, 7)]
    twice = [slice(20, 22), slice(25, 27)]
    assert axis_regions(once + twice, SIZE, 0) == [Region(0, (2, 2, 2), (20, 5, 1))]
    assert axis_regions([Runs(0, 2, 2, 5), Runs(20, 2, 2, 5)], SIZE, 0) == [
        Region(0, (2, 2, 2), (20, 5, 1))
    ]
    # Chunks of a length that does not divide: one piece for the full ones, one for the rest.
    uneven = [slice(start, min(start + 3, 29)) for start in range(0, 30, 7)]
    assert len(axis_regions(uneven, SIZE, 0)) == 2


def test_dense_runs_are_one_run() -> None:
    assert axis_regions([slice(0, 3), slice(3, 8)], SIZE, 0) == [Region(0, (8,), (1,))]
    assert axis_regions(Runs(4, 3, 5, 3), SIZE, 0) == [Region(4, (15,), (1,))]
