"""Pools of other libraries as arithmetic: what their rules would take from a device for a trace.

Nothing is allocated; a pool here deals in chunks that know their neighbours. Memory is never given
back to the device, which is what both libraries do as long as the device has more.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.allocation_traces import Event

__all__ = ["CUPY", "TORCH", "Chunk", "Policy", "SimulatedPool", "peak_reserved"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of a pool that takes the smallest free chunk, splits it, and merges it again.

    Attributes
    ----------
    name : str
        Whose.
    rounded : callable
        What a request of so many bytes becomes.
    segment : callable
        The bytes to take from the device for a request of a rounded size.
    is_small : callable
        Whether a rounded size is served apart from the others.
    splits : callable
        Whether a remainder is cut off, called with the rounded size and the remainder.
    """

    name: str
    rounded: Callable[[int], int]
    segment: Callable[[int], int]
    is_small: Callable[[int], bool]
    splits: Callable[[int, int], bool]


def _round_up(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit


def _torch_segment(nbytes: int) -> int:
    if nbytes <= MIB:
        return 2 * MIB
    return 20 * MIB if nbytes < 10 * MIB else _round_up(nbytes, 2 * MIB)


CUPY = Policy(
    "CuPy MemoryPool",
    rounded=lambda nbytes: _round_up(nbytes, 512),
    segment=lambda nbytes: nbytes,
    is_small=lambda nbytes: False,
    splits=lambda nbytes, rest: True,
)
"""``cupy/cuda/memory.pyx``: best fit by stream and multiples of 512 bytes, any remainder split."""

TORCH = Policy(
    "torch CUDACachingAllocator",
    rounded=lambda nbytes: _round_up(nbytes, 512),
    segment=_torch_segment,
    is_small=lambda nbytes: nbytes <= MIB,
    splits=lambda nbytes, rest: rest > MIB if nbytes > MIB else rest >= 512,
)
"""``c10/cuda/CUDACachingAllocator.cpp`` with its settings as they come: best fit by stream and size
of pool, segments of 2 and 20 MiB, remainders of up to 1 MiB of large chunks left with them."""


class Chunk:
    """A piece of a segment.

    Attributes
    ----------
    nbytes : int
        Its size.
    before, after : Chunk or None
        Its neighbours in the segment.
    is_free : bool
        Whether no allocation uses it.
    """

    __slots__ = ("after", "arena", "before", "is_free", "nbytes", "number")

    def __init__(self, nbytes: int, arena: list[tuple[int, int, Chunk]], number: int) -> None:
        self.nbytes = nbytes
        self.arena = arena
        self.number = number
        self.before: Chunk | None = None
        self.after: Chunk | None = None
        self.is_free = False


class SimulatedPool:
    """A pool that follows a policy.

    Attributes
    ----------
    reserved : int
        Bytes taken from the device.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.reserved = 0
        self._numbers = itertools.count()
        self._arenas: dict[tuple[int, bool], list[tuple[int, int, Chunk]]] = {}

    def allocate(self, nbytes: int, stream: int = 0) -> Chunk:
        """Return a chunk of at least `nbytes`: what is free for a stream, or a new segment."""
        policy = self.policy
        size = policy.rounded(nbytes)
        arena = self._arenas.setdefault((stream, policy.is_small(size)), [])
        place = bisect_left(arena, (size, -1))
        if place < len(arena):
            chunk = arena.pop(place)[2]
            chunk.is_free = False
        else:
            chunk = Chunk(policy.segment(size), arena, next(self._numbers))
            self.reserved += chunk.nbytes
        rest = chunk.nbytes - size
        if rest and policy.splits(size, rest):
            self._split(chunk, size)
        return chunk

    def free(self, chunk: Chunk) -> None:
        """Take a chunk back, for the stream that it was allocated on, and merge its neighbours."""
        after, before = chunk.after, chunk.before
        if after is not None and after.is_free:
            self._merge(chunk, after)
        if before is not None and before.is_free:
            self._merge(before, chunk)
            chunk = before
        self._put(chunk)

    def _split(self, chunk: Chunk, size: int) -> None:
        rest = Chunk(chunk.nbytes - size, chunk.arena, next(self._numbers))
        rest.before, rest.after = chunk, chunk.after
        if rest.after is not None:
            rest.after.before = rest
        chunk.after, chunk.nbytes = rest, size
        self._put(rest)

    def _merge(self, first: Chunk, second: Chunk) -> None:
        for each in (first, second):
            if each.is_free:
                each.is_free = False
                del each.arena[bisect_left(each.arena, (each.nbytes, each.number))]
        first.nbytes += second.nbytes
        first.after = second.after
        if first.after is not None:
            first.after.before = first

    def _put(self, chunk: Chunk) -> None:
        chunk.is_free = True
        insort(chunk.arena, (chunk.nbytes, chunk.number, chunk))


def peak_reserved(policy: Policy, events: list[Event]) -> int:
    """Return the bytes that a pool has taken from the device at the end of a trace."""
    pool = SimulatedPool(policy)
    chunks: dict[int, Chunk] = {}
    for block, nbytes, stream in events:
        if nbytes:
            chunks[block] = pool.allocate(nbytes, stream)
        else:
            pool.free(chunks.pop(block))
    return pool.reserved
