"""Free ranges against a plain list of bytes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from nbrt.backends.pools import FreeRanges

SIZE = 64


def runs_of(is_free: list[bool]) -> dict[int, int]:
    """Return the maximal runs of free bytes."""
    runs: dict[int, int] = {}
    start = None
    for place, free in enumerate([*is_free, False]):
        if start is not None and not free:
            runs[start] = place - start
            start = None
        if free and start is None:
            start = place
    return runs


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 20), st.integers(0, 99)), max_size=60),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_ranges_are_those_of_a_list_of_bytes(steps: list[tuple[int, int, int]]) -> None:
    ranges = FreeRanges()
    ranges.add(0, SIZE)
    is_free = [True] * SIZE
    taken: list[tuple[int, int]] = []
    for action, nbytes, choice in steps:
        runs = runs_of(is_free)
        if action == 0:
            best = min(((n, a) for a, n in runs.items() if n >= nbytes), default=None)
            address = ranges.take(nbytes)
            assert address == (None if best is None else best[1])
        elif action == 1 and taken:
            address, nbytes = taken.pop(choice % len(taken))
            ranges.add(address, nbytes)
            is_free[address : address + nbytes] = [True] * nbytes
            address = None
        elif action == 2 and runs:
            start = sorted(runs)[choice % len(runs)]
            nbytes = min(nbytes, runs[start])
            address = start + choice % (runs[start] - nbytes + 1)
            ranges.cut(address, nbytes, start)
        else:
            continue
        if address is not None:
            taken.append((address, nbytes))
            is_free[address : address + nbytes] = [False] * nbytes
        expected = runs_of(is_free)
        assert ranges.sizes == expected
        assert ranges.ends == {a + n: a for a, n in expected.items()}
        assert ranges.nbytes == sum(is_free)
