"""`Cell`: where a generator is in its stream, and how far its spawning has come."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

import numpy as np

from nbrt.random.state import PhiloxState

if TYPE_CHECKING:
    from typing import TypeAlias

__all__ = ["Cell", "Place"]

_MODULUS = 2**64
_numbers = itertools.count(1)

Place: TypeAlias = "tuple[PhiloxState, np.random.SeedSequence | None, int]"
"""State, what children are spawned from, and how many it has spawned."""


class Cell:
    """What a generator and its shards share: the state, and what guards it."""

    def __init__(self, state: PhiloxState, sequence: np.random.SeedSequence | None) -> None:
        self.lock = threading.Lock()
        self.number = next(_numbers)
        self.state = state
        self.sequence = sequence

    def take(self, words: int) -> tuple[PhiloxState, PhiloxState]:
        """Move on by `words`; return the state before and after."""
        with self.lock:
            taken = self.state
            # `advance` without its frames; layouts count whole blocks.
            offset = (taken.offset + words) % _MODULUS
            self.state = reserved = PhiloxState(taken.seed, offset)
        return taken, reserved

    def give_back(self, taken: PhiloxState, reserved: PhiloxState) -> None:
        """Undo `take`, unless somebody has taken more since."""
        with self.lock:
            if self.state == reserved:
                self.state = taken

    def place(self) -> Place:
        """Return what `go_back` needs, without the copy of a snapshot."""
        sequence = self.sequence
        return self.state, sequence, 0 if sequence is None else sequence.n_children_spawned

    def go_back(self, place: Place) -> None:
        """Continue as from when `place` was called."""
        state, sequence, spawned = place
        if sequence is not None and sequence.n_children_spawned != spawned:
            sequence = np.random.SeedSequence(
                sequence.entropy,
                spawn_key=sequence.spawn_key,
                pool_size=sequence.pool_size,
                n_children_spawned=spawned,
            )
        with self.lock:
            self.state, self.sequence = state, sequence
