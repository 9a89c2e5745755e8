"""Steps on streams: timed by events, with bytes moved and peak memory."""

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
    """One step that ran.

    Attributes
    ----------
    name, stream : str
        What ran and where.
    start, milliseconds : float
        When it began after the first step, and how long it took, from events.
    nbytes : int
        Bytes that it must at least read and write.
    peak_bytes : int
        Most device memory that arrays held while it was submitted.
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
    """Records steps; times are read once everything is done."""

    def __init__(self, streams: dict[str, Stream]) -> None:
        self.streams = streams
        self._names = {stream.id: name for name, stream in streams.items()}
        self._origin = next(iter(streams.values())).record_event(nbrt.Event(enable_timing=True))
        for stream in streams.values():
            stream.wait_event(self._origin)
        self._open: list[tuple[str, Stream, Event, Event, int, int]] = []

    @contextmanager
    def step(self, name: str, stream: Stream, nbytes: int) -> Iterator[None]:
        """Time what the block submits to `stream`."""
        nbrt.reset_peak_memory_stats(stream.device)
        start = stream.record_event(nbrt.Event(enable_timing=True))
        with nbrt.stream(stream):
            yield
        end = stream.record_event(nbrt.Event(enable_timing=True))
        peak = nbrt.max_memory_allocated(stream.device)
        self._open.append((name, stream, start, end, nbytes, peak))

    def finish(self) -> tuple[DemoStep, ...]:
        """Wait for the streams and return the steps in the order of their submission."""
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
