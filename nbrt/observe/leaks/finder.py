"""`no_leaks`: allocations of a block of code that are still alive at its end."""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbrt._internal.callsite import CallSite
from nbrt._internal.checks import as_int
from nbrt.errors import ArgumentError, MemoryLeakError
from nbrt.observe.leaks.referrers import ReferrerSearch
from nbrt.runtime.commands import install_hook
from nbrt.runtime.device import interface_of, resolve_device
from nbrt.runtime.memory.functions import allocations
from nbrt.runtime.synchronization import synchronize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nbrt._internal.device import Device
    from nbrt.runtime.commands import Command
    from nbrt.runtime.memory.allocation import Allocation
    from nbrt.runtime.stream import Stream
    from nbrt.typing import DeviceLike

__all__ = ["HeldMemory", "LeakReport", "find_leaks", "live_arrays", "no_leaks"]

_MAX_CALLS = 4
"""Innermost calls of a stack in a report."""

_MAX_SITES = 10
"""Allocation sites in a report."""


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """An allocation that arrays hold, as plain values that keep no array alive.

    Attributes
    ----------
    device : Device
        Device of the memory.
    address : int
        First address.
    nbytes : int
        Bytes requested.
    site : str
        The innermost calls of the allocation in the format of a traceback; empty if not recorded.
    thread : str
        Name of the allocating thread; empty if not recorded.
    holders : tuple of str, or None
        Up to three expressions that reach an array over the memory, each with its location. Empty
        if the garbage collector cannot see the holder, such as a C extension; None without a
        search.
    """

    device: Device
    address: int
    nbytes: int
    site: str = ""
    thread: str = ""
    holders: tuple[str, ...] | None = None


@dataclass(slots=True)
class LeakReport:
    """The leaks of a block, complete at its end; ``str`` returns a text.

    Attributes
    ----------
    leaks : tuple of HeldMemory
        Allocations of the block that are still alive, the largest first.
    cycles : tuple of HeldMemory
        Allocations that only reference cycles kept alive, until the garbage collector ran at the
        end.
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
    """Return the live allocations of a device with their holders, the largest first.

    Searches every object that Python's garbage collector tracks: seconds per million objects.

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
    return list(_with_holders({live: _AllocationSeen(live.site) for live in allocations(device)}))


@contextmanager
def no_leaks(
    device: DeviceLike = None, *, allow: int = 0, collect: bool = True
) -> Iterator[LeakReport]:
    """Raise if memory allocated in a block is still alive at its end.

    Waits at the end for the devices with live allocations. Allocations of all threads count. An
    exception of the block propagates with a note about live allocations.

    Parameters
    ----------
    device : Device, str, int or None
        The device to watch; every device by default.
    allow : int
        Bytes that may stay alive, for caches.
    collect : bool
        Run the garbage collector at the end, so that reference cycles are no leaks.

    Yields
    ------
    report : LeakReport
        Complete at the end of the block.

    Raises
    ------
    MemoryLeakError
        If more is alive. The message has bytes, allocation sites and holders.

    Examples
    --------
    >>> import nbrt
    >>> kept = []
    >>> with no_leaks("cpu:0"):
    ...     kept.append(nbrt.zeros(1000, device="cpu:0"))
    Traceback (most recent call last):
    nbrt.errors.MemoryLeakError: expected no memory to be left, got 4000 bytes in 1 allocation: ...
    """
    if as_int(allow) is None or allow < 0:
        raise ArgumentError(f"expected a number of bytes, 0 or more, got allow={allow!r}")
    with find_leaks(device, collect=collect) as report:
        yield report
    if report.nbytes > allow:
        wanted = f"at most {allow} bytes of memory" if allow else "no memory"
        raise MemoryLeakError(f"expected {wanted} to be left, got {report}", report.leaks)


