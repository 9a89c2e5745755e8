"""``await stream``: waiting without blocking the event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import NoReturn

import pytest

import nbrt
from helpers.clocks import HANG_TIMEOUT
from nbrt.errors import StreamError
from nbrt.testing import Latch

Pair = tuple[nbrt.Stream, nbrt.Stream]


def fail() -> NoReturn:
    raise ZeroDivisionError("planned")


async def wait_for(stream: nbrt.Stream) -> None:
    await stream


def test_await_waits(stream: nbrt.Stream) -> None:
    seen: list[int] = []

    async def main() -> None:
        stream.call(seen.append, 1)
        await stream

    asyncio.run(main())
    assert seen == [1]


def test_the_loop_runs_while_a_stream_is_awaited(side_streams: Pair) -> None:
    seen: list[str] = []

    async def release(latch: Latch) -> None:
        await asyncio.sleep(0)
        seen.append("the loop runs")
        latch.release()

    async def main() -> None:
        with Latch() as latch:
            for stream in side_streams:
                latch.hold(stream)
                stream.call(seen.append, "work")
            await asyncio.gather(*(wait_for(stream) for stream in side_streams * 2), release(latch))

    asyncio.run(main())
    assert seen == ["the loop runs", "work", "work"]


def test_await_raises_the_failure(side_stream: nbrt.Stream) -> None:
    async def main() -> None:
        side_stream.call(fail)
        await side_stream

    with pytest.raises(StreamError, match="planned"):
        asyncio.run(main())
    side_stream.synchronize()


def test_a_cancelled_await_leaves_the_stream_alone(side_stream: nbrt.Stream) -> None:
    seen: list[int] = []

    async def main() -> None:
        with Latch() as latch:
            latch.hold(side_stream)
            side_stream.call(seen.append, 1)
            waiting = asyncio.create_task(wait_for(side_stream))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await side_stream

    asyncio.run(main())
    assert seen == [1]


def test_a_cancelled_await_does_not_swallow_the_failure(side_stream: nbrt.Stream) -> None:
    async def main() -> None:
        with Latch() as latch:
            latch.hold(side_stream)
            side_stream.call(fail)
            waiting = asyncio.create_task(wait_for(side_stream))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(main())
    with pytest.raises(StreamError, match="planned"):
        side_stream.synchronize()


def test_a_closed_loop_is_left_alone(side_stream: nbrt.Stream) -> None:
    with Latch() as latch:
        latch.hold(side_stream)
        side_stream.call(fail)

        async def main() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(wait_for(side_stream), 0.01)

        asyncio.run(main())
    with pytest.raises(StreamError, match="planned"):
        side_stream.synchronize()


def test_the_loop_runs_while_a_default_stream_is_awaited(device: nbrt.Device) -> None:
    """Another thread is running work on the default stream; the loop must not wait for it."""
    if not nbrt.get_interface_for_device(device).capabilities.host_addressable:
        pytest.skip(f"the default stream of {device.kind} is the driver's")
    default = nbrt.default_stream(device)
    started, may_end = threading.Event(), threading.Event()
    seen: list[str] = []

    def work() -> None:
        started.set()
        assert may_end.wait(HANG_TIMEOUT)
        seen.append("work")

    async def release() -> None:
        seen.append("the loop runs")
        may_end.set()

    async def main() -> None:
        await asyncio.gather(wait_for(default), release())

    thread = threading.Thread(target=default.call, args=(work,))
    thread.start()
    assert started.wait(HANG_TIMEOUT)
    asyncio.run(main())
    thread.join(HANG_TIMEOUT)
    assert seen == ["the loop runs", "work"]
    assert default.query()


def test_await_needs_a_loop(stream: nbrt.Stream) -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        stream.__await__()
