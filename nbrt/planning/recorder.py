"""`PlanRecorder`: hooks that record what a run asks of its devices."""

from __future__ import annotations

import threading
import warnings
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import ExitStack
from time import time_ns
from typing import TYPE_CHECKING, Any, Literal

from nbrt._internal.critical_section import DeferInterrupt
from nbrt._internal.device import Device
from nbrt.backends import registry
from nbrt.errors import NbrtCleanupWarning
from nbrt.observe.history.annotations import active_annotations, listen
from nbrt.observe.history.hooks import Entry, StreamHandles
from nbrt.observe.history.recorder import MAX_ENTRIES, MemoryEvent, event_of
from nbrt.observe.history.stacks import StackTable
from nbrt.planning.memory_hook import FREE, MAX_UNREAD, MemoryHook, free_entry
from nbrt.planning.memory_usage import MemoryUsage
from nbrt.planning.reported_launches import ReportsLaunches
from nbrt.runtime.adoption import locate
from nbrt.runtime.commands import install_hook
from nbrt.runtime.kernel_cost import command_cost, cost_function, costs_of
from nbrt.runtime.memory.registry import allocators_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nbrt.backends.interface import DeviceInterface
    from nbrt.planning.reported_launches import ReportedLaunch
    from nbrt.runtime.commands import Command, CommandKind, RuntimeEvent, RuntimeEventKind
    from nbrt.runtime.kernel_cost import KernelCost
    from nbrt.runtime.memory.pool_state import PoolState
    from nbrt.runtime.stream import Stream

__all__ = ["PlanRecorder", "Totals"]

_KINDS: tuple[CommandKind, ...] = ("launch", "copy", "fill", "draw", "call", "collective")
_EVENTS: tuple[RuntimeEventKind, ...] = (
    "segment_alloc", "segment_free", "late_free_completed", "out_of_memory",
)  # fmt: skip
_EVENT_FIELDS = len(MemoryEvent._fields)
_PAGE_LOCKED = 1
"""The first number of the id of a pool of page-locked memory."""


class Totals:
    """The commands of a run, counted.

    Attributes
    ----------
    launches : dict of (str, Device) to list
        Number of launches, operations and bytes by kernel and device; None where no kernel says.
    copies : dict of (Device or None, Device or None) to list of int
        Number of copies and bytes by source and destination; None is the host.
    collectives : dict of (str, Device) to list of int
        Number of calls, and bytes that the rank of the device puts in, by operation and device.
    commands : Counter of str
        Number of commands by kind, but for launches.
    """

    def __init__(self) -> None:
        self.launches: dict[tuple[str, Device], list[Any]] = {}
        self.copies: dict[tuple[Device | None, Device | None], list[int]] = {}
        self.collectives: dict[tuple[str, Device], list[int]] = {}
        self.commands: Counter[str] = Counter()

    def count(self, entry: Entry) -> None:
        """Count an entry of a command, but for launches."""
        kind = entry[0]
        self.commands[kind] += 1
        if kind == "copy" and entry[3] is not None:
            _add(self.copies, entry[3], entry[4])
        elif kind == "collective":
            _add(self.collectives, (entry[2], entry[1]), entry[3])


def _add(counts: dict[Any, list[int]], key: object, nbytes: int) -> None:
    known = counts.setdefault(key, [0, 0])
    known[0] += 1
    known[1] += nbytes


