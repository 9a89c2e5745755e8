"""No room on the stack: what asks for memory there is refused, and nothing is half done."""

from __future__ import annotations

import itertools
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import nbrt

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20


def with_frames_left(count: int, function: Callable[[], Any]) -> Any:
    """Call a function where the stack has room for about so many calls more."""
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]

    def descend(calls: int) -> Any:
        return descend(calls - 1) if calls > 0 else function()

    return descend(sys.getrecursionlimit() - depth - count)


def empty(size: int) -> Any:
    return nbrt.empty(size, "uint8", device="cpu:1")


def check(pool: nbrt.MemoryPool, live: list[Any]) -> None:
    stats = pool.stats()
    assert len(pool.allocations()) == stats["allocated.all.current"] == len(live)
    assert stats["requested_bytes.all.current"] == sum(each.nbytes for each in live)
    assert stats["reserved_bytes.all.current"] == pool.memory_reserved()


@pytest.mark.parametrize("kind", ["caching", "expandable", "plain"])
def test_large_blocks(kind: str) -> None:
    pool = nbrt.MemoryPool("cpu:1", kind)
    live, refused = [], 0
    with nbrt.use_pool(pool):
        for count in range(90):
            kept = [empty(size) for size in (3 * MIB, 5 * MIB, 2 * MIB)]
            del kept[1]
            try:
                live.append(with_frames_left(count, lambda: empty(4 * MIB)))
            except RecursionError:
                refused += 1
            del kept
            check(pool, live)
    assert refused > 20
    assert live
    spans = sorted((each.ctypes.data, each.nbytes) for each in live)
    assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(spans))
    live.clear()
    pool.empty_cache()
    assert pool.memory_reserved() == 0


def test_the_log_is_read_whole_or_not_at_all() -> None:
    pool = nbrt.MemoryPool("cpu:1")
    with nbrt.use_pool(pool):
        for count in range(90):
            live = [empty(500) for _ in range(251)]
            with suppress(RecursionError):
                with_frames_left(count, lambda: empty(500))
            check(pool, live)
            del live
            check(pool, [])


def test_numbers_are_refused_rather_than_wrong() -> None:
    pool = nbrt.MemoryPool("cpu:1")
    with pytest.raises(RecursionError):
        with_frames_left(20, pool.stats)
    check(pool, [])
