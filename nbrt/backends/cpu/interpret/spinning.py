"""Detection of interpreted threads that spin: they read the same memory until it changes."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["Reads", "line_of", "state_of", "watch"]

_MAX_REPEATS = 64
"""Consecutive reads without a new value; after them the thread yields at each read."""

_MAX_READS = 1024
"""Reads before the thread yields in any case: it may count its attempts in memory."""

_MAX_KNOWN = 64
"""Elements with a remembered value: a loop that waits reads few."""

_HERE = str(Path(__file__).parent)
_MISSING = object()


class _Watch(threading.local):
    """The reads of the thread of the grid that the OS thread runs; None outside of kernels."""

    reads: Reads | None = None


watch = _Watch()


class Reads:
    """The recent reads of one thread from memory that others may write.

    `on_spin` lets other threads of the grid run. `has_changed` and `has_news` are whether the
    thread has changed memory, or read a new value, since it last waited.
    """

    def __init__(self, on_spin: Callable[[], object]) -> None:
        self._on_spin = on_spin
        self._known: dict[Any, Any] = {}
        self._states: dict[Any, Any] = {}
        self._repeats = self._count = 0
        self.has_changed = self.has_news = False

    def note(self, place: Any, value: Any) -> None:
        """Record a read; yield if it belongs to a loop that waits."""
        self._count += 1
        try:
            before = self._known.get(place, _MISSING)
        except TypeError:  # a slice is no key
            return
        if before is not _MISSING and before == value:
            self._repeats += 1
        else:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[place] = value
            self._repeats, self.has_news = 0, True
        if self._repeats >= _MAX_REPEATS or self._count >= _MAX_READS:
            self._count = 0
            self._on_spin()

    def made_progress(self) -> bool:
        """Return whether the thread has made progress since it last waited."""
        place, variables = state_of()
        has_progress = self.has_changed or self.has_news or self._states.get(place) != variables
        self._states[place] = variables
        self.has_changed = self.has_news = False
        return has_progress


def _own_frames(frame: FrameType | None) -> list[FrameType]:
    """Return the frames of the kernel and its callees, innermost first."""
    frames: list[FrameType] = []
    while frame is not None:
        is_ours = frame.f_code.co_filename.startswith(_HERE)
        if is_ours and frames and frame.f_code.co_name == "_execute":
            break
        if not is_ours:
            frames.append(frame)
        frame = frame.f_back
    return frames


def line_of() -> str:
    """Return the current place of the thread, as ``FILE:LINE``."""
    frames = _own_frames(sys._getframe(1))
    return f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else "an unknown place"


def state_of() -> tuple[Any, Any]:
    """Return the state of the thread besides memory: its place and variables."""
    frames = _own_frames(sys._getframe(1))
    place = tuple((frame.f_code, frame.f_lasti) for frame in frames)
    variables = [{name: _fixed(v) for name, v in frame.f_locals.items()} for frame in frames]
    return place, variables


def _fixed(value: Any) -> Any:
    """Return a comparable value: numbers themselves, other objects by identity."""
    if isinstance(value, (np.generic, int, float, complex, str)):
        return value
    return id(value)
