"""`StreamPosition`: the state of a generator, which its shards share."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.random.state import PhiloxState

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

__all__ = ["PositionMark", "StreamPosition"]

_MODULUS = 2**64
_numbers = itertools.count(1)

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
        Called before the state is read or changed. A capture that draws from the position raises
        here; a replay whose draws depend on its loops waits here for its end, and sets the state.
    """

    def __init__(self, state: PhiloxState, sequence: np.random.SeedSequence | None = None) -> None:
        self.lock = threading.RLock()
        self.number = next(_numbers)
        self.before_use: Callable[[], object] | None = None
        self._state = state
        self.sequence = sequence

    @property
    def state(self) -> PhiloxState:
        """Seed and offset of the next draw."""
        if self.before_use is not None:
            self.before_use()
        return self._state

    @state.setter
    def state(self, state: PhiloxState) -> None:
        if self.before_use is not None:
            self.before_use()
        self._state = state

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamPosition, self.mark()[:2]

    def reserve(self, words: int) -> tuple[PhiloxState, PhiloxState]:
        """Move the offset by `words`, a multiple of 4; return the state before and after."""
        if self.before_use is not None:
            self.before_use()
        with self.lock:
            before = self._state
            self._state = after = PhiloxState(before.seed, (before.offset + words) % _MODULUS)
        return before, after

    def unreserve(self, before: PhiloxState, after: PhiloxState) -> None:
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
        mark = state, sequence, _ = self.mark()
        position = StreamPosition(state)
        if sequence is not None:
            position.rewind(mark)
        return position
