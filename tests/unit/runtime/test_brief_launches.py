"""Launches that run in the thread that submits them keep the order and failures of their stream."""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.clocks import HANG_TIMEOUT
from helpers.endless import TURNS, counted, flags, wait_for
from nbrt.backends.cpu import brief_launches, launch
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.cpu.queues import WorkerQueue
from nbrt.errors import ArgumentTypeError, StreamError
from nbrt.testing import Latch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbrt.backends.cpu.launch import CpuPlan

ROUNDS = brief_launches._LAUNCHES + 2
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


@nbrt.kernel
def waits(flag: Any, out: Any) -> None:
    while flag[0] == 0:
        pass
    out[0] += 1


@pytest.fixture(autouse=True)
def all_are_brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """However loaded the machine is, every launch is brief."""
    monkeypatch.setattr(brief_launches, "BRIEF_NS", 10**18)
    monkeypatch.setattr(launch, "MIN_SHARED_NS", 10**18)


@pytest.fixture
def stream() -> Iterator[nbrt.Stream]:
    stream = nbrt.Stream("cpu:0")
    stream.synchronize()
    yield stream
    stream.synchronize()


def warm(stream: nbrt.Stream, kernel: Any, *args: Any) -> None:
    """Launch until later launches are expected to be brief."""
    for _ in range(ROUNDS):
        kernel(*args)
    stream.synchronize()


def queued(stream: nbrt.Stream) -> int:
    """Return the number of items that the thread of a stream has got so far."""
    queue = stream.queue
    assert isinstance(queue, WorkerQueue)
    return queue._submitted


def test_launches_copies_and_events_of_an_idle_stream_need_no_thread(stream: nbrt.Stream) -> None:
    x, y = np.zeros(100, np.float32), np.zeros(100, np.float32)
    kernel = affine[3, 33, stream]
    warm(stream, kernel, x, 1.0, 0.0)
    before, event = queued(stream), nbrt.Event()
    x[:] = np.arange(100)
    kernel(x, 2.0, 1.0)
    event.record(stream)
    assert event.query()
    event.synchronize()
    with nbrt.stream(stream):
        nbrt.copy(y, x)
    stream.synchronize()
    assert stream.query()
    assert queued(stream) == before
    expected = np.arange(100, dtype=np.float32) * 2 + 1
    expected[99:] = 99  # beyond the grid
    np.testing.assert_array_equal(y, expected)


def test_the_order_of_a_stream_is_kept(stream: nbrt.Stream) -> None:
    x = np.ones(5, np.float64)
    kernel, seen = affine[1, 5, stream], list[float]()
    warm(stream, kernel, x, 1.0, 0.0)
    expected = 1.0
    for turn in range(200):
        kernel(x, -0.5, turn)
        expected = expected * -0.5 + turn
        if turn % 7 == 0:
            stream.call(lambda: seen.append(x[0]))
            kernel(x, 1.0, 1.0)
            expected += 1.0
        if turn % 11 == 0:
            nbrt.Event().record(stream)
            stream.synchronize()
    stream.synchronize()
    np.testing.assert_allclose(x, np.full(5, expected), rtol=1e-15)
    assert len(seen) == 29


def test_a_launch_behind_other_work_waits_for_it(stream: nbrt.Stream) -> None:
    x = np.zeros(4)
    kernel = affine[1, 4, stream]
    warm(stream, kernel, x, 1.0, 0.0)
    with Latch() as latch:
        latch.hold(stream)
        kernel(x, 1.0, 5.0)
        latch.wait_reached()
        assert not x.any()
        assert not stream.query()
    stream.synchronize()
    assert (x == 5).all()


def test_a_launch_waits_for_an_event_of_another_stream(stream: nbrt.Stream) -> None:
    other, x = nbrt.Stream("cpu:0"), np.zeros(4)
    kernel = affine[1, 4, stream]
    warm(stream, kernel, x, 1.0, 0.0)
    with Latch() as latch:
        latch.hold(other)
        other.call(x.fill, 3.0)
        stream.wait_stream(other)
        kernel(x, 2.0, 0.0)
        latch.wait_reached()
        assert not x.any()
    stream.synchronize()
    assert (x == 6).all()


def test_a_failure_surfaces_at_synchronisation(stream: nbrt.Stream) -> None:
    x = np.full(3, 6.0)
    kernel = divides[1, 3, stream]
    warm(stream, kernel, x, 1.0)
    before = queued(stream)
    kernel(x, 0.0)  # no exception here
    assert queued(stream) == before
    kernel(x, 2.0)
    with pytest.raises(StreamError, match="kernel divides failed") as caught:
        stream.synchronize()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "in block (0, 0, 0), thread (0, 0, 0)" in caught.value.__cause__.__notes__
    assert "test_a_failure_surfaces_at_synchronisation" in str(caught.value)
    assert "1 later command(s) of the stream were dropped: kernel divides" in str(caught.value)
    kernel(x, 3.0)
    stream.synchronize()
    assert (x == 2).all()


