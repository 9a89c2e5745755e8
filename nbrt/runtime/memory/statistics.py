"""`Statistics`: torch's memory statistics: current, peak, allocated and freed."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nbrt.runtime.memory.segments import SegmentChanges

__all__ = ["Counters", "PeakCounter", "Statistics"]

_POOLS = ("all", "small_pool", "large_pool")
_HOW = ("current", "peak", "allocated", "freed")

Row: TypeAlias = tuple[int, int, int, int]
"""Current, peak, allocated, freed."""

_EVENTS = ("retries", "ooms", "oom_rejections", "syncs", "device_allocs", "device_frees")


@dataclass(slots=True)
class PeakCounter:
    """A number, its peak, and the sums of its increases and decreases."""

    current: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0

    def add(self, change: int) -> None:
        """Add an increase, or a decrease if it is negative."""
        self.current += change
        if change > 0:
            self.allocated += change
            self.peak = max(self.peak, self.current)
        else:
            self.freed -= change


class Counters:
    """Counts of allocated blocks, and of blocks whose free is pending, of one size of pool.

    The event log writes the public fields directly: every allocation changes them. Each event
    updates the current values and the totals only. The sums of the frees follow from them. A peak
    can only lie where a free follows an allocation; `update_peaks` is called there.
    """

    __slots__ = (
        "active_peak",
        "active_peak_bytes",
        "baseline",
        "bytes",
        "count",
        "made",
        "made_bytes",
        "made_requested",
        "peak",
        "peak_bytes",
        "peak_requested",
        "pending",
        "pending_bytes",
        "requested",
    )

    def __init__(self) -> None:
        self.count = self.bytes = self.requested = 0
        self.made = self.made_bytes = self.made_requested = 0
        self.peak = self.peak_bytes = self.peak_requested = 0
        self.pending = self.pending_bytes = 0
        self.active_peak = self.active_peak_bytes = 0
        # The values when the accumulated sums were last reset.
        self.baseline: Counters | None = None

    def update_peaks(self) -> None:
        """Raise the peaks to the current values."""
        if self.count > self.peak:
            self.peak = self.count
        if self.bytes > self.peak_bytes:
            self.peak_bytes = self.bytes
        if self.requested > self.peak_requested:
            self.peak_requested = self.requested
        if self.pending:
            self.active_peak = max(self.active_peak, self.count + self.pending)
            self.active_peak_bytes = max(self.active_peak_bytes, self.bytes + self.pending_bytes)

    def reset_peak(self) -> None:
        """Set the peaks to the current values."""
        self.peak = self.peak_bytes = self.peak_requested = 0
        self.active_peak = self.active_peak_bytes = 0
        self.update_peaks()

    def reset_accumulated(self) -> None:
        """Set the sums of allocations and frees to 0."""
        self.baseline = None
        self.baseline = copy.copy(self)

    def values(self) -> dict[str, Row]:
        """Return (current, peak, allocated, freed) by torch's names."""
        base = self.baseline or _ZERO

        def row(now: int, then: int, made: int, made_then: int, peak: int) -> Row:
            return now, peak, made - made_then, (made - now) - (made_then - then)

        return {
            "allocated": row(self.count, base.count, self.made, base.made, self.peak),
            "allocated_bytes": row(
                self.bytes, base.bytes, self.made_bytes, base.made_bytes, self.peak_bytes
            ),
            "active": row(
                self.count + self.pending,
                base.count + base.pending,
                self.made,
                base.made,
                max(self.peak, self.active_peak),
            ),
            "active_bytes": row(
                self.bytes + self.pending_bytes,
                base.bytes + base.pending_bytes,
                self.made_bytes,
                base.made_bytes,
                max(self.peak_bytes, self.active_peak_bytes),
            ),
            "requested_bytes": row(
                self.requested,
                base.requested,
                self.made_requested,
                base.made_requested,
                self.peak_requested,
            ),
        }


_ZERO = Counters()