class PlanRecorder:
    """Records the memory and the commands of the devices of one kind, real or not.

    A hook only appends an entry to a queue, which is atomic: hooks run in any thread, and those of
    frees in finalizers. Every few thousand entries are counted together, by one thread. The results
    are exact, and the record does not grow with the length of the run.

    Parameters
    ----------
    kind : str
        The kind of the devices.

    Attributes
    ----------
    totals : Totals
        The commands, as far as they are counted.
    usage, page_locked : dict of Device to MemoryUsage
        The memory of each device in use, and the page-locked host memory for it, likewise.
    started : int
        Nanoseconds since 1970 at the start.
    max_entries : int
        Events to keep for a snapshot.
    plans : set of ReportedLaunch
        The kernels and configurations whose launches devices reported.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.max_entries = MAX_ENTRIES
        self.totals = Totals()
        self.started = 0
        self._unread: deque[Entry] = deque()
        self._history: deque[Entry] = deque(maxlen=MAX_ENTRIES)
        self._stacks = StackTable()
        self._handles = StreamHandles()
        self.usage: dict[Device, MemoryUsage] = {}
        self.page_locked: dict[Device, MemoryUsage] = {}
        self._of_pool = _UsageByPool(self._usage_of_pool)
        self._numbers: dict[int, tuple[int, ...]] = {}
        self._interface: DeviceInterface | None = None
        self.plans: set[ReportedLaunch] = set()
        # With the form of the launches that have an entry; None: all.
        self._entries: dict[ReportedLaunch, tuple[object, Entry]] = {}
        self._annotations: tuple[Any, ...] = ()
        self._names: tuple[str, ...] = ()
        self._entered: tuple[int, ...] = ()
        self._thread = threading.local()
        self._lock = threading.RLock()
        self._defer = DeferInterrupt(self._lock)  # type: ignore[arg-type]  # as Condition uses it
        self._is_counting = False
        self._running: ExitStack | None = None

    # -- the record --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to record; memory in use counts from now on."""
        self.started = time_ns()
        self._interface = registry.get_interface_for_device(self.kind)
        memory = MemoryHook(
            self._unread, self._try_count, self._stacks, self._handles, self.on_event
        )
        with ExitStack() as opened:
            opened.enter_context(
                install_hook(memory, before=["free"], after=["allocate"], events=_EVENTS)
            )
            kinds = _KINDS
            replayed: tuple[CommandKind, ...] = ()
            if isinstance(self._interface, ReportsLaunches):
                kinds, replayed = tuple(kind for kind in kinds if kind != "launch"), ("launch",)
                self._interface.report_launches(self.launch_listener())
                opened.callback(self._interface.report_launches, None)
            opened.enter_context(
                install_hook(self, before=(), after=kinds, events=(), replayed=replayed)
            )
            opened.enter_context(listen(self))
            with self._lock:
                for allocator in allocators_of(self.kind):
                    if allocator.interface is not self._interface:
                        continue
                    with allocator.lock:
                        live = allocator.live_allocations()
                        usage = self._usage_of(
                            allocator.device,
                            is_page_locked=allocator.default_pool.state.id[0] == _PAGE_LOCKED,
                        )
                        reserved = sum(pool.backend.reserved() for pool in allocator.pools)
                        allocated = allocator.statistics.all.bytes
                        usage.begin(self.started, live, allocated, reserved)
                self._unread.clear()
            self._running = opened.pop_all()

    def stop(self) -> None:
        """Stop to record; idempotent."""
        running, self._running = self._running, None
        if running is not None:
            running.close()
        self.count()

    def append(self, entry: Entry) -> None:
        """Append an entry; count if there are many."""
        self._unread.append(entry)
        if len(self._unread) >= MAX_UNREAD:
            self._try_count()

    def _try_count(self) -> None:
        """Count the entries, unless another thread does."""
        # Without waiting: the finalizer of an array may run while this thread counts.
        if self._lock.acquire(blocking=False):
            try:
                self._count()
            finally:
                self._lock.release()

    def after(self, stream: Stream, command: Command, result: object) -> None:  # noqa: ARG002
        """Record a command; a `CommandHook`."""
        kind, device = command.kind, stream.device
        if device.kind == self.kind and stream.interface is not self._interface:
            return
        if kind == "launch":
            entry = self._launch_entry(device, command.label)
            try:
                entry = _with_cost(entry, command_cost(command))
            finally:
                # The launch counts although the kernel's estimate fails, of which the user is told.
                self.append(entry)
            return
        if kind == "copy":
            entry = (kind, device, kind, *_link(command.args))
        elif kind == "collective":
            if command.label == "from_local" or (
                command.label == "redistribute" and not stream.interface.capabilities.computes
            ):
                return  # sends nothing, or consists of collectives that are commands
            entry = (kind, device, command.label, _input_bytes(command.args))
        else:
            entry = (kind, device, f"{kind} {command.label}".rstrip())
        self.append(entry)

    def before(self, stream: Stream, command: Command) -> None:
        """Do nothing; a `CommandHook`."""

    def launch_listener(self) -> Callable[[ReportedLaunch, tuple[Any, ...], object], None]:
        """Return the function that records launches that devices report.

        A hook would double the time of a fake launch. A closure, as `allocation_hook`.
        """
        unread, find = self._unread, self._entries.get

        def on_launch(plan: ReportedLaunch, args: tuple[Any, ...], form: object) -> None:
            known = find(plan)
            if known is None or (known[0] is not form and known[0] is not None):
                known = self._entry_of(plan, args, form)
            unread.append(known[1])
            if len(unread) >= MAX_UNREAD:
                self._try_count()

        return on_launch

    def _entry_of(
        self, plan: ReportedLaunch, args: tuple[Any, ...], form: object
    ) -> tuple[object, Entry]:
        """Return the form of launches that have an entry, None for all, and the entry."""
        entry = self._launch_entry(Device(self.kind, plan.index), plan.name)
        self.plans.add(plan)
        if cost_function(plan.function) is None:
            return self._entries.setdefault(plan, (None, entry))
        try:
            entry = _with_cost(entry, costs_of(plan.function, args))
        except Exception as error:  # noqa: BLE001  # as of a hook
            message = f"the cost of an accepted launch of {plan.name} failed: {error!r}"
            warnings.warn(message, NbrtCleanupWarning, stacklevel=3)
        else:
            # The form tells all of arrays and numbers, but not of tuples of them.
            is_plain = not any(isinstance(given, tuple) for given in args)
            if plan.sees_numbers and is_plain:
                self._entries[plan] = form, entry
            plan.sees_numbers = True
        return form, entry

    def _launch_entry(self, device: Device, label: str) -> Entry:
        """Return the entry of a launch, with the list that counts it and the device's memory."""
        numbers = self.totals.launches.setdefault((label, device), [0, None, None])
        is_ours = device.kind == self.kind
        usage = self._usage_of(device, is_page_locked=False) if is_ours else None
        return "launch", label, numbers, usage, None

    def annotated(self, name: str, stage: Literal["START", "END"]) -> None:
        """Record an annotation, with the number of times that the thread has entered each."""
        thread = self._thread
        try:
            counts, active = thread.counts, thread.active
        except AttributeError:
            counts, active = thread.counts, thread.active = {}, [()]
        if stage == "START":
            counts[name] = number = counts.get(name, 0) + 1
            numbers = (*active[-1], number)
            active.append(numbers)
        else:
            numbers = active[-1]
            if numbers:
                active.pop()
        label = f"{stage} {name}"
        place = None, 0, 0, 0, None
        self.append(("annotate", time_ns(), *place, active_annotations(), None, label, 0, numbers))

    def on_event(self, event: RuntimeEvent) -> None:
        """Record a change of the memory that pools hold, a late free or a failed allocation."""
        if event.device.kind != self.kind:
            return
        subject: Any = event.subject
        stream, address = 0, 0
        action, nbytes = str(event.kind), event.nbytes
        if event.kind == "late_free_completed":
            action, address, nbytes = "free_completed", subject.address, subject.requested
        elif event.kind == "out_of_memory":
            action, address = "oom", int(subject or 0)
        else:
            address, stream = subject.address, subject.stream
            if subject.is_expandable:
                action = "segment_map" if action == "segment_alloc" else "segment_unmap"
        place = event.device, stream, address, nbytes
        pool = event.pool if event.pool is not None else event.pool_id
        self.append((action, time_ns(), *place, None, active_annotations(), pool, "", nbytes))

    # -- the results -------------------------------------------------------------------------------

    def count(self) -> None:
        """Count all entries."""
        with self._lock:
            self._count()

    def __len__(self) -> int:
        return len(self._history)

    def mark_snapshot(self, device: Device) -> None:
        """Do nothing: a snapshot of a plan is no event of the program."""

    def events(self, device: Device) -> list[MemoryEvent]:
        """Return the latest memory events of a device, with annotations, the oldest first."""
        self.count()
        found: list[MemoryEvent] = []
        for entry in self._history.copy():
            if entry[0] == FREE:
                entry = free_entry(entry)
            if entry[2] is not device and entry[2] is not None:
                continue
            event = event_of(entry[:_EVENT_FIELDS])
            if (event.pool or (0,))[0] != _PAGE_LOCKED:
                found.append(event)
                if event.action == "free_requested":
                    found.append(event._replace(action="free_completed"))
        return found

    def _count(self) -> None:
        """Count entries; the caller holds the lock."""
        if self._is_counting:  # in a finalizer
            return
        with self._defer:
            self._is_counting = True
            try:
                self._count_entries(self._unread)
            finally:
                self._is_counting = False

    def _count_entries(self, unread: deque[Entry]) -> None:
        pools, keep, pop = self._of_pool, self._history.append, unread.popleft
        while unread:
            entry = pop()
            action = entry[0]
            if action == "alloc":
                annotations = entry[7]
                if annotations is not self._annotations:
                    self._read_annotations(annotations)
                usage = pools[entry[8]]
                if usage is not None:
                    keep(entry)
                    if unread and unread[0][-1] is entry and usage.allocate_and_free(entry[10]):
                        keep(pop())
                    else:
                        usage.allocate(entry, self._names, self._entered)
            elif action == FREE:
                usage = pools[entry[3][8]]
                if usage is not None:
                    usage.free(entry[1], entry[3][4])
                    keep(entry)
            elif action == "launch":
                _, label, numbers, usage, cost = entry
                numbers[0] += 1
                if usage is not None:
                    usage.label = label
                if cost is not None:
                    _add_cost(numbers, cost)
            elif action == "free_requested":
                usage = pools[entry[8]]
                if usage is not None:
                    usage.free(entry[1], entry[4])
                    keep(entry)
            elif action == "annotate":
                self._count_annotation(entry)
                keep(entry)
            elif action not in _MEMORY_ACTIONS:
                self._count_command(entry)
            elif action[:7] != "segment":
                keep(entry)
            elif (usage := pools[entry[8]]) is not None:
                usage.resize(entry[1], -entry[5] if action in _RELEASES else entry[5])
                keep(entry)

    def _read_annotations(self, annotations: tuple[Any, ...]) -> None:
        self._annotations = annotations
        self._names = tuple(annotation.name for annotation in annotations)
        self._entered = self._numbers.get(id(annotations), ()) if annotations else ()

    def _count_command(self, entry: Entry) -> None:
        self.totals.count(entry)
        if entry[1].kind == self.kind:
            self._usage_of(entry[1], is_page_locked=False).label = entry[2]

    def _count_annotation(self, entry: Entry) -> None:
        # By id: the tuple lives as long as its annotation is active, and in the entry of the end.
        if entry[9][:5] == "START":
            self._numbers[id(entry[7])] = entry[11]
        else:
            self._numbers.pop(id(entry[7]), None)

    def _usage_of_pool(self, pool: PoolState) -> MemoryUsage | None:
        if pool.interface is not self._interface:
            return None  # of another kind, or of devices that a block makes within this one
        return self._usage_of(pool.device, is_page_locked=pool.id[0] == _PAGE_LOCKED)

    def _usage_of(self, device: Device, *, is_page_locked: bool) -> MemoryUsage:
        known = self.page_locked if is_page_locked else self.usage
        usage = known.get(device)
        if usage is None:
            usage = MemoryUsage()
            usage.samples.add(self.started, 0, 0)
            usage = known.setdefault(device, usage)  # hooks of several threads call this
        return usage


