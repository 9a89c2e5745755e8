"""`StreamPosition`: the state of a generator, which its shards share."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.random.state import PhiloxState
from nbrt.runtime.capturing import captures_here, open_captures

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

__all__ = ["PositionMark", "StreamPosition", "made_by_user", "refuse_change"]

_MODULUS = 2**64
_REMEDY = "read or set it before or after the capture, or between replays"
_numbers = itertools.count(1)
_all: weakref.WeakSet[StreamPosition] = weakref.WeakSet()

PositionMark: TypeAlias = "tuple[PhiloxState, np.random.SeedSequence | None, int]"
"""State, the `SeedSequence` of spawning, and the children that it had spawned."""


class StreamPosition:
    """Seed, offset and `SeedSequence` of a generator, with a lock.

    Attributes
    ----------
    lock : threading.RLock
        Held while the state changes.
    number : int
        The number of the position in this process.
    sequence : numpy.random.SeedSequence or None
        Where spawned generators come from; None until it is needed.
    before_use : callable or None
        Called before the state is read or changed. A replay whose draws depend on its loops waits
        here for its end, and sets the state.
    """

    def __init__(self, state: PhiloxState, sequence: np.random.SeedSequence | None = None) -> None:
        self.lock = threading.RLock()
        self.number = next(_numbers)
        self.before_use: Callable[[], object] | None = None
        # A plain tuple: making one takes a third of the time of a call of the class, which each
        # small draw would notice.
        self._state: tuple[int, int] = state
        self.sequence = sequence
        _all.add(self)

    @property
    def state(self) -> PhiloxState:
        """Seed and offset of the next draw."""
        self.wait()
        return self.peek()

    @state.setter
    def state(self, state: PhiloxState) -> None:
        if open_captures:
            refuse_change("a change of the state of a generator")
        self.wait()
        self._state = state

    def peek(self) -> PhiloxState:
        """Return seed and offset without waiting for replays, also during a capture."""
        return PhiloxState(*self._state)

    def wait(self) -> None:
        """Wait for replays that move the state; raise CaptureError in a capture that draws."""
        if open_captures:
            for capture in captures_here():
                if capture.draws_from(self):
                    capture.refuse("the state of a generator that the capture draws from", _REMEDY)
        if self.before_use is not None:
            self.before_use()

    def move(self, words: int) -> None:
        """Move the offset as far as a replay has drawn, also during a capture."""
        with self.lock:
            seed, offset = self._state
            self._state = seed, (offset + words) % _MODULUS

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamPosition, self.mark()[:2]

    def reserve(self, words: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Move the offset by `words`, a multiple of 4; return (seed, offset) before and after."""
        if open_captures or self.before_use is not None:
            self.wait()
        with self.lock:
            before = self._state
            seed, offset = before
            offset += words
            # Not by %, which takes longer than the rest.
            self._state = after = seed, offset if offset < _MODULUS else offset % _MODULUS
        return before, after

    def unreserve(self, before: tuple[int, int], after: tuple[int, int]) -> None:
        """Undo `reserve`, unless a later draw has moved the state."""
        with self.lock:
            if self._state == after:
                self._state = before

    def defer(self, function: Callable[[], object]) -> None:
        """Call a function before the next use of the state."""
        self.before_use = function

    def mark(self) -> PositionMark:
        """Return a value from which `rewind` restores state and spawning."""
        with self.lock:
            sequence = self.sequence
            return self.state, sequence, 0 if sequence is None else sequence.n_children_spawned

    def rewind(self, mark: PositionMark) -> None:
        """Restore a mark of this position, or of another one."""
        state, sequence, spawned = mark
        with self.lock:
            is_same = sequence is self.sequence and (
                sequence is None or sequence.n_children_spawned == spawned
            )
            if not is_same and sequence is not None:
                sequence = np.random.SeedSequence(
                    sequence.entropy,
                    spawn_key=sequence.spawn_key,
                    pool_size=sequence.pool_size,
                    n_children_spawned=spawned,
                )
            self.state, self.sequence = state, sequence

    def copy(self) -> StreamPosition:
        """Return an independent position with the same state and spawning."""
        state, sequence, spawned = self.mark()
        position = made_by_user(StreamPosition(state))
        if sequence is not None:
            position.sequence = np.random.SeedSequence(
                sequence.entropy,
                spawn_key=sequence.spawn_key,
                pool_size=sequence.pool_size,
                n_children_spawned=spawned,
            )
        return position


def made_by_user(position: StreamPosition) -> StreamPosition:
    """Return a position that code has made, which a capture in progress must not draw from.

    Each run of that code would make it again, but replays would continue it.
    """
    if open_captures:
        for capture in captures_here():
            capture.note_new(position)
    return position


def refuse_change(tried: str) -> None:
    """Raise CaptureError if the running thread captures: replays do not repeat the change."""
    for capture in captures_here():
        capture.refuse(tried, _REMEDY)


def _after_fork_in_child() -> None:
    """Renew the locks, which threads may hold that the child does not have."""
    for position in tuple(_all):
        position.lock = threading.RLock()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork_in_child)
