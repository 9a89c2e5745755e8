"""Streams and events of numba-cuda on CPU devices."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

import nbrt
from nbrt.testing import Latch

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture(scope="module")
def add_one() -> Any:
    @cuda.jit
    def add_one(x: Any) -> None:
        i = cuda.grid(1)
        if i < x.size:
            x[i] += 1

    add_one[1, 32](cuda.to_device(np.zeros(4)))
    return add_one


def held(stream: Any) -> Latch:
    """Hold a stream of numba-cuda until the latch opens."""
    from nbrt.compat.numba_cuda.driver.binding import process_binding

    latch = Latch()
    latch.hold(process_binding().streams.ordered(int(stream)))
    return latch


def test_work_of_a_stream_is_asynchronous_and_in_order(add_one: Any) -> None:
    stream = cuda.stream()
    array = cuda.to_device(np.zeros(4), stream=stream)
    latch = held(stream)
    pinned = cuda.pinned_array(4)
    pinned[:] = -1
    for _ in range(3):
        add_one[1, 32, stream](array)
    array.copy_to_host(pinned, stream=stream)
    done = cuda.event()
    done.record(stream)
    assert not done.query()
    assert pinned.tolist() == [-1] * 4
    latch.release()
    stream.synchronize()
    assert pinned.tolist() == [3] * 4
    assert done.query()


@pytest.mark.parametrize("make", ["default_stream", "legacy_default_stream"])
def test_the_legacy_default_stream_waits_for_the_others(make: str, add_one: Any) -> None:
    stream = cuda.stream()
    array = cuda.to_device(np.zeros(4))
    latch = held(stream)
    add_one[1, 32, stream](array)
    opener = threading.Timer(0.05, latch.release)
    opener.start()
    add_one[1, 32, getattr(cuda, make)()](array)
    assert array.copy_to_host().tolist() == [2] * 4
    opener.join()


def test_each_thread_has_its_default_stream(add_one: Any) -> None:
    arrays = [cuda.to_device(np.zeros(4)) for _ in range(4)]

    def work(array: Any) -> None:
        for _ in range(10):
            add_one[1, 32, cuda.per_thread_default_stream()](array)
        cuda.per_thread_default_stream().synchronize()

    threads = [threading.Thread(target=work, args=(array,)) for array in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {array.copy_to_host()[0] for array in arrays} == {10.0}


def test_a_stream_waits_for_an_event_of_another(add_one: Any) -> None:
    first, second = cuda.stream(), cuda.stream()
    array = cuda.to_device(np.zeros(4))
    latch = held(first)
    add_one[1, 32, first](array)
    event = cuda.event()
    event.record(first)
    event.wait(second)
    add_one[1, 32, second](array)
    latch.release()
    second.synchronize()
    assert array.copy_to_host().tolist() == [2] * 4


def test_events_measure_time_and_refuse_wrong_uses() -> None:
    start, end = cuda.event(), cuda.event()
    start.record()
    end.record()
    end.synchronize()
    assert cuda.event_elapsed_time(start, end) >= 0
    assert start.elapsed_time(end) >= 0
    for pair in ((start, cuda.event()), (start, cuda.event(timing=False))):
        with pytest.raises(CudaAPIError, match="INVALID_HANDLE"):
            cuda.event_elapsed_time(*pair)
    stream = cuda.stream()
    latch = held(stream)
    end.record(stream)
    with pytest.raises(CudaAPIError, match="NOT_READY"):
        cuda.event_elapsed_time(start, end)
    latch.release()
    stream.synchronize()


def test_callbacks_run_behind_the_work_with_their_argument() -> None:
    stream, seen = cuda.stream(), []
    latch = held(stream)
    stream.add_callback(lambda *values: seen.append(values), "data")
    assert not seen
    latch.release()
    stream.synchronize()
    assert seen == [(stream, 0, "data")]


def test_async_done_resolves_to_the_stream() -> None:
    async def main() -> list[Any]:
        streams = [cuda.stream() for _ in range(4)]
        return [streams, await asyncio.gather(*(each.async_done() for each in streams))]

    streams, done = asyncio.run(main())
    assert done == streams


def test_a_failure_is_raised_at_the_synchronisation(fail: Any) -> None:
    stream = cuda.stream()
    array = cuda.to_device(np.zeros(2))
    latch = held(stream)
    fail[1, 1, stream](array)
    statuses: list[int] = []
    stream.add_callback(lambda _stream, status, _data: statuses.append(status))
    latch.release()
    with pytest.raises(CudaAPIError, match=r"CUDA_ERROR_ILLEGAL_ADDRESS[^#]*outside") as caught:
        stream.synchronize()
    assert caught.value.code.value == 700
    assert isinstance(caught.value.__cause__, nbrt.errors.KernelCheckError)
    assert statuses == [700]
    stream.synchronize()


def test_streams_of_nbrt_are_accepted(add_one: Any) -> None:
    stream = nbrt.Stream("cpu:0")
    array = cuda.to_device(np.zeros(4), stream=stream)
    add_one[1, 32, stream](array)
    event = cuda.event()
    event.record(stream)
    event.synchronize()
    assert array.copy_to_host(stream=stream).tolist() == [1] * 4
    assert array.__cuda_array_interface__["stream"] > 2  # the handle of no default stream
    assert cuda.as_cuda_array(array).copy_to_host().tolist() == [1] * 4


def test_external_streams_and_wrong_handles() -> None:
    stream = cuda.stream()
    same = cuda.external_stream(int(stream))
    same.synchronize()
    assert "External" in repr(same)
    with pytest.raises(CudaAPIError, match="INVALID_HANDLE"):
        cuda.external_stream(12345).synchronize()
    with pytest.raises(TypeError, match="Stream"):
        cuda.to_device(np.zeros(2), stream="fast")


def test_context_managers_of_streams_and_profiles(add_one: Any) -> None:
    array = cuda.to_device(np.zeros(4))
    with cuda.profiling(), cuda.stream().auto_synchronize() as stream:
        add_one[1, 32, stream](array)
    assert array.copy_to_host().tolist() == [1] * 4


def test_threads_with_streams_do_not_lose_the_order_of_the_default_stream(add_one: Any) -> None:
    def work(failures: list[int]) -> None:
        stream, array = cuda.stream(), cuda.to_device(np.zeros(4))
        for turn in range(300):
            add_one[1, 32, stream](array)
            add_one[1, 32](array)
            if turn % 3 == 0:
                stream.synchronize()
        if array.copy_to_host()[0] != 600:
            failures.append(1)

    failures: list[int] = []
    threads = [threading.Thread(target=work, args=(failures,)) for _ in range(6)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not failures
