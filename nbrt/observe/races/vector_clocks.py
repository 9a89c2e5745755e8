"""`VectorClocks`: which work is ordered before which, from what was recorded and waited for.

Vector clocks (Fidge 1988, Mattern 1989): every stream counts its commands, and knows of every other
stream up to which command it comes after it. The host has a clock too: work waited for on the host
is ordered before all that is submitted from then on.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["VectorClocks"]

Key = TypeVar("Key", bound=Hashable)


class VectorClocks(Generic[Key]):
    """The clocks of all streams, of recorded events, and of the host.

    The threads of the host share one clock: what orders them among themselves is not seen, so they
    count as ordered. That can hide a race between threads, and never makes one up.

    Streams are named by any hashable value, events by weakly referable ones.

    Examples
    --------
    >>> clocks: VectorClocks[str] = VectorClocks()
    >>> step = clocks.advance("first")
    >>> clocks.is_ordered("first", step, before="second")
    False
    >>> class Mark:
    ...     pass
    >>> mark = Mark()
    >>> clocks.record("first", mark)
    >>> clocks.wait("second", mark)
    >>> clocks.is_ordered("first", step, before="second")
    True
    """

    def __init__(self) -> None:
        # Each maps streams to the last of their commands that is known to be done.
        self._host: dict[Key, int] = {}
        self._streams: dict[Key, dict[Key, int]] = {}
        self._events: weakref.WeakKeyDictionary[object, dict[Key, int]]
        self._events = weakref.WeakKeyDictionary()

    @property
    def streams(self) -> list[Key]:
        """The streams that were given something."""
        return list(self._streams)

    def now(self, stream: Key) -> int:
        """Return the number of the last command of a stream; 0 before the first."""
        return self._streams.get(stream, {}).get(stream, 0)

    def advance(self, stream: Key) -> int:
        """Give a stream one more command, behind all that the host has waited for; its number."""
        clock = self._streams.setdefault(stream, {})
        _join(clock, self._host)
        step = clock[stream] = clock.get(stream, 0) + 1
        return step

    def record(self, stream: Key, event: object) -> None:
        """Mark the end of what a stream has so far."""
        self.advance(stream)
        self._events[event] = dict(self._streams[stream])

    def wait(self, stream: Key, event: object) -> None:
        """Order what a stream gets from now on behind an event; nothing if it is not recorded."""
        self.advance(stream)
        _join(self._streams[stream], self._events.get(event, {}))

    def host_waits_for_stream(self, stream: Key) -> None:
        """Order all that is submitted from now on behind what a stream has so far."""
        _join(self._host, self._streams.get(stream, {}))

    def host_waits_for_event(self, event: object) -> None:
        """Order all that is submitted from now on behind an event."""
        _join(self._host, self._events.get(event, {}))

    def is_ordered(self, stream: Key, step: int, *, before: Key) -> bool:
        """Return whether a command of a stream is done before what another one is given now."""
        if self.is_settled(stream, step):
            return True
        return self._streams.get(before, {}).get(stream, 0) >= step

    def is_settled(self, stream: Key, step: int) -> bool:
        """Return whether the host has waited for a command: then it is before all that comes."""
        return self._host.get(stream, 0) >= step


def _join(clock: dict[Key, int], other: dict[Key, int]) -> None:
    for stream, step in other.items():
        if clock.get(stream, 0) < step:
            clock[stream] = step
