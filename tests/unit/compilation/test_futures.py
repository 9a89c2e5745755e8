"""`CompileFuture` as other futures; pools that are closed, nested, shared or interrupted."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
import pickle
import sys
import threading
import weakref
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

import pytest

from helpers.clocks import HANG_TIMEOUT, ManualClock
from helpers.scripted_backend import Gate, registered, scripted_job
from nbrt.backends import in_flight
from nbrt.compilation import pool as pools
from nbrt.compilation.pool import AsyncCompile, current_pool, launch_pool
from nbrt.errors import ArgumentError, ArgumentTypeError, CompileError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nbrt.compilation.future import CompileFuture

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no worker processes")


@pytest.fixture(autouse=True, scope="module")
def backend() -> Iterator[None]:
    with registered():
        yield


@pytest.fixture(scope="module")
def pool(backend: None) -> Iterator[AsyncCompile]:
    made = AsyncCompile(1, clock=ManualClock().monotonic)
    yield made
    made.close()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


def held(pool: AsyncCompile, gate: Gate) -> CompileFuture[str]:
    """Return a future whose job a worker holds until the gate opens."""
    future = pool.submit([gate.job()], lambda: "loaded", "kernel")
    gate.wait_until_begun()
    return future


def failed(pool: AsyncCompile) -> CompileFuture[str]:
    """Return a future whose kernel has not compiled."""
    future = pool.submit([scripted_job("fail")], lambda: "loaded", "kernel")
    assert future.wait()
    return future


def test_copies_are_the_future_and_pickles_are_refused(pool: AsyncCompile) -> None:
    future = pool.submit([], lambda: "loaded", "kernel")
    assert copy.copy(future) is future
    assert copy.deepcopy([future])[0] is future
    with pytest.raises(ArgumentTypeError, match="send the kernel"):
        pickle.dumps(future)


def test_await_leaves_the_event_loop_free(pool: AsyncCompile, gate: Gate) -> None:
    loads: list[threading.Thread] = []

    async def program() -> str:
        future = pool.submit([gate.job()], lambda: loads.append(threading.current_thread()), "")
        await asyncio.to_thread(gate.wait_until_begun)
        task = asyncio.ensure_future(_result(future))
        await asyncio.to_thread(gate.open)  # the loop runs while the task waits
        await task
        with pytest.raises(CompileError, match="the kernel's own fault"):
            await failed(pool)
        return await pool.submit([], lambda: "loaded", "kernel")

    assert asyncio.run(program()) == "loaded"
    assert threading.main_thread() not in loads


async def _result(future: CompileFuture[Any]) -> Any:
    return await future


def test_cancelled_task_cancels_the_compilation(pool: AsyncCompile, gate: Gate) -> None:
    future = held(pool, gate)

    async def program() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_result(future), timeout=0.01)

    asyncio.run(program())
    assert future.cancelled()


def test_cancelled_future(pool: AsyncCompile, gate: Gate) -> None:
    future = held(pool, gate)
    assert future.cancel()
    assert future.cancel()
    assert future.cancelled()
    assert future.done()
    for call in (future.result, future.exception):
        with pytest.raises(CancelledError):
            call()
    done = pool.submit([], lambda: "loaded", "kernel")
    assert not done.cancel()
    assert done.result() == "loaded"


def test_errors_of_callbacks_are_logged(
    pool: AsyncCompile, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    logged = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda _: logged.set()  # type: ignore[method-assign]
    logger = logging.getLogger("concurrent.futures")

    def callback(_: object) -> None:
        raise ZeroDivisionError

    done = pool.submit([], lambda: "loaded", "kernel")
    done.add_done_callback(callback)
    assert len(caplog.records) == 1
    logger.addHandler(handler)
    try:
        future = held(pool, gate)
        future.add_done_callback(callback)
        gate.open()
        assert logged.wait(HANG_TIMEOUT)
    finally:
        logger.removeHandler(handler)
    assert future.result() == "loaded"


def test_functions_of_concurrent_futures(pool: AsyncCompile) -> None:
    futures = [pool.submit([scripted_job("store", "all")], lambda: "loaded", "") for _ in range(3)]
    assert {future.result() for future in as_completed(futures)} == {"loaded"}


def test_errors_refer_to_no_frame_of_a_caller(pool: AsyncCompile) -> None:
    class Value:
        pass

    future = failed(pool)

    def caller() -> weakref.ref[Value]:
        value = Value()
        with pytest.raises(CompileError) as caught:
            future.result()
        assert caught.value is not future.exception()
        return weakref.ref(value)

    seen = caller()
    gc.collect()
    assert seen() is None


def test_closed_pool_is_refused() -> None:
    with AsyncCompile(1) as pool:
        pass
    pool.close()
    with pytest.raises(ArgumentError, match="a closed one"):
        pool.submit([], int, "")
    with pytest.raises(ArgumentError, match="a closed one"), pool:
        pass
    with AsyncCompile(0) as pool:
        pass
    with pytest.raises(ArgumentError, match="a closed one"):
        pool.submit([], int, "")


def test_closed_pool_inside_its_block() -> None:
    with AsyncCompile(1) as pool:
        pool.close()
        assert launch_pool() is None  # launches compile in place
        with pytest.raises(ArgumentError, match="a closed one"):
            current_pool().submit([], int, "")


def test_nested_pools() -> None:
    with AsyncCompile(0) as outer:
        with AsyncCompile(0) as inner:
            assert current_pool() is inner
            with outer:  # a pool inside its own block
                assert current_pool() is outer
        assert current_pool() is outer


def test_one_pool_in_the_blocks_of_two_threads() -> None:
    pool = AsyncCompile(0)
    entered, left = threading.Event(), threading.Event()

    def other() -> AsyncCompile:
        with pool:
            entered.set()
            assert left.wait(HANG_TIMEOUT)
            return current_pool()

    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(other)
        assert entered.wait(HANG_TIMEOUT)
        with pool:
            assert current_pool() is pool
        assert current_pool() is not pool
        left.set()
        assert found.result() is pool


def test_block_that_another_context_leaves() -> None:
    pool = AsyncCompile(0)
    with ThreadPoolExecutor(1) as threads:
        threads.submit(pool.__enter__).result()
    pool.__exit__(None, None, None)
    assert pool.is_closed


def test_interrupt_while_jobs_are_submitted(
    pool: AsyncCompile, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [scripted_job("store", f"interrupted {number}") for number in range(2)]
    start = AsyncCompile._start

    def interrupted(self: AsyncCompile, entry: in_flight.InFlightJob) -> None:
        if entry.job is jobs[1]:
            raise KeyboardInterrupt
        start(self, entry)

    monkeypatch.setattr(AsyncCompile, "_start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.submit(jobs, int, "")
    assert in_flight.find(jobs[1].key) is None
    first = in_flight.find(jobs[0].key)
    assert first is None or first.wait(HANG_TIMEOUT)


def test_interrupt_while_result_compiles(
    pool: AsyncCompile, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = held(pool, gate)
    queued = pool.submit([scripted_job("store", "queued")], lambda: "loaded", "kernel")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("helpers.scripted_backend.ScriptedWorker.compile", interrupt)
    with pytest.raises(KeyboardInterrupt):
        queued.result()
    assert in_flight.find(queued.jobs[0].key) is None
    gate.open()
    assert running.result() == "loaded"


def test_interrupt_while_the_code_loads(pool: AsyncCompile) -> None:
    loads = iter([KeyboardInterrupt(), None])

    def load() -> str:
        if (error := next(loads)) is not None:
            raise error
        return "loaded"

    future = pool.submit([], load, "kernel")
    with pytest.raises(KeyboardInterrupt):
        future.result()
    assert future.result() == "loaded"


def test_no_pool_starts_at_the_end_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_is_ending", True)
    assert launch_pool() is None
    assert AsyncCompile().workers == 0
