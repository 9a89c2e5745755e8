from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import nbrt
from nbrt.errors import StreamError
from nbrt.testing import Latch

pytestmark = pytest.mark.gpu


def test_plain_cupy_follows_nbrt_streams(cupy: Any) -> None:
    stream, other = nbrt.Stream("cuda:0"), nbrt.Stream("cuda:0")
    before = cupy.cuda.get_current_stream().ptr
    with nbrt.stream(stream):
        assert cupy.cuda.get_current_stream().ptr == stream.handle
        with nbrt.stream(other):
            assert cupy.cuda.get_current_stream().ptr == other.handle
        assert cupy.cuda.get_current_stream().ptr == stream.handle
    assert cupy.cuda.get_current_stream().ptr == before


def test_host_calls_run_in_order_with_copies() -> None:
    stream = nbrt.Stream("cuda:0")
    x = nbrt.zeros(1 << 20, "int32", device="cuda:0", stream=stream)
    host = nbrt.empty_pinned(x.shape, x.dtype, device="cuda:0")
    seen: list[int] = []
    for value in (1, 2, 3):
        nbrt.copy(x, np.full(x.shape, value, np.int32), stream=stream)
        nbrt.copy(host, x, stream=stream)
        stream.call(lambda: seen.append(int(host[-1])))
    stream.synchronize()
    assert seen == [1, 2, 3]


def test_failed_host_call() -> None:
    stream = nbrt.Stream("cuda:0")
    stream.call(lambda: 1 / 0)
    with pytest.raises(StreamError, match="ZeroDivisionError"):
        stream.synchronize()
    stream.synchronize()


def test_query_and_events_see_pending_work() -> None:
    stream, release = nbrt.Stream("cuda:0"), threading.Event()
    stream.call(release.wait, 30)
    event = stream.record_event()
    try:
        assert not stream.query()
        assert not event.query()
    finally:
        release.set()
    event.synchronize()
    assert event.query()
    stream.synchronize()
    assert stream.query()


def test_streams_run_alongside_and_wait_on_request() -> None:
    first, second = nbrt.Stream("cuda:0"), nbrt.Stream("cuda:0")
    release, seen = threading.Event(), []
    first.call(release.wait, 30)
    first.call(seen.append, "first")
    second.call(seen.append, "alongside")
    second.synchronize()
    second.wait_stream(first)
    second.call(seen.append, "second")
    release.set()
    second.synchronize()
    assert seen == ["alongside", "first", "second"]


@pytest.mark.multi_gpu
def test_default_streams_of_two_devices_are_two(second_device: nbrt.Device) -> None:
    first, second = nbrt.default_stream("cuda:0"), nbrt.default_stream(second_device)
    with Latch() as latch:
        latch.hold(second)
        assert first.query()
        assert not second.query()
    second.synchronize()


@pytest.mark.multi_gpu
def test_a_source_may_change_behind_its_copy_to_another_device(second_device: nbrt.Device) -> None:
    for _ in range(20):
        x = nbrt.to(np.arange(12), "cuda:0")
        away = nbrt.to(x, second_device)
        nbrt.copy(x, 0)
        assert nbrt.to_host(away).tolist() == list(range(12))


def test_timing() -> None:
    stream = nbrt.Stream("cuda:0")
    start, end = (nbrt.Event(enable_timing=True) for _ in range(2))
    start.record(stream)
    stream.call(time.sleep, 0.05)
    end.record(stream)
    stream.synchronize()
    assert 40 < start.elapsed_time(end) < 5000


def test_await() -> None:
    stream, seen = nbrt.Stream("cuda:0"), []

    async def main() -> None:
        stream.call(time.sleep, 0.02)
        stream.call(seen.append, 1)
        await stream

    asyncio.run(main())
    assert seen == [1]


def test_priorities_are_what_the_driver_made_of_them(cupy: Any) -> None:
    streams = [nbrt.Stream("cuda:0", priority) for priority in (0, -1, -5)]
    made = [cupy.cuda.runtime.streamGetPriority(stream.handle) for stream in streams]
    assert made[0] >= made[1] >= made[2]


def test_borrowed_streams(cupy: Any) -> None:
    foreign = cupy.cuda.Stream(non_blocking=True)
    stream = nbrt.Stream.from_external(foreign, "cuda:0")
    assert stream.handle == foreign.ptr
    assert nbrt.Stream.from_external(cupy.cuda.Stream.null, "cuda:0").handle == 0
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA")
    theirs = torch.cuda.Stream()
    assert nbrt.Stream.from_external(theirs, "cuda:0").handle == theirs.cuda_stream


def test_threads_have_their_own_current_stream(cupy: Any) -> None:
    seen: list[int] = []
    with nbrt.stream(nbrt.Stream("cuda:0")):
        thread = threading.Thread(target=lambda: seen.append(cupy.cuda.get_current_stream().ptr))
        thread.start()
        thread.join()
    assert seen == [0]


@pytest.mark.multi_gpu
def test_guards_create_no_context_on_a_device_left_alone(second_device: nbrt.Device) -> None:
    code = """
import nbrt
interface = nbrt.get_interface_for_device("cuda")
with nbrt.device("cuda:1"):
    nbrt.zeros(4).sum()
interface.lazy.ensure()
assert interface._driver.has_context(1)
assert not interface._driver.has_context(0)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("nbrt.device_count('cuda'), nbrt.is_available('cuda')", "0"),
        ("nbrt.zeros(4, device='cuda:0')", "ForkedProcessError"),
    ],
)
def test_fork(first: str, expected: str) -> None:
    code = f"""
import os, sys
import nbrt
{first}
child = os.fork()
if child == 0:
    try:
        nbrt.zeros(4, device="cuda:0")
        print(0, flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == expected, done.stderr
