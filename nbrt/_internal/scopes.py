"""The only home of ambient state: current device, current streams and pools.

One ContextVar holds an immutable frame that points at the frame it replaced. Entering a guard
pushes a frame, leaving it pops one, so a guard keeps nothing on itself: the same object nests,
and threads and asyncio tasks, which each have a context, never see each other's frames. A frame
knows its guard, because a generator suspended inside a guard can be closed out of order, or in
another context.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nbrt._internal.device import Device

__all__ = ["ContextFrame", "current", "current_index", "pop_device", "pop_frame", "push", "replace"]


class ContextFrame:
    """What is ambient between two guards.

    Attributes
    ----------
    device : Device or None
        The current device; None stands for the default device, which is chosen on first use.
    indices : Mapping[str, int]
        The index that `replace` last chose in this frame, for every kind it chose.
    streams : Mapping[Device, object]
        The current stream of every device that has another one than its default stream.
    pools : Mapping[Device, object]
        The current memory pool of every device that has another one than its default pool.
    parent : ContextFrame or None
        The frame to return to.
    undo : callable or None
        Restores what a backend's driver had before this frame (its own current device and stream).
    guard : object
        The guard that entered the frame.
    """

    __slots__ = ("device", "guard", "indices", "parent", "pools", "streams", "undo")

    def __init__(
        self,
        device: Device | None,
        indices: Mapping[str, int],
        streams: Mapping[Device, object],
        parent: ContextFrame | None,
        undo: Callable[[], None] | None,
        guard: object,
        pools: Mapping[Device, object],
    ) -> None:
        self.device = device
        self.indices = indices
        self.streams = streams
        self.pools = pools
        self.parent = parent
        self.undo = undo
        self.guard = guard


_NO_INDICES: Mapping[str, int] = {}
_ROOT = ContextFrame(None, _NO_INDICES, {}, None, None, None, {})
_frame: ContextVar[ContextFrame] = ContextVar("nbrt_frame", default=_ROOT)

current = _frame.get
"""Return the frame of the running context; a bare C call, since every launch asks."""


def push(
    guard: object,
    device: Device | None,
    streams: Mapping[Device, object] | None,
    undo: Callable[[], None] | None = None,
    pools: Mapping[Device, object] | None = None,
) -> None:
    """Enter a frame with another device and, unless None, other streams and pools."""
    top = _frame.get()
    _frame.set(
        ContextFrame(
            device,
            _NO_INDICES,
            top.streams if streams is None else streams,
            top,
            undo,
            guard,
            top.pools if pools is None else pools,
        )
    )


def replace(device: Device | None, streams: Mapping[Device, object] | None) -> None:
    """Change the running frame in place of entering one; the enclosing guard still restores."""
    top = _frame.get()
    _frame.set(
        ContextFrame(
            device,
            _with_index(top.indices, device),
            top.streams if streams is None else streams,
            top.parent,
            top.undo,
            top.guard,
            top.pools,
        )
    )


def pop_frame(guard: object) -> ContextFrame:
    """Return to the frame around `guard`, device and streams alike; give back the frame left."""
    top = _frame.get()
    if top.guard is not guard:
        return _remove(guard)
    if top.parent is not None:
        _frame.set(top.parent)
    return top


def pop_device(guard: object) -> ContextFrame:
    """Return to the enclosing frame's device, but keep streams that were set inside.

    A device guard restores the device alone, as in PyTorch: ``set_stream`` inside it stays.
    """
    top = _frame.get()
    parent = top.parent
    if top.guard is not guard:
        return _remove(guard)
    if parent is None:
        return top
    if top.streams is parent.streams:
        _frame.set(parent)
    else:
        _frame.set(
            ContextFrame(
                parent.device,
                parent.indices,
                top.streams,
                parent.parent,
                parent.undo,
                parent.guard,
                parent.pools,
            )
        )
    return top


def _remove(guard: object) -> ContextFrame:
    """Take out the innermost frame of a guard that is not the running one; nothing if none is.

    Guards entered since stay in force. A frame of another context cannot be reached from here.
    """
    above: list[ContextFrame] = []
    frame: ContextFrame | None = _frame.get()
    while frame is not None and frame.guard is not guard:
        above.append(frame)
        frame = frame.parent
    if frame is None:
        return _ROOT
    kept = frame.parent
    for each in reversed(above):
        kept = ContextFrame(
            each.device, each.indices, each.streams, kept, each.undo, each.guard, each.pools
        )
    if kept is not None:
        _frame.set(kept)
    return frame


def current_index(kind: str) -> int:
    """Return the index of a kind that was chosen last in the running context, 0 if none was."""
    frame: ContextFrame | None = _frame.get()
    while frame is not None:
        if frame.device is not None and frame.device.kind == kind:
            return frame.device.index
        if kind in frame.indices:
            return frame.indices[kind]
        frame = frame.parent
    return 0


def _with_index(indices: Mapping[str, int], device: Device | None) -> Mapping[str, int]:
    if device is None or indices.get(device.kind) == device.index:
        return indices
    return {**indices, device.kind: device.index}
