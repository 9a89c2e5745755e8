"""`Statistics`: torch's numbers about memory: current, peak, allocated and freed, of each thing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = ["Statistics"]

_POOLS = ("all", "small_pool", "large_pool")


class _Gauge:
    """A number that goes up and down, the highest it was, and how much it rose and fell in all."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def rise(self, amount: int) -> None:
        self.current += amount
        self.allocated += amount
        self.peak = max(self.peak, self.current)

    def fall(self, amount: int) -> None:
        self.current -= amount
        self.freed += amount

    def reset_peak(self) -> None:
        self.peak = self.current

    def reset_accumulated(self) -> None:
        self.allocated = self.freed = 0

    def copied(self) -> _Gauge:
        copy = _Gauge()
        copy.current, copy.peak = self.current, self.peak
        copy.allocated, copy.freed = self.allocated, self.freed
        return copy

    def items(self) -> Iterator[tuple[str, int]]:
        yield "current", self.current
        yield "peak", self.peak
        yield "allocated", self.allocated
        yield "freed", self.freed


class Tally:
    """What the arrays of one size of pool hold; public fields, since every allocation changes them.

    Only the current values and the rises are kept up to date with each event. The falls follow from
    them, and a peak can only lie where a fall follows a rise: `top` is called there.
    """

    __slots__ = (
        "active_peak",
        "active_peak_bytes",
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
        "reset",
    )

    def __init__(self) -> None:
        self.count = self.bytes = self.requested = 0
        self.made = self.made_bytes = self.made_requested = 0
        self.peak = self.peak_bytes = self.peak_requested = 0
        self.pending = self.pending_bytes = 0
        self.active_peak = self.active_peak_bytes = 0
        # What had been made, what of it was gone, and what waited, when the sums were last reset.
        self.reset = (0, 0, 0, 0, 0, 0, 0, 0)

    def top(self) -> None:
        """Bring the peaks up to date."""
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
        """Start the peaks again from what is in use now."""
        self.peak = self.peak_bytes = self.peak_requested = 0
        self.active_peak = self.active_peak_bytes = 0
        self.top()

    def reset_accumulated(self) -> None:
        """Start the sums of rises and falls again."""
        self.reset = (
            self.made,
            self.made_bytes,
            self.made_requested,
            self.made - self.count,
            self.made_bytes - self.bytes,
            self.made_requested - self.requested,
            self.pending,
            self.pending_bytes,
        )

    def copied(self) -> Tally:
        """Return an equal one."""
        copy = Tally()
        for name in Tally.__slots__:
            setattr(copy, name, getattr(self, name))
        return copy

    def gauges(self) -> dict[str, tuple[int, int, int, int]]:
        """Return (current, peak, allocated, freed) by torch's names."""
        made, made_bytes, made_requested, gone, gone_bytes, gone_requested = self.reset[:6]
        waited, waited_bytes = self.reset[6:]
        rises = self.made - made
        bytes_up = self.made_bytes - made_bytes
        falls = self.made - self.count - gone
        bytes_down = self.made_bytes - self.bytes - gone_bytes
        active, active_bytes = self.count + self.pending, self.bytes + self.pending_bytes
        return {
            "allocated": (self.count, self.peak, rises, falls),
            "allocated_bytes": (self.bytes, self.peak_bytes, bytes_up, bytes_down),
            "active": (
                active,
                max(self.peak, self.active_peak),
                rises,
                falls - self.pending + waited,
            ),
            "active_bytes": (
                active_bytes,
                max(self.peak_bytes, self.active_peak_bytes),
                bytes_up,
                bytes_down - self.pending_bytes + waited_bytes,
            ),
            "requested_bytes": (
                self.requested,
                self.peak_requested,
                self.made_requested - made_requested,
                self.made_requested - self.requested - gone_requested,
            ),
        }


