"""`NamedPosition`: a named stream of a tracker, as graphs draw from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from nbrt.random.state import PhiloxState
from nbrt.random.stream_position import StreamPosition

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NamedPosition"]


class _Tracker(Protocol):
    """The part of `RNGStateTracker` that holds the states."""

    def is_forked(self, name: str) -> bool: ...
    def state_of(self, name: str) -> PhiloxState: ...
    def move(self, name: str, state: PhiloxState) -> None: ...


class NamedPosition(StreamPosition):
    """The position of a named stream, whose state the tracker holds.

    Parameters
    ----------
    tracker : RNGStateTracker
        Has the stream.
    name : str
        The name of the stream.
    """

    def __init__(self, tracker: _Tracker, name: str) -> None:
        self._tracker = tracker
        self._name = name
        super().__init__(tracker.state_of(name))

    def defer(self, function: Callable[[], object]) -> None:
        """Call a function before the next use of the state: now, if a block draws from it."""
        super().defer(function)
        if self._tracker.is_forked(self._name):
            function()

    @property
    def _state(self) -> tuple[int, int]:
        return self._tracker.state_of(self._name)

    @_state.setter
    def _state(self, state: tuple[int, int]) -> None:
        self._tracker.move(self._name, PhiloxState(*state))
