"""Work that raises: where it surfaces, what is dropped, what goes on."""

from __future__ import annotations

import warnings
from typing import Any, NoReturn

import pytest

import nbrt
from nbrt.errors import NbrtCleanupWarning, StreamError
from nbrt.testing import Latch

Pair = tuple[nbrt.Stream, nbrt.Stream]


class PlannedError(Exception):
    """Raised by work that is meant to fail."""


def fail(text: str = "planned") -> NoReturn:
    raise PlannedError(text)


def submit_failing_work(stream: nbrt.Stream, text: str = "planned") -> None:
    stream.call(fail, text)


def test_a_failure_surfaces_at_the_next_synchronisation(side_stream: nbrt.Stream) -> None:
    submit_failing_work(side_stream)
    with pytest.raises(StreamError) as caught:
        side_stream.synchronize()
    text = str(caught.value)
    assert "PlannedError: planned" in text
    assert "fail" in text.splitlines()[0]
    assert __file__ in text
    assert "in submit_failing_work" in text
    assert "in test_a_failure_surfaces_at_the_next_synchronisation" in text
    assert isinstance(caught.value.__cause__, PlannedError)
    assert f"{nbrt.runtime.__path__[0]}" not in text


def test_later_work_is_dropped_and_named(side_stream: nbrt.Stream) -> None:
    seen: list[int] = []
    with Latch() as latch:
        latch.hold(side_stream)
        submit_failing_work(side_stream)
        side_stream.call(seen.append, 1)
        side_stream.call(print, "never")
    with pytest.raises(
        StreamError, match=r"2 later command\(s\) of the stream were dropped"
    ) as caught:
        side_stream.synchronize()
    assert "append" in str(caught.value)
    assert "print" in str(caught.value)
    assert seen == []


def test_the_stream_can_be_used_again(side_stream: nbrt.Stream) -> None:
    seen: list[int] = []
    submit_failing_work(side_stream)
    with pytest.raises(StreamError):
        side_stream.synchronize()
    side_stream.synchronize()
    side_stream.call(seen.append, 1)
    side_stream.synchronize()
    assert seen == [1]


def test_other_streams_go_on(side_streams: Pair) -> None:
    failing, waiting = side_streams
    seen: list[str] = []
    with Latch() as latch:
        latch.hold(failing)
        submit_failing_work(failing)
        waiting.wait_stream(failing)
        waiting.call(seen.append, "went on")
    waiting.synchronize()
    assert seen == ["went on"]
    with pytest.raises(StreamError, match="planned"):
        failing.synchronize()


def test_only_the_first_failure_is_raised(side_stream: nbrt.Stream) -> None:
    with Latch() as latch:
        latch.hold(side_stream)
        submit_failing_work(side_stream, "the first")
        submit_failing_work(side_stream, "the second")
    with pytest.raises(StreamError, match="the first") as caught:
        side_stream.synchronize()
    assert "the second" not in str(caught.value)
    side_stream.synchronize()


def test_an_event_surfaces_the_failure_before_it(side_stream: nbrt.Stream) -> None:
    seen: list[int] = []
    event = nbrt.Event()
    submit_failing_work(side_stream)
    event.record(side_stream)
    with pytest.raises(StreamError, match="planned"):
        event.synchronize()
    side_stream.call(seen.append, 1)
    side_stream.synchronize()
    assert seen == [1]


def test_an_event_before_the_failure_is_fine(side_stream: nbrt.Stream) -> None:
    event = side_stream.record_event()
    submit_failing_work(side_stream)
    event.synchronize()
    with pytest.raises(StreamError, match="planned"):
        side_stream.synchronize()


