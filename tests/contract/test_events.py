"""Events: lazy, timed, waited for across streams, devices and kinds."""

from __future__ import annotations

import copy
import pickle
import threading
import time

import pytest

import nbrt
from helpers.clocks import HANG_TIMEOUT
from nbrt.backends.cpu.backend import CpuInterface
from nbrt.errors import (
    ArgumentTypeError,
    DeviceMismatchError,
    EventError,
    NotSupportedError,
    StreamError,
)
from nbrt.testing import Latch

Pair = tuple[nbrt.Stream, nbrt.Stream]


def test_an_event_is_made_at_its_first_record(stream: nbrt.Stream) -> None:
    event = nbrt.Event()
    assert event.device is None
    assert event.query()
    event.synchronize()
    event.wait(stream)
    assert "not recorded" in repr(event)
    event.record(stream)
    assert event.device == stream.device
    event.synchronize()
    assert event.query()
    assert "done" in repr(event)


def test_an_event_records_the_current_stream(
    device: nbrt.Device, other_device: nbrt.Device, stream: nbrt.Stream
) -> None:
    event = nbrt.Event()
    with nbrt.stream(stream):
        event.record()
    assert event.device == device
    # Bound to a device, it takes that device's current stream, whatever is current.
    with nbrt.device(other_device):
        event.record()
    assert event.device == device


def test_an_event_stays_on_its_device(device: nbrt.Device, other_device: nbrt.Device) -> None:
    stranger = nbrt.Stream(other_device)
    for event in (nbrt.Event(device), nbrt.Stream(device).record_event()):
        with pytest.raises(DeviceMismatchError, match=f"got one of {other_device}"):
            event.record(stranger)
        assert event.device == device


def test_events_are_not_copied(stream: nbrt.Stream) -> None:
    event = stream.record_event()
    for forbidden in (copy.copy, copy.deepcopy):
        with pytest.raises(ArgumentTypeError, match="expected an Event to be shared"):
            forbidden(event)
    with pytest.raises(ArgumentTypeError, match="lives in one process"):
        pickle.dumps(event)


def test_record_event_takes_an_event(stream: nbrt.Stream) -> None:
    event = nbrt.Event(enable_timing=True)
    assert stream.record_event(event) is event
    assert stream.record_event() is not event


def test_elapsed_time_is_in_milliseconds(stream: nbrt.Stream) -> None:
    start, end = nbrt.Event(enable_timing=True), nbrt.Event(enable_timing=True)
    clock = -time.perf_counter()
    start.record(stream)
    inner = []

    def spend() -> None:
        begin = time.perf_counter()
        while time.perf_counter() - begin < 0.01:
            pass
        inner.append((time.perf_counter() - begin) * 1e3)

    stream.call(spend)
    end.record(stream)
    end.synchronize()
    clock += time.perf_counter()
    assert inner[0] - 1e-3 <= start.elapsed_time(end) <= clock * 1e3 + 1e-3
    assert end.elapsed_time(start) == pytest.approx(-start.elapsed_time(end))


def test_elapsed_time_across_devices(device: nbrt.Device, other_device: nbrt.Device) -> None:
    if device.kind == "cuda":
        pytest.skip("CUDA times events of one device only")
    start, end = nbrt.Event(enable_timing=True), nbrt.Event(enable_timing=True)
    start.record(nbrt.default_stream(device))
    end.record(nbrt.default_stream(other_device))
    assert start.elapsed_time(end) >= 0.0


def test_elapsed_time_wants_timed_recorded_finished_events(
    stream: nbrt.Stream, sample_backend: object
) -> None:
    timed = nbrt.Event(enable_timing=True)
    with pytest.raises(EventError, match="the first was not recorded"):
        timed.elapsed_time(timed)
    timed.record(stream)
    timed.synchronize()
    with pytest.raises(EventError, match="the second has none"):
        timed.elapsed_time(stream.record_event())
    with pytest.raises(ArgumentTypeError, match="expected an Event"):
        timed.elapsed_time(1.0)
    stranger = nbrt.Event(enable_timing=True)
    stranger.record(nbrt.default_stream("sample" if stream.device.kind == "cpu" else "cpu"))
    with pytest.raises(EventError, match="whose clocks differ"):
        timed.elapsed_time(stranger)


