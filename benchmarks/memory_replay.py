"""The reserved memory and speed of pools on allocation traces of real programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import nbrt
from benchmarks.allocation_traces import all_traces, most_asked_for
from benchmarks.harness import Contender, measure
from benchmarks.pool_policies import CUPY, TORCH, peak_reserved
from benchmarks.report import Report, Sheet, Table, Target
from benchmarks.trace_replay import most_reserved, replay, streams_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.allocation_traces import Event

__all__ = ["fill_replays"]

_KINDS = ("caching", "expandable")
_MIB = 1 << 20
_LEAST = 64 * _MIB
"""Traces that never ask for so much at once say more of the size of a segment than of a pool."""
_QUICK = ("notebook 02_memory", "random mixture")


def fill_replays(report: Report, quick: bool) -> None:
    """Add a sheet of peaks, and the time that each trace takes."""
    traces = all_traces()
    devices = ["cpu:0", *(["cuda:0"] if nbrt.is_available("cuda") else [])]
    columns = ["events", "MiB asked for", *(f"{kind}, {d}" for d in devices for kind in _KINDS)]
    columns += [f"{CUPY.name}, simulated", f"{TORCH.name}, simulated"]
    rows = []
    for name, events in traces.items():
        asked = most_asked_for(events)
        found = [_ratio(events, kind, d, asked) for d in devices for kind in _KINDS]
        others = [peak_reserved(policy, events) / asked for policy in (CUPY, TORCH)]
        rows.append((name, [len(events), asked / _MIB, *found, *others]))
        if asked >= _LEAST:
            for place, device in enumerate(devices):
                text = f"{name}: most reserved over most asked for, expandable on {device}"
                report.targets.append(Target(text, found[2 * place + 1], 1.1, "x"))
    report.sheets.append(Sheet("Most reserved over most asked for at once", columns, rows))
    report.notes.append(
        "The simulated pools never give memory back, as the real ones do not before the device is "
        "full. The ratio is over the bytes asked for, before any rounding. All devices of a "
        "notebook count as one. A trace that asks for less than 64 MiB is listed but no target: "
        "segments are of at least 2 MiB."
    )
    for name in _QUICK if quick else traces:
        report.tables.append(_times(name, traces[name], report))


def _ratio(events: Sequence[Event], kind: str, device: str, asked: int) -> float | None:
    """Return the most bytes reserved over those asked for; None: the device has no such pool."""
    try:
        return most_reserved(events, kind, device) / asked
    except nbrt.errors.NotSupportedError:
        return None


def _times(name: str, events: Sequence[Event], report: Report) -> Table:
    contenders = [
        *(Contender(f"nbrt {kind}", _replayer(events, kind), most=64) for kind in _KINDS),
        Contender("np.empty", _numpy_replayer(events), most=64),
    ]
    rows = measure(contenders, report.options)
    return Table(f"Replay {name}, untouched", rows, "nbrt expandable", items=len(events))


def _replayer(events: Sequence[Event], kind: str) -> Callable[[int], None]:
    streams = streams_for(events, "cpu:0")
    pool = nbrt.MemoryPool("cpu:0", kind)

    def batch(n: int) -> None:
        with nbrt.use_pool(pool):
            for _ in range(n):
                replay(events, streams)

    return batch


def _numpy_replayer(events: Sequence[Event]) -> Callable[[int], None]:
    def batch(n: int) -> None:
        for _ in range(n):
            arrays: dict[int, Any] = {}
            for block, nbytes, _stream in events:
                if nbytes:
                    arrays[block] = np.empty(nbytes, np.uint8)
                else:
                    del arrays[block]

    return batch
