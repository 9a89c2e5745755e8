"""Short launches run in the thread that submits them, once it has waited for each of the last."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.clocks import HANG_TIMEOUT
from nbrt.backends.cpu import brief_launches, immediate_waits, launch
from nbrt.backends.cpu.queues import WorkerQueue
from nbrt.errors import StreamError
from nbrt.testing import Latch

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS = 1 + max(brief_launches._SHORT_LAUNCHES, immediate_waits._WAITS)
"""The first launch of several blocks is timed in another way."""


@nbrt.kernel
def affine(x: Any, factor: Any, term: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        x[i] = x[i] * factor + term


@nbrt.kernel
def divides(x: Any, by: Any) -> None:
    if by == 0:
        raise ZeroDivisionError("planned")
    x[cuda.grid(1)] /= by


@pytest.fixture(autouse=True)
def all_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """However loaded the machine is, launches are short, none is brief, and waits are immediate."""
    monkeypatch.setattr(brief_launches, "BRIEF_NS", -1)
    monkeypatch.setattr(brief_launches, "SHORT_NS", 10**18)
    monkeypatch.setattr(launch, "MIN_SHARED_NS", 10**18)
    monkeypatch.setattr(immediate_waits, "_MAX_NS", 10**18)


@pytest.fixture
def streams() -> Iterator[list[nbrt.Stream]]:
    streams = [nbrt.Stream("cpu:0") for _ in range(2)]
    yield streams
    for stream in streams:
        stream.synchronize()


def queue_of(stream: nbrt.Stream) -> WorkerQueue:
    queue = stream.queue
    assert isinstance(queue, WorkerQueue)
    return queue


def handed_over(stream: nbrt.Stream) -> int:
    """Return the number of commands that a stream has got in its queue so far."""
    return queue_of(stream)._works


def wait_for_each(stream: nbrt.Stream, kernel: Any, *args: Any) -> None:
    """Launch, and wait at once, until the next launch runs in this thread."""
    for _ in range(ROUNDS):
        kernel(*args)
        stream.synchronize()
    assert queue_of(stream).immediate_waits.are_expected


def test_launches_that_are_waited_for_need_no_thread(streams: list[nbrt.Stream]) -> None:
    stream, x = streams[0], np.zeros(100, np.float32)
    kernel = affine[3, 33, stream]
    wait_for_each(stream, kernel, x, 1.0, 0.0)
    before = handed_over(stream)
    for turn in range(20):
        kernel(x, 1.0, turn)
        stream.synchronize()
    assert handed_over(stream) == before
    assert (x[:99] == sum(range(20))).all()
    assert x[99] == 0  # beyond the grid


def test_a_launch_without_a_wait_sends_the_next_ones_to_the_thread(
    streams: list[nbrt.Stream],
) -> None:
    stream, x = streams[0], np.zeros(99, np.float32)
    kernel = affine[3, 33, stream]
    wait_for_each(stream, kernel, x, 1.0, 0.0)
    before = handed_over(stream)
    for _ in range(5):
        kernel(x, 1.0, 1.0)
    stream.synchronize()
    assert handed_over(stream) == before + 4
    assert (x == 5).all()
    kernel(x, 1.0, 1.0)
    stream.synchronize()
    assert handed_over(stream) == before + 5  # one wait is no habit
    assert (x == 6).all()


def test_launches_on_two_streams_in_turn_overlap(streams: list[nbrt.Stream]) -> None:
    first, second = streams
    arrays = [np.zeros(99, np.float32) for _ in streams]
    kernels = [affine[3, 33, stream] for stream in streams]
    for stream, kernel, x in zip(streams, kernels, arrays, strict=True):
        wait_for_each(stream, kernel, x, 1.0, 0.0)
    before = [handed_over(stream) for stream in streams]
    for _ in range(10):
        for kernel, x in zip(kernels, arrays, strict=True):
            kernel(x, 1.0, 1.0)
        for stream in streams:
            stream.synchronize()
    # One launch on the first stream ran here before it was seen that another one follows.
    assert handed_over(first) == before[0] + 9
    assert handed_over(second) == before[1]
    assert all((x == 10).all() for x in arrays)


def test_work_of_the_host_between_launch_and_wait_overlaps(
    streams: list[nbrt.Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(immediate_waits, "_MAX_NS", -1)
    stream, x = streams[0], np.zeros(99, np.float32)
    kernel = affine[3, 33, stream]
    before = handed_over(stream)
    for _ in range(2 * ROUNDS):
        kernel(x, 1.0, 1.0)
        stream.synchronize()
    assert handed_over(stream) == before + 2 * ROUNDS
    assert (x == 2 * ROUNDS).all()


def test_launches_of_other_threads_do_not_count(streams: list[nbrt.Stream]) -> None:
    first, second = streams
    x, y = np.zeros((2, 99), np.float32)
    kernel, other = affine[3, 33, first], affine[3, 33, second]
    wait_for_each(first, kernel, x, 1.0, 0.0)
    before = handed_over(first)
    for _ in range(5):
        kernel(x, 1.0, 1.0)
        thread = threading.Thread(target=other, args=(y, 1.0, 1.0))
        thread.start()
        thread.join(HANG_TIMEOUT)
        assert not thread.is_alive()
        first.synchronize()
    second.synchronize()
    assert handed_over(first) == before
    assert (x == 5).all()
    assert (y == 5).all()


def test_a_launch_behind_other_work_waits_for_it(streams: list[nbrt.Stream]) -> None:
    stream, x = streams[0], np.zeros(99, np.float32)
    kernel = affine[3, 33, stream]
    wait_for_each(stream, kernel, x, 1.0, 0.0)
    with Latch() as latch:
        latch.hold(stream)
        stream.call(x.fill, 3.0)
        kernel(x, 2.0, 1.0)
        assert not stream.query()
        assert (x == 0).all()
    stream.synchronize()
    assert (x == 7).all()


def test_a_failure_surfaces_at_synchronisation(streams: list[nbrt.Stream]) -> None:
    stream, x = streams[0], np.full(64, 8.0)
    kernel = divides[2, 32, stream]
    wait_for_each(stream, kernel, x, 1)
    before = handed_over(stream)
    kernel(x, 0)
    assert handed_over(stream) == before
    kernel(x, 2)  # dropped, as behind any failure of a stream
    with pytest.raises(StreamError, match="divides") as caught:
        stream.synchronize()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert (x == 8).all()
    kernel(x, 2)
    stream.synchronize()
    assert (x == 4).all()
