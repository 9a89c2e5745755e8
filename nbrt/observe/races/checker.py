"""`check_races`: finds uses of memory after its free, and unordered uses by several streams."""

from __future__ import annotations

import threading
import warnings
from collections import defaultdict, deque
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np

from nbrt._internal.callsite import CallSite
from nbrt.backends import registry
from nbrt.backends.pools import SegmentInfo
from nbrt.errors import ArgumentError, MemoryRaceError, MemoryRaceWarning
from nbrt.graphs.hooks import check_captures
from nbrt.observe.races.access_modes import argument_access_modes
from nbrt.observe.races.footprint import arrays_in, footprint_of
from nbrt.observe.races.graph_races import graph_races
from nbrt.observe.races.poison import Poisoner
from nbrt.observe.races.reports import report_damage
from nbrt.observe.races.shadow_blocks import MemoryAccess, ShadowBlock, StreamKey, StreamName
from nbrt.observe.races.shadow_memory import ShadowMemory
from nbrt.runtime.commands import install_hook
from nbrt.runtime.device import lookup
from nbrt.runtime.memory.allocation import Allocation
from nbrt.runtime.memory.registry import allocator_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
    from typing import Any

    from nbrt._internal.device import Device
    from nbrt.graphs.graph import Graph
    from nbrt.observe.races.footprint import Footprint
    from nbrt.observe.races.reports import MemoryRaceReport
    from nbrt.observe.races.shadow_blocks import AccessMode, BlockRange
    from nbrt.runtime.commands import Command, RuntimeEvent
    from nbrt.runtime.memory.device_allocator import DeviceAllocator
    from nbrt.runtime.stream import Stream
    from nbrt.typing import DeviceLike

__all__ = ["RaceAction", "RaceChecker", "check_races"]

RaceAction: TypeAlias = Literal["raise", "warn", "collect"]

_MODES: dict[str, Sequence[AccessMode]] = {
    "copy": ("writes", "reads"),
    "fill": ("writes",),
    "draw": ("writes",),
    "launch": (),
    "call": (),
    "collective": (),
}
"""The commands that access arrays, with the known modes of their first arguments."""

# A successful query orders like a wait.
_STREAM_WAITS = frozenset({"stream_sync", "stream_query"})
_EVENT_WAITS = frozenset({"event_sync", "event_query"})

_MAX_RECENT = 8
"""Commands of a stream that a report about overwritten memory can name."""