class Statistics:
    """The numbers of a device, or of a pool.

    Attributes
    ----------
    all, small, large : Tally
        What arrays hold.
    retries, ooms, oom_rejections, syncs, device_allocs, device_frees : int
        Allocations tried again with emptied caches; those that failed; those refused by a limit;
        waits for pending frees; segments taken from the system and given back.
    """

    __slots__ = (
        "_segments",
        "_split",
        "all",
        "device_allocs",
        "device_frees",
        "large",
        "oom_rejections",
        "ooms",
        "retries",
        "small",
        "syncs",
    )

    def __init__(self) -> None:
        self.all, self.small, self.large = Tally(), Tally(), Tally()
        self._segments = {pool: (_Gauge(), _Gauge()) for pool in _POOLS}
        self._split = {pool: (_Gauge(), _Gauge()) for pool in _POOLS}
        self.retries = self.ooms = self.oom_rejections = self.syncs = 0
        self.device_allocs = self.device_frees = 0

    def copied(self) -> Statistics:
        """Return equal numbers, which change on their own from now on."""
        copy = Statistics()
        copy.all, copy.small, copy.large = (
            each.copied() for each in (self.all, self.small, self.large)
        )
        for mine, theirs in ((self._segments, copy._segments), (self._split, copy._split)):
            for pool, (count, size) in mine.items():
                theirs[pool] = (count.copied(), size.copied())
        for name in ("retries", "ooms", "oom_rejections", "syncs", "device_allocs", "device_frees"):
            setattr(copy, name, getattr(self, name))
        return copy

    @property
    def reserved(self) -> int:
        """Bytes held from the system, in use and cached."""
        return self._segments["all"][1].current

    @property
    def peak_reserved(self) -> int:
        """The most bytes that were held at once."""
        return self._segments["all"][1].peak

    def count_segment(self, change: int, *, is_small: bool) -> None:
        """Note that a segment was taken from the system (1), or given back (-1)."""
        for pool in ("all", "small_pool" if is_small else "large_pool"):
            _move(self._segments[pool][0], change)
        self.device_allocs += change == 1
        self.device_frees += change == -1

    def move_reserved(self, nbytes: int, *, is_small: bool) -> None:
        """Note that what is held from the system grew, or shrank where `nbytes` is negative."""
        for pool in ("all", "small_pool" if is_small else "large_pool"):
            _move(self._segments[pool][1], nbytes)

    def split_changed(self, found: dict[str, tuple[int, int]]) -> None:
        """Note the free blocks of segments partly in use: (count, bytes) of small and of large."""
        total = [0, 0]
        for pool, (count, size) in found.items():
            for place, value in enumerate((count, size)):
                gauge = self._split[pool][place]
                _move(gauge, value - gauge.current)
                total[place] += value
        for gauge, value in zip(self._split["all"], total, strict=True):
            _move(gauge, value - gauge.current)

    def reset_peaks(self) -> None:
        """Start the peaks again from what is in use now."""
        for tally in (self.all, self.small, self.large):
            tally.reset_peak()
        for gauge in self._gauges():
            gauge.reset_peak()

    def reset_accumulated(self) -> None:
        """Start the sums and the counters again."""
        for tally in (self.all, self.small, self.large):
            tally.reset_accumulated()
        for gauge in self._gauges():
            gauge.reset_accumulated()
        self.retries = self.ooms = self.oom_rejections = self.syncs = 0
        self.device_allocs = self.device_frees = 0

    def as_dict(self) -> dict[str, int]:
        """Return the numbers with torch's keys, sorted."""
        found: dict[str, int] = {
            "num_alloc_retries": self.retries,
            "num_ooms": self.ooms,
            "num_oom_rejections": self.oom_rejections,
            "num_sync_all_streams": self.syncs,
            "num_device_alloc": self.device_allocs,
            "num_device_free": self.device_frees,
        }
        names = ("current", "peak", "allocated", "freed")
        for pool, tally in zip(_POOLS, (self.all, self.small, self.large), strict=True):
            tally.top()
            for stat, values in tally.gauges().items():
                for name, value in zip(names, values, strict=True):
                    found[f"{stat}.{pool}.{name}"] = value
            pairs = (("segment", "reserved_bytes"), self._segments[pool])
            splits = (("inactive_split", "inactive_split_bytes"), self._split[pool])
            for stats, gauges in (pairs, splits):
                for stat, gauge in zip(stats, gauges, strict=True):
                    for name, value in gauge.items():
                        found[f"{stat}.{pool}.{name}"] = value
        return dict(sorted(found.items()))

    def _gauges(self) -> Iterator[_Gauge]:
        for pool in _POOLS:
            yield from self._segments[pool]
            yield from self._split[pool]


def _move(gauge: _Gauge, delta: int) -> None:
    if delta > 0:
        gauge.rise(delta)
    elif delta < 0:
        gauge.fall(-delta)