def test_a_failure_keeps_no_arrays_of_its_caller_alive(stream: nbrt.Stream) -> None:
    kernel = divides[1, 3, stream]
    warm(stream, kernel, np.ones(3), 1.0)

    def fail() -> weakref.ref[Any]:
        x = np.ones(3)
        kernel(x, 0.0)
        return weakref.ref(x)

    array = fail()
    gc.collect()
    assert array() is None
    with pytest.raises(StreamError):
        stream.synchronize()


def test_a_failed_copy_surfaces_at_synchronisation(stream: nbrt.Stream) -> None:
    stream.enqueue("copy", stream.interface.copy, (np.zeros(3), np.zeros(2)))
    with pytest.raises(StreamError) as caught:
        stream.synchronize()
    assert isinstance(caught.value.__cause__, ValueError)


def test_wrong_arguments_raise_in_the_caller(stream: nbrt.Stream) -> None:
    x = np.zeros(4)
    kernel = affine[1, 4, stream]
    warm(stream, kernel, x, 1.0, 0.0)
    with pytest.raises(ArgumentTypeError):
        kernel(x, 1.0)
    with pytest.raises(ArgumentTypeError):
        kernel(x, "one", 0.0)
    whole = np.arange(4, dtype=np.int32)
    kernel(whole, 3, 1)  # compiles for other types
    stream.synchronize()
    assert whole.tolist() == [1, 4, 7, 10]


def test_a_launch_that_waits_for_the_host_never_runs_in_its_caller(stream: nbrt.Stream) -> None:
    flag, out = np.ones(1, np.int32), np.zeros(1, np.int32)
    kernel = waits[1, 1, stream]
    warm(stream, kernel, flag, out)
    flag[0] = 0
    kernel(flag, out)
    flag[0] = 1
    stream.synchronize()
    assert out[0] == ROUNDS + 1


def test_cancel_ends_a_launch_in_another_thread_and_no_later_one(stream: nbrt.Stream) -> None:
    out, seen = np.ones(64), flags()
    kernel = counted[1, 64, stream]
    warm(stream, kernel, out, seen, 1)
    seen[:] = 0
    thread = threading.Thread(target=kernel, args=(out, seen, TURNS))
    before = queued(stream)
    thread.start()
    wait_for(seen)
    assert queued(stream) == before
    assert not stream.query()
    assert stream.cancel() == 0
    thread.join(HANG_TIMEOUT)
    assert not thread.is_alive()
    stream.synchronize()
    for turns in (10, 100):  # by the thread of the stream, then by this one
        out[:] = 1
        kernel(out, seen, turns)
        stream.synchronize()
        assert (out == turns * (turns - 1) / 2).all()


class _Timeout(Exception):  # noqa: N818  # no error of the kernel
    pass


@pytest.mark.parametrize("raised", [KeyboardInterrupt, _Timeout])
def test_a_signal_handler_ends_a_launch_and_raises_in_the_caller(
    stream: nbrt.Stream, raised: type[BaseException]
) -> None:
    out, seen = np.ones(64), flags()
    kernel = counted[1, 64, stream]
    warm(stream, kernel, out, seen, 1)
    seen[:] = 0

    def handle(*_: object) -> None:
        raise raised

    def send() -> None:
        wait_for(seen)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    previous = signal.signal(signal.SIGUSR1, handle)
    sender = threading.Thread(target=send)
    try:
        sender.start()
        with pytest.raises(raised):
            kernel(out, seen, TURNS)
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, previous)
    assert stream.query()
    stream.synchronize()  # no failure of the stream
    out[:] = 1
    kernel(out, seen, 10)
    stream.synchronize()
    assert (out == 45).all()


def test_work_that_comes_during_a_launch_runs_behind_it(stream: nbrt.Stream) -> None:
    out, seen, order = np.ones(64), flags(), list[str]()
    kernel = counted[1, 64, stream]
    warm(stream, kernel, out, seen, 1)
    seen[:] = 0
    thread = threading.Thread(target=kernel, args=(out, seen, TURNS))
    thread.start()
    wait_for(seen)
    stream.call(order.append, "behind")
    event = stream.record_event()
    assert not event.query()
    assert stream.cancel() == 1  # the call, which the launch delays
    stream.call(order.append, "later")
    thread.join(HANG_TIMEOUT)
    event.synchronize()
    stream.synchronize()
    assert order == ["later"]


def test_synchronize_in_a_signal_handler_of_a_launch_names_the_fault(stream: nbrt.Stream) -> None:
    """It would wait for the launch that it interrupts."""
    queue = stream.queue
    assert isinstance(queue, WorkerQueue)
    queue.owner = [threading.get_ident()]
    try:
        with pytest.raises(StreamError, match="would wait for itself"):
            stream.synchronize()
    finally:
        queue.owner = None


