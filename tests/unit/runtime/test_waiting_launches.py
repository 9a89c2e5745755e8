"""A thread that synchronises a stream runs the launch that it waits for."""

from __future__ import annotations

import queue as queues
import signal
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

from helpers.clocks import HANG_TIMEOUT
from helpers.endless import TURNS, counted, flags, wait_for
from nbrt.backends.cpu import brief_launches, launch
from nbrt.backends.cpu.interrupts import main_runner
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.cpu.queue_items import Completion, Synchronization
from nbrt.backends.cpu.queues import WorkerQueue
from nbrt.errors import StreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def add(x: Any, term: Any) -> None:
    x[cuda.grid(1)] += term


def divides(x: Any, by: Any) -> None:
    if by == 0:
        raise ZeroDivisionError("planned")
    x[cuda.grid(1)] /= by


def waits(flag: Any, out: Any) -> None:
    while flag[0] == 0:
        pass
    out[0] += 1


class _Gate:
    """The items of a queue, which its thread gets only while the gate is open.

    A synchronisation opens it: what comes before it, the waiting thread has run or left.
    """

    def __init__(self) -> None:
        self._items: queues.SimpleQueue[Any] = queues.SimpleQueue()
        self.is_open = threading.Event()

    def put(self, item: Any) -> None:
        self._items.put(item)
        if type(item) is Synchronization:
            self.is_open.set()

    def get(self, timeout: float) -> Any:
        item = self._items.get(timeout=timeout)
        assert self.is_open.wait(HANG_TIMEOUT)
        return item


class _Queue:
    """A queue whose thread a gate holds back."""

    def __init__(self) -> None:
        self.queue = WorkerQueue(0, 0, "a queue")
        self.gate = _Gate()
        self.queue._items = self.gate  # type: ignore[assignment]
        self._plans: dict[Any, Any] = {}

    def launch(self, kernel: Callable[..., None], *args: Any) -> None:
        """Launch with 4 threads, behind launches from which the time is known."""
        plan = self._plans.get(kernel)
        if plan is None:
            plan = CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (4, 1, 1))
            self._plans[kernel] = plan
        plan.launch(self.queue, *args)

    def warm(self, kernel: Callable[..., None], *args: Any) -> None:
        self.gate.is_open.set()
        for _ in range(brief_launches._SHORT_LAUNCHES):
            self.launch(kernel, *args)
        self.queue.synchronize()
        self.gate.is_open.clear()

    def synchronize_elsewhere(self) -> BaseException | None:
        """Synchronise in another thread; return what it raises."""
        raised: list[BaseException] = []

        def run() -> None:
            try:
                self.queue.synchronize()
            except BaseException as error:  # noqa: BLE001  # returned
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(HANG_TIMEOUT)
        assert not thread.is_alive()
        return raised[0] if raised else None


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Queue]:
    """Return a queue on which every launch is short and none is brief."""
    monkeypatch.setattr(brief_launches, "BRIEF_NS", 0)
    monkeypatch.setattr(brief_launches, "SHORT_NS", 10**18)
    monkeypatch.setattr(launch, "MIN_SHARED_NS", 10**18)
    held = _Queue()
    yield held
    held.gate.is_open.set()
    held.queue.cancel()
    held.queue.close()


def test_the_main_thread_runs_a_short_launch(held: _Queue) -> None:
    x = np.zeros(4)
    held.warm(add, x, 1.0)
    before = x[0]
    for turn in range(3):
        held.launch(add, x, 10.0)
        assert not held.queue.query()
        held.queue.synchronize()
        assert held.queue.query()
        assert not held.gate.is_open.is_set()  # it has not waited for the thread
        assert (x == before + 10 * (turn + 1)).all()
    held.gate.is_open.set()
    order: list[str] = []
    held.queue.put(order.append, "behind")
    held.launch(add, x, 10.0)
    held.queue.synchronize()
    assert order == ["behind"]
    assert (x == before + 40).all()  # each has run once


def test_any_other_thread_runs_any_launch(held: _Queue) -> None:
    x = np.zeros(4)
    held.launch(add, x, 1.0)  # the first one: how long it takes is not known
    assert held.synchronize_elsewhere() is None
    assert not held.gate.is_open.is_set()
    assert (x == 1).all()