class RaceChecker:
    """A command hook that checks every access to memory; created by `check_races`.

    It sees the commands of nbrt, but not: accesses by the host, kernels and synchronization of
    other libraries, host arrays that nbrt did not allocate, earlier commands. Threads of the host
    count as ordered. The source of a kernel determines the modes of its arguments
    (`argument_access_modes`); an argument of unknown mode counts as written, unless it is a
    read-only NumPy array. The bytes of strided views are exact. The checker stores the last 64
    distinct accesses of a block.

    Attributes
    ----------
    reports : list of MemoryRaceReport
        The faults in the order of their detection; one report for the same call sites.
    action : str
        The reaction to a fault: ``"raise"``, ``"warn"`` or ``"collect"``.
    """

    def __init__(self, device: Device | None, poisoner: Poisoner, action: RaceAction) -> None:
        self.reports: list[MemoryRaceReport] = []
        self._device = device
        self._poisoner = poisoner
        self.action = action
        self._shadow = ShadowMemory()
        self._allocators: set[DeviceAllocator] = set()
        self._recent: dict[Hashable, deque[tuple[int, str]]] = defaultdict(
            lambda: deque(maxlen=_MAX_RECENT)
        )
        self._reported: set[tuple[object, ...]] = set()
        self._damage: list[MemoryRaceReport] = []
        self._lock = threading.Lock()
        self._lock_owner = 0
        self._postponed: deque[Callable[[], object]] = deque()
        # The accesses of a thread's last command, by its id: the command would keep arrays alive.
        self._checked = threading.local()

    # -- hooks -------------------------------------------------------------------------------------

    def before(self, stream: Stream, command: Command) -> None:
        """Check the accesses of a command; record a free."""
        if command.kind in _MODES:
            site = CallSite.here(depth=1)
            reports: list[MemoryRaceReport] = []
            self._run_serialized(partial(self._check, stream, command, site, reports))
            self._announce(reports)
        elif command.kind == "free":
            allocation = command.args[0]
            if self._watches(allocation):
                self._run_serialized(partial(self._free, allocation, CallSite.here(depth=1)))
        elif command.kind == "allocate":
            # The newest free block is reused first, which exposes races for it.
            for allocator in tuple(self._allocators):
                allocator.process_log()

    def after(self, stream: Stream, command: Command, result: object) -> None:
        """Record an accepted command."""
        if command.kind in _MODES:
            self._run_serialized(partial(self._record, stream, command))
        elif command.kind == "allocate":
            if isinstance(result, Allocation) and self._watches(result):
                site = CallSite.here(depth=1)
                self._run_serialized(partial(self._allocate, result, _name(stream), site))
        elif command.kind in ("record", "wait"):
            clocks = self._shadow.clocks
            order = clocks.record if command.kind == "record" else clocks.wait
            self._run_serialized(partial(order, _name(stream).key, command.subject))

    def on_event(self, event: RuntimeEvent) -> None:
        """Order later work after a wait of the host; poison memory that is no longer in use."""
        clocks, subject = self._shadow.clocks, event.subject
        if event.kind in _STREAM_WAITS and event.stream is not None:
            self._run_serialized(partial(clocks.host_waits_for_stream, _name(event.stream).key))
        elif event.kind in _EVENT_WAITS:
            self._run_serialized(partial(clocks.host_waits_for_event, subject))
        elif event.kind == "device_sync":
            self._run_serialized(partial(self._wait_for_device, event.device))
        elif event.kind in ("segment_alloc", "segment_free"):
            self._run_serialized(partial(self._drop_released, event))
        elif (
            event.kind == "free_completed"
            and isinstance(subject, Allocation)
            and self._watches(subject)
        ):
            spans = self._poisoner.fill(subject)
            self._run_serialized(partial(self._set_poisoned, subject, spans))

    def check_graph(self, graph: Graph) -> None:
        """Check a graph at the end of its capture."""
        if self._device is None or self._device == graph.device:
            self._announce(graph_races(graph))

    def finish(self) -> list[MemoryRaceReport]:
        """Check the remaining poison; return the reports of overwritten memory."""
        with ExitStack() as stack:
            # No pool may release memory during the check.
            for allocator in sorted(self._allocators, key=lambda each: str(each.device)):
                stack.enter_context(allocator.lock)
            self._run_serialized(self._check_poison)
        return self._damage

    # -- under the lock ----------------------------------------------------------------------------

    def _run_serialized(self, step: Callable[[], object]) -> None:
        """Run a step under the lock.

        A finalizer may free an array during a step of the same thread: its step runs afterwards.
        """
        if self._lock_owner == threading.get_ident():
            self._postponed.append(step)
            return
        with self._lock:
            self._lock_owner = threading.get_ident()
            try:
                step()
                while self._postponed:
                    self._postponed.popleft()()
            finally:
                self._lock_owner = 0

    def _check(
        self, stream: Stream, command: Command, site: CallSite, reports: list[MemoryRaceReport]
    ) -> None:
        accesses = self._accesses(stream, command, site)
        self._checked.last = id(command), accesses
        checked = map(self._shadow.check, accesses)
        reports += [report for report in checked if report is not None]

    def _record(self, stream: Stream, command: Command) -> None:
        number, accesses = getattr(self._checked, "last", (0, []))
        if number != id(command):  # the command has submitted further commands
            accesses = self._accesses(stream, command, CallSite.here(depth=3))
        key = _name(stream).key
        step = self._shadow.clocks.advance(key)
        self._recent[key].append((step, _label(command)))
        for access in accesses:
            if not access.block.is_freed:
                access.step = step
                self._shadow.record(access)

    def _accesses(self, stream: Stream, command: Command, site: CallSite) -> list[MemoryAccess]:
        name, label = _name(stream), _label(command)
        accesses: list[MemoryAccess] = []
        for mode, array in _arrays(command):
            footprint = footprint_of(array)
            if footprint is not None:
                owner = _owner_of(array)
                # The runtime records these arrays, see `nbrt.memory.record_stream`.
                is_recorded = owner is not None and any(array is arg for arg in command.args)
                accesses += [
                    MemoryAccess(
                        mode, footprint, block, label, name, site, is_recorded,
                        is_launch=command.kind == "launch",
                    )
                    for block in self._blocks(array, owner, footprint)
                ]  # fmt: skip
        return accesses

    def _blocks(
        self, array: Any, owner: Allocation | None, footprint: Footprint
    ) -> list[ShadowBlock]:
        if owner is not None:
            return [self._block_of(owner)] if self._watches(owner) else []
        begin, end = footprint.begin, footprint.end
        blocks = [block for _, _, block in self._shadow.map.find(begin, end)]
        if any(block.is_freed for block in blocks) and _owns_its_memory(array):
            # NumPy owns the memory now: the pool had released it to the system.
            self._shadow.map.cut(begin, end)
            return []
        return blocks

    def _block_of(self, allocation: Allocation) -> ShadowBlock:
        """Return the block of an allocation; a new one if the allocation preceded the checker."""
        begin = allocation.address
        for low, _, block in self._shadow.map.find(begin, begin + allocation.nbytes):
            if low == block.address == begin and not block.is_freed:
                return block
        site = allocation.site if isinstance(allocation.site, CallSite) else None
        stream = allocation.stream
        unknown = StreamName(StreamKey(allocation.device, None), "an unknown stream")
        block = self._new_block(allocation, unknown if stream is None else _name(stream), site)
        self._shadow.map.insert(block)
        return block

    def _new_block(
        self, allocation: Allocation, name: StreamName, site: CallSite | None
    ) -> ShadowBlock:
        allocator = allocator_of(allocation)
        if allocator is not None:
            self._allocators.add(allocator)
        return ShadowBlock(allocation.device, allocation.address, allocation.nbytes, name, site)

    def _allocate(self, allocation: Allocation, name: StreamName, site: CallSite) -> None:
        reused = self._shadow.allocate(self._new_block(allocation, name, site))
        self._report_damage(self._overwritten(reused))

    def _free(self, allocation: Allocation, site: CallSite) -> None:
        passed = [_name(stream).key for stream in allocation.recorded or ()]
        self._shadow.free(self._block_of(allocation), site, passed)

    def _set_poisoned(self, allocation: Allocation, spans: tuple[tuple[int, int], ...]) -> None:
        begin = allocation.address
        for _, _, block in self._shadow.map.find(begin, begin + allocation.nbytes):
            block.poisoned = spans

    def _wait_for_device(self, device: Device) -> None:
        for key in self._shadow.clocks.streams:
            if key.device == device:
                self._shadow.clocks.host_waits_for_stream(key)

    def _drop_released(self, event: RuntimeEvent) -> None:
        """Drop freed blocks whose memory a pool may have released, and perhaps reserved again."""
        info = event.subject
        assert isinstance(info, SegmentInfo)
        # A segment that grows or shrinks in place keeps the rest of its memory.
        is_whole = info.nbytes == event.nbytes
        reserved = [
            (segment.address, segment.address + segment.nbytes)
            for allocator in self._allocators
            for pool in allocator.pools
            for segment in pool.segments_seen.values()
            if allocator.device == event.device
        ]
        for begin, end, block in self._shadow.map:
            if block.device == event.device and block.is_freed:
                is_reserved = any(low <= begin and end <= high for low, high in reserved)
                is_inside = begin < info.address + info.nbytes and info.address < end
                if not is_reserved or (is_whole and is_inside):
                    self._shadow.map.cut(begin, end)

    def _check_poison(self) -> None:
        overwritten = self._overwritten(list(self._shadow.map))
        # An allocation that was under way when the checker was installed has passed no hook. Read
        # the allocations last: a thread writes to a block only after its allocation.
        in_use = [
            range(allocation.address, allocation.address + allocation.nbytes)
            for allocator in self._allocators
            for pool in allocator.pools
            for allocation in list(pool.allocations)
            if allocation.free_record is not None
        ]
        self._report_damage(
            (block, address)
            for block, address in overwritten
            if not any(address in addresses for addresses in in_use)
        )

    def _overwritten(self, ranges: list[BlockRange]) -> list[tuple[ShadowBlock, int]]:
        """Return the blocks whose poison was overwritten, with the first address of each."""
        changes = (
            (block, self._poisoner.first_change(block, begin, end)) for begin, end, block in ranges
        )
        return [(block, address) for block, address in changes if address is not None]

    def _report_damage(self, overwritten: Iterable[tuple[ShadowBlock, int]]) -> None:
        for block, address in overwritten:
            recent = self._recent[block.stream.key]
            since = [label for step, label in recent if step > block.freed_at]
            report = report_damage(block, address, since)
            self._damage.append(report)
            self._is_new(report)

    def _watches(self, allocation: Allocation) -> bool:
        return self._device is None or allocation.device == self._device

    # -- reports -----------------------------------------------------------------------------------

    def _announce(self, reports: list[MemoryRaceReport]) -> None:
        new = [report for report in reports if self._is_new(report)]
        if reports and self.action == "raise":
            raise MemoryRaceError("\n".join(map(str, reports)), tuple(reports))
        if self.action == "warn":
            for report in new:
                warnings.warn(str(report), MemoryRaceWarning, stacklevel=3)

    def _is_new(self, report: MemoryRaceReport) -> bool:
        """Return whether no earlier report has the same call sites; if so, add the report."""
        key = (report.kind, *(call and (call.what, call.stack) for call in report.calls))
        if key in self._reported:
            return False
        self._reported.add(key)
        self.reports.append(report)
        return True