def test_a_pending_event_has_no_time(side_stream: nbrt.Stream) -> None:
    event = nbrt.Event(enable_timing=True)
    with Latch() as latch:
        latch.hold(side_stream)
        event.record(side_stream)
        assert not event.query()
        assert "pending" in repr(event)
        with pytest.raises(EventError, match="pending: synchronize first"):
            event.elapsed_time(event)
    event.synchronize()
    assert event.elapsed_time(event) == 0.0


def test_interprocess_events(device: nbrt.Device) -> None:
    with pytest.raises(EventError, match="at most one of interprocess and enable_timing"):
        nbrt.Event(device, enable_timing=True, interprocess=True)
    if nbrt.get_interface_for_device(device).capabilities.interprocess_events:
        assert nbrt.Event(device, interprocess=True).ipc_handle()
        with pytest.raises(EventError, match="interprocess=True"):
            nbrt.Event(device).ipc_handle()
        return
    with pytest.raises(NotSupportedError, match="ipc handles exist on cuda"):
        nbrt.Event(device, interprocess=True).ipc_handle()
    with pytest.raises(NotSupportedError, match="ipc handles exist on cuda"):
        nbrt.Event.from_ipc_handle(device, bytes(64))


def test_synchronize_waits_for_the_record_only(side_stream: nbrt.Stream) -> None:
    seen: list[str] = []
    with Latch() as latch:
        side_stream.call(seen.append, "before")
        event = side_stream.record_event()
        latch.hold(side_stream)
        side_stream.call(seen.append, "behind")
        event.synchronize()
        assert seen == ["before"]
        assert event.query()
        assert not side_stream.query()


def test_wait_orders_two_streams(side_streams: Pair) -> None:
    first, second = side_streams
    seen: list[str] = []
    with Latch() as latch:
        latch.hold(first)
        first.call(seen.append, "first")
        event = first.record_event()
        second.wait_event(event)
        second.call(seen.append, "second")
        latch.wait_reached()
        assert not second.query()
        assert seen == []
    second.synchronize()
    assert seen == ["first", "second"]


def test_wait_without_a_record_is_no_wait(side_streams: Pair) -> None:
    first, second = side_streams
    seen: list[str] = []
    with Latch() as latch:
        latch.hold(first)
        second.wait_event(nbrt.Event(first.device))
        second.call(seen.append, "second")
        second.synchronize()
        assert seen == ["second"]


def test_wait_means_the_record_at_the_time_of_the_call(side_streams: Pair) -> None:
    first, second = side_streams
    seen: list[str] = []
    with Latch() as early, Latch() as late:
        early.hold(first)
        event = first.record_event()
        second.wait_event(event)
        second.call(seen.append, "second")
        late.hold(first)
        event.record(first)
        early.release()
        second.synchronize()
        assert seen == ["second"]
        assert not event.query()
    event.synchronize()
    assert event.query()


def test_wait_across_devices(
    side_stream: nbrt.Stream, device: nbrt.Device, other_device: nbrt.Device
) -> None:
    there = nbrt.Stream(other_device)
    seen: list[str] = []
    with Latch() as latch:
        latch.hold(side_stream)
        side_stream.call(seen.append, "here")
        there.wait_event(side_stream.record_event())
        there.call(seen.append, "there")
        latch.wait_reached()
        assert seen == []
    there.synchronize()
    assert seen == ["here", "there"]


