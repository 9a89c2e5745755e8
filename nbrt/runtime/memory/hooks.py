"""Allocations and frees that hooks see: `HookedAllocator` and `FreeNotifier`."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from nbrt._internal.callsite import CallSite
from nbrt._internal.critical_section import re_raise_interrupt
from nbrt.runtime import commands
from nbrt.runtime.commands import Command
from nbrt.runtime.memory.allocation import MAX_UNREAD, MAX_UNREAD_BYTES, FreeRecord, HookedFree
from nbrt.runtime.stream import default_stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from nbrt.backends.lazy import LazyInitializer
    from nbrt.backends.queue import Queue
    from nbrt.runtime.memory.allocation import Allocation, SizeClassCache
    from nbrt.runtime.memory.pending import PendingFrees
    from nbrt.runtime.stream import Stream

    Take: TypeAlias = Callable[[SizeClassCache, int, Stream, list[Allocation]], object]

__all__ = ["FreeNotifier", "HookedAllocator", "complete_free"]


class FreeNotifier:
    """Reports frees to hooks while the thread does not hold the lock: hooks may take any lock.

    Parameters
    ----------
    lazy : LazyInitializer
        Whether the backend can be used: not in a forked child.
    release : callable
        The function of the free command for frees from the log; called with (queue, allocation).

    Attributes
    ----------
    unreported : deque of FreeRecord
        Frees that were processed and that hooks have not seen.
    """

    __slots__ = ("_lazy", "_release", "_try_process", "events", "owns_lock", "unreported")

    def __init__(
        self,
        events: deque[Any],
        owns_lock: Callable[[], bool],
        lazy: LazyInitializer,
        try_process: Callable[[], object],
        release: Callable[[Queue, Allocation], None],
    ) -> None:
        self.unreported: deque[FreeRecord] = deque()
        self.owns_lock = owns_lock
        self.events = events
        self._lazy = lazy
        self._try_process = try_process
        self._release = release

    def on_free(self, record: FreeRecord) -> None:
        """Report a free whose allocation hooks have seen, then append it to the log.

        Finalizers call this at any moment. The block is in use until the log is processed, so this
        needs no lock. Without hooks the log is processed as late, so that both reuse equal blocks.
        """
        if commands is None:  # the interpreter ends, and has emptied this module
            return
        allocation = record.allocation
        pool = allocation.pool
        event: FreeRecord | HookedFree = record
        try:
            try:
                if (
                    not pool.returns_at_once
                    and allocation.recorded is None
                    and not pool.is_closed
                    and commands.memory_is_hooked
                    and self._lazy.is_ready
                    and not self.is_behind()
                    and ((recorder := commands.memory_recorder) is not None or not self.owns_lock())
                ):
                    command = allocation.hooked_free
                    if command is None:
                        command = allocation.hooked_free = HookedFree(allocation, complete_free)
                    event = command
                    if recorder is not None:
                        recorder.freed(allocation)
                        allocation.free_record = None
                    else:
                        stream = allocation.stream_ref() or default_stream(pool.device)
                        commands.dispatch_with_hooks(stream, command)
            finally:
                # Neither a hook nor an interrupt may lose the memory.
                self.events.append(event)
            if event is record:
                self._try_process()
        except KeyboardInterrupt:
            if not re_raise_interrupt():
                raise

    def is_behind(self) -> bool:
        """Return whether hooks have not seen the newest free, which they must see first.

        Frees of arrays from before the hooks are such: they run no Python code.
        """
        try:
            return type(self.events[-1]) is FreeRecord
        except IndexError:
            return False

    def report(self) -> None:
        """Report the frees that were processed; the caller does not hold the lock."""
        while self.unreported:
            try:
                record = self.unreported.popleft()
            except IndexError:
                break
            allocation = record.allocation
            try:
                stream = allocation.stream or default_stream(allocation.device)
                command = Command("free", self._release, (allocation,))
                commands.dispatch_with_hooks(stream, command)
            except BaseException:
                if not record.is_reused:
                    self._release(allocation.home, allocation)
                raise


class _Taken:
    """A block that is being allocated.

    Attributes
    ----------
    blocks : list of Allocation
        The block; empty: none is taken.
    reused : HookedFree or None
        The event that freed it, if it was freed last.
    is_from_bin : bool
        It may come from a bin although the log is not processed.
    """

    __slots__ = ("blocks", "is_from_bin", "reused")

    def __init__(self) -> None:
        self.blocks: list[Allocation] = []
        self.reused: HookedFree | None = None
        self.is_from_bin = True


class HookedAllocator:
    """Allocates through commands that hooks see."""

    __slots__ = (
        "_defer",
        "_events",
        "_lock",
        "_notifier",
        "_on_free",
        "_pending",
        "_process_log",
        "_take_block",
    )

    def __init__(
        self,
        notifier: FreeNotifier,
        pending: PendingFrees,
        take_block: Take,
        process_log: Callable[[], object],
        lock: AbstractContextManager[Any],
        defer: AbstractContextManager[Any],
    ) -> None:
        self._notifier = notifier
        self._on_free = notifier.on_free
        self._events = notifier.events
        self._pending = pending
        self._take_block = take_block
        self._process_log = process_log
        self._lock = lock
        self._defer = defer

    def allocate(
        self,
        cache: SizeClassCache,
        nbytes: int,
        stream: Stream,
        shape: tuple[int, ...] | None,
        dtype: Any,
    ) -> Any:
        """Return an array, or without a shape a handle, which hooks see."""
        recorder = commands.memory_recorder
        if recorder is None:
            return self._allocate_by_command(cache, nbytes, stream, shape, dtype)
        unread = len(self._events)
        if self._notifier.is_behind() or self._pending.waiting:
            self._process_log()
        allocation = reused = None
        taken: list[Allocation] = []
        try:
            if unread * nbytes <= MAX_UNREAD_BYTES and unread <= MAX_UNREAD:
                try:  # noqa: SIM105  # `suppress` takes half a microsecond
                    allocation = cache.requests[nbytes].pop()
                except (KeyError, IndexError):
                    pass
            if allocation is None:
                reused = cache.reuse_last(nbytes, HookedFree)
                if reused is None:
                    # Into a list: an interrupt at the end of the call would lose its result.
                    self._take_unseen(cache, nbytes, stream, taken)
                    allocation = taken[0]
                else:
                    allocation = reused.allocation
                    allocation.hooked_free = None  # the next free is another event
            allocation.free_record = None
            allocation.requested = nbytes
            allocation.stream_ref = stream.ref
            recorder.allocated(stream, allocation)
            return cache.allocate_over(
                allocation, nbytes, stream, shape, dtype, self._on_free, reused
            )
        except BaseException:
            if allocation is not None:
                taken = [allocation]
            self._refuse(cache, stream, taken, reused)
            raise

    def _allocate_by_command(
        self,
        cache: SizeClassCache,
        nbytes: int,
        stream: Stream,
        shape: tuple[int, ...] | None,
        dtype: Any,
    ) -> Any:
        """Return an array or a handle as `allocate` does, through a command."""
        unread = len(self._events)
        if self._notifier.is_behind() or self._pending.waiting:
            self._process_log()
        ref = stream.ref
        try:
            entry = cache.command_cache.pop()  # no other thread uses it meanwhile
        except IndexError:
            entry = None
        if entry is None or entry[0].args != (nbytes, ref):
            if entry is None:
                taken = _Taken()
                function: Any = partial(HookedAllocator._take, self, cache, taken)
            else:
                function, taken = entry[0].function, entry[1]
            entry = Command("allocate", function, (nbytes, ref)), taken
        # An interrupted hook returns no result: the block is in the list.
        command, taken = entry
        taken.reused = None
        taken.is_from_bin = unread * nbytes <= MAX_UNREAD_BYTES and unread <= MAX_UNREAD
        try:
            allocation = commands.dispatch_with_hooks(stream, command)
            if allocation.site is None and not allocation.is_small:
                allocation.site = CallSite.here(depth=1)  # no hook has recorded it
            array = cache.allocate_over(
                allocation, nbytes, stream, shape, dtype, self._on_free, taken.reused
            )
        except BaseException:
            self._refuse(cache, stream, taken.blocks, taken.reused)
            raise
        taken.blocks.clear()
        cache.command_cache.append(entry)
        return array

    def _take_unseen(
        self, cache: SizeClassCache, nbytes: int, stream: Stream, blocks: list[Allocation]
    ) -> None:
        """Append a block that is not in the bins; hooks have seen all frees before."""
        self._take_block(cache, nbytes, stream, blocks)
        if self._notifier.unreported or self._notifier.is_behind():
            # Arrays died meanwhile, by the garbage collector: hooks see their frees first.
            self._process_log()

    def _take(
        self,
        cache: SizeClassCache,
        taken: _Taken,
        queue: Queue,  # noqa: ARG002  # a command
        nbytes: int,
        ref: Callable[[], Any],
    ) -> Allocation:
        """Put a free block into `taken`, and return it; chosen as without hooks."""
        blocks = taken.blocks
        free = cache.requests.get(nbytes) if taken.is_from_bin else None
        if free:
            try:  # noqa: SIM105  # `suppress` takes half a microsecond
                blocks.append(free.pop())
            except IndexError:  # another thread has taken the last one
                pass
        if not blocks:
            taken.reused = reused = cache.reuse_last(nbytes, HookedFree)
            if reused is None:
                self._take_unseen(cache, nbytes, ref(), blocks)
            else:
                reused.allocation.hooked_free = None  # the next free is another event
                blocks.append(reused.allocation)
        allocation = blocks[0]
        allocation.free_record = allocation.entry = None
        allocation.requested = nbytes
        allocation.stream_ref = ref
        return allocation

    def _refuse(
        self,
        cache: SizeClassCache,
        stream: Stream,
        blocks: list[Allocation],
        reused: HookedFree | None,
    ) -> None:
        """Free a block that no array was made over: hooks see a free."""
        with self._lock, self._defer:
            while blocks:
                block = blocks.pop()
                if block.free_record is None:  # else the array or its free is in the log
                    request = block.requested, stream, None, None
                    cache.allocate_over(block, *request, self._on_free, reused)


def complete_free(queue: Queue, allocation: Allocation) -> None:  # noqa: ARG001  # a command
    """Emit the events of a block that no stream uses."""
    recorded = allocation.recorded
    if commands.event_listeners["free_completed"] or recorded:
        pool, stream = allocation.pool, allocation.stream_ref()
        facts = (pool.device, stream, allocation, allocation.nbytes, pool.id)
        commands.emit("free_completed", *facts)
        if recorded:
            commands.emit("late_free_completed", *facts)
    allocation.free_record = None