def check_races(
    device: DeviceLike = None, *, poison: bool | Literal["all"] = True, action: RaceAction = "raise"
) -> AbstractContextManager[RaceChecker]:
    """Detect uses of memory after its free, and unordered uses by several streams.

    CUDA's ordering rules apply on every kind of device, so that a CPU device finds the races of a
    GPU: events, `Stream.wait_stream`, or a wait of the host before it submits further work order
    the work of two streams. On a CPU device the default stream runs work in the caller's thread,
    and queued work keeps its arrays alive; the checker ignores both.

    A graph that is captured in the block is checked at the end of its capture, before it runs; see
    `graph_races`.

    Parameters
    ----------
    device : Device, str, int or None
        The device to watch; all devices by default.
    poison : bool or "all"
        Fill freed memory with NaNs (0x7FFB in every two bytes): half a mebibyte at either end of a
        block, or all of it. On CPU devices the poison is checked when the block is reused, and at
        the end.
    action : {"raise", "warn", "collect"}
        ``"raise"`` refuses the command, or the graph, and queues none of it. ``"warn"`` emits a
        `MemoryRaceWarning`, ``"collect"`` only stores the report. Overwritten poison is raised or
        warned about at the end of the block.

    Returns
    -------
    watch : context manager
        Its target is a `RaceChecker`, whose ``reports`` are `MemoryRaceReport` objects.

    Raises
    ------
    MemoryRaceError
        At a fault in the block.

    Examples
    --------
    >>> import nbrt
    >>> first, second = nbrt.Stream("cpu:0"), nbrt.Stream("cpu:0")
    >>> with check_races(action="collect") as checker:
    ...     x = nbrt.zeros(1000, stream=first)
    ...     nbrt.copy(x, 1.0, stream=second)
    >>> [report.kind for report in checker.reports]
    ['unordered_use']
    """
    if action not in get_args(RaceAction):
        raise ArgumentError(f"expected 'raise', 'warn' or 'collect' as action, got {action!r}")
    if not (isinstance(poison, bool) or poison == "all"):
        raise ArgumentError(f"expected True, False or 'all' as poison, got {poison!r}")
    watched = None if device is None else lookup(device)[0]
    return _watch(RaceChecker(watched, Poisoner(poison), action))