def test_host_functions_and_what_is_behind_other_work_stay_with_the_thread(held: _Queue) -> None:
    x, threads = np.zeros(4), list[threading.Thread]()
    held.warm(add, x, 1.0)
    held.queue.put(lambda: threads.append(threading.current_thread()))
    held.queue.synchronize()
    assert threads == [held.queue._thread]
    held.gate.is_open.clear()
    held.queue.put(lambda: threads.append(threading.current_thread()))
    held.launch(add, x, 1.0)
    held.queue.synchronize()
    assert held.gate.is_open.is_set()
    assert len(threads) == 2
    assert (x == brief_launches._SHORT_LAUNCHES + 1).all()


def test_the_main_thread_leaves_a_launch_that_may_wait_to_the_thread(held: _Queue) -> None:
    flag, out = np.ones(1, np.int32), np.zeros(1, np.int32)
    held.warm(waits, flag, out)
    held.launch(waits, flag, out)
    held.queue.synchronize()
    assert held.gate.is_open.is_set()


def test_a_failure_is_raised(held: _Queue) -> None:
    x = np.ones(4)
    held.warm(divides, x, 1.0)
    for synchronize in (held.queue.synchronize, held.synchronize_elsewhere):
        held.gate.is_open.clear()
        held.launch(divides, x, 0.0)
        try:
            error: Any = synchronize()
        except StreamError as raised:
            error = raised
        assert isinstance(error, StreamError)
        assert isinstance(error.__cause__, ZeroDivisionError)
        assert "in block (0, 0, 0), thread (0, 0, 0)" in error.__cause__.__notes__
        assert "in test_a_failure_is_raised" in str(error)
    held.launch(divides, x, 2.0)
    held.queue.synchronize()
    assert (x == 0.5).all()


def test_cancel_ends_a_launch_in_the_waiting_thread(held: _Queue) -> None:
    out, seen, order = np.ones(4), flags(), list[str]()
    held.warm(counted.function, out, seen, 1)
    for synchronize in (held.queue.synchronize, held.synchronize_elsewhere):
        seen[:] = 0
        held.gate.is_open.set()
        dropped: list[int] = []

        def cancel(dropped: list[int] = dropped) -> None:
            wait_for(seen)
            held.queue.put(order.append, "dropped")
            dropped.append(held.queue.cancel())

        thread = threading.Thread(target=cancel)
        held.launch(counted.function, out, seen, TURNS)
        thread.start()
        assert synchronize() is None
        thread.join()
        assert dropped == [1]
    held.queue.synchronize()
    assert order == []
    for turns in (10, 100):
        out[:] = 1
        held.launch(counted.function, out, seen, turns)
        held.queue.synchronize()
        assert (out == turns * (turns - 1) / 2).all()


class _Timeout(Exception):  # noqa: N818  # no error of the kernel
    pass


@pytest.mark.parametrize("cancels", [True, False])
@pytest.mark.parametrize("raised", [KeyboardInterrupt, _Timeout])
def test_a_signal_handler_ends_the_launch(
    held: _Queue, raised: type[BaseException], cancels: bool
) -> None:
    """The rest of the stream must not use half of its results without notice."""
    out, seen = np.ones(4), flags()
    held.warm(counted.function, out, seen, 1)
    seen[:] = 0

    def handle(*_: object) -> None:
        raise raised

    def send() -> None:
        wait_for(seen)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    previous = signal.signal(signal.SIGUSR1, handle)
    sender = threading.Thread(target=send)
    try:
        held.launch(counted.function, out, seen, TURNS)
        sender.start()
        with pytest.raises(raised):
            held.queue.synchronize()
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, previous)
    assert held.queue.owner is None
    if cancels:
        assert held.queue.cancel() == 0
        held.queue.synchronize()
    else:
        with pytest.raises(StreamError, match=raised.__name__):
            held.queue.synchronize()
    out[:] = 1
    held.launch(counted.function, out, seen, 10)
    held.queue.synchronize()
    assert (out == 45).all()


def test_a_signal_handler_that_raises_before_leaves_the_launch_to_the_thread(
    held: _Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.zeros(4)
    held.warm(add, x, 1.0)
    held.launch(add, x, 10.0)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(main_runner), "watch", lambda _: interrupted())
        patch.setattr(main_runner, "is_watched", False)
        with pytest.raises(KeyboardInterrupt):
            held.queue.synchronize()
    assert held.queue.owner is None
    assert not held.queue.query()
    held.gate.is_open.set()
    held.queue.put_completion(done := Completion())
    done.wait()
    assert (x == brief_launches._SHORT_LAUNCHES + 10).all()
    held.queue.synchronize()
