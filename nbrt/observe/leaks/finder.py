"""`no_leaks`: what a block of code allocated and left behind, and who holds it."""

from __future__ import annotations

import gc
import threading
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbrt._internal.callsite import CallSite
from nbrt.errors import ArgumentError, MemoryLeakError
from nbrt.observe.leaks.referrers import ReferrerSearch
from nbrt.runtime.commands import install_hook
from nbrt.runtime.device import interface_of, resolve_device
from nbrt.runtime.memory.functions import allocations
from nbrt.runtime.stream import synchronize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nbrt._internal.device import Device
    from nbrt.runtime.commands import Command
    from nbrt.runtime.memory.allocation import Allocation
    from nbrt.runtime.stream import Stream
    from nbrt.typing import DeviceLike

__all__ = ["HeldMemory", "LeakReport", "find_leaks", "live_arrays", "no_leaks"]

_MAX_CALLS = 4
"""Innermost calls of a stack that are written out."""

_MAX_SITES = 10
"""Places of allocation that a report writes out."""


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """Memory that arrays hold, as plain values: it keeps none of them alive.

    Attributes
    ----------
    device : Device
        Where it is.
    address : int
        Its first byte.
    nbytes : int
        Bytes asked for.
    site : str
        The innermost calls that led to the allocation, as Python prints a stack; empty if they were
        not taken down.
    thread : str
        The name of the thread that allocated it; empty if it was not taken down.
    holders : tuple of str, or None
        Up to three expressions that reach an array over it, each with where it has a meaning. Empty
        if it is held by what Python's garbage collector cannot see, such as a C extension; None if
        nobody has looked.
    """

    device: Device
    address: int
    nbytes: int
    site: str = ""
    thread: str = ""
    holders: tuple[str, ...] | None = None