def test_several_threads_and_streams_give_the_results_of_one() -> None:
    streams = [nbrt.Stream("cpu:0") for _ in range(3)]
    arrays = [np.zeros(33) for _ in range(6)]
    started = threading.Barrier(len(arrays))

    def run(number: int) -> None:
        stream = streams[number % len(streams)]
        kernel = affine[1, 33, stream]
        started.wait(HANG_TIMEOUT)
        for turn in range(300):
            kernel(arrays[number], 0.5, turn)
            if turn % 50 == number:
                stream.synchronize()
        stream.synchronize()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(arrays))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = 0.0
    for turn in range(300):
        expected = expected * 0.5 + turn
    for array in arrays:
        np.testing.assert_array_equal(array, expected)


class _Clock:
    """Stands in for a clock, which only launches and `idle` advance."""

    def __init__(self) -> None:
        self.elapsed = 0
        """Of each launch."""
        self.now = 10**9

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> tuple[_Clock, _Clock]:
    """Return the clocks by the wall and of the thread's processor time."""
    monkeypatch.setattr(brief_launches, "BRIEF_NS", 20_000)
    # The waiting thread would run launches, and measure them by another clock.
    monkeypatch.setattr(brief_launches, "SHORT_NS", 0)
    wall, processor = _Clock(), _Clock()
    monkeypatch.setattr(brief_launches, "perf_counter_ns", wall)
    monkeypatch.setattr(brief_launches, "thread_time_ns", processor)
    return wall, processor


@pytest.fixture
def plan() -> CpuPlan:
    return CpuProgram(affine.function, cache=False).plan(0, (1, 1, 1), (4, 1, 1))


def _runner(plan: CpuPlan, *clocks: _Clock) -> Callable[[WorkerQueue], bool]:
    x = np.zeros(4)
    entry: Any = plan.brief._entry

    def timed(*args: Any) -> None:
        entry(*args)
        for clock in clocks:
            clock.now += clock.elapsed

    plan.brief._entry = timed  # type: ignore[assignment]

    def run(queue: WorkerQueue) -> bool:
        """Launch; tell whether the launch ran here."""
        before = queue._works
        plan.launch(queue, x, 1.0, 0.0)
        is_here = queue._works == before
        queue.synchronize()
        return is_here

    return run


def test_which_launches_are_expected_to_be_brief(
    clocks: tuple[_Clock, _Clock], plan: CpuPlan
) -> None:
    wall, processor = clocks
    queue, run = WorkerQueue(0, 0, "a queue"), _runner(plan, *clocks)
    needed = brief_launches._LAUNCHES
    assert not any(run(queue) for _ in range(needed))
    assert run(queue)
    # Long by the clock, but not by the processor time: the thread has waited.
    wall.elapsed = 10**6
    assert all(run(queue) for _ in range(50))
    # Long by both: two are measured by the processor time.
    processor.elapsed = 10**6
    assert sum(run(queue) for _ in range(10)) <= 3
    # One that takes turns with brief ones is queued.
    for turn in range(40):
        wall.elapsed = processor.elapsed = 10**6 * (turn % needed == 0)
        assert not run(queue)
    wall.elapsed = processor.elapsed = 0
    assert [run(queue) for _ in range(needed + 1)][-1]
    queue.close()


@pytest.mark.parametrize("gap", [0, 10**6])
@pytest.mark.parametrize("brief_before", [0, 1, 5, 100])
def test_long_launches_go_to_the_thread_again(
    clocks: tuple[_Clock, _Clock], plan: CpuPlan, gap: int, brief_before: int
) -> None:
    """Whether or not the host does something else between launches."""
    wall, processor = clocks
    queue, run = WorkerQueue(0, 0, "a queue"), _runner(plan, *clocks)
    for _ in range(brief_launches._LAUNCHES):
        run(queue)
    for _ in range(brief_before):
        assert run(queue)
        wall.now += gap
    wall.elapsed = processor.elapsed = 10**6
    # One by the time since the last end, one by the clock, two by the processor time.
    assert [run(queue) for _ in range(6)][-2:] == [False, False]
    queue.close()


def test_the_time_between_brief_launches_does_not_count(
    clocks: tuple[_Clock, _Clock], plan: CpuPlan
) -> None:
    wall, _ = clocks
    queue, run = WorkerQueue(0, 0, "a queue"), _runner(plan, *clocks)
    for _ in range(brief_launches._LAUNCHES):
        run(queue)
    for _ in range(100):
        assert run(queue)
        wall.now += 10**9
    queue.close()


def test_threads_that_launch_at_once_leave_no_queue_reserved(plan: CpuPlan) -> None:
    queue = WorkerQueue(0, 0, "a queue")
    x = np.zeros(4)

    def run() -> None:
        for _ in range(200):
            plan.launch(queue, x, 1.0, 1.0)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queue.synchronize()
    assert queue.owner is None
    assert (x == 800).all()
    assert queue.is_ready
    queue.close()
