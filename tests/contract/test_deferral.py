"""Deferred commands: their order, what waits for them, and their failures, on every device."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, NoReturn

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.clocks import HANG_TIMEOUT
from helpers.gates import Gate
from nbrt.errors import StreamError


class PlannedError(Exception):
    """Raised by work that is meant to fail."""


@nbrt.kernel
def add(out, step):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < out.size:
        out[i] = out[i] * 2 + step


def fail() -> NoReturn:
    text = "planned"
    raise PlannedError(text)


def fail_on(stream: nbrt.Stream) -> None:
    stream.call(fail)


def test_commands_run_in_their_order(any_stream: nbrt.Stream, gate: Gate) -> None:
    stream = any_stream
    with nbrt.stream(stream):
        out = nbrt.full(4, 1, "int64")
        source = nbrt.full(4, 5, "int64")
        seen: list[str] = []
        add[1, 4](out, 1)  # 3
        stream.synchronize()
        gate.hold(stream)
        add[1, 4](out, 1)  # 7
        stream.call(seen.append, "called")
        nbrt.copy(out, source)
        add[1, 4](out, 2)  # 12
        other = nbrt.zeros(4, "int64")
        nbrt.copy(other, out)
        add[1, 4](out, 3)
        assert seen == []
        assert not stream.query()
        gate.open()
        assert nbrt.to_host(out).tolist() == [27] * 4
        assert nbrt.to_host(other).tolist() == [12] * 4
        assert seen == ["called"]


def test_draws_keep_their_words(any_stream: nbrt.Stream, gate: Gate) -> None:
    stream = any_stream
    if stream.device.kind == "sample":
        pytest.skip("the sample backend has no draws")
    with nbrt.stream(stream):
        generator = nbrt.Generator(7)
        expected = [nbrt.to_host(generator.standard_normal(5)).tolist() for _ in range(2)]
        generator = nbrt.Generator(7)
        gate.hold(stream)
        parts = [generator.standard_normal(5) for _ in range(2)]
        gate.open()
        assert [nbrt.to_host(part).tolist() for part in parts] == expected


def test_host_data_is_read_at_the_call(any_stream: nbrt.Stream, gate: Gate) -> None:
    stream = any_stream
    values = np.arange(4)
    gate.hold(stream)
    array = nbrt.asarray(values, stream=stream, device=stream.device)
    values[:] = -1
    gate.open()
    assert nbrt.to_host(array, stream=stream).tolist() == [0, 1, 2, 3]


def test_gates_open_one_after_the_other(any_stream: nbrt.Stream) -> None:
    stream = any_stream
    first, second = Gate(), Gate()
    seen: list[int] = []
    reached = threading.Event()
    first.hold(stream)
    stream.call(seen.append, 1)
    stream.call(reached.set)
    second.hold(stream)
    stream.call(seen.append, 2)
    second.open()
    assert seen == []
    first.open()
    assert reached.wait(HANG_TIMEOUT)
    stream.synchronize()
    assert seen == [1, 2]


def test_an_event_waits_for_its_record(any_stream: nbrt.Stream, gate: Gate) -> None:
    stream = any_stream
    gate.hold(stream)
    seen: list[int] = []
    stream.call(seen.append, 1)
    event = stream.record_event()
    assert not event.query()
    assert "pending" in repr(event)
    gate.open()
    event.synchronize()
    assert event.query()
    assert seen == [1]


def test_times_of_deferred_records(any_stream: nbrt.Stream, gate: Gate) -> None:
    stream = any_stream
    begin, end = nbrt.Event(enable_timing=True), nbrt.Event(enable_timing=True)
    begin.record(stream)
    gate.hold(stream)
    end.record(stream)
    with pytest.raises(nbrt.errors.EventError, match="pending"):
        begin.elapsed_time(end)
    gate.open()
    end.synchronize()
    assert begin.elapsed_time(end) >= 0.0


def test_a_stream_that_waits_for_a_deferred_record(device: nbrt.Device, gate: Gate) -> None:
    first, second, third = (nbrt.Stream(device) for _ in range(3))
    seen: list[int] = []
    gate.hold(first)
    first.call(seen.append, 1)
    second.wait_stream(first)
    second.call(seen.append, 2)
    third.wait_stream(second)
    third.call(seen.append, 3)
    assert seen == []
    gate.open()
    third.synchronize()
    assert seen == [1, 2, 3]
    for each in (first, second):
        each.synchronize()
        assert each.deferral is None


def test_streams_of_other_kinds_wait(device: nbrt.Device, gate: Gate) -> None:
    stream, host = nbrt.Stream(device), nbrt.Stream("cpu:0")
    seen: list[int] = []
    gate.hold(stream)
    stream.call(seen.append, 1)
    host.wait_event(stream.record_event())
    host.call(seen.append, 2)
    stream.wait_stream(host)
    stream.call(seen.append, 3)
    assert seen == []
    gate.open()
    stream.synchronize()
    host.synchronize()
    assert seen == [1, 2, 3]


def test_a_wait_is_for_the_record_before_it(device: nbrt.Device, gate: Gate) -> None:
    """The event is recorded again before the wait is submitted."""
    recorded, waiting = nbrt.Stream(device), nbrt.Stream(device)
    event = recorded.record_event()
    gate.hold(waiting)
    event.wait(waiting)
    behind = Gate()
    behind.hold(recorded)
    event.record(recorded)
    seen: list[int] = []
    waiting.call(seen.append, 1)
    gate.open()
    waiting.synchronize()  # not for the second record, which has not come
    assert seen == [1]
    assert not event.query()
    behind.open()
    event.synchronize()
    event.record(recorded)
    recorded.synchronize()
    assert event.query()


def test_a_failure_arrives_at_the_next_synchronisation(any_stream: nbrt.Stream, gate: Gate) -> None:
    stream = any_stream
    seen: list[int] = []
    gate.hold(stream)
    fail_on(stream)
    gate.open()
    with pytest.raises(StreamError) as caught:
        stream.synchronize()
    text = str(caught.value)
    assert "PlannedError: planned" in text
    assert "in fail_on" in text
    assert isinstance(caught.value.__cause__, PlannedError)
    assert f"{nbrt.runtime.__path__[0]}" not in text
    stream.call(seen.append, 1)
    stream.synchronize()
    assert seen == [1]


def test_work_behind_a_failure_is_dropped(device: nbrt.Device, gate: Gate) -> None:
    stream = nbrt.default_stream(device)
    other = nbrt.Stream(device)
    seen: list[int] = []
    gate.hold(stream)
    stream.enqueue("call", _refuse)
    stream.call(seen.append, 1)
    event = stream.record_event()
    other.wait_event(event)
    other.call(seen.append, 2)
    gate.open()
    other.synchronize()
    assert seen == [2]
    stream.call(seen.append, 3)
    with pytest.raises(StreamError, match="later command"):
        nbrt.synchronize(device)
    with pytest.raises(StreamError, match="PlannedError"):
        event.synchronize()
    stream.call(seen.append, 4)
    stream.synchronize()
    assert seen == [2, 4]
    assert stream.deferral is None


def _refuse(queue: Any) -> NoReturn:
    """A command that the backend refuses."""
    fail()


def test_await_waits_for_deferred_work(any_stream: nbrt.Stream, gate: Gate) -> None:
    stream = any_stream

    async def main() -> None:
        seen: list[int] = []
        gate.hold(stream)
        stream.call(seen.append, 1)
        waiting = asyncio.ensure_future(_wait_for(stream))
        await asyncio.sleep(0)
        assert not waiting.done()
        gate.open()
        await waiting
        assert seen == [1]
        behind = Gate()
        behind.hold(stream)
        stream.enqueue("call", _refuse)
        waiting = asyncio.ensure_future(_wait_for(stream))
        await asyncio.sleep(0)
        behind.open()
        with pytest.raises(StreamError, match="PlannedError"):
            await waiting

    asyncio.run(main())


async def _wait_for(stream: nbrt.Stream) -> None:
    await stream


def test_cancel_drops_deferred_work(device: nbrt.Device, gate: Gate) -> None:
    if device.kind == "cuda":
        pytest.skip("a GPU does not drop work")
    stream = nbrt.Stream(device)
    seen: list[int] = []
    begun = Gate()
    begun.hold(stream)
    stream.call(seen.append, 1)
    stream.call(seen.append, 2)
    event = stream.record_event()
    assert stream.cancel() == 2
    stream.call(seen.append, 3)
    begun.open()
    event.synchronize()
    stream.synchronize()
    assert seen == [3]


def test_host_calls_submit_more_work(device: nbrt.Device, gate: Gate) -> None:
    """On a stream without a thread, they run in the thread that submits deferred commands."""
    stream = nbrt.default_stream(device)
    if device.kind == "cuda":
        pytest.skip("host calls on cuda must not use CUDA")
    seen: list[int] = []

    def more() -> None:
        stream.call(seen.append, 1)
        stream.synchronize()
        assert stream.query()
        seen.append(2)

    gate.hold(stream)
    stream.call(more)
    stream.call(seen.append, 3)
    gate.open()
    stream.synchronize()
    assert seen == [1, 2, 3]
