"""Steps on streams, with times from events, bytes moved and peak memory."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import nbrt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.runtime.event import Event
    from nbrt.runtime.stream import Stream

__all__ = ["DemoStep", "StepTimer"]


@dataclass(frozen=True, slots=True)
class DemoStep:
    """A step of the demo.

    Attributes
    ----------
    name, stream : str
        Names of the step and of its stream.
    start, milliseconds : float
        Start since the first step, and duration, from events.
    nbytes : int
        Bytes that it must read and write.
    peak_bytes : int
        Peak device memory allocated during its submission.
    """

    name: str
    stream: str
    start: float
    milliseconds: float
    nbytes: int
    peak_bytes: int

    @property
    def gigabytes_per_second(self) -> float:
        """Bytes moved per nanosecond."""
        return self.nbytes / self.milliseconds / 1e6 if self.milliseconds > 0 else float("nan")


class StepTimer:
    """A recorder of steps."""

    def __init__(self, streams: dict[str, Stream]) -> None:
        self.streams = streams
        self._names = {stream.id: name for name, stream in streams.items()}
        self._origin = next(iter(streams.values())).record_event(nbrt.Event(enable_timing=True))
        for stream in streams.values():
            stream.wait_event(self._origin)
        self._open: list[tuple[str, Stream, Event, Event, int, int]] = []

    @contextmanager
    def step(self, name: str, stream: Stream, nbytes: int) -> Iterator[None]:
        """Time the work that the block submits to `stream`."""
        nbrt.reset_peak_memory_stats(stream.device)
        start = stream.record_event(nbrt.Event(enable_timing=True))
        with nbrt.stream(stream):
            yield
        end = stream.record_event(nbrt.Event(enable_timing=True))
        peak = nbrt.max_memory_allocated(stream.device)
        self._open.append((name, stream, start, end, nbytes, peak))

    def finish(self) -> tuple[DemoStep, ...]:
        """Wait for the streams; return the steps in order of submission."""
        for stream in self.streams.values():
            stream.synchronize()
        return tuple(
            DemoStep(
                name,
                self._names[stream.id],
                self._origin.elapsed_time(start),
                start.elapsed_time(end),
                nbytes,
                peak,
            )
            for name, stream, start, end, nbytes, peak in self._open
        )
