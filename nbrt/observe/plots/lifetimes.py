"""The lifetime of each allocation in the trace of a memory snapshot."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypeAlias

import numpy as np

from nbrt._internal.device import Device
from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.observe.call_sites import CallSiteTable
from nbrt.observe.snapshot_schema import check_snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbrt.observe.call_sites import Frames

__all__ = [
    "BEFORE",
    "IntArray",
    "Lifetimes",
    "active_blocks",
    "checked_top",
    "device_index",
    "device_name",
    "read_lifetimes",
    "segments_of",
    "trace_of",
]

IntArray: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

BEFORE = -1
"""The site number of allocations before the trace."""


class Lifetimes(NamedTuple):
    """Start and end of each allocation, in points of the trace.

    Point 0 is the state before the first event, point i the state after event i - 1. The arrays
    have one entry for each allocation.

    Attributes
    ----------
    start, stop : ndarray of int64
        First point at which the allocation is alive, and the first point after its life; `points`
        if it is alive at the end.
    nbytes : ndarray of int64
        Bytes requested.
    site : ndarray of int64
        Number of the call site; `BEFORE` for an allocation before the trace.
    sites : CallSiteTable
        The call sites.
    points : int
        Number of points.
    """

    start: IntArray
    stop: IntArray
    nbytes: IntArray
    site: IntArray
    sites: CallSiteTable
    points: int


def device_index(snapshot: Mapping[str, Any], device: int | str | Device) -> int:
    """Check a snapshot, and return the index of a device given by index or name."""
    check_snapshot(snapshot)
    if not isinstance(device, str | Device):
        if isinstance(device, bool) or not isinstance(device, SupportsIndex):
            raise ArgumentTypeError(
                f"expected a device of the snapshot, an index or a name such as 'cpu:0', got "
                f"{device!r} of type {type(device).__name__}"
            )
        return index(device)
    named = Device(device) if isinstance(device, str) else device
    kind = _kind(snapshot)
    if kind not in (None, named.kind):
        raise ArgumentError(f"expected a device of the snapshot's kind {kind!r}, got {named}")
    return named.index


def checked_top(top: int) -> int:
    """Check the argument `top`, a number of call sites."""
    if isinstance(top, bool) or not isinstance(top, SupportsIndex):
        raise ArgumentTypeError(f"expected a number of sites, an int, got top={top!r}")
    if index(top) < 0:
        raise ArgumentError(f"expected a number of sites, 0 or more, got top={top}")
    return index(top)


def trace_of(snapshot: Mapping[str, Any], device: int) -> list[Mapping[str, Any]]:
    """Return the events of one device, oldest first; raise if it is not in the snapshot."""
    traces = snapshot["device_traces"]
    if not 0 <= device < max(len(traces), 1):
        raise ArgumentError(
            f"expected the index of a device in the snapshot, 0 to {len(traces) - 1}, got {device}"
        )
    return list(traces[device]) if traces else []


def device_name(snapshot: Mapping[str, Any], device: int) -> str:
    """Return the name of a device; torch does not store its kind."""
    return f"{_kind(snapshot) or 'device'}:{device}"


def _kind(snapshot: Mapping[str, Any]) -> str | None:
    kind: str | None = (snapshot.get("nbrt") or {}).get("kind")
    return kind


def segments_of(snapshot: Mapping[str, Any], device: int) -> list[Mapping[str, Any]]:
    """Return the segments of one device in address order."""
    own = (each for each in snapshot["segments"] if each.get("device", device) == device)
    return sorted(own, key=lambda segment: segment["address"])


def active_blocks(segment: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the blocks that are in use, or whose free waits for a stream."""
    return [block for block in segment["blocks"] if block["state"].startswith("active")]


def read_lifetimes(snapshot: Mapping[str, Any], device: int = 0) -> Lifetimes:
    """Return the lifetimes of the allocations of a device in a checked snapshot.

    An allocation ends when its free completes or, without that event, when its free is requested.
    """
    trace = trace_of(snapshot, device)
    reader = _TraceReader()
    for point, event in enumerate(trace, 1):
        match event["action"]:
            case "alloc":
                reader.begin(point, event["addr"], event["size"], event.get("frames", ()))
            case "free_requested":
                reader.request(point, event["addr"], event["size"])
            case "free_completed":
                reader.end(point, event["addr"], event["size"])
    alive = {
        block["address"]: block["requested_size"]
        for segment in segments_of(snapshot, device)
        for block in active_blocks(segment)
    }
    reader.finish(alive, len(trace) + 1)
    rows: IntArray = np.array(reader.ended, np.int64).reshape(-1, 4)
    start, stop, nbytes, site = rows.T
    return Lifetimes(start, stop, nbytes, site, reader.sites, len(trace) + 1)


class _TraceReader:
    """Collects the lifetimes of allocations while a trace is read."""

    def __init__(self) -> None:
        self.sites = CallSiteTable()
        self.ended: list[tuple[int, int, int, int]] = []
        self._alive: dict[int, tuple[int, int, int]] = {}
        self._requested: dict[int, int] = {}

    def begin(self, point: int, address: int, nbytes: int, frames: Frames) -> None:
        if address in self._alive:  # the trace lacks its end
            self._end(address, self._requested.get(address, point))
        self._alive[address] = point, nbytes, self.sites.number(frames)

    def request(self, point: int, address: int, nbytes: int) -> None:
        self._alive.setdefault(address, (0, nbytes, BEFORE))
        self._requested[address] = point

    def end(self, point: int, address: int, nbytes: int) -> None:
        self._alive.setdefault(address, (0, nbytes, BEFORE))
        self._end(address, point)

    def _end(self, address: int, stop: int) -> None:
        start, nbytes, site = self._alive.pop(address)
        self._requested.pop(address, None)
        self.ended.append((start, stop, nbytes, site))

    def finish(self, alive: dict[int, int], points: int) -> None:
        """End the trace; `alive` maps the addresses of the snapshot's active blocks to bytes."""
        for address in list(self._alive):
            requested = None if address in alive else self._requested.get(address)
            self._end(address, points if requested is None else requested)
            alive.pop(address, None)
        self.ended += [(0, points, nbytes, BEFORE) for nbytes in alive.values()]