@dataclass(slots=True)
class LeakReport:
    """What a block left behind; filled at its end, and readable as text with ``str``.

    Attributes
    ----------
    leaks : tuple of HeldMemory
        What was allocated in the block and is still held, the largest first.
    cycles : tuple of HeldMemory
        What was held by nothing but reference cycles, until the garbage collector ran at the end.
    """

    leaks: tuple[HeldMemory, ...] = ()
    cycles: tuple[HeldMemory, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all leaks."""
        return sum(leak.nbytes for leak in self.leaks)

    def __str__(self) -> str:
        if not self.leaks and not self.cycles:
            return "nothing is left behind"
        text = _listing(self.leaks) if self.leaks else ""
        if self.cycles:
            text += (
                f"\nheld by reference cycles until the garbage collector ran: "
                f"{_listing(self.cycles)}"
            )
        return text.lstrip()


def live_arrays(device: DeviceLike = None) -> list[HeldMemory]:
    """Return what arrays hold on a device now, and by whom they are held; the largest first.

    Looks through every object that Python's garbage collector knows: seconds per million.

    Parameters
    ----------
    device : Device, str, int or None
        The device; the current one by default.

    Examples
    --------
    >>> import nbrt
    >>> weights = {"w": nbrt.zeros(1000, device="cpu:0")}
    >>> [held.nbytes for held in live_arrays("cpu:0") if "weights['w']" in str(held.holders)]
    [4000]
    """
    return list(_described({each: _AllocationSeen(each.site) for each in allocations(device)}))


@contextmanager
def no_leaks(
    device: DeviceLike = None, *, allow: int = 0, collect: bool = True
) -> Iterator[LeakReport]:
    """Raise if memory that is allocated in a block is still held at its end.

    Waits at the end for the devices on which something is left. Allocations of all threads count.
    If the block raises, its exception goes on, with a note about what is left.

    Parameters
    ----------
    device : Device, str, int or None
        The device to watch; every device by default.
    allow : int
        Bytes that may be left, for caches that stay.
    collect : bool
        Run the garbage collector before judging, so that reference cycles are no leaks.

    Yields
    ------
    report : LeakReport
        Filled at the end of the block.

    Raises
    ------
    MemoryLeakError
        If more is left: how much, where it was allocated, and by whom it is held.

    Examples
    --------
    >>> import nbrt
    >>> kept = []
    >>> with no_leaks("cpu:0"):
    ...     kept.append(nbrt.zeros(1000, device="cpu:0"))
    Traceback (most recent call last):
    nbrt.errors.MemoryLeakError: expected no memory to be left, got 4000 bytes in 1 allocation: ...
    """
    if isinstance(allow, bool) or not isinstance(allow, int) or allow < 0:
        raise ArgumentError(f"expected the bytes that may be left, got allow={allow!r}")
    with find_leaks(device, collect=collect) as report:
        yield report
    if report.nbytes > allow:
        wanted = f"at most {allow} bytes of memory" if allow else "no memory"
        raise MemoryLeakError(f"expected {wanted} to be left, got {report}", report.leaks)


@contextmanager
def find_leaks(device: DeviceLike = None, *, collect: bool = True) -> Iterator[LeakReport]:
    """Find out what a block leaves behind, without raising; see `no_leaks` for the parameters.

    Examples
    --------
    >>> import nbrt
    >>> with find_leaks("cpu:0") as report:
    ...     x = nbrt.zeros(1000, device="cpu:0")
    >>> report.nbytes, report.leaks[0].holders[0].split(",")[0]
    (4000, 'x')
    """
    births = _AllocationLog(None if device is None else resolve_device(device))
    report = LeakReport()
    with install_hook(births, ("allocate", "free")):
        try:
            yield report
        except BaseException as error:
            left = births.alive()
            if left:
                report.leaks = tuple(_held(each, birth) for each, birth in left.items())
                error.add_note(
                    f"{_listing(report.leaks)}\nof this, the traceback of the exception may hold "
                    f"a part"
                )
            raise
        left = births.alive()
        for each in {allocation.device for allocation in left}:
            synchronize(each)
        left = births.alive()
        if left and collect:
            described = {each: _held(each, birth) for each, birth in left.items()}
            gc.collect()
            left = births.alive()
            report.cycles = tuple(described[each] for each in described.keys() - left.keys())
        report.leaks = _described(left)


@dataclass(frozen=True, slots=True)
class _AllocationSeen:
    """Where an allocation was made."""

    site: CallSite | Any
    thread: str = ""


@dataclass(slots=True)
class _AllocationLog:
    """A tap that writes down the allocations of a device, or of all, while they are in use."""

    device: Device | None
    _of: dict[Allocation, _AllocationSeen] = field(default_factory=dict)

    def alive(self) -> dict[Allocation, _AllocationSeen]:
        """Return those that arrays hold now."""
        # Ends that came while another thread held the books are read, and so told, here.
        for device in {allocation.device for allocation in tuple(self._of)}:
            allocations(device)
        return dict(self._of)

    def before(self, stream: Stream, command: Command) -> None:  # noqa: ARG002
        if command.kind == "free":
            self._of.pop(command.args[0], None)

    def after(self, stream: Stream, command: Command, result: Any) -> None:
        if command.kind == "allocate" and self.device in (None, stream.device):
            self._of[result] = _AllocationSeen(CallSite.here(), threading.current_thread().name)


def _described(births: Mapping[Allocation, _AllocationSeen]) -> tuple[HeldMemory, ...]:
    """Return what is known of allocations, with their holders; the largest first."""
    if not births:
        return ()
    interfaces = {each.device.kind: interface_of(each.device) for each in births}
    holders = ReferrerSearch(births, interfaces.values()).run()
    held = [_held(each, birth, holders[each]) for each, birth in births.items()]
    return tuple(sorted(held, key=lambda each: -each.nbytes))


def _held(
    allocation: Allocation, birth: _AllocationSeen, holders: tuple[str, ...] | None = None
) -> HeldMemory:
    site = _text_of(birth.site) if isinstance(birth.site, CallSite) else ""
    return HeldMemory(
        allocation.device, allocation.address, allocation.requested, site, birth.thread, holders
    )


def _text_of(site: CallSite) -> str:
    calls = [
        traceback.FrameSummary(call["filename"], call["line"], call["name"])
        for call in reversed(site.frames()[:_MAX_CALLS])
    ]
    return "".join(traceback.format_list(calls)).rstrip()


def _listing(memory: Iterable[HeldMemory]) -> str:
    """Return a text with one paragraph for each place of allocation."""
    places: dict[tuple[str, str], list[HeldMemory]] = {}
    for each in memory:
        places.setdefault((each.site, each.thread), []).append(each)
    count = sum(map(len, places.values()))
    total = sum(each.nbytes for together in places.values() for each in together)
    lines = [f"{total} bytes in {count} allocation{'s' * (count != 1)}:"]
    for (site, thread), together in list(places.items())[:_MAX_SITES]:
        nbytes = sum(each.nbytes for each in together)
        times = f" in {len(together)} allocations" if len(together) > 1 else ""
        by = f" by thread {thread}" if thread else ""
        lines.append(f"- {nbytes} bytes{times} on {together[0].device}, allocated{by} at")
        lines.append(site or "  a place that was not taken down")
        holders = dict.fromkeys(holder for each in together for holder in each.holders or ())
        lines += [f"  held by {holder}" for holder in list(holders)[:5]]
        if any(each.holders == () for each in together):
            lines.append("  held by what Python's garbage collector cannot see")
    if len(places) > _MAX_SITES:
        lines.append(f"- and at {len(places) - _MAX_SITES} more places")
    return "\n".join(lines)