class Statistics:
    """The memory statistics of a device or of a pool.

    Attributes
    ----------
    all, small, large : Counters
        Allocated blocks.
    retries, ooms, oom_rejections, syncs, device_allocs, device_frees : int
        Allocations that were retried with empty caches, that failed, and that a limit refused;
        waits for pending frees; segments taken from the system and returned to it.
    """

    __slots__ = ("_segments", "_split", "all", "large", "small", *_EVENTS)

    retries: int
    ooms: int
    oom_rejections: int
    syncs: int
    device_allocs: int
    device_frees: int

    def __init__(self) -> None:
        self.all, self.small, self.large = Counters(), Counters(), Counters()
        # Count and bytes, by pool.
        self._segments = {pool: (PeakCounter(), PeakCounter()) for pool in _POOLS}
        self._split = {pool: (PeakCounter(), PeakCounter()) for pool in _POOLS}
        for name in _EVENTS:
            setattr(self, name, 0)

    def copied(self) -> Statistics:
        """Return an independent copy."""
        return copy.deepcopy(self)

    @property
    def reserved(self) -> int:
        """Bytes held from the system, in use and cached."""
        return self._segments["all"][1].current

    def usage(self) -> tuple[int, int]:
        """Return the allocated bytes and the reserved bytes."""
        return self.all.bytes, self.reserved

    @property
    def peak_reserved(self) -> int:
        """The peak of `reserved`."""
        return self._segments["all"][1].peak

    def count_changes(self, changes: SegmentChanges) -> None:
        """Count segments that were taken from the system or returned to it."""
        for sign, infos in ((-1, changes.released), (1, changes.reserved)):
            for info in infos:
                for pool in ("all", "small_pool" if info.is_small else "large_pool"):
                    self._segments[pool][1].add(sign * info.nbytes)
        for sign, infos in ((-1, changes.removed), (1, changes.added)):
            for info in infos:
                for pool in ("all", "small_pool" if info.is_small else "large_pool"):
                    self._segments[pool][0].add(sign)
        self.device_allocs += len(changes.added)
        self.device_frees += len(changes.removed)

    def split_changed(self, split: Mapping[str, tuple[int, int]]) -> None:
        """Set (count, bytes) of the free blocks in segments partly in use, by pool."""
        totals = [sum(values) for values in zip(*split.values(), strict=True)]
        for pool, values in {**split, "all": tuple(totals)}.items():
            for counter, value in zip(self._split[pool], values, strict=True):
                counter.add(value - counter.current)

    def reset_peaks(self) -> None:
        """Set the peaks to the current values."""
        for counters in (self.all, self.small, self.large):
            counters.reset_peak()
        for counter in self._peak_counters():
            counter.peak = counter.current

    def reset_accumulated(self) -> None:
        """Set the accumulated sums and the event counters to 0."""
        for counters in (self.all, self.small, self.large):
            counters.reset_accumulated()
        for counter in self._peak_counters():
            counter.allocated = counter.freed = 0
        for name in _EVENTS:
            setattr(self, name, 0)

    def as_dict(self) -> dict[str, int]:
        """Return the statistics with torch's keys, sorted."""
        values: dict[str, int] = {
            "num_alloc_retries": self.retries,
            "num_ooms": self.ooms,
            "num_oom_rejections": self.oom_rejections,
            "num_sync_all_streams": self.syncs,
            "num_device_alloc": self.device_allocs,
            "num_device_free": self.device_frees,
        }
        for pool, counters in zip(_POOLS, (self.all, self.small, self.large), strict=True):
            counters.update_peaks()
            rows = counters.values()
            names = ("segment", "reserved_bytes", "inactive_split", "inactive_split_bytes")
            for stat, counter in zip(
                names, (*self._segments[pool], *self._split[pool]), strict=True
            ):
                rows[stat] = (counter.current, counter.peak, counter.allocated, counter.freed)
            for stat, row in rows.items():
                for how, value in zip(_HOW, row, strict=True):
                    values[f"{stat}.{pool}.{how}"] = value
        return dict(sorted(values.items()))

    def _peak_counters(self) -> Iterator[PeakCounter]:
        for pool in _POOLS:
            yield from self._segments[pool]
            yield from self._split[pool]
