"""`MemoryUsage`: the memory of one device during a run, and its holders at the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbrt._internal.callsite import CallSite
    from nbrt.observe.history.hooks import Entry
    from nbrt.runtime.memory.allocation import Allocation

__all__ = ["HolderKey", "MemoryUsage", "Samples"]

HolderKey: TypeAlias = "tuple[CallSite | None, tuple[str, ...], int]"
"""Stack of the allocation, names of the active annotations, and stream."""

_MAX_SAMPLES = 2048
"""Points of a timeline: twice as many as are drawn."""

_MIN_HOLDERS_TO_DROP = 4096


class Samples:
    """Allocated and reserved bytes over time, in at most `_MAX_SAMPLES` intervals.

    Every interval has as many changes, and keeps the largest values in it. When there are too many
    intervals, each two become one: the cost of a change is constant, and no peak is lost.

    Attributes
    ----------
    times, allocated, reserved : list of int
        For each interval, the time of its first change in nanoseconds, and the largest values.
    left : int
        Changes that the last interval still takes. A caller may count one down instead of calling
        `add`, if the change is to no more than `top` allocated bytes and the same reserved bytes.
    top : int
        The largest number of allocated bytes in the last interval.
    """

    __slots__ = ("_width", "allocated", "left", "reserved", "times", "top")

    def __init__(self) -> None:
        self.times: list[int] = []
        self.allocated: list[int] = []
        self.reserved: list[int] = []
        self._width = 1
        self.left = self.top = 0

    def add(self, time: int, allocated: int, reserved: int) -> None:
        """Add the values after a change."""
        if self.left:
            self.left -= 1
            if allocated > self.top:
                self.top = self.allocated[-1] = allocated
            if reserved > self.reserved[-1]:
                self.reserved[-1] = reserved
            return
        if len(self.times) == _MAX_SAMPLES:
            self.times = self.times[::2]
            self.allocated = list(map(max, self.allocated[::2], self.allocated[1::2]))
            self.reserved = list(map(max, self.reserved[::2], self.reserved[1::2]))
            self._width *= 2
        self.times.append(time)
        self.allocated.append(allocated)
        self.reserved.append(reserved)
        self.top = allocated
        self.left = self._width - 1


class _Held:
    """The bytes and arrays of one holder: now, and at the peak numbered `peak`.

    The values at the peak are copied when the first change after it comes. So a new peak costs
    nothing, and a change copies the values of at most one holder.
    """

    __slots__ = ("arrays", "nbytes", "peak", "peak_arrays", "peak_nbytes")

    def __init__(self, peak: int) -> None:
        self.nbytes = self.arrays = 0
        self.peak = peak
        self.peak_nbytes = self.peak_arrays = 0

    def keep(self, peak: int) -> None:
        """Copy the values, which are those at the latest peak."""
        self.peak = peak
        self.peak_nbytes = self.nbytes
        self.peak_arrays = self.arrays

    def at(self, peak: int) -> tuple[int, int]:
        """Return bytes and arrays at the latest peak, whose number is `peak`."""
        if self.peak == peak:
            return self.peak_nbytes, self.peak_arrays
        return self.nbytes, self.arrays


class MemoryUsage:
    """The memory of one device: live bytes by holder, peaks, and a timeline.

    Attributes
    ----------
    allocated, reserved : int
        Bytes now.
    peak, peak_reserved : int
        The largest values.
    peak_entry : Entry or None
        The entry of the allocation that made the peak; None: it was at the start.
    peak_label : str
        The work submitted last before the peak.
    peak_numbers : tuple of int
        How often each active annotation had been entered at the peak.
    allocations : int
        Number of allocations.
    samples : Samples
        The values over time.
    """

    __slots__ = (
        "_held",
        "_latest",
        "_live",
        "_max_held",
        "_peaks",
        "allocated",
        "allocations",
        "label",
        "peak",
        "peak_entry",
        "peak_label",
        "peak_numbers",
        "peak_reserved",
        "reserved",
        "samples",
    )

    def __init__(self) -> None:
        self.allocated = self.peak = self.reserved = self.peak_reserved = 0
        self.allocations = 0
        self.peak_entry: Entry | None = None
        self.label = self.peak_label = ""
        self.peak_numbers: tuple[int, ...] = ()
        self.samples = Samples()
        self._peaks = 0
        self._held: dict[HolderKey, _Held] = {}
        self._max_held = _MIN_HOLDERS_TO_DROP
        self._live: dict[int, tuple[_Held, int]] = {}
        # The holder of the latest allocation, and its key: loops allocate at one line.
        self._latest: tuple[_Held, Any, Any, int] = _Held(0), _Held, None, 0

    def begin(
        self, time: int, allocations: Iterable[Allocation], allocated: int, reserved: int
    ) -> None:
        """Count the memory in use before the run.

        `allocated` may be more than the sum of `allocations`: handles of which no array is alive.
        """
        for allocation in allocations:
            held = self._holder((allocation.site, (), 0))
            held.nbytes += allocation.nbytes
            held.arrays += 1
            self._live[allocation.address] = held, allocation.nbytes
        self._peaks = 1
        self.allocated = self.peak = allocated
        self.reserved = self.peak_reserved = reserved
        self.samples.add(time, allocated, reserved)

    def allocate(self, entry: Entry, names: tuple[str, ...], numbers: tuple[int, ...]) -> None:
        """Count an allocation, an entry ``"alloc"`` of a history."""
        nbytes = entry[10]
        site, stream = entry[6], entry[3]
        held, latest_site, latest_names, latest_stream = self._latest
        if site is not latest_site or names is not latest_names or stream != latest_stream:
            key = site, names, stream
            held = self._held.get(key) or self._holder(key)
            self._latest = held, site, names, stream
        peaks = self._peaks
        if held.peak != peaks:
            held.keep(peaks)
        held.nbytes += nbytes
        held.arrays += 1
        self._live[entry[4]] = held, nbytes
        self.allocations += 1
        self.allocated = allocated = self.allocated + nbytes
        if allocated > self.peak:
            self.peak = allocated
            self._peaks = peaks + 1
            self.peak_entry = entry
            self.peak_label = self.label
            self.peak_numbers = numbers
        samples = self.samples
        if samples.left and allocated <= samples.top:
            samples.left -= 1
        else:
            samples.add(entry[1], allocated, self.reserved)

    def allocate_and_free(self, nbytes: int) -> bool:
        """Count an array that was freed at once, and return True; False: it changes more."""
        allocated, samples = self.allocated + nbytes, self.samples
        if allocated > self.peak or allocated > samples.top or samples.left < 2:
            return False
        samples.left -= 2
        self.allocations += 1
        return True

    def free(self, time: int, address: int) -> None:
        """Count a free."""
        found = self._live.pop(address, None)
        if found is None:
            return  # allocated while the record began
        held, nbytes = found
        peaks = self._peaks
        if held.peak != peaks:
            held.keep(peaks)
        held.nbytes -= nbytes
        held.arrays -= 1
        self.allocated -= nbytes
        samples = self.samples
        if samples.left:
            samples.left -= 1
        else:
            samples.add(time, self.allocated, self.reserved)

    def resize(self, time: int, nbytes: int) -> None:
        """Count memory taken from the system, or returned to it if `nbytes` is negative."""
        self.reserved += nbytes
        if self.reserved > self.peak_reserved:
            self.peak_reserved = self.reserved
        self.samples.add(time, self.allocated, self.reserved)

    def at_peak(self) -> list[tuple[HolderKey, int, int]]:
        """Return (holder, bytes, arrays) at the peak."""
        values = ((key, *held.at(self._peaks)) for key, held in list(self._held.items()))
        return [value for value in values if value[1]]

    def _holder(self, key: HolderKey) -> _Held:
        held = self._held.get(key)
        if held is None:
            if len(self._held) >= self._max_held:
                self._drop_idle()
            held = self._held[key] = _Held(self._peaks)
        return held

    def _drop_idle(self) -> None:
        """Drop holders without bytes now and at the peak: annotations may have endless names."""
        self._latest = _Held(0), _Held, None, 0
        self._held = {
            key: held for key, held in self._held.items() if held.arrays or held.at(self._peaks)[1]
        }
        self._max_held = max(_MIN_HOLDERS_TO_DROP, 2 * len(self._held))