def test_an_event_keeps_its_failure_and_takes_no_other(side_stream: nbrt.Stream) -> None:
    submit_failing_work(side_stream, "the first")
    event = side_stream.record_event()
    with pytest.raises(StreamError, match="the first"):
        side_stream.synchronize()
    side_stream.synchronize()
    submit_failing_work(side_stream, "the second")
    # A wait for this point must raise the failure of the work before it.
    with pytest.raises(StreamError, match="the first"):
        event.synchronize()
    with pytest.raises(StreamError, match="the second"):
        side_stream.synchronize()
    side_stream.synchronize()


def test_synchronize_collects_the_failures_of_a_device(side_streams: Pair) -> None:
    for number, stream in enumerate(side_streams):
        submit_failing_work(stream, f"number {number}")
    with pytest.raises(StreamError) as caught:
        nbrt.synchronize(side_streams[0].device)
    told = str(caught.value) + "".join(caught.value.__notes__)
    assert "number 0" in told
    assert "number 1" in told
    assert "another stream" in "".join(caught.value.__notes__)
    nbrt.synchronize(side_streams[0].device)


def test_waiting_for_oneself_raises(side_stream: nbrt.Stream) -> None:
    told: list[StreamError] = []

    def wait_for_oneself() -> None:
        try:
            side_stream.synchronize()
        except StreamError as error:
            told.append(error)

    side_stream.call(wait_for_oneself)
    side_stream.synchronize()
    assert len(told) == 1
    assert "wait for itself" in str(told[0])


def test_waiting_for_an_event_of_oneself_raises(side_stream: nbrt.Stream) -> None:
    told: list[StreamError] = []

    def wait_for_oneself() -> None:
        event = side_stream.record_event()
        try:
            event.synchronize()
        except StreamError as error:
            told.append(error)

    side_stream.call(wait_for_oneself)
    if side_stream.device.kind == "cuda":
        with pytest.raises(StreamError, match="host calls of streams must not use CUDA"):
            side_stream.synchronize()
        return
    side_stream.synchronize()
    assert len(told) == 1
    assert "wait for itself" in str(told[0])


def test_arguments_of_failed_work_are_released(side_stream: nbrt.Stream) -> None:
    before = nbrt.memory_allocated(side_stream.device)
    x = nbrt.zeros(1000, stream=side_stream)

    def fail_with(array: object) -> NoReturn:
        raise PlannedError

    side_stream.call(fail_with, x)
    del x
    with pytest.raises(StreamError):
        side_stream.synchronize()
    side_stream.synchronize()
    assert nbrt.memory_allocated(side_stream.device) == before


def test_a_latch_that_nobody_releases_fails_its_stream(side_stream: nbrt.Stream) -> None:
    latch = Latch(timeout=0.01)
    latch.hold(side_stream)
    with pytest.raises(StreamError, match="TimeoutError"):
        side_stream.synchronize()


def test_a_closed_queue_warns_of_a_failure_that_nobody_asked_for(device: nbrt.Device) -> None:
    interface = nbrt.get_interface_for_device(device)
    if not interface.capabilities.concurrent_streams:
        pytest.skip(f"{device.kind} has no concurrent streams")
    queue = interface.create_queue(0, 0)
    interface.call_host(queue, fail)
    with pytest.warns(NbrtCleanupWarning, match="PlannedError: planned"):
        queue.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        queue.close()
    with pytest.raises(StreamError, match="closed"):
        interface.call_host(queue, fail)


def test_a_kernel_that_fails_is_named(device: nbrt.Device) -> None:
    if device.kind != "cpu":
        pytest.skip(f"kernels of {device.kind} raise nothing")

    @nbrt.kernel
    def doomed(x: Any) -> None:
        if x[0] == 0:
            raise ValueError("planted")

    stream = nbrt.Stream(device)
    with nbrt.stream(stream):
        x = nbrt.zeros(1)
        doomed[1, 1](x)
        doomed[1, 1](x)
    with pytest.raises(
        StreamError, match=r"^kernel .*doomed failed on Stream\(device='cpu"
    ) as caught:
        stream.synchronize()
    assert "dropped: kernel" in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)
