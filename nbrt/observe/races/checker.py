"""`check_races`: finds memory that is used after its free, or by streams that nothing orders."""

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
from nbrt.observe.races.access_modes import argument_access_modes
from nbrt.observe.races.footprint import arrays_in, footprint_of
from nbrt.observe.races.poison import Poisoner
from nbrt.observe.races.reports import report_damage
from nbrt.observe.races.shadow_blocks import MemoryAccess, ShadowBlock, StreamKey, StreamName
from nbrt.observe.races.shadow_memory import ShadowMemory
from nbrt.runtime.commands import install_hook
from nbrt.runtime.device import lookup
from nbrt.runtime.memory.allocation import Allocation

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
    from typing import Any

    from nbrt._internal.device import Device
    from nbrt.observe.races.footprint import Footprint
    from nbrt.observe.races.reports import MemoryRaceReport
    from nbrt.observe.races.shadow_blocks import AccessMode
    from nbrt.observe.races.shadow_memory import BlockRange
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
"""The kinds of commands that touch arrays, and what is known of their first arguments."""

_WAITED_FOR_STREAM = frozenset({"stream_sync", "stream_query"})
_WAITED_FOR_EVENT = frozenset({"event_sync", "event_query"})
"""Who asks whether work is done, and hears that it is, needs not wait for it any more."""

_MAX_RECENT = 8
"""Commands of a stream that a report about changed memory can name."""


