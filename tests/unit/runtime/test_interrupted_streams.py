"""A signal handler that raises anywhere in a call on a stream leaves the stream usable."""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.clocks import HANG_TIMEOUT
from helpers.injected import is_interrupted_at
from nbrt.backends.cpu import brief_launches, launch
from nbrt.backends.cpu.interrupts import _MainRunner, main_runner
from nbrt.backends.cpu.queues import WorkerQueue
from nbrt.backends.cpu.turns import Turn
from nbrt.errors import StreamError
from nbrt.testing import Latch

if TYPE_CHECKING:
    from collections.abc import Iterator


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
def all_are_brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brief_launches, "BRIEF_NS", 10**18)
    monkeypatch.setattr(brief_launches, "SHORT_NS", 10**18)
    monkeypatch.setattr(launch, "MIN_SHARED_NS", 10**18)
    monkeypatch.setattr(brief_launches, "_turn", Turn())


@pytest.fixture
def stream() -> Iterator[nbrt.Stream]:
    stream = nbrt.Stream("cpu:0")
    stream.synchronize()
    yield stream
    stream.cancel()
    stream.synchronize()


def warmed(stream: nbrt.Stream, kernel: nbrt.Kernel, *args: Any) -> Any:
    """Return the kernel on a stream; launches of 4 threads are expected to be brief."""
    on_stream = kernel[1, 4, stream]
    for _ in range(brief_launches._LAUNCHES + 2):
        on_stream(*args)
    stream.synchronize()
    return on_stream


def check_idle(stream: nbrt.Stream) -> None:
    queue = stream.queue
    assert isinstance(queue, WorkerQueue)
    assert queue.owner is None
    assert queue.runner.record is None
    assert main_runner.record is None
    for turn in (queue.turn, brief_launches._turn):
        assert (turn.owner, turn.waiting, turn.latch) == (None, 0, None)


def test_interrupts_in_brief_launches(stream: nbrt.Stream) -> None:
    x = np.zeros(4)
    kernel = warmed(stream, affine, x, 1.0, 0.0)
    for number in itertools.count():
        before = x[0]
        is_raised = is_interrupted_at(number, lambda: kernel(x, 1.0, 1.0))
        check_idle(stream)
        stream.synchronize()
        # Not begun, or done: never twice, and never later.
        assert x[0] - before in ((0, 1) if is_raised else (1,))
        kernel(x, 1.0, 1.0)
        stream.synchronize()
        assert x[0] - before in ((1, 2) if is_raised else (2,))
        if not is_raised:
            break
    assert number > 3


def test_an_interrupt_while_the_ticker_wakes_leaves_no_launch_unwatched() -> None:
    runner = _MainRunner()
    runner.watch()  # starts the ticker
    for number in itertools.count():
        runner.is_watched = False
        is_raised = is_interrupted_at(number, runner.watch)
        assert runner.is_watched is not is_raised
        if not is_raised:
            break


def test_interrupts_in_launches_that_fail(stream: nbrt.Stream) -> None:
    """The failure is kept, or the interrupt came before the launch or instead of the failure."""
    x = np.ones(4)
    kernel = warmed(stream, divides, x, 1.0)
    for number in itertools.count():
        is_raised = is_interrupted_at(number, lambda: kernel(x, 0.0))
        check_idle(stream)
        cause = None
        try:
            stream.synchronize()
        except StreamError as error:
            cause = error.__cause__
        assert isinstance(cause, ZeroDivisionError) or (is_raised and cause is None)
        kernel(x, 2.0)
        stream.synchronize()
        assert (x == 0.5 ** (number + 1)).all()
        if not is_raised:
            break