@contextmanager
def _watch(checker: RaceChecker) -> Iterator[RaceChecker]:
    with install_hook(checker), check_captures(checker.check_graph):
        try:
            yield checker
        except BaseException as error:
            for report in checker.finish():
                error.add_note(str(report))
            raise
        damage = checker.finish()
    if damage and checker.action == "raise":
        raise MemoryRaceError("\n".join(map(str, damage)), tuple(damage))
    if checker.action == "warn":
        for report in damage:
            warnings.warn(str(report), MemoryRaceWarning, stacklevel=3)


def _name(stream: Stream) -> StreamName:
    # Several streams can share a raw one: the pool has 32, and a raw stream can be borrowed twice.
    has_handles = stream.interface.capabilities.cuda_stream_protocol
    raw = stream.queue.handle if has_handles else stream.queue
    return StreamName(StreamKey(stream.device, raw), repr(stream))


def _label(command: Command) -> str:
    if not command.label:
        return command.kind
    return command.label if command.kind == "collective" else f"{command.kind} of {command.label}"


def _arrays(command: Command) -> Iterator[tuple[AccessMode, Any]]:
    modes = _MODES[command.kind]
    if command.kind == "launch":
        # A `PlanWithSource`. `isinstance` with the Protocol would dominate the cost of the check.
        source = getattr(getattr(command.function, "__self__", None), "function", None)
        modes = argument_access_modes(source, command.args)
    for index, value in enumerate(command.args):
        mode = modes[index] if index < len(modes) else "uses"
        for array in arrays_in((value,)):
            is_readonly = isinstance(array, np.ndarray) and not array.flags.writeable
            yield ("reads" if is_readonly and mode == "uses" else mode), array


def _owner_of(array: Any) -> Allocation | None:
    for interface in registry.ready_interfaces():
        owner = interface.owner_of(array)
        if isinstance(owner, Allocation):
            return owner
    return None


def _owns_its_memory(array: Any) -> bool:
    while isinstance(array, np.ndarray) and isinstance(array.base, np.ndarray):
        array = array.base
    return isinstance(array, np.ndarray) and bool(array.flags.owndata)