_RELEASES = frozenset(("segment_free", "segment_unmap"))
_MEMORY_ACTIONS = frozenset(
    (
        "alloc", "annotate", "free_completed", "free_requested", "oom", "segment_alloc",
        "segment_map", *_RELEASES,
    )
)  # fmt: skip
"""Entries that a memory history has as well."""


class _UsageByPool(dict["PoolState", "MemoryUsage | None"]):
    """The memory that the allocations of a pool count for; None for another kind of device."""

    def __init__(self, find: Callable[[PoolState], MemoryUsage | None]) -> None:
        self._find = find

    def __missing__(self, pool: PoolState) -> MemoryUsage | None:
        usage = self[pool] = self._find(pool)
        return usage


def _with_cost(entry: Entry, cost: KernelCost | None) -> Entry:
    return entry if cost is None else (*entry[:-1], (cost.flops, cost.bytes))


def _add_cost(numbers: list[Any], cost: tuple[float | None, float | None]) -> None:
    for place, value in enumerate(cost, 1):
        if value is not None:
            numbers[place] = (numbers[place] or 0) + value


def _link(args: tuple[Any, ...]) -> tuple[tuple[Device | None, Device | None] | None, int]:
    """Return (source, destination) and bytes of a copy; None for one inside a graph."""
    if len(args) < 2:
        return None, 0
    destination, source = args[:2]
    places = []
    for array in (source, destination):
        device, is_host = locate(array)
        places.append(None if is_host else device)
    return (places[0], places[1]), int(getattr(destination, "nbytes", 0))


def _input_bytes(args: Iterable[Any]) -> int:
    """Return the bytes of the first argument that is an array, or a mapping to arrays."""
    for each in args:
        arrays = each.values() if isinstance(each, Mapping) else (each,)
        sizes: list[Any] = [getattr(array, "nbytes", None) for array in arrays]
        if sizes and all(isinstance(size, int) for size in sizes):
            return int(sum(sizes))
    return 0
