"""Streams that work: the pool, order, overlap, waiting; failures are in test_stream_failures."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from typing import Any, cast

import numpy as np
import pytest

import nbrt
from helpers.clocks import HANG_TIMEOUT
from nbrt.errors import ArgumentError, ArgumentTypeError, NotSupportedError, StreamError
from nbrt.runtime.stream import STREAMS_PER_PRIORITY
from nbrt.testing import Latch


class ForeignStream:
    """A stream of another library, as far as the protocol shows it."""

    def __init__(self, handle: object = 4096, version: int = 0) -> None:
        self.answer = (version, handle)

    def __cuda_stream__(self) -> object:
        return self.answer


def test_the_33rd_stream_is_the_first(device: nbrt.Device) -> None:
    streams = [nbrt.Stream(device) for _ in range(STREAMS_PER_PRIORITY + 1)]
    assert streams[-1] is streams[0]
    assert len(set(streams)) == STREAMS_PER_PRIORITY == 32
    assert len({stream.id for stream in streams}) == STREAMS_PER_PRIORITY
    assert nbrt.default_stream(device) not in streams


def test_each_priority_and_device_has_a_pool(
    device: nbrt.Device, other_device: nbrt.Device
) -> None:
    highest = nbrt.get_interface_for_device(device).capabilities.stream_priorities[1]
    pools = [
        {nbrt.Stream(each, priority) for _ in range(STREAMS_PER_PRIORITY)}
        for each in (device, other_device)
        for priority in (0, highest)
    ]
    assert len(set.union(*pools)) == len(pools) * STREAMS_PER_PRIORITY
    assert {stream.device for stream in pools[0]} == {device}
    assert {stream.device for stream in pools[2]} == {other_device}


def test_priorities_are_clamped(device: nbrt.Device) -> None:
    lowest, highest = nbrt.get_interface_for_device(device).capabilities.stream_priorities
    assert nbrt.Stream(device, 1000).priority == lowest
    assert nbrt.Stream(device, -1000).priority == highest
    assert nbrt.Stream(device, priority=highest).priority == highest
    for wrong in (True, 0.0, "high"):
        with pytest.raises(ArgumentTypeError, match="expected an int priority"):
            nbrt.Stream(device, wrong)


def test_streams_are_found_by_id(device: nbrt.Device, stream: nbrt.Stream) -> None:
    assert nbrt.Stream.from_id(stream.id) is stream
    default = nbrt.default_stream(device)
    assert nbrt.Stream.from_id(default.id) is default
    for wrong in (-1, 10**9, "1"):
        with pytest.raises(ArgumentError, match="expected the id of a stream"):
            nbrt.Stream.from_id(wrong)


def test_streams_are_shared_not_copied(stream: nbrt.Stream) -> None:
    assert copy.copy(stream) is stream
    assert copy.deepcopy([stream])[0] is stream
    with pytest.raises(ArgumentTypeError, match="one process"):
        pickle.dumps(stream)
    assert f"id={stream.id}" in repr(stream)


def test_from_external_checks_the_protocol(device: nbrt.Device, stream: nbrt.Stream) -> None:
    assert nbrt.Stream.from_external(stream) is stream
    for wrong in (object(), 4096, None):
        with pytest.raises(ArgumentTypeError, match="__cuda_stream__"):
            nbrt.Stream.from_external(wrong, device)
    foreign = ForeignStream()
    foreign.answer = [0, 1]
    with pytest.raises(ArgumentTypeError, match=r"\(version, address\)"):
        nbrt.Stream.from_external(foreign, device)
    with pytest.raises(NotSupportedError, match="version 3"):
        nbrt.Stream.from_external(ForeignStream(version=3), device)


def test_from_external_needs_raw_streams() -> None:
    with pytest.raises(NotSupportedError, match=r"nbrt\.Stream\(device='cpu:1'\)"):
        nbrt.Stream.from_external(ForeignStream(), "cpu:1")


def test_a_borrowed_stream_keeps_its_owner_alive(sample_backend: object) -> None:
    foreign = ForeignStream(4096)
    alive = weakref.ref(foreign)
    borrowed = nbrt.Stream.from_external(foreign, "sample:1")
    number = borrowed.id
    assert borrowed.handle == 4096
    assert borrowed.__cuda_stream__() == (0, 4096)
    assert borrowed.device == nbrt.Device("sample", 1)
    assert nbrt.Stream.from_external(borrowed) is borrowed
    with nbrt.stream(borrowed):
        assert nbrt.empty(3).shape == (3,)
    del foreign
    gc.collect()
    assert alive() is not None
    del borrowed
    gc.collect()
    assert alive() is None
    with pytest.raises(ArgumentError, match="pass the id of a stream that still exists"):
        nbrt.Stream.from_id(number)


def test_only_streams_with_raw_handles_have_the_protocol(stream: nbrt.Stream) -> None:
    has_protocol = stream.interface.capabilities.cuda_stream_protocol
    assert hasattr(stream, "__cuda_stream__") is has_protocol


def test_the_default_stream_runs_in_the_callers_thread(device: nbrt.Device) -> None:
    if not nbrt.get_interface_for_device(device).capabilities.host_addressable:
        pytest.skip(f"the default stream of {device.kind} is the driver's")
    seen: list[int] = []
    default = nbrt.default_stream(device)
    default.call(lambda: seen.append(threading.get_ident()))
    assert seen == [threading.get_ident()]
    assert default.query()
    with pytest.raises(ZeroDivisionError):
        default.call(lambda: 1 // 0)
    default.synchronize()


def test_host_calls_may_queue_more_work(stream: nbrt.Stream) -> None:
    seen: list[str] = []

    def outer() -> None:
        stream.call(seen.append, "inner")
        seen.append("outer")

    stream.call(outer)
    if stream.device.kind == "cuda":
        with pytest.raises(StreamError, match="host calls of streams must not use CUDA"):
            stream.synchronize()
        return
    stream.synchronize()
    stream.synchronize()
    assert sorted(seen) == ["inner", "outer"]


def test_call_wants_a_function(stream: nbrt.Stream) -> None:
    with pytest.raises(ArgumentTypeError, match="expected a function"):
        stream.call(7)


def test_a_stream_is_a_fifo(side_stream: nbrt.Stream) -> None:
    seen: list[int] = []
    with Latch() as latch:
        latch.hold(side_stream)
        for number in range(100):
            side_stream.call(seen.append, number)
        latch.wait_reached()
        assert seen == []
        assert not side_stream.query()
    side_stream.synchronize()
    assert seen == list(range(100))
    assert side_stream.query()


def test_query_is_true_as_soon_as_synchronize_returns(side_stream: nbrt.Stream) -> None:
    for _ in range(500):
        side_stream.call(int)
        side_stream.synchronize()
        assert side_stream.query()


def test_two_streams_overlap(side_streams: tuple[nbrt.Stream, nbrt.Stream]) -> None:
    """Each stream waits for the other to be running: a device that took turns would never end."""
    first, second = side_streams
    here, there = threading.Event(), threading.Event()
    met: list[bool] = []

    def meet(mine: threading.Event, other: threading.Event) -> None:
        mine.set()
        met.append(other.wait(HANG_TIMEOUT))

    first.call(meet, here, there)
    second.call(meet, there, here)
    first.synchronize()
    second.synchronize()
    assert met == [True, True]


def test_synchronize_waits_for_the_device_only(
    device: nbrt.Device, other_device: nbrt.Device, side_stream: nbrt.Stream
) -> None:
    seen: list[str] = []
    held = nbrt.Stream(other_device)
    with Latch() as latch:
        latch.hold(held)
        latch.wait_reached()
        side_stream.call(seen.append, "done")
        nbrt.synchronize(device)
        assert seen == ["done"]
        assert not held.query()
    nbrt.synchronize(other_device)
    assert held.query()


def test_wait_stream_orders_two_streams(side_streams: tuple[nbrt.Stream, nbrt.Stream]) -> None:
    first, second = side_streams
    seen: list[str] = []
    with Latch() as latch:
        latch.hold(first)
        first.call(seen.append, "first")
        second.call(seen.append, "free")
        free = second.record_event()
        second.wait_stream(first)
        second.call(seen.append, "second")
        first.call(seen.append, "not waited for")
        latch.wait_reached()
        free.synchronize()
        assert seen == ["free"]
    first.synchronize()
    second.synchronize()
    assert seen.index("first") < seen.index("second")
    assert seen.index("free") < seen.index("first")


def test_arrays_follow_the_current_stream(side_stream: nbrt.Stream) -> None:
    with nbrt.stream(side_stream), Latch() as latch:
        x = nbrt.full(1000, 1.0)
        side_stream.synchronize()
        latch.hold(side_stream)
        nbrt.copy(x, np.full(1000, 7.0, np.float32))
        y = nbrt.asarray(x, device=side_stream.device)
        if side_stream.interface.capabilities.host_addressable:
            assert np.all(np.asarray(x) == 1.0)
        latch.release()
        assert np.all(nbrt.to_host(y) == 7.0)


def test_many_threads_share_a_stream(stream: nbrt.Stream) -> None:
    count = [0]

    def add() -> None:
        count[0] += 1  # safe only if the stream runs one call at a time

    def submit() -> None:
        for _ in range(200):
            stream.call(add)

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stream.synchronize()
    assert count == [1600]


def test_foreign_arguments(device: nbrt.Device) -> None:
    for wrong in ("no such device", object(), 1.5, True):
        with pytest.raises((ArgumentError, ArgumentTypeError)):
            nbrt.Stream(wrong)
    with pytest.raises(ArgumentTypeError):
        nbrt.empty(3, stream="main")
    with pytest.raises(ArgumentTypeError):
        nbrt.Event().record("main")
    with pytest.raises(ArgumentTypeError):
        nbrt.Event().wait(0)


def test_cancel_drops_nothing_of_an_idle_stream(stream: nbrt.Stream) -> None:
    if stream.device.kind == "cuda":
        with pytest.raises(NotSupportedError, match="can drop work"):
            stream.cancel()
        return
    assert stream.cancel() == 0
    seen: list[int] = []
    stream.call(seen.append, 1)
    stream.synchronize()
    assert seen == [1]


def test_queues_without_cancel_are_told_apart(stream: nbrt.Stream) -> None:
    queue = stream.queue
    stream.queue = cast("Any", object())
    try:
        with pytest.raises(NotSupportedError, match="can drop work"):
            stream.cancel()
    finally:
        stream.queue = queue
