"""The words that the replays of a graph take from its generators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends import registry
from nbrt.runtime.array import device_of, to_host
from nbrt.runtime.creation import empty
from nbrt.runtime.memory.pool import MemoryPool, use_pool
from nbrt.runtime.stream import Event, Stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt._internal.device import Device
    from nbrt.backends.graphs import ReplayValues
    from nbrt.random.stream_position import StreamPosition

__all__ = ["GeneratorUse", "end_with", "new_state", "reserve", "state_pool", "unreserve"]

_MODULUS = 2**64


_state_pools: dict[Device, MemoryPool] = {}
registry.on_substituted(registry.set_aside(_state_pools, lambda device: device.kind))


def state_pool(device: Device) -> MemoryPool:
    """Return the memory of the states of generators in graphs, which nothing else uses."""
    pool = _state_pools.get(device)
    return pool if pool is not None else _state_pools.setdefault(device, MemoryPool(device))


def new_state(stream: Stream) -> Any:
    """Return memory for the state of a generator in a graph."""
    if stream.interface.capabilities.host_addressable:
        return np.zeros(2, np.uint64)
    # A replay writes it before the first node, so it must not lie in memory that nodes use.
    with use_pool(state_pool(stream.device)):
        return empty(2, np.uint64, stream=stream)


class GeneratorUse:
    """The draws of a graph from one generator.

    Attributes
    ----------
    position : StreamPosition
        The state of the generator.
    array : array
        uint64[2] on the device: the state, as the nodes read it.
    buffer : int
        The buffer of `array`.
    words : int
        The words that a replay draws outside of control flow.
    is_dynamic : bool
        Whether control flow draws more, so that the words of a replay are known at its end.
    """

    def __init__(self, position: StreamPosition, array: Any, buffer: int) -> None:
        self.position = position
        self.array = array
        self.buffer = buffer
        self.words = 0
        self.is_dynamic = False


def reserve(uses: Sequence[GeneratorUse], values: ReplayValues) -> Any:
    """Reserve the words of one replay; enter the states into its values; return how to undo it."""
    marks: list[Any] = []
    for use in uses:
        try:
            before, after = use.position.reserve(use.words)
        except BaseException:
            unreserve(marks)
            raise
        marks.append((use.position, before, after))
        values.states.append((use.buffer, *before))
    return marks


def unreserve(marks: Any) -> None:
    """Undo `reserve`."""
    for position, before, after in marks:
        position.unreserve(before, after)


def end_with(uses: Sequence[GeneratorUse], stream: Stream, values: ReplayValues) -> None:
    """Have the next use of a generator wait for a replay whose loops draw from it."""
    dynamic = [use for use in uses if use.is_dynamic]
    if not dynamic or not stream.interface.capabilities.computes:
        return
    starts = {buffer: offset for buffer, _, offset in values.states}
    event = Event()
    event.record(stream)
    for use in dynamic:
        # The next replay reserves words of the generator first, so it cannot overwrite the state.
        use.position.defer(_Moved(use, starts[use.buffer], event))


class _Moved:
    """Sets the state of a generator after a replay whose loops drew from it."""

    def __init__(self, use: GeneratorUse, start: int, event: Event) -> None:
        self._use = use
        self._start = start
        self._event = event

    def __call__(self) -> None:
        position = self._use.position
        with position.lock:
            if position.before_use is not self:
                return
            self._event.synchronize()
            moved = (_offset_in(self._use.array) - self._start) % _MODULUS
            position.before_use = None
            position.move(moved)


def _offset_in(array: Any) -> int:
    """Return the offset in a state that no work changes, also during a capture."""
    if isinstance(array, np.ndarray):
        return int(array[1])
    stream = Stream(device_of(array))
    while stream.capture is not None:  # the current stream may be captured, and others too
        stream = Stream(stream.device)
    return int(to_host(array, stream=stream)[1])
