"""The block scheduler: every block runs once; errors, several callers, forks."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

from helpers.clocks import HANG_TIMEOUT
from nbrt.backends.cpu import block_scheduler
from nbrt.backends.cpu.block_scheduler import (
    LaunchRecord,
    get_num_threads,
    run_shared,
    set_num_threads,
)
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = get_num_threads()
    set_num_threads(4)
    yield
    set_num_threads(before)


def entry_in_python(work: Callable[[int], None]) -> Callable[[int], None]:
    """Make an entry like the native ones: claims from the record until nothing is left."""
    lock = threading.Lock()

    def entry(address: int) -> None:
        record = LaunchRecord.from_address(address)
        while True:
            with lock:
                first = record.next
                record.next = first + record.chunk
            if first >= record.total:
                return
            for block in range(first, min(first + record.chunk, record.total)):
                work(block)

    return entry


def test_every_block_runs_once_and_helpers_join_in() -> None:
    ran: Counter[int] = Counter()
    who = set()
    together = threading.Barrier(4, timeout=HANG_TIMEOUT)

    def work(block: int) -> None:
        if block < 4:
            together.wait()  # passes only if four threads are at it
        ran[block] += 1
        who.add(threading.get_ident())

    run_shared(entry_in_python(work), LaunchRecord(20, 1, 1, 20, 1, 0), ())
    assert ran == Counter(range(20))
    assert len(who) == 4
    assert threading.get_ident() in who


def test_the_first_exception_of_any_thread_reaches_the_caller_once() -> None:
    record = LaunchRecord(1000, 1, 1, 1000, 1, 0)
    ran = []

    def work(block: int) -> None:
        ran.append(block)
        if block == 5:
            raise ValueError(f"block {block}")
        while block > 5 and record.next < record.total:
            time.sleep(0.001)  # until no further block is begun

    with pytest.raises(ValueError, match="block 5"):
        run_shared(entry_in_python(work), record, ())
    assert set(range(6)) <= set(ran)
    assert len(ran) <= 6 + 3  # each of the other threads was in one block more
    run_shared(entry_in_python(lambda _: None), LaunchRecord(9, 1, 1, 9, 1, 0), ())


def test_a_launch_does_not_wait_for_busy_helpers() -> None:
    release, started = threading.Event(), threading.Semaphore(0)

    def block_all(_: int) -> None:
        started.release()
        release.wait(HANG_TIMEOUT)

    long = threading.Thread(
        target=run_shared,
        args=(entry_in_python(block_all), LaunchRecord(4, 1, 1, 4, 1, 0), ()),
    )
    long.start()
    for _ in range(4):
        assert started.acquire(timeout=HANG_TIMEOUT)
    # All helpers are held; this one must finish all the same.
    ran = []
    run_shared(entry_in_python(ran.append), LaunchRecord(50, 1, 1, 50, 1, 0), ())
    assert sorted(ran) == list(range(50))
    assert long.is_alive()
    release.set()
    long.join(HANG_TIMEOUT)
    assert not long.is_alive()


def test_finished_launches_keep_nothing_alive() -> None:
    import gc
    import weakref

    a = np.zeros(10)
    gone = weakref.ref(a)
    entry = entry_in_python(lambda _: None)
    run_shared(lambda address, _: entry(address), LaunchRecord(8, 1, 1, 8, 1, 0), (a,))
    del a
    deadline = time.monotonic() + HANG_TIMEOUT
    while gone() is not None and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert gone() is None


def test_the_number_of_threads() -> None:
    set_num_threads(1)
    who = set()
    entry = entry_in_python(lambda _: who.add(threading.get_ident()))
    run_shared(entry, LaunchRecord(100, 1, 1, 100, 1, 0), ())
    assert who == {threading.get_ident()}
    with pytest.raises(ArgumentError, match="at least 1, got 0"):
        set_num_threads(0)
    assert get_num_threads() == 1
    block_scheduler._num_threads = None
    assert get_num_threads() == len(os.sched_getaffinity(0))


# -- with compiled kernels -------------------------------------------------------------------


def count_visits(visits: Any, n: Any, rounds: Any) -> None:
    i = cuda.grid(1)
    if i < n:
        value = 0.0
        for k in range(rounds):
            value += (k * 7 + i) % 3
        visits[i] += 1 + 0 * value


def in_blocks(visits: Any, rounds: Any) -> None:
    t = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + 2 * cuda.threadIdx.z)
    b = cuda.blockIdx.x + cuda.gridDim.x * (cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z)
    for _ in range(rounds):
        visits[b * 24 + t] += 1


@pytest.mark.parametrize("rounds", [0, 2000])
@pytest.mark.parametrize("count", [1, 2, 31, 1000])
def test_every_thread_of_every_block_runs_once(count: int, rounds: int) -> None:
    plan = CpuProgram(count_visits, cache=False).plan(0, (count, 1, 1), (8, 1, 1))
    for repeat in range(4):
        visits = np.zeros(count * 8)
        plan(visits, count * 8 - 3, rounds)
        assert (visits[:-3] == 1).all(), repeat
        assert (visits[-3:] == 0).all()


@pytest.mark.parametrize("grid", [(1, 1, 1), (5, 1, 1), (3, 4, 5), (1, 1, 40), (7, 1, 6)])
@pytest.mark.parametrize("rounds", [1, 50_000])
def test_every_block_of_a_grid_runs_once(grid: tuple[int, int, int], rounds: int) -> None:
    plan = CpuProgram(in_blocks, cache=False).plan(0, grid, (4, 2, 3))
    visits = np.zeros(grid[0] * grid[1] * grid[2] * 24, np.int64)
    for repeat in range(1, 4):
        plan(visits, rounds)
        assert (visits == repeat * rounds).all()


def test_many_threads_launch_at_once() -> None:
    kernel = CpuProgram(count_visits, cache=False)
    failures: list[Any] = []

    def stream(index: int) -> None:
        try:
            for repeat in range(20):
                blocks_here = 1 + (index * 7 + repeat) % 40
                visits = np.zeros(blocks_here * 8)
                kernel.plan(0, (blocks_here, 1, 1), (8, 1, 1))(
                    visits, visits.size, 500 * (repeat % 3)
                )
                assert (visits == 1).all()
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=stream, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_TIMEOUT)
        assert not thread.is_alive()
    assert failures == []


def wait_for_answer(flags: Any, looks: Any) -> None:
    """Raise flags[0], wait for flags[1], and say in flags[2] whether it was raised in time."""
    cuda.atomic.add(flags, 0, 1)
    for _ in range(looks):
        if cuda.atomic.add(flags, 1, 0) > 0:
            flags[2] = 1
            break


def test_the_gil_is_released_while_a_kernel_runs() -> None:
    plan = CpuProgram(wait_for_answer, cache=False).plan(0, (1, 1, 1), (1, 1, 1))
    plan(np.zeros(3, np.int64), 1)
    flags = np.zeros(3, np.int64)
    thread = threading.Thread(target=plan, args=(flags, 20_000_000_000))
    thread.start()
    while not flags[0]:
        time.sleep(0.001)
    flags[1] = 1  # in the middle of the kernel
    thread.join()
    assert flags[2] == 1


FORKED = """
import os, sys
import numpy as np
from numba import cuda
from nbrt.backends.cpu.block_scheduler import set_num_threads
from nbrt.backends.cpu.launch import CpuProgram

