"""`MemoryHook`: what a plan records of each allocation and free.

Its functions are closures, because Python reads their variables faster than attributes.
"""

from __future__ import annotations

from sys import _getframe
from time import time_ns
from typing import TYPE_CHECKING

from nbrt.observe.history.annotations import active_annotations
from nbrt.observe.history.hooks import allocation_hook, free_hook
from nbrt.runtime.commands import Command, MemoryRecorder
from nbrt.runtime.memory.hooks import complete_free
from nbrt.runtime.stream import default_stream

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from nbrt.observe.history.hooks import Entry, StreamHandles
    from nbrt.observe.history.stacks import StackTable
    from nbrt.runtime.commands import RuntimeEvent
    from nbrt.runtime.memory.allocation import Allocation
    from nbrt.runtime.stream import Stream

__all__ = ["FREE", "MAX_UNREAD", "MemoryHook", "free_entry"]

FREE = "free"
"""A free whose other fields are in the entry of its allocation, the last item."""

MAX_UNREAD = 2048
"""Entries that are counted together."""

_DEPTH = 3
"""The first recorded frame of an allocation, counted from the recording function: the caller of the
function that creates the array, as in a memory history."""


class MemoryHook(MemoryRecorder):
    """Hooks that append entries of a memory history to a queue.

    Parameters
    ----------
    unread : deque
        The queue. Finalizers only append; the entries are counted at the next allocation or
        command.
    try_count : callable
        Counts the entries, unless another thread does; called when there are many.
    stacks, handles
        The tables of stacks and of streams.
    on_event : callable
        The function for runtime events.
    """

    def __init__(
        self,
        unread: deque[Entry],
        try_count: Callable[[], None],
        stacks: StackTable,
        handles: StreamHandles,
        on_event: Callable[[RuntimeEvent], None],
    ) -> None:
        def append(entry: Entry) -> None:
            unread.append(entry)
            if len(unread) >= MAX_UNREAD:
                try_count()

        self.before = free_hook(
            unread.append, None, handles, None, keeps_request=True, keeps_completion=False
        )
        self.after = allocation_hook(append, stacks, handles, None, keeps_site=True)
        self.on_event = on_event
        self.allocated = _allocation_function(unread, try_count, stacks, handles)
        self.freed = _free_function(unread, self.before)


def _allocation_function(
    unread: deque[Entry],
    try_count: Callable[[], None],
    stacks: StackTable,
    handles: StreamHandles,
) -> Callable[[Stream, Allocation], None]:
    """Return a function that records an allocation as the hook does."""
    hash_stack, find, add, append = stacks.hash_stack, stacks.sites.get, stacks.add, unread.append

    def allocated(stream: Stream, allocation: Allocation) -> None:
        try:
            frame = _getframe(_DEPTH)
        except ValueError:
            frame = _getframe(1)
        key = hash_stack(frame)
        allocation.site = site = find(key) or add(key, frame)
        allocation.entry = entry = (
            "alloc",
            time_ns(),
            stream.device,
            handles[stream.id],
            allocation.address,
            allocation.requested,
            site,
            active_annotations(),
            allocation.pool,
            "",
            allocation.nbytes,
        )
        append(entry)
        if len(unread) >= MAX_UNREAD:
            try_count()

    return allocated


def _free_function(
    unread: deque[Entry], before: Callable[[Stream, Command], None]
) -> Callable[[Allocation], None]:
    """Return a function that records a free as the hook `before` does."""
    append = unread.append

    def freed(allocation: Allocation) -> None:
        entry, stream = allocation.entry, allocation.stream_ref()
        if entry is not None and stream is not None:
            # A quarter of the memory of the entry of a hook, which `free_entry` makes of it.
            append((FREE, time_ns(), active_annotations(), entry))
        else:
            stream = stream or default_stream(allocation.pool.device)
            before(stream, Command("free", complete_free, (allocation,)))

    return freed


def free_entry(entry: Entry) -> Entry:
    """Return an entry `FREE` as a hook makes it."""
    _, time, annotations, made = entry
    return "free_requested", time, *made[2:6], None, annotations, *made[8:]
