"""Arrays and orders for tests of the race checker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numba import cuda

import nbrt
from helpers.clocks import HANG_TIMEOUT
from nbrt.backends.fake.array import FakeArray

if TYPE_CHECKING:
    from nbrt.observe.races.checker import RaceChecker

__all__ = [
    "ORDERS",
    "Address",
    "N",
    "Order",
    "Streams",
    "add",
    "address_of",
    "double",
    "kinds",
    "let_pass",
    "nothing",
    "race",
    "reused",
    "synchronize_stream",
    "wait_stream",
]

N = 1000

Order = Callable[[nbrt.Stream, nbrt.Stream], None]
Streams = tuple[nbrt.Stream, nbrt.Stream]


@nbrt.kernel
def double(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2.0


@nbrt.kernel
def add(out, x):
    i = cuda.grid(1)
    if i < out.size:
        out[i] += x[i]


class Address:
    """Memory that is known by its address alone."""

    def __init__(self, array: nbrt.typing.Array) -> None:
        self._device = nbrt.device_of(array)
        self._address, self._nbytes = address_of(array), array.nbytes
        self._shape, self._dtype = array.shape, array.dtype

    def array(self) -> nbrt.typing.Array:
        """Return an array over it, which keeps nothing alive."""
        interface = nbrt.get_interface_for_device(self._device)
        block = interface.block_at(self._device.index, self._address, self._nbytes, None)
        return interface.as_array(block, self._shape, self._dtype, block.handle(None))


def address_of(array: nbrt.typing.Array) -> int:
    if isinstance(array, FakeArray):
        return array.address
    return array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr


def kinds(checker: RaceChecker) -> list[str]:
    return [report.kind for report in checker.reports]


def let_pass(stream: nbrt.Stream) -> None:
    """Wait until a stream holds no array any more, in a way that orders nothing."""
    passed = threading.Event()
    stream.call(passed.set)
    assert passed.wait(HANG_TIMEOUT)


def nothing(first: nbrt.Stream, second: nbrt.Stream) -> None:
    """Order nothing."""


def wait_stream(first: nbrt.Stream, second: nbrt.Stream) -> None:
    second.wait_stream(first)


def wait_event(first: nbrt.Stream, second: nbrt.Stream) -> None:
    event = nbrt.Event()
    event.record(first)
    event.wait(second)


def synchronize_stream(first: nbrt.Stream, second: nbrt.Stream) -> None:
    first.synchronize()


def synchronize_event(first: nbrt.Stream, second: nbrt.Stream) -> None:
    first.record_event().synchronize()


def synchronize_device(first: nbrt.Stream, second: nbrt.Stream) -> None:
    nbrt.synchronize(first.device)


def poll_stream(first: nbrt.Stream, second: nbrt.Stream) -> None:
    let_pass(first)
    while not first.query():
        """The last work has run, and is counted at any moment."""


def poll_event(first: nbrt.Stream, second: nbrt.Stream) -> None:
    event = first.record_event()
    let_pass(first)
    assert event.query()


ORDERS = (
    wait_stream,
    wait_event,
    synchronize_stream,
    synchronize_event,
    synchronize_device,
    poll_stream,
    poll_event,
)


def reused(stream: nbrt.Stream, address: int) -> nbrt.typing.Array:
    """Allocate, and get the block at an address again."""
    y = nbrt.empty(N, stream=stream)
    assert address_of(y) == address
    return y


def race(streams: Streams, times: int = 1) -> None:
    for _ in range(times):
        x = nbrt.zeros(N, stream=streams[0])
        nbrt.copy(x, np.float32(1.0), stream=streams[1])
        nbrt.synchronize(streams[0].device)