class RaceChecker:
    """A tap that judges every use of memory; made by `check_races`.

    It sees what passes nbrt: not the host's own reading and writing, other libraries' kernels and
    synchronisation, host arrays that nbrt did not allocate, or what was before its time. Threads of
    the host count as ordered among themselves. The source of a kernel says what it does with an
    array (`argument_access_modes`); where it does not, a launch counts as writing it, unless that
    is a read-only NumPy array. Bytes of strided views are told apart exactly.
    A block remembers its last 64 different uses.

    Attributes
    ----------
    reports : list of MemoryRaceReport
        What was found, in the order in which it was; of reports that name the same lines, one.
    action : str
        What is done about it: ``"raise"``, ``"warn"`` or ``"collect"``.
    """

    def __init__(self, device: Device | None, poisoner: Poisoner, action: RaceAction) -> None:
        self.reports: list[MemoryRaceReport] = []
        self._device = device
        self._poisoner = poisoner
        self.action = action
        self._shadow = ShadowMemory()
        self._books: set[DeviceAllocator] = set()
        self._recent: dict[Hashable, deque[tuple[int, str]]] = defaultdict(
            lambda: deque(maxlen=_MAX_RECENT)
        )
        self._told: set[tuple[object, ...]] = set()
        self._late: list[MemoryRaceReport] = []
        self._lock = threading.Lock()
        self._holder = 0
        self._postponed: deque[Callable[[], object]] = deque()
        # What a thread's last command touches; not the command, which holds arrays.
        self._judged = threading.local()

    # -- what the command road shows ---------------------------------------------------------------

    def before(self, stream: Stream, command: Command) -> None:
        """Judge what a command is about to touch; take note of what is freed."""
        if command.kind in _MODES:
            site = CallSite.here(depth=1)
            found: list[MemoryRaceReport] = []
            self._in_turn(partial(self._judge, stream, command, site, found))
            self._tell(found)
        elif command.kind == "free":
            allocation = command.args[0]
            if self._watches(allocation):
                self._in_turn(partial(self._end, allocation, CallSite.here(depth=1)))
        elif command.kind == "allocate":
            # What was freed last is to be handed out next, so that a race for it shows.
            for books in tuple(self._books):
                books.settle()

    def after(self, stream: Stream, command: Command, result: object) -> None:
        """Take note of what was accepted."""
        if command.kind in _MODES:
            self._in_turn(partial(self._note, stream, command))
        elif command.kind == "allocate":
            if isinstance(result, Allocation) and self._watches(result):
                self._in_turn(partial(self._begin, result, _name(stream), CallSite.here(depth=1)))
        elif command.kind in ("record", "wait"):
            clocks = self._shadow.clocks
            order = clocks.record if command.kind == "record" else clocks.wait
            self._in_turn(partial(order, _name(stream).key, command.args[0]))

    def note(self, notice: RuntimeEvent) -> None:
        """Order the host behind what it waits for; poison what nobody uses any more."""
        clocks, subject = self._shadow.clocks, notice.subject
        if notice.kind in _WAITED_FOR_STREAM and notice.stream is not None:
            self._in_turn(partial(clocks.host_waits_for_stream, _name(notice.stream).key))
        elif notice.kind in _WAITED_FOR_EVENT:
            self._in_turn(partial(clocks.host_waits_for_event, subject))
        elif notice.kind == "device_sync":
            self._in_turn(partial(self._settle, notice.device))
        elif notice.kind in ("segment_alloc", "segment_free"):
            self._in_turn(partial(self._drop_released, notice))
        elif (
            notice.kind == "free_completed"
            and isinstance(subject, Allocation)
            and self._watches(subject)
        ):
            spans = self._poisoner.fill(subject)
            self._in_turn(partial(self._keep_poisoned, subject, spans))

    def finish(self) -> list[MemoryRaceReport]:
        """Look at the poison that is left; return what could not be raised when it was found."""
        with ExitStack() as stack:
            # No pool may give memory back while it is looked at.
            for books in sorted(self._books, key=lambda books: str(books.device)):
                stack.enter_context(books.lock)
            self._in_turn(self._check_all)
        return self._late

    # -- in turn -----------------------------------------------------------------------------------

    def _in_turn(self, work: Callable[[], object]) -> None:
        """Do a piece of work while no other thread does one.

        A finalizer may free an array in the middle of our own work: that then comes right behind.
        """
        if self._holder == threading.get_ident():
            self._postponed.append(work)
            return
        with self._lock:
            self._holder = threading.get_ident()
            try:
                work()
                while self._postponed:
                    self._postponed.popleft()()
            finally:
                self._holder = 0

    def _judge(
        self, stream: Stream, command: Command, site: CallSite, found: list[MemoryRaceReport]
    ) -> None:
        accesses = self._accesses(stream, command, site)
        self._judged.last = id(command), accesses
        reports = map(self._shadow.check, accesses)
        found += [report for report in reports if report is not None]

    def _note(self, stream: Stream, command: Command) -> None:
        number, accesses = getattr(self._judged, "last", (0, []))
        if number != id(command):  # it has given further commands meanwhile
            accesses = self._accesses(stream, command, CallSite.here(depth=3))
        key = _name(stream).key
        step = self._shadow.clocks.advance(key)
        self._recent[key].append((step, _label(command)))
        for access in accesses:
            if not access.block.is_freed:
                access.step = step
                self._shadow.note(access)

    def _accesses(self, stream: Stream, command: Command, site: CallSite) -> list[MemoryAccess]:
        name, label = _name(stream), _label(command)
        accesses: list[MemoryAccess] = []
        for mode, array in _touched(command):
            footprint = footprint_of(array)
            if footprint is not None:
                owner = _owner_of(array)
                # As the runtime's recording of streams does, see `nbrt.memory.record_stream`.
                is_recorded = owner is not None and any(array is one for one in command.args)
                accesses += [
                    MemoryAccess(
                        mode, footprint, block, label, name, site, is_recorded,
                        is_launch=command.kind == "launch",
                    )
                    for block in self._tenancies(array, owner, footprint)
                ]  # fmt: skip
        return accesses

    def _tenancies(
        self, array: Any, owner: Allocation | None, footprint: Footprint
    ) -> list[ShadowBlock]:
        if owner is not None:
            return [self._tenancy_of(owner)] if self._watches(owner) else []
        found = [entry[2] for entry in self._shadow.map.find(footprint.begin, footprint.end)]
        if any(block.is_freed for block in found) and _owns_its_memory(array):
            # The system has handed it out again, so the pool had given it back.
            self._shadow.map.cut(footprint.begin, footprint.end)
            return []
        return found

    def _tenancy_of(self, allocation: Allocation) -> ShadowBlock:
        """Return the block of a block in use; a new one if it began before the watch."""
        begin = allocation.address
        for low, _, block in self._shadow.map.find(begin, begin + allocation.nbytes):
            if low == block.address == begin and not block.is_freed:
                return block
        site = allocation.site if isinstance(allocation.site, CallSite) else None
        stream = allocation.stream
        device = allocation.device
        unknown = StreamName(StreamKey(device, None), "an unknown stream")
        name = unknown if stream is None else _name(stream)
        block = ShadowBlock(device, begin, allocation.nbytes, name, site)
        self._books.add(allocation.pool.books)
        self._shadow.map.insert(block)
        return block

    def _begin(self, allocation: Allocation, name: StreamName, site: CallSite) -> None:
        block = ShadowBlock(allocation.device, allocation.address, allocation.nbytes, name, site)
        self._books.add(allocation.pool.books)
        self._report(self._changed(self._shadow.allocate(block)))

    def _end(self, allocation: Allocation, site: CallSite) -> None:
        passed = [_name(stream).key for stream in allocation.recorded or ()]
        self._shadow.free(self._tenancy_of(allocation), site, passed)

    def _keep_poisoned(self, allocation: Allocation, spans: tuple[tuple[int, int], ...]) -> None:
        begin = allocation.address
        for _, _, block in self._shadow.map.find(begin, begin + allocation.nbytes):
            block.poisoned = spans

    def _settle(self, device: Device) -> None:
        for key in self._shadow.clocks.streams:
            if key.device == device:
                self._shadow.clocks.host_waits_for_stream(key)

    def _drop_released(self, notice: RuntimeEvent) -> None:
        """Forget freed memory that a pool may have given back, and perhaps got again since."""
        info = notice.subject
        assert isinstance(info, SegmentInfo)
        # What has grown or shrunk in place still holds the rest.
        is_whole = info.nbytes == notice.nbytes
        held = [
            (each.address, each.address + each.nbytes)
            for books in self._books
            for pool in books.pools
            for each in pool.segments_seen.values()
            if books.device == notice.device
        ]
        for begin, end, block in self._shadow.map:
            if block.device == notice.device and block.is_freed:
                is_held = any(low <= begin and end <= high for low, high in held)
                is_inside = begin < info.address + info.nbytes and info.address < end
                if not is_held or (is_whole and is_inside):
                    self._shadow.map.cut(begin, end)

    def _check_all(self) -> None:
        found = self._changed(list(self._shadow.map))
        # A thread that was in the middle of an allocation when the watch began has got its block
        # unseen. Looked for last: who writes to a block has been given it.
        in_use = [
            range(each.address, each.address + each.nbytes)
            for books in self._books
            for pool in books.pools
            for each in list(pool.allocations)
            if each.ending is not None
        ]
        self._report(
            (block, address)
            for block, address in found
            if not any(address in block for block in in_use)
        )

    def _changed(self, pieces: list[BlockRange]) -> list[tuple[ShadowBlock, int]]:
        """Return what holds changed poison, and where."""
        found = (
            (block, self._poisoner.first_change(block, begin, end)) for begin, end, block in pieces
        )
        return [(block, address) for block, address in found if address is not None]

    def _report(self, changed: Iterable[tuple[ShadowBlock, int]]) -> None:
        for block, address in changed:
            recent = self._recent[block.stream.key]
            since = [label for step, label in recent if step > block.freed_at]
            report = report_damage(block, address, since)
            self._late.append(report)
            self._keep(report)

    def _watches(self, allocation: Allocation) -> bool:
        return self._device is None or allocation.device == self._device

    # -- telling -----------------------------------------------------------------------------------

    def _tell(self, found: list[MemoryRaceReport]) -> None:
        news = [report for report in found if self._keep(report)]
        if found and self.action == "raise":
            raise MemoryRaceError("\n".join(map(str, found)), tuple(found))
        if self.action == "warn":
            for report in news:
                warnings.warn(str(report), MemoryRaceWarning, stacklevel=3)

    def _keep(self, report: MemoryRaceReport) -> bool:
        """Add a report unless one of the same places is there; return whether it is new."""
        places = (report.touched, report.other, report.allocated, report.freed)
        known = (report.kind, *(place and (place.what, place.stack) for place in places))
        if known in self._told:
            return False
        self._told.add(known)
        self.reports.append(report)
        return True


