"""CuPy's functions of streams, events, host functions and graphs on the simulated driver."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SUCCESS, NOT_READY = 0, 600


@pytest.fixture
def stream(runtime: Any) -> Iterator[int]:
    stream = runtime.streamCreateWithFlags(runtime.streamNonBlocking)
    yield stream
    runtime.streamDestroy(stream)


@pytest.fixture
def gate(runtime: Any, stream: int) -> Iterator[threading.Event]:
    """An event for which the stream waits."""
    event = threading.Event()
    runtime.launchHostFunc(stream, lambda _: event.wait(), 0)
    yield event
    event.set()
    runtime.streamSynchronize(stream)


def test_streams_have_flags_and_priority(runtime: Any) -> None:
    plain = runtime.streamCreate()
    urgent = runtime.streamCreateWithPriority(runtime.streamNonBlocking, -1)
    assert runtime.streamGetFlags(plain) == runtime.streamDefault
    assert runtime.streamGetFlags(urgent) == runtime.streamNonBlocking
    assert runtime.streamGetPriority(plain) == 0
    assert runtime.streamGetPriority(urgent) == -1
    runtime.streamDestroy(plain)
    runtime.streamDestroy(urgent)


def test_query_returns_the_status(runtime: Any, stream: int, gate: threading.Event) -> None:
    event = runtime.eventCreateWithFlags(runtime.eventDisableTiming)
    runtime.eventRecord(event, stream)
    assert runtime.streamQuery(stream) == NOT_READY
    assert runtime.eventQuery(event) == NOT_READY
    gate.set()
    runtime.eventSynchronize(event)
    runtime.streamSynchronize(stream)
    assert runtime.streamQuery(stream) == SUCCESS
    assert runtime.eventQuery(event) == SUCCESS
    runtime.eventDestroy(event)


def test_stream_waits_for_an_event(runtime: Any, stream: int, gate: threading.Event) -> None:
    other, event = runtime.streamCreateWithFlags(runtime.streamNonBlocking), runtime.eventCreate()
    runtime.eventRecord(event, stream)
    runtime.streamWaitEvent(other, event)
    assert runtime.streamQuery(other) == NOT_READY
    gate.set()
    runtime.streamSynchronize(other)
    runtime.streamDestroy(other)
    runtime.eventDestroy(event)


def test_elapsed_time(runtime: Any, stream: int, fails: Callable[..., None]) -> None:
    first, second = runtime.eventCreate(), runtime.eventCreate()
    fails("cudaErrorInvalidResourceHandle", runtime.eventElapsedTime, first, second)
    runtime.eventRecord(first, stream)
    runtime.eventRecord(second, stream)
    runtime.streamSynchronize(stream)
    assert runtime.eventElapsedTime(first, second) >= 0.0
    runtime.eventDestroy(first)
    runtime.eventDestroy(second)


def test_synchronisation_releases_the_gil(runtime: Any, stream: int) -> None:
    """A host function needs the GIL while the main thread waits for it."""
    event = runtime.eventCreate()
    for wait, argument in (
        (runtime.streamSynchronize, stream),
        (runtime.eventSynchronize, event),
        (lambda _: runtime.deviceSynchronize(), None),
    ):
        runtime.launchHostFunc(stream, lambda _: sys.version, 0)
        runtime.eventRecord(event, stream)
        wait(argument)
    runtime.eventDestroy(event)


class Callback:
    """A function that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.threads: set[int] = set()

    def __call__(self, *args: Any) -> None:
        self.calls.append(args)
        self.threads.add(threading.get_ident())


def test_host_functions_are_called_once_and_released(runtime: Any, stream: int) -> None:
    function = Callback()
    runtime.launchHostFunc(stream, function, 5)
    runtime.streamAddCallback(stream, function, 6)
    runtime._launchHostFuncUnmanaged(stream, pair := (function, "seven"))
    runtime.streamSynchronize(stream)
    assert function.calls == [(5,), (stream, 0, 6), ("seven",)]
    assert threading.get_ident() not in function.threads
    del pair
    reference = weakref.ref(function)
    del function
    gc.collect()
    assert reference() is None


def test_failed_launch_releases_the_function(runtime: Any, fails: Callable[..., None]) -> None:
    stream = runtime.streamCreate()
    runtime.streamDestroy(stream)
    function = Callback()
    fails("cudaError", runtime.launchHostFunc, stream, function, 0)
    fails("cudaError", runtime.streamAddCallback, stream, function, 0)
    reference = weakref.ref(function)
    del function
    gc.collect()
    assert reference() is None


def test_exception_of_a_host_function_is_unraisable(
    runtime: Any, stream: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: found.append(error.exc_type))

    def function(*_: Any) -> None:
        raise KeyError

    runtime.launchHostFunc(stream, function, 0)
    runtime.streamAddCallback(stream, function, 0)
    runtime.streamSynchronize(stream)
    assert found == [KeyError, KeyError]


def test_capture_makes_a_graph(runtime: Any, stream: int) -> None:
    function = Callback()
    assert runtime.streamIsCapturing(stream) is False
    runtime.streamBeginCapture(stream)
    assert runtime.streamIsCapturing(stream) is True
    runtime.launchHostFunc(stream, function, 1)
    graph = runtime.streamEndCapture(stream)
    assert function.calls == []
    program = runtime.graphInstantiate(graph)
    runtime.graphDestroy(graph)
    runtime.graphUpload(program, stream)
    for _ in range(3):
        runtime.graphLaunch(program, stream)
    runtime.streamSynchronize(stream)
    runtime.graphExecDestroy(program)
    assert function.calls == [(1,)] * 3


def test_invalidated_capture(runtime: Any, stream: int, fails: Callable[..., None]) -> None:
    runtime.streamBeginCapture(stream, runtime.streamCaptureModeGlobal)
    fails("cudaErrorStreamCaptureUnsupported", runtime.streamSynchronize, stream)
    with pytest.raises(RuntimeError, match="invalidated the capture sequence"):
        runtime.streamIsCapturing(stream)
    fails("cudaErrorStreamCaptureInvalidated", runtime.streamEndCapture, stream)
    assert runtime.streamIsCapturing(stream) is False


def test_stale_handles(runtime: Any, fails: Callable[..., None]) -> None:
    event = runtime.eventCreate()
    runtime.eventDestroy(event)
    fails("cudaErrorInvalidResourceHandle", runtime.eventRecord, event, 0)
    fails("cudaErrorInvalidResourceHandle", runtime.eventSynchronize, event)
    assert runtime.eventQuery(event) == 400


def test_profiler(runtime: Any) -> None:
    runtime.profilerStart()
    runtime.profilerStop()