@pytest.mark.parametrize("held", [False, True])
def test_interrupts_in_other_calls(stream: nbrt.Stream, held: bool) -> None:
    """Each has been submitted once, or not at all; the order of the others is kept."""
    x, y = np.zeros(4), np.arange(4.0)
    kernel = warmed(stream, affine, x, 1.0, 0.0)
    event, seen = nbrt.Event(), list[str]()
    interface = stream.interface
    calls = [
        lambda: stream.enqueue("copy", interface.copy, (x, y)),
        lambda: stream.call(seen.append, "called"),
        lambda: event.record(stream),
        lambda: event.wait(stream),
        lambda: kernel(x, 1.0, 0.0),
    ]
    for call in calls:
        for number in itertools.count():
            seen.clear()
            x[:] = 5
            with Latch() as latch:
                if held:
                    latch.hold(stream)
                    latch.wait_reached()
                is_raised = is_interrupted_at(number, call)
                stream.call(seen.append, "behind")
            kernel(x, 2.0, 0.0)
            stream.synchronize()
            check_idle(stream)
            assert seen in (["behind"], ["called", "behind"])
            assert x.tolist() in ([10.0] * 4, [0.0, 2.0, 4.0, 6.0])
            if not is_raised:
                break


def test_interrupts_in_synchronize(stream: nbrt.Stream) -> None:
    """The launch that it waits for runs once, in the waiting thread or in that of the stream."""
    x = np.zeros(4)
    kernel = warmed(stream, affine, x, 1.0, 0.0)
    for number in itertools.count():
        x[:] = 1
        with Latch() as latch:
            latch.hold(stream)
            latch.wait_reached()
            kernel(x, 3.0, 1.0)
            kernel(x, 3.0, 1.0)
            threading.Thread(target=latch.release).start()
            is_raised = is_interrupted_at(number, stream.synchronize)
        kernel(x, 3.0, 1.0)
        stream.synchronize()
        check_idle(stream)
        assert (x == 40).all()
        if not is_raised:
            break


def test_the_first_of_two_failures_is_raised_and_events_tell_what_came_before(
    stream: nbrt.Stream,
) -> None:
    x = np.ones(4)
    divide, add = warmed(stream, divides, x, 1.0), warmed(stream, affine, x, 1.0, 0.0)
    before, between, behind = nbrt.Event(), nbrt.Event(), nbrt.Event()
    add(x, 1.0, 1.0)
    before.record(stream)
    divide(x, 0.0)
    between.record(stream)
    divide(x, 0.0)
    add(x, 1.0, 1.0)
    behind.record(stream)
    before.synchronize()
    with pytest.raises(StreamError) as caught:
        between.synchronize()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    add(x, 1.0, 1.0)  # behind the failure, which has been raised
    stream.synchronize()
    assert (x == 3).all()
    divide(x, 0.0)
    divide(x, 0.0)
    with pytest.raises(StreamError, match="1 later command"):
        stream.synchronize()
    stream.synchronize()


@pytest.mark.parametrize("is_own", [True, False])
def test_finalizers_launch_in_the_threads_of_streams(stream: nbrt.Stream, is_own: bool) -> None:
    """Brief work is queued behind: a finalizer must not wait for it, as it holds it up itself."""
    streams = [stream, nbrt.Stream("cpu:0")]
    arrays, late = [np.zeros(4) for _ in streams], [np.zeros(4) for _ in streams]
    kernels = [warmed(each, affine, arrays[0], 1.0, 0.0) for each in streams]
    barrier = threading.Barrier(len(streams))
    with Latch() as latch:
        for number, each in enumerate(streams):

            def launches(target: int = number if is_own else 1 - number) -> None:
                barrier.wait(HANG_TIMEOUT)
                kernels[target](late[target], 1.0, 1.0)

            latch.hold(each)
            first = np.zeros(4)
            weakref.finalize(first, launches)
            kernels[number](first, 1.0, 1.0)
            kernels[number](arrays[number], 1.0, 2.0)
            del first
    for each in streams:
        # Not `synchronize`: it would run launches in this thread.
        done = threading.Event()
        each.call(done.set)
        assert done.wait(HANG_TIMEOUT)
    for each in streams:
        each.synchronize()
    assert all((array == 2).all() for array in arrays)
    assert all((array == 1).all() for array in late)