set_num_threads(3)

def kernel(x, rounds):
    i = cuda.grid(1)
    for _ in range(rounds):
        x[i] += 1

plan = CpuProgram(kernel, cache=False).plan(0, (64, 1, 1), (8, 1, 1))
for _ in range(3):
    plan(np.zeros(512), 20_000)
child = os.fork()
x = np.zeros(512)
for _ in range(5):
    plan(x, 20_000)
good = (x == 100_000).all()
if child == 0:
    os._exit(0 if good else 1)
_, status = os.waitpid(child, 0)
print("parent", good, "child", os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_launches_with_helpers_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(FORKED)],
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=False,
    )
    assert done.stdout.strip() == "parent True child 0", done.stderr


def test_an_interrupt_is_raised_once_the_helpers_have_left() -> None:
    record, caller = LaunchRecord(8, 1, 1, 8, 1, 0), threading.get_ident()
    helps, has_left = threading.Event(), threading.Event()

    def entry(_: int) -> None:
        if threading.get_ident() == caller:
            assert helps.wait(HANG_TIMEOUT)
            raise KeyboardInterrupt
        helps.set()
        while record.stop == 0:
            time.sleep(0.001)
        has_left.set()

    threads = get_num_threads()
    set_num_threads(2)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_shared(entry, record, ())
    finally:
        set_num_threads(threads)
    assert has_left.is_set()