@contextmanager
def find_leaks(device: DeviceLike = None, *, collect: bool = True) -> Iterator[LeakReport]:
    """Report the leaks of a block without raising; see `no_leaks` for the parameters.

    Examples
    --------
    >>> import nbrt
    >>> with find_leaks("cpu:0") as report:
    ...     x = nbrt.zeros(1000, device="cpu:0")
    >>> report.nbytes, report.leaks[0].holders[0].split(",")[0]
    (4000, 'x')
    """
    log = _AllocationLog(None if device is None else resolve_device(device))
    report = LeakReport()
    with install_hook(log, ("allocate", "free")):
        try:
            yield report
        except BaseException as error:
            alive = log.alive()
            if alive:
                report.leaks = tuple(_held(*item) for item in alive.items())
                error.add_note(
                    f"{_listing(report.leaks)}\nof this, the traceback of the exception may hold "
                    f"a part"
                )
            raise
        alive = log.alive()
        for alive_device in {allocation.device for allocation in alive}:
            synchronize(alive_device)
        alive = log.alive()
        if alive and collect:
            before = {allocation: _held(allocation, seen) for allocation, seen in alive.items()}
            gc.collect()
            alive = log.alive()
            report.cycles = tuple(before[freed] for freed in before.keys() - alive.keys())
        report.leaks = _with_holders(alive)


@dataclass(frozen=True, slots=True)
class _AllocationSeen:
    """Call site and thread of an allocation."""

    site: CallSite | Any
    thread: str = ""


@dataclass(slots=True)
class _AllocationLog:
    """A hook that records the live allocations of a device, or of all devices."""

    device: Device | None
    _alive: dict[Allocation, _AllocationSeen] = field(default_factory=dict)

    def alive(self) -> dict[Allocation, _AllocationSeen]:
        """Return the allocations that arrays hold now."""
        # Processes the frees that came while another thread held the allocator's lock.
        for device in {allocation.device for allocation in tuple(self._alive)}:
            allocations(device)
        return dict(self._alive)

    def before(self, stream: Stream, command: Command) -> None:  # noqa: ARG002
        if command.kind == "free":
            self._alive.pop(command.args[0], None)

    def after(self, stream: Stream, command: Command, result: Any) -> None:
        if command.kind == "allocate" and self.device in (None, stream.device):
            thread = threading.current_thread().name
            self._alive[result] = _AllocationSeen(CallSite.here(), thread)


def _with_holders(alive: Mapping[Allocation, _AllocationSeen]) -> tuple[HeldMemory, ...]:
    """Return allocations with their holders; the largest first."""
    if not alive:
        return ()
    interfaces = {each.device.kind: interface_of(each.device) for each in alive}
    holders = ReferrerSearch(alive, interfaces.values()).run()
    held = [_held(allocation, seen, holders[allocation]) for allocation, seen in alive.items()]
    return tuple(sorted(held, key=lambda memory: -memory.nbytes))


def _held(
    allocation: Allocation, seen: _AllocationSeen, holders: tuple[str, ...] | None = None
) -> HeldMemory:
    site = seen.site.format(_MAX_CALLS) if isinstance(seen.site, CallSite) else ""
    return HeldMemory(
        allocation.device, allocation.address, allocation.requested, site, seen.thread, holders
    )


def _listing(memory: Iterable[HeldMemory]) -> str:
    """Return a text with one paragraph for each allocation site."""
    groups: dict[tuple[str, str], list[HeldMemory]] = {}
    for each in memory:
        groups.setdefault((each.site, each.thread), []).append(each)
    count = sum(map(len, groups.values()))
    total = sum(each.nbytes for group in groups.values() for each in group)
    lines = [f"{total} bytes in {count} allocation{'s' * (count != 1)}:"]
    for (site, thread), group in list(groups.items())[:_MAX_SITES]:
        nbytes = sum(each.nbytes for each in group)
        times = f" in {len(group)} allocations" if len(group) > 1 else ""
        by = f" by thread {thread}" if thread else ""
        lines.append(f"- {nbytes} bytes{times} on {group[0].device}, allocated{by} at")
        lines.append(site or "  a site that was not recorded")
        holders = dict.fromkeys(holder for each in group for holder in each.holders or ())
        lines += [f"  held by {holder}" for holder in list(holders)[:5]]
        if any(each.holders == () for each in group):
            lines.append("  held by an object that Python's garbage collector cannot see")
    if len(groups) > _MAX_SITES:
        lines.append(f"- and at {len(groups) - _MAX_SITES} more sites")
    return "\n".join(lines)
