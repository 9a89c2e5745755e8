"""A clock for ranks that are processes, for what they do once they have waited for too long.

A rank that has waited for too long gives the others a grace to say where they are, and one that
leaves a failed job a farewell. On a loaded machine no number of seconds is enough for either, so
here they end when what they are for has happened.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from nbrt._internal import clock
from nbrt.distributed.communicators import watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Set

__all__ = ["end_farewell_with", "end_grace_with", "write_whole"]

_LONG = 1e6


class _Clock:
    """Real time, which leaps ahead at every look while a condition holds."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self._is_over = is_over
        self._ahead = 0.0
        self._next = clock.monotonic

    def __call__(self) -> float:
        if self._is_over():
            self._ahead += 2 * _LONG
        return self._next() + self._ahead


def end_grace_with(world: Any, ranks: Set[int]) -> None:
    """Let the grace of a wait of this rank end once these ranks have said where they are."""
    known: Any = world._failure_detector
    watchdog._GRACE = _LONG
    others = ranks - {world.rank}
    # A rank that has told no other yet is still within its timeout.
    clock.monotonic = _Clock(
        lambda: (
            known._point is not None and known._has_announced and others <= known._reported.keys()
        )
    )


def end_farewell_with(world: Any, paths: list[str]) -> None:
    """Let a farewell of this rank end once these files exist; if there are none, never."""
    known: Any = world._failure_detector
    watchdog._SHUTDOWN_GRACE = _LONG
    clock.monotonic = _Clock(
        lambda: known._point is None and bool(paths) and all(map(os.path.exists, paths))
    )


def write_whole(path: str, text: str) -> None:
    """Write a file that is not there before it is complete."""
    with open(f"{path}.part", "w") as file:
        file.write(text)
    os.replace(f"{path}.part", path)
