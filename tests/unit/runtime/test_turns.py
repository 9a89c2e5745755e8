"""Threads run tiny launches in turn, and a turn never blocks for good."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.clocks import HANG_TIMEOUT
from helpers.endless import TURNS, counted, flags, wait_for
from nbrt.backends.cpu import brief_launches, launch
from nbrt.backends.cpu.turns import Turn

if TYPE_CHECKING:
    from collections.abc import Callable


@nbrt.kernel
def add(x: Any, term: Any) -> None:
    x[cuda.grid(1)] += term


@pytest.fixture
def turn(monkeypatch: pytest.MonkeyPatch) -> Turn:
    """Return the turn of all launches: each is tiny."""
    monkeypatch.setattr(brief_launches, "BRIEF_NS", 10**18)
    monkeypatch.setattr(brief_launches, "_TINY_NS", 10**18)
    monkeypatch.setattr(launch, "MIN_SHARED_NS", 10**18)
    turn = Turn()
    monkeypatch.setattr(brief_launches, "_turn", turn)
    return turn


def configured(kernel: nbrt.Kernel, block: int, *args: Any) -> tuple[nbrt.Stream, Any]:
    """Return a stream, and the kernel on it, which runs in the thread that launches."""
    stream = nbrt.Stream("cpu:0")
    on_stream = kernel[1, block, stream]
    for _ in range(brief_launches._LAUNCHES + 2):
        on_stream(*args)
    stream.synchronize()
    return stream, on_stream


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + HANG_TIMEOUT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0)


def started(function: Callable[..., object], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=args)
    thread.start()
    return thread


def test_a_thread_waits_for_the_owner() -> None:
    turn, done = Turn(), threading.Event()
    owner = turn.owner = [threading.get_ident()]
    thread = started(turn.run, done.set)
    until(lambda: turn.latch)
    assert turn.waiting == 1
    assert not done.is_set()
    # An owner that comes meanwhile does not confuse it.
    turn.owner = [*owner]
    latch, turn.latch = turn.latch, None
    assert latch is not None
    latch.release()
    until(lambda: turn.latch)
    assert not done.is_set()
    turn.owner = None
    turn.latch.release()
    thread.join(HANG_TIMEOUT)
    assert done.is_set()
    assert turn.waiting == 0


def test_the_owner_does_not_wait_for_itself() -> None:
    turn = Turn()
    turn.owner = [threading.get_ident()]
    assert turn.run(lambda: turn.run(lambda: 3)) == 3


def test_an_exception_ends_a_turn() -> None:
    turn = Turn()
    with pytest.raises(ZeroDivisionError):
        turn.run(lambda: 1 / 0)
    assert turn.waiting == 0
    done = threading.Event()
    started(turn.run, done.set).join(HANG_TIMEOUT)
    assert done.is_set()


def test_a_signal_handler_launches_within_a_launch_for_which_a_thread_waits(turn: Turn) -> None:
    """The thread waits for the launch, so the handler must not wait for the thread."""
    out, seen, order = np.ones(64), flags(), list[str]()
    long_stream, long = configured(counted, 64, out, seen, 1)
    x, y = np.zeros(4), np.zeros(4)
    _, on_second = configured(add, 4, x, 0.0)
    third, on_third = configured(add, 4, y, 0.0)
    seen[:] = 0

    def launch_second() -> None:
        on_second(x, 1.0)
        order.append("thread")

    def send() -> None:
        wait_for(seen)
        thread = started(launch_second)
        until(lambda: turn.latch)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        thread.join(HANG_TIMEOUT)

    def handle(*_: object) -> None:
        on_third(y, 1.0)
        third.synchronize()
        order.append("handler")
        long_stream.cancel()

    previous = signal.signal(signal.SIGUSR1, handle)
    try:
        sender = started(send)
        long(out, seen, TURNS)
        sender.join(HANG_TIMEOUT)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert order == ["handler", "thread"]
    assert (x == 1).all()
    assert (y == 1).all()
    assert (turn.owner, turn.waiting) == (None, 0)


def test_launches_of_many_threads_in_turn(turn: Turn) -> None:
    works = [configured(add, 4, np.zeros(4), 0.0)[1] for _ in range(4)]
    arrays = [np.zeros(4) for _ in works]
    barrier = threading.Barrier(len(works))

    def run(number: int) -> None:
        barrier.wait(HANG_TIMEOUT)
        for _ in range(500):
            works[number](arrays[number], 1.0)

    threads = [started(run, number) for number in range(len(works))]
    for thread in threads:
        thread.join(HANG_TIMEOUT)
    for work in works:
        work.stream.synchronize()
    assert all((array == 500).all() for array in arrays)
    assert (turn.owner, turn.waiting) == (None, 0)
