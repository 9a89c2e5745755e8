"""`record_stream`: memory that another stream uses stays as it is until that has passed."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from helpers.garbage import freeze_objects
from helpers.memory_model import address_of
from nbrt import memory
from nbrt.errors import ArgumentTypeError
from nbrt.testing import Latch

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
Streams = tuple[nbrt.Stream, nbrt.Stream]


@pytest.fixture(scope="module", autouse=True)
def quick() -> None:
    """Garbage is collected in nearly every test."""
    freeze_objects()


@pytest.fixture(autouse=True)
def settled(device: nbrt.Device) -> None:
    """No garbage of earlier tests may be freed in the middle of a measurement."""
    gc.collect()
    nbrt.synchronize(device)


def waiting(device: nbrt.Device) -> int:
    """Return the bytes that no array holds and no array may have yet."""
    stats = memory.memory_stats(device)
    return stats["active_bytes.all.current"] - stats["allocated_bytes.all.current"]


def owner_of(array: nbrt.typing.Array) -> memory.Allocation:
    owner = nbrt.get_interface_for_device(nbrt.device_of(array)).owner_of(array)
    assert isinstance(owner, memory.Allocation)
    return owner


def itself(array: Any) -> Any:
    return array


VIEWS: dict[str, Callable[[Any], Any]] = {
    "itself": itself,
    "slice": lambda array: array[3:],
    "strided": lambda array: array[::2],
    "reshaped": lambda array: array.reshape(2, -1)[1],
    "another dtype": lambda array: array.view("uint16"),
    "nothing": lambda array: array[:0],
}


@pytest.mark.parametrize("size", [1000, 3 * MIB])
@pytest.mark.parametrize("view", VIEWS)
def test_memory_waits_for_the_stream(side_streams: Streams, view: str, size: int) -> None:
    home, user = side_streams
    device = home.device
    waiting(device)  # records events of memory that earlier tests freed in a capture
    nbrt.synchronize(device)
    start = waiting(device)
    x = nbrt.empty(size, "uint8", stream=home)
    address, nbytes = address_of(x), owner_of(x).nbytes
    memory.record_stream(VIEWS[view](x), user)
    memory.record_stream(x, user)  # once more is the same
    with Latch() as latch:
        latch.hold(user)
        del x
        assert waiting(device) - start == nbytes
        others = [nbrt.empty(size, "uint8", stream=home) for _ in range(3)]
        assert address not in map(address_of, others)
    user.synchronize()
    assert waiting(device) == start
    assert len(others) == 3


def test_every_recorded_stream_must_pass(side_streams: Streams) -> None:
    device = side_streams[0].device
    start = waiting(device)
    x = nbrt.empty(5000, "uint8", device=device)
    for stream in side_streams:
        memory.record_stream(x, stream)
    with Latch() as first, Latch() as second:
        first.hold(side_streams[0])
        second.hold(side_streams[1])
        del x
        assert waiting(device) > start
        second.release()
        side_streams[1].synchronize()
        assert waiting(device) > start
        first.release()
        side_streams[0].synchronize()
        assert waiting(device) == start


def test_work_after_the_end_is_not_waited_for(side_streams: Streams) -> None:
    home, user = side_streams
    device = home.device
    start = waiting(device)
    x = nbrt.empty(5000, "uint8", stream=home)
    memory.record_stream(x, user)
    with Latch() as before, Latch() as after:
        before.hold(user)
        del x
        assert waiting(device) > start
        after.hold(user)
        before.release()
        after.wait_reached()
        assert waiting(device) == start


def test_its_own_stream_needs_no_record(side_streams: Streams) -> None:
    home = side_streams[0]
    start = waiting(home.device)
    x = nbrt.empty(5000, "uint8", stream=home)
    memory.record_stream(x, home)
    assert not owner_of(x).recorded
    with Latch() as latch:
        latch.hold(home)
        del x
        assert waiting(home.device) == start


def test_an_end_while_a_stream_is_idle(side_streams: Streams) -> None:
    home, user = side_streams
    start = waiting(home.device)
    x = nbrt.empty(5000, "uint8", stream=home)
    memory.record_stream(x, user)
    del x
    memory.memory_stats(home.device)
    user.synchronize()
    assert waiting(home.device) == start


def test_the_next_owner_is_not_recorded(device: nbrt.Device) -> None:
    stream = nbrt.Stream(device)
    x = nbrt.empty(3000, "uint8", device=device)
    memory.record_stream(x, stream)
    assert owner_of(x).recorded == {stream}
    del x
    memory.memory_stats(device)
    stream.synchronize()
    memory.memory_stats(device)
    again = [nbrt.empty(3000, "uint8", device=device) for _ in range(100)]
    assert not any(owner_of(array).recorded for array in again)


def test_a_stream_of_another_device(device: nbrt.Device, other_device: nbrt.Device) -> None:
    stream = nbrt.Stream(other_device)
    x = nbrt.empty(3000, "uint8", device=device)
    memory.record_stream(x, stream)
    assert owner_of(x).recorded == {stream}
    if nbrt.get_interface_for_device(device).capabilities.concurrent_streams:
        start = waiting(device)
        with Latch() as latch:
            latch.hold(stream)
            del x
            assert waiting(device) > start
        stream.synchronize()
        assert waiting(device) == start


def test_memory_of_other_libraries_lives_until_then(side_stream: nbrt.Stream) -> None:
    """NumPy's own memory, on cpu; elsewhere host memory that a copy reads."""
    x = np.arange(10.0)
    view = x[2:]
    gone = weakref.ref(x)
    with Latch() as latch:
        latch.hold(side_stream)
        memory.record_stream(view, side_stream)
        del x, view
        assert gone() is not None
        latch.wait_reached()
        assert gone() is not None
    side_stream.synchronize()
    side_stream.query()
    assert gone() is None


@pytest.mark.parametrize("wrong", [None, 3, [1.0], "x", object()])
def test_what_is_no_array(device: nbrt.Device, wrong: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="expected an array of a device"):
        memory.record_stream(wrong, nbrt.Stream(device))


@pytest.mark.parametrize("wrong", [None, 0, "cpu:0"])
def test_what_is_no_stream(device: nbrt.Device, wrong: Any) -> None:
    x = nbrt.empty(3, device=device)
    with pytest.raises(ArgumentTypeError, match=r"expected an nbrt\.Stream, got"):
        memory.record_stream(x, wrong)
    assert not owner_of(x).recorded
