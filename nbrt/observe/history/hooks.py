"""Hooks of a memory history for allocations and frees.

Closures, because Python reads their variables faster than attributes.
"""

from __future__ import annotations

from sys import _getframe
from time import time_ns
from typing import TYPE_CHECKING, Any, TypeAlias

from nbrt.observe.history.annotations import active_annotations
from nbrt.runtime.stream import Stream, default_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nbrt._internal.device import Device
    from nbrt.backends.interface import DeviceInterface
    from nbrt.observe.history.stacks import StackTable
    from nbrt.runtime.commands import Command

__all__ = ["Entry", "StreamHandles", "allocation_hook", "free_hook", "is_of_others", "raw_stream"]

Entry: TypeAlias = tuple[Any, ...]
"""An event in the history: the fields of `MemoryEvent`, with a `PoolState` in the place of its id.
A free that completes at once is a tuple of one item, the entry of its request."""

_HOOK_DEPTH, _FREE_HOOK_DEPTH = 5, 3
"""The first recorded frame, counted from the hook. Leaves out `dispatch_with_hooks` and its caller,
and for an allocation also that one's caller and the function that creates the array: Python creates
an object for each frame that is read. A thread whose stack is shorter may start or end with an
array."""


class StreamHandles(dict[int, int]):
    """The numbers that identify streams in a history (`raw_stream`), by stream id."""

    def __missing__(self, identity: int) -> int:
        handle = self[identity] = raw_stream(Stream.from_id(identity))
        return handle


def raw_stream(stream: Stream) -> int:
    """Return the number of a stream in a snapshot.

    The raw handle; without handles, 0 for the default stream and the stream's id for others.
    """
    if stream.queue.handle:
        return stream.queue.handle
    return 0 if stream is default_stream(stream.device) else stream.id


def is_of_others(own: Mapping[str, DeviceInterface], interface: DeviceInterface) -> bool:
    """Return whether a backend is not the one that its kind had at the start of a history.

    Parameters
    ----------
    own : Mapping[str, DeviceInterface]
        The backends that were in the place of others then.
    interface : DeviceInterface
        A backend.
    """
    return own.get(interface.name) is not (interface if interface.is_substitute else None)


def allocation_hook(
    append: Callable[[Entry], object] | None,
    stacks: StackTable | None,
    handles: StreamHandles,
    only: Device | None,
    keeps_site: bool,
    own: Mapping[str, DeviceInterface] | None = None,
) -> Callable[[Stream, Command, Any], None]:
    """Return the hook that stores the stack in an allocation and appends an entry.

    With `own`, it leaves out other backends (`is_of_others`).
    """
    hash_stack, find, add = _stack_functions(stacks)

    def after(stream: Stream, command: Command, result: Any) -> None:  # noqa: ARG001  # of a hook
        device = stream.device
        if only is not None and only is not device:
            return
        if own is not None:
            interface = stream.interface
            if (interface.is_substitute or own) and is_of_others(own, interface):
                return
        site = None
        if hash_stack is not None:
            try:
                frame = _getframe(_HOOK_DEPTH)
            except ValueError:
                frame = _getframe(1)
            key = hash_stack(frame)
            site = result.site = find(key) or add(key, frame)
        if append is not None:
            append(
                (
                    "alloc",
                    time_ns(),
                    device,
                    handles[stream.id],
                    result.address,
                    result.requested,
                    site if keeps_site else None,
                    active_annotations(),
                    result.pool,
                    "",
                    result.nbytes,
                )
            )

    return after


def _stack_functions(stacks: StackTable | None) -> tuple[Any, Any, Any]:
    return (None,) * 3 if stacks is None else (stacks.hash_stack, stacks.sites.get, stacks.add)


def free_hook(
    append: Callable[[Entry], object],
    stacks: StackTable | None,
    handles: StreamHandles,
    only: Device | None,
    keeps_request: bool,
    keeps_completion: bool,
    own: Mapping[str, DeviceInterface] | None = None,
) -> Callable[[Stream, Command], None]:
    """Return the hook that appends a free, and its completion unless another stream delays it.

    With `own`, it leaves out other backends (`is_of_others`).
    """
    hash_stack, find, add = _stack_functions(stacks)

    def before(stream: Stream, command: Command) -> None:
        device = stream.device
        if only is not None and only is not device:
            return
        if own is not None:
            interface = stream.interface
            if (interface.is_substitute or own) and is_of_others(own, interface):
                return
        allocation = command.args[0]
        site = None
        if hash_stack is not None:
            try:
                frame = _getframe(_FREE_HOOK_DEPTH)
            except ValueError:
                frame = _getframe(1)
            key = hash_stack(frame)
            site = find(key) or add(key, frame)
        request = (
            "free_requested",
            time_ns(),
            device,
            handles[stream.id],
            allocation.address,
            allocation.requested,
            site,
            active_annotations(),
            allocation.pool,
            "",
            allocation.nbytes,
        )
        if keeps_request:
            append(request)
        if keeps_completion and not allocation.recorded:
            append((request,))

    return before
