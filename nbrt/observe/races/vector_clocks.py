"""`VectorClocks`: the order of the work on streams, from recorded and awaited events.

Vector clocks (Fidge 1988, Mattern 1989): a stream counts its commands and stores, for every other
stream, the latest command that precedes its own work. The host has a clock too: work that it waited
for precedes everything submitted later.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["VectorClocks"]

Key = TypeVar("Key", bound=Hashable)


class VectorClocks(Generic[Key]):
    """The clocks of streams, recorded events and the host.

    All host threads share one clock, because their synchronization is invisible. Therefore races
    between threads can be missed, but are never reported wrongly.

    Streams are hashable values, events weakly referable objects.

    Examples
    --------
    >>> clocks: VectorClocks[str] = VectorClocks()
    >>> step = clocks.advance("first")
    >>> clocks.is_ordered("first", step, before="second")
    False
    >>> class Event:
    ...     pass
    >>> event = Event()
    >>> clocks.record("first", event)
    >>> clocks.wait("second", event)
    >>> clocks.is_ordered("first", step, before="second")
    True
    """

    def __init__(self) -> None:
        # Each clock maps streams to the last of their commands that precedes its later work.
        self._host: dict[Key, int] = {}
        self._streams: dict[Key, dict[Key, int]] = {}
        self._events: weakref.WeakKeyDictionary[object, dict[Key, int]]
        self._events = weakref.WeakKeyDictionary()

    @property
    def streams(self) -> list[Key]:
        """The streams with commands."""
        return list(self._streams)

    def now(self, stream: Key) -> int:
        """Return the number of the last command of a stream; 0 before the first."""
        return self._streams.get(stream, {}).get(stream, 0)

    def advance(self, stream: Key) -> int:
        """Append a command to a stream, after all work awaited by the host; return its number."""
        clock = self._streams.setdefault(stream, {})
        _join(clock, self._host)
        step = clock[stream] = clock.get(stream, 0) + 1
        return step

    def record(self, stream: Key, event: object) -> None:
        """Record an event after the commands of a stream."""
        self.advance(stream)
        self._events[event] = dict(self._streams[stream])

    def wait(self, stream: Key, event: object) -> None:
        """Order later commands of a stream after an event; an unrecorded event orders nothing."""
        self.advance(stream)
        _join(self._streams[stream], self._events.get(event, {}))

    def host_waits_for_stream(self, stream: Key) -> None:
        """Order all later commands after the commands of a stream."""
        _join(self._host, self._streams.get(stream, {}))

    def host_waits_for_event(self, event: object) -> None:
        """Order all later commands after an event."""
        _join(self._host, self._events.get(event, {}))

    def is_ordered(self, stream: Key, step: int, *, before: Key) -> bool:
        """Return whether a command precedes the next command of the stream `before`."""
        if self.is_settled(stream, step):
            return True
        return self._streams.get(before, {}).get(stream, 0) >= step

    def is_settled(self, stream: Key, step: int) -> bool:
        """Return whether the host waited for a command, so that it precedes all later ones."""
        return self._host.get(stream, 0) >= step


def _join(clock: dict[Key, int], other: dict[Key, int]) -> None:
    for stream, step in other.items():
        if clock.get(stream, 0) < step:
            clock[stream] = step