def test_wait_across_kinds(side_stream: nbrt.Stream, sample_backend: object) -> None:
    """The other kind runs work in its caller's thread, so there a wait holds the caller."""
    stranger = nbrt.Stream("sample")
    seen: list[str] = []
    started = threading.Event()

    def follow(event: nbrt.Event) -> None:
        started.set()
        stranger.wait_event(event)
        stranger.call(seen.append, "sample")

    with Latch() as latch:
        latch.hold(side_stream)
        side_stream.call(seen.append, "side")
        thread = threading.Thread(target=follow, args=(side_stream.record_event(),))
        thread.start()
        assert started.wait(HANG_TIMEOUT)
        thread.join(0.05)
        assert thread.is_alive()
        assert seen == []
    thread.join(HANG_TIMEOUT)
    assert seen == ["side", "sample"]
    with Latch() as latch:
        latch.hold(side_stream)
        side_stream.wait_event(stranger.record_event())
        side_stream.call(seen.append, "side again")
    side_stream.synchronize()
    assert seen[-1] == "side again"


def test_wait_across_kinds_means_the_record_at_the_time_of_the_call(
    side_stream: nbrt.Stream,
) -> None:
    class TwinInterface(CpuInterface):
        """Another kind of device with queues that run alongside their caller."""

        def __init__(self) -> None:
            super().__init__()
            self.name = "twin"

    if side_stream.device.kind == "cuda":
        pytest.skip("CUDA has no wait on the host for a record that another one has replaced")
    nbrt.register_interface_for_device("twin", TwinInterface)
    try:
        twin = nbrt.Stream("twin:1")
        seen: list[str] = []
        with Latch() as early, Latch() as late, Latch() as gate:
            early.hold(side_stream)
            event = side_stream.record_event()
            gate.hold(twin)  # the wait is reached after the event has moved on
            twin.wait_event(event)
            twin.call(seen.append, "twin")
            late.hold(side_stream)
            event.record(side_stream)
            early.wait_reached()
            assert seen == []
            gate.release()
            early.release()
            twin.synchronize()
            assert seen == ["twin"]
            assert not event.query()
        x = nbrt.to(nbrt.full(3, 2.0, device="twin:1"), side_stream.device)
        assert nbrt.to_host(x).tolist() == [2.0] * 3
    finally:
        nbrt.unregister_interface_for_device("twin")


def test_the_default_stream_waits_in_the_caller(side_stream: nbrt.Stream) -> None:
    if not side_stream.interface.capabilities.host_addressable:
        pytest.skip("the default stream is the driver's")
    seen: list[str] = []
    latch = Latch()
    latch.hold(side_stream)
    side_stream.call(seen.append, "side")
    event = side_stream.record_event()
    thread = threading.Timer(0.0, lambda: (latch.wait_reached(), latch.release()))
    thread.start()
    default = nbrt.default_stream(side_stream.device)
    default.wait_event(event)
    default.call(seen.append, "default")
    thread.join(HANG_TIMEOUT)
    assert seen == ["side", "default"]


def test_many_threads_wait_for_one_event(side_stream: nbrt.Stream) -> None:
    seen: list[bool] = []
    with Latch() as latch:
        latch.hold(side_stream)
        event = side_stream.record_event()
        threads = [
            threading.Thread(target=lambda: (event.synchronize(), seen.append(latch.is_released)))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        latch.wait_reached()
        assert seen == []
    for thread in threads:
        thread.join(HANG_TIMEOUT)
    assert seen == [True] * 8


def test_a_refused_record_leaves_the_event_as_it_was(side_stream: nbrt.Stream) -> None:
    interface = nbrt.get_interface_for_device(side_stream.device)
    event = nbrt.Event()
    queue = interface.create_queue(0, 0)
    queue.close()
    closed = object.__new__(nbrt.Stream)
    for name in ("device", "interface", "_lazy", "priority", "owner", "id", "capture", "deferral"):
        setattr(closed, name, getattr(side_stream, name))
    closed.queue = queue
    with pytest.raises(StreamError, match="closed"):
        event.record(closed)
    assert event.device is None
    assert event.query()
    event.record(side_stream)
    event.synchronize()
