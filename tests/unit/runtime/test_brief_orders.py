"""Brief launches keep their order among captures, host functions, threads and frees."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.clocks import HANG_TIMEOUT
from nbrt.backends.cpu import brief_launches, launch
from nbrt.testing import Latch

if TYPE_CHECKING:
    from collections.abc import Iterator


@nbrt.kernel
def affine(x: Any, factor: Any, term: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        x[i] = x[i] * factor + term


@nbrt.kernel
def add_to(x: Any, out: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        out[i] += x[i]


@pytest.fixture(autouse=True)
def all_are_brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brief_launches, "BRIEF_NS", 10**18)
    monkeypatch.setattr(launch, "MIN_SHARED_NS", 10**18)


@pytest.fixture
def streams() -> Iterator[list[nbrt.Stream]]:
    streams = [nbrt.Stream("cpu:0") for _ in range(3)]
    yield streams
    for stream in streams:
        stream.synchronize()


def warmed(stream: nbrt.Stream, kernel: nbrt.Kernel, *args: Any) -> Any:
    """Return the kernel on a stream; launches of 4 threads are expected to be brief."""
    on_stream = kernel[1, 4, stream]
    for _ in range(brief_launches._LAUNCHES + 2):
        on_stream(*args)
    stream.synchronize()
    return on_stream


def test_a_capture_while_brief_launches_are_pending(streams: list[nbrt.Stream]) -> None:
    """The capture records and runs nothing; the pending launches run before its replay."""
    stream, x = streams[0], np.zeros(4)
    kernel = warmed(stream, affine, x, 1.0, 0.0)
    with Latch() as latch:
        latch.hold(stream)
        kernel(x, 2.0, 1.0)
        with nbrt.graph(stream=stream) as g:
            kernel(x, 10.0, 0.0)
            kernel(x, 1.0, 3.0)
        kernel(x, 2.0, 1.0)
        assert not x.any()
        with nbrt.stream(stream):
            g.replay()
        kernel(x, 2.0, 1.0)
    stream.synchronize()
    assert (x == (3 * 10 + 3) * 2 + 1).all()
    kernel(x, 0.0, 1.0)  # at once, before a replay
    with nbrt.stream(stream):
        g.replay()
    stream.synchronize()
    assert (x == 13).all()


def test_a_capture_on_an_idle_stream_runs_no_brief_launch(streams: list[nbrt.Stream]) -> None:
    stream, x = streams[0], np.zeros(4)
    kernel = warmed(stream, affine, x, 1.0, 0.0)
    with nbrt.graph(stream=stream):
        kernel(x, 1.0, 1.0)
    stream.synchronize()
    assert not x.any()
    kernel(x, 1.0, 1.0)
    assert (x == 1).all()


def test_host_functions_launch_on_their_stream_and_on_others(streams: list[nbrt.Stream]) -> None:
    stream, other, _ = streams
    x, y, order = np.zeros(4), np.zeros(4), list[float]()
    own, of_other = warmed(stream, affine, x, 1.0, 0.0), warmed(other, affine, y, 1.0, 0.0)

    def host() -> None:
        own(x, 10.0, 0.0)  # behind all that is queued by then
        of_other(y, 1.0, 1.0)
        other.synchronize()
        order.append(y[0])

    with Latch() as latch:
        latch.hold(stream)
        stream.call(host)
        own(x, 1.0, 1.0)
        latch.wait_reached()
    stream.record_event().synchronize()
    stream.synchronize()
    assert order == [1.0]
    assert (x == 10).all()
    assert (y == 1).all()


def test_threads_that_submit_to_one_stream_with_events_between(streams: list[nbrt.Stream]) -> None:
    """Each thread's launches keep their order, and what follows its event sees them."""
    shared, first, second = streams
    count, turns = 4, 60
    arrays, sums = [np.zeros(4) for _ in range(count)], [np.zeros(4) for _ in range(count)]
    barrier = threading.Barrier(count)
    kernel = warmed(shared, affine, np.zeros(4), 1.0, 0.0)
    readers = [warmed(each, add_to, np.zeros(4), np.zeros(4)) for each in (first, second)]

    def run(number: int) -> None:
        stream, reader = (first, second)[number % 2], readers[number % 2]
        x, event, back = arrays[number], nbrt.Event(), nbrt.Event()
        barrier.wait(HANG_TIMEOUT)
        for turn in range(turns):
            kernel(x, 0.5, turn)
            event.record(shared)
            event.wait(stream)
            reader(x, sums[number])
            back.record(stream)
            back.wait(shared)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_TIMEOUT)
    for stream in streams:
        stream.synchronize()
    value = total = 0.0
    for turn in range(turns):
        value = value * 0.5 + turn
        total += value
    for x, found in zip(arrays, sums, strict=True):
        np.testing.assert_array_equal(x, value)
        np.testing.assert_array_equal(found, total)


def test_memory_that_is_freed_while_launches_are_pending(streams: list[nbrt.Stream]) -> None:
    """No other array gets the memory before the launches have read it."""
    stream, other, _ = streams
    out = np.zeros(4)
    read = warmed(stream, add_to, np.zeros(4), out)
    fill = warmed(other, affine, np.zeros(4), 1.0, 0.0)
    kept = []
    with Latch() as latch:
        latch.hold(stream)
        for value in range(1, 20):
            with nbrt.stream(stream):
                x = nbrt.full(4, float(value), "float64")
            read(x, out)
            del x
            with nbrt.stream(other):
                y = nbrt.empty(4, "float64")
            fill(y, 0.0, 1000.0)
            kept.append(y)
            del y
            if value % 5 == 0:
                kept.clear()
        latch.wait_reached()
        assert not out.any()
    stream.synchronize()
    assert (out == sum(range(1, 20))).all()
