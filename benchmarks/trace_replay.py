"""Replay an allocation trace in pools of nbrt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import nbrt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.allocation_traces import Event

__all__ = ["most_reserved", "replay", "streams_for"]

_BYTE = np.dtype(np.uint8)


def streams_for(events: Sequence[Event], device: str) -> list[nbrt.Stream]:
    """Return a stream of a device for each one of a trace."""
    count = 1 + max((event.stream for event in events), default=0)
    return [nbrt.default_stream(device), *(nbrt.Stream(device) for _ in range(count - 1))]


def replay(events: Sequence[Event], streams: Sequence[nbrt.Stream]) -> None:
    """Allocate and free, from the current pool of the streams' device."""
    empty = nbrt.empty
    arrays: dict[int, Any] = {}
    for block, nbytes, stream in events:
        if nbytes:
            arrays[block] = empty(nbytes, _BYTE, stream=streams[stream])
        else:
            del arrays[block]


def most_reserved(events: Sequence[Event], kind: str, device: str = "cpu:0") -> int:
    """Return the most bytes that a new pool holds from the system while a trace is replayed."""
    streams = streams_for(events, device)
    arrays: dict[int, Any] = {}
    most = 0
    with nbrt.MemoryPool(device, kind) as pool, nbrt.use_pool(pool):
        for block, nbytes, stream in events:
            if nbytes:
                arrays[block] = nbrt.empty(nbytes, _BYTE, stream=streams[stream])
                most = max(most, pool.memory_reserved())
            else:
                del arrays[block]
        arrays.clear()
    return most
