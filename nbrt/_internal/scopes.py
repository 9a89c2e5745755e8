"""Ambient state: the current device, streams and pools.

A ContextVar holds an immutable frame that points at the frame it replaced. A guard pushes a frame
on entry and pops it on exit, and keeps no state, so that one guard object nests. Threads and
asyncio tasks have separate contexts and do not see each other's frames. A frame refers to its
guard, because a generator suspended inside a guard may be closed out of order or in another
context.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nbrt._internal.device import Device

__all__ = [
    "ContextFrame",
    "current",
    "current_index",
    "pop_device",
    "pop_frame",
    "push",
    "replace",
    "reset",
]


class ContextFrame:
    """The ambient state between two guards.

    Attributes
    ----------
    device : Device or None
        The current device; None: the default device, chosen on first use.
    indices : Mapping[str, int]
        Kind of device -> the index that `replace` chose last in this frame.
    streams : Mapping[Device, object]
        The current streams of devices where they differ from the default stream.
    pools : Mapping[Device, object]
        The current memory pools of devices where they differ from the default pool.
    parent : ContextFrame or None
        The enclosing frame.
    undo : callable or None
        Restores the driver's current device and stream of before this frame.
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
"""Return the frame of the running context; a C function, because every launch calls it."""


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
    """Replace the current frame; the enclosing guard still restores the previous state."""
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


def reset() -> None:
    """Leave all guards in the running context, a copy of another one, where they stay in force."""
    _frame.set(_ROOT)


def pop_frame(guard: object) -> ContextFrame:
    """Return to the frame around `guard`; return the frame that was left."""
    top = _frame.get()
    if top.guard is not guard:
        return _remove(guard)
    if top.parent is not None:
        _frame.set(top.parent)
    return top


def pop_device(guard: object) -> ContextFrame:
    """Return to the enclosing frame's device; keep streams set inside, as PyTorch does."""
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
    """Remove the innermost frame of a guard that is not the current one, if there is one.

    Guards entered later remain in force. Frames of other contexts are out of reach.
    """
    above: list[ContextFrame] = []
    frame: ContextFrame | None = _frame.get()
    while frame is not None and frame.guard is not guard:
        above.append(frame)
        frame = frame.parent
    if frame is None:
        return _ROOT
    kept = frame.parent
    for inner in reversed(above):
        kept = ContextFrame(
            inner.device,
            inner.indices,
            inner.streams,
            kept,
            inner.undo,
            inner.guard,
            inner.pools,
        )
    if kept is not None:
        _frame.set(kept)
    return frame


def current_index(kind: str) -> int:
    """Return the index chosen last for a kind of device in the running context; 0 by default."""
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