def check_races(
    device: DeviceLike = None, *, poison: bool | Literal["all"] = True, action: RaceAction = "raise"
) -> AbstractContextManager[RaceChecker]:
    """Watch for memory that is used after its free, or by streams that nothing orders.

    Judged is the rule of CUDA, on every kind of device, so that a laptop finds the race that a GPU
    would run into: work of two streams is ordered by events, by `Stream.wait_stream`, or by the
    host's waiting for one before it submits to the other. That the default stream of a CPU device
    works in its caller's thread, or that queued work keeps its arrays alive there, does not count.

    Parameters
    ----------
    device : Device, str, int or None
        Whose memory to watch; by default that of all devices.
    poison : bool or "all"
        Fill freed memory with NaNs (0x7FFB in every two bytes), half a mebibyte at either end of a
        block, or all of it. On CPU devices it is looked at again when the block is handed out, and
        at the end.
    action : {"raise", "warn", "collect"}
        ``"raise"`` refuses the command: nothing of it is queued. ``"warn"`` gives a
        `MemoryRaceWarning`, ``"collect"`` only keeps the report. Changed poison, for which no
        command can be refused, is raised or warned of at the end of the block.

    Returns
    -------
    watch : context manager
        Its target is a `RaceChecker`, with the list ``reports`` of `MemoryRaceReport`, which says
        what kinds of faults there are.

    Raises
    ------
    MemoryRaceError
        In the block, where it finds a fault.

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
    chosen = None if device is None else lookup(device)[0]
    return _watch(RaceChecker(chosen, Poisoner(poison), action))


@contextmanager
def _watch(checker: RaceChecker) -> Iterator[RaceChecker]:
    with install_hook(checker):
        try:
            yield checker
        except BaseException as error:
            for report in checker.finish():
                error.add_note(str(report))
            raise
        late = checker.finish()
    if late and checker.action == "raise":
        raise MemoryRaceError("\n".join(map(str, late)), tuple(late))
    if checker.action == "warn":
        for report in late:
            warnings.warn(str(report), MemoryRaceWarning, stacklevel=3)


def _name(stream: Stream) -> StreamName:
    # Of the 32 pooled streams the 33rd is the 1st, and a raw CUDA stream can be borrowed twice.
    has_handles = stream.interface.capabilities.cuda_stream_protocol
    raw = stream.handle if has_handles else stream.queue
    return StreamName(StreamKey(stream.device, raw), repr(stream))


def _label(command: Command) -> str:
    if not command.label:
        return command.kind
    return command.label if command.kind == "collective" else f"{command.kind} of {command.label}"


def _touched(command: Command) -> Iterator[tuple[AccessMode, Any]]:
    modes = _MODES[command.kind]
    if command.kind == "launch":
        # Of a `PlanWithSource`; to ask for the Protocol takes longer than all the rest.
        source = getattr(getattr(command.function, "__self__", None), "function", None)
        modes = argument_access_modes(source, command.args)
    for place, value in enumerate(command.args):
        mode = modes[place] if place < len(modes) else "uses"
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
