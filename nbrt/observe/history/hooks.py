"""What a history does at every allocation and free, in as few steps as will do.

Closures, since their variables are read faster than attributes.
"""

from __future__ import annotations

from sys import _getframe
from time import time_ns
from typing import TYPE_CHECKING, Any, TypeAlias

from nbrt.observe.history.annotations import entered
from nbrt.runtime.stream import Stream, default_stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt._internal.device import Device
    from nbrt.observe.history.stacks import StackTable
    from nbrt.runtime.commands import Command

__all__ = ["Entry", "StreamHandles", "allocation_hook", "free_hook", "raw_stream"]

Entry: TypeAlias = tuple[Any, ...]
"""An event in the history: the fields of `MemoryEvent`. A free that completes at once is a tuple of
one item, the entry of its request."""

_HOOK_DEPTH, _FREE_HOOK_DEPTH = 4, 3
"""Which frame a stack begins with, above a hook's own: `dispatch_with_hooks` and its caller are
left out, and of an allocation the function that makes the array. Python makes an object of a frame
that is looked at, so this saves time; but a thread may begin with an array, and end with one."""


class StreamHandles(dict[int, int]):
    """What stands for streams in a history, by their ids."""

    def __missing__(self, identity: int) -> int:
        handle = self[identity] = raw_stream(Stream.from_id(identity))
        return handle


def raw_stream(stream: Stream) -> int:
    """Return what stands for a stream in a snapshot.

    Its raw handle; where there are none its id, and 0 for the default stream.
    """
    if stream.handle:
        return stream.handle
    return 0 if stream is default_stream(stream.device) else stream.id


def allocation_hook(
    append: Callable[[Entry], object] | None,
    stacks: StackTable | None,
    handles: StreamHandles,
    only: Device | None,
    keeps_site: bool,
) -> Callable[[Stream, Command, Any], None]:
    """Return what leaves the stack with an allocation, and writes it down if there is `append`."""
    number, find, add = _means_of(stacks)

    def after(stream: Stream, command: Command, result: Any) -> None:  # noqa: ARG001  # of a tap
        device = stream.device
        if only is not None and only is not device:
            return
        site = None
        if number is not None:
            try:
                frame = _getframe(_HOOK_DEPTH)
            except ValueError:
                frame = _getframe(1)
            seen = number(frame)
            site = result.site = find(seen) or add(seen, frame)
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
                    entered(),
                    result.pool.id,
                )
            )

    return after


def _means_of(stacks: StackTable | None) -> tuple[Any, Any, Any]:
    return (None,) * 3 if stacks is None else (stacks.number, stacks.sites.get, stacks.add)


def free_hook(
    append: Callable[[Entry], object],
    stacks: StackTable | None,
    handles: StreamHandles,
    only: Device | None,
    keeps_request: bool,
    keeps_completion: bool,
) -> Callable[[Stream, Command], None]:
    """Return what writes down a free, and its completion where no other stream delays it."""
    number, find, add = _means_of(stacks)

    def before(stream: Stream, command: Command) -> None:
        device = stream.device
        if only is not None and only is not device:
            return
        allocation = command.args[0]
        site = None
        if number is not None:
            try:
                frame = _getframe(_FREE_HOOK_DEPTH)
            except ValueError:
                frame = _getframe(1)
            seen = number(frame)
            site = find(seen) or add(seen, frame)
        freed = (
            "free_requested",
            time_ns(),
            device,
            handles[stream.id],
            allocation.address,
            allocation.requested,
            site,
            entered(),
            allocation.pool.id,
        )
        if keeps_request:
            append(freed)
        if keeps_completion and not allocation.recorded:
            append((freed,))

    return before
