"""Stream capture of the simulated driver."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from cuda.bindings import driver

from helpers.driver_calls import Latch, call, status

GLOBAL = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
THREAD_LOCAL = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
RELAXED = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
STATUS = driver.CUstreamCaptureStatus
LEGACY = driver.CUstream(1)


def begin(stream: Any, mode: Any = GLOBAL) -> None:
    call(driver.cuStreamBeginCapture(stream, mode))


def run(graph: Any, stream: Any) -> None:
    """Instantiate and launch a graph, and wait for it."""
    executable = call(driver.cuGraphInstantiate(graph, 0))
    call(driver.cuGraphLaunch(executable, stream))
    call(driver.cuStreamSynchronize(stream))
    call(driver.cuGraphExecDestroy(executable))


def capture_status(stream: Any) -> Any:
    return call(driver.cuStreamIsCapturing(stream))


def edges(graph: Any) -> int:
    return int(driver.cuGraphGetEdges(graph)[-1])


def count(graph: Any) -> int:
    return int(driver.cuGraphGetNodes(graph)[-1])


def test_captured_work_runs_when_the_graph_is_launched(
    new_stream: Any, log: Any, schedule: str
) -> None:
    stream = new_stream()
    begin(stream)
    log.note(stream, "first")
    log.note(stream, "second")
    assert capture_status(stream) == STATUS.CU_STREAM_CAPTURE_STATUS_ACTIVE
    graph = call(driver.cuStreamEndCapture(stream))
    assert capture_status(stream) == STATUS.CU_STREAM_CAPTURE_STATUS_NONE
    assert log.names == []
    run(graph, stream)
    run(graph, stream)
    assert log.names == ["first", "second"] * 2
    assert (count(graph), edges(graph)) == (2, 1)
    call(driver.cuGraphDestroy(graph))


def test_events_fork_and_join(new_stream: Any, new_event: Any, log: Any, schedule: str) -> None:
    first, second, fork, joined = new_stream(), new_stream(), new_event(), new_event()
    begin(first)
    log.note(first, "begin")
    call(driver.cuEventRecord(fork, first))
    call(driver.cuStreamWaitEvent(second, fork, 0))
    assert capture_status(second) == STATUS.CU_STREAM_CAPTURE_STATUS_ACTIVE
    log.note(second, "side")
    log.note(first, "side")
    call(driver.cuEventRecord(joined, second))
    call(driver.cuStreamWaitEvent(first, joined, 0))
    log.note(first, "end")
    graph = call(driver.cuStreamEndCapture(first))
    assert capture_status(second) == STATUS.CU_STREAM_CAPTURE_STATUS_NONE
    assert (count(graph), edges(graph)) == (4, 4)
    run(graph, first)
    assert log.names == ["begin", "side", "side", "end"]
    call(driver.cuGraphDestroy(graph))


def test_unjoined_work_is_an_error(new_stream: Any, new_event: Any, log: Any) -> None:
    first, second, fork = new_stream(), new_stream(), new_event()
    begin(first)
    log.note(first, "begin")
    call(driver.cuEventRecord(fork, first))
    call(driver.cuStreamWaitEvent(second, fork, 0))
    log.note(second, "side")
    assert status(driver.cuStreamEndCapture(first)) == "STREAM_CAPTURE_UNJOINED"
    assert capture_status(second) == STATUS.CU_STREAM_CAPTURE_STATUS_NONE


def test_end_belongs_to_the_stream_and_the_thread_of_the_begin(
    new_stream: Any, new_event: Any, log: Any
) -> None:
    first, second, fork = new_stream(), new_stream(), new_event()
    begin(first, THREAD_LOCAL)
    call(driver.cuEventRecord(fork, first))
    call(driver.cuStreamWaitEvent(second, fork, 0))
    results: list[str] = []
    thread = threading.Thread(
        target=lambda: results.append(status(driver.cuStreamEndCapture(first)))
    )
    thread.start()
    thread.join()
    assert results == ["STREAM_CAPTURE_WRONG_THREAD"]
    assert status(driver.cuStreamEndCapture(second)) == "STREAM_CAPTURE_UNMATCHED"
    assert status(driver.cuStreamEndCapture(first)) == "STREAM_CAPTURE_INVALIDATED"
    assert status(driver.cuStreamEndCapture(first)) == "ILLEGAL_STATE"


def test_relaxed_capture_ends_in_any_thread(new_stream: Any) -> None:
    stream = new_stream()
    begin(stream, RELAXED)
    results: list[str] = []
    thread = threading.Thread(
        target=lambda: results.append(status(driver.cuStreamEndCapture(stream)))
    )
    thread.start()
    thread.join()
    assert results == ["SUCCESS"]


@pytest.mark.parametrize("function", [driver.cuStreamSynchronize, driver.cuStreamQuery])
def test_waiting_for_a_capturing_stream_invalidates(new_stream: Any, function: Any) -> None:
    stream = new_stream()
    begin(stream)
    assert status(function(stream)) == "STREAM_CAPTURE_UNSUPPORTED"
    assert capture_status(stream) == STATUS.CU_STREAM_CAPTURE_STATUS_INVALIDATED
    assert status(driver.cuStreamEndCapture(stream)) == "STREAM_CAPTURE_INVALIDATED"
    assert capture_status(stream) == STATUS.CU_STREAM_CAPTURE_STATUS_NONE


@pytest.mark.parametrize("function", [driver.cuEventSynchronize, driver.cuEventQuery])
def test_waiting_for_a_captured_event_invalidates(
    new_stream: Any, new_event: Any, function: Any
) -> None:
    stream, event = new_stream(), new_event()
    begin(stream)
    call(driver.cuEventRecord(event, stream))
    assert status(function(event)) == "CAPTURED_EVENT"
    assert status(driver.cuStreamEndCapture(stream)) == "STREAM_CAPTURE_INVALIDATED"
    # The next record makes it an ordinary event again.
    assert status(driver.cuStreamWaitEvent(stream, event, 0)) == "CAPTURED_EVENT"
    call(driver.cuEventRecord(event, stream))
    call(driver.cuEventSynchronize(event))


def test_context_synchronisation_invalidates(new_stream: Any) -> None:
    stream = new_stream()
    begin(stream)
    assert status(driver.cuCtxSynchronize()) == "STREAM_CAPTURE_UNSUPPORTED"
    assert status(driver.cuStreamEndCapture(stream)) == "STREAM_CAPTURE_INVALIDATED"


def test_legacy_stream_is_forbidden_during_the_capture_of_a_blocking_stream(
    new_stream: Any, new_event: Any, log: Any
) -> None:
    stream = new_stream(0)
    begin(stream)
    assert status(driver.cuStreamIsCapturing(LEGACY)) == "STREAM_CAPTURE_IMPLICIT"
    assert capture_status(stream) == STATUS.CU_STREAM_CAPTURE_STATUS_ACTIVE
    assert status(driver.cuEventRecord(new_event(), LEGACY)) == "STREAM_CAPTURE_IMPLICIT"
    assert status(driver.cuStreamEndCapture(stream)) == "STREAM_CAPTURE_INVALIDATED"


def test_legacy_stream_is_free_during_the_capture_of_a_non_blocking_stream(
    new_stream: Any, log: Any
) -> None:
    stream = new_stream(1)
    begin(stream)
    log.note(LEGACY, "legacy")
    call(driver.cuStreamSynchronize(LEGACY))
    assert log.names == ["legacy"]
    call(driver.cuGraphDestroy(call(driver.cuStreamEndCapture(stream))))


def test_legacy_stream_cannot_be_captured(context: Any) -> None:
    assert status(driver.cuStreamBeginCapture(LEGACY, GLOBAL)) == "STREAM_CAPTURE_UNSUPPORTED"


def test_capture_waits_for_no_event_of_outside(new_stream: Any, new_event: Any) -> None:
    stream, event = new_stream(), new_event()
    call(driver.cuEventRecord(event, new_stream()))
    begin(stream)
    assert status(driver.cuStreamWaitEvent(stream, event, 0)) == "STREAM_CAPTURE_ISOLATION"
    assert status(driver.cuStreamEndCapture(stream)) == "STREAM_CAPTURE_INVALIDATED"


def test_captures_do_not_merge(new_stream: Any, new_event: Any) -> None:
    first, second, event = new_stream(), new_stream(), new_event()
    begin(first)
    begin(second)
    call(driver.cuEventRecord(event, first))
    assert status(driver.cuStreamWaitEvent(second, event, 0)) == "STREAM_CAPTURE_MERGE"
    for stream in (first, second):
        assert status(driver.cuStreamEndCapture(stream)) == "STREAM_CAPTURE_INVALIDATED"


def test_old_callbacks_cannot_be_captured(new_stream: Any) -> None:
    stream = new_stream()
    begin(stream)
    result = driver.cuStreamAddCallback(stream, driver.CUstreamCallback(1), 0, 0)
    assert status(result) == "STREAM_CAPTURE_UNSUPPORTED"
    assert status(driver.cuStreamEndCapture(stream)) == "STREAM_CAPTURE_INVALIDATED"


def test_begin_twice_is_an_error(new_stream: Any) -> None:
    stream = new_stream()
    begin(stream)
    assert status(driver.cuStreamBeginCapture(stream, GLOBAL)) == "ILLEGAL_STATE"
    call(driver.cuGraphDestroy(call(driver.cuStreamEndCapture(stream))))


def unsafe_call() -> str:
    error, address = driver.cuMemAlloc(16)
    if status((error,)) == "SUCCESS":
        call(driver.cuMemFree(address))
    return status((error,))


@pytest.mark.parametrize(
    ("capture_mode", "thread_mode", "here", "elsewhere"),
    [
        (GLOBAL, GLOBAL, False, False),
        (GLOBAL, THREAD_LOCAL, False, True),
        (GLOBAL, RELAXED, True, True),
        (THREAD_LOCAL, GLOBAL, False, True),
        (THREAD_LOCAL, RELAXED, True, True),
        (RELAXED, GLOBAL, True, True),
    ],
)
def test_modes_allow_unsafe_calls(
    new_stream: Any, context: Any, capture_mode: Any, thread_mode: Any, here: bool, elsewhere: bool
) -> None:
    def with_mode() -> bool:
        call(driver.cuCtxSetCurrent(context))
        before = call(driver.cuThreadExchangeStreamCaptureMode(thread_mode))
        result = unsafe_call()
        call(driver.cuThreadExchangeStreamCaptureMode(before))
        return {"SUCCESS": True, "STREAM_CAPTURE_UNSUPPORTED": False}[result]

    stream = new_stream()
    results: list[bool] = []
    for in_thread in (False, True):
        begin(stream, capture_mode)
        if in_thread:
            thread = threading.Thread(target=lambda: results.append(with_mode()))
            thread.start()
            thread.join()
        else:
            results.append(with_mode())
        error, graph = driver.cuStreamEndCapture(stream)
        assert (status((error,)) == "SUCCESS") == results[-1]
        if graph is not None:
            call(driver.cuGraphDestroy(graph))
    assert results == [here, elsewhere]


def test_capture_info_and_dependencies(new_stream: Any, log: Any) -> None:
    stream = new_stream()
    begin(stream)
    log.note(stream, "first")
    info = driver.cuStreamGetCaptureInfo(stream)
    assert info[1] == STATUS.CU_STREAM_CAPTURE_STATUS_ACTIVE
    graph, (first,) = info[3], info[4]
    call(driver.cuStreamUpdateCaptureDependencies(stream, None, None, 0, 1))
    log.note(stream, "second")
    call(driver.cuStreamUpdateCaptureDependencies(stream, [first], None, 1, 0))
    log.note(stream, "third")
    ended = call(driver.cuStreamEndCapture(stream))
    assert int(ended) == int(graph)
    assert (count(graph), edges(graph)) == (3, 2)
    run(graph, stream)
    assert log.names[2] == "third"
    call(driver.cuGraphDestroy(graph))


def test_capture_into_a_graph(new_stream: Any, log: Any) -> None:
    stream = new_stream()
    graph = call(driver.cuGraphCreate(0))
    root = call(driver.cuGraphAddEmptyNode(graph, None, 0))
    result = driver.cuStreamBeginCaptureToGraph(stream, graph, [root], None, 1, GLOBAL)
    assert status(result) == "SUCCESS"
    log.note(stream, "captured")
    assert status(driver.cuGraphDestroy(graph)) == "INVALID_VALUE"
    assert int(call(driver.cuStreamEndCapture(stream))) == int(graph)
    assert (count(graph), edges(graph)) == (2, 1)
    run(graph, stream)
    assert log.names == ["captured"]
    call(driver.cuGraphDestroy(graph))


def test_external_event_becomes_a_node(new_stream: Any, new_event: Any, log: Any) -> None:
    stream, other, event = new_stream(), new_stream(), new_event()
    latch = Latch()
    begin(stream)
    log.note(stream, "before")
    call(driver.cuEventRecordWithFlags(event, stream, 1))
    latch.hold(stream)
    graph = call(driver.cuStreamEndCapture(stream))
    executable = call(driver.cuGraphInstantiate(graph, 0))
    call(driver.cuGraphLaunch(executable, stream))
    call(driver.cuStreamWaitEvent(other, event, 0))
    log.note(other, "other")
    call(driver.cuStreamSynchronize(other))  # although the graph is not done
    assert log.names == ["before", "other"]
    latch.open()
    call(driver.cuStreamSynchronize(stream))
    call(driver.cuGraphExecDestroy(executable))
    call(driver.cuGraphDestroy(graph))


def test_launch_of_a_graph_becomes_a_child_graph(new_stream: Any, log: Any) -> None:
    stream = new_stream()
    begin(stream)
    log.note(stream, "inner")
    inner = call(driver.cuStreamEndCapture(stream))
    executable = call(driver.cuGraphInstantiate(inner, 0))
    begin(stream)
    call(driver.cuGraphLaunch(executable, stream))
    log.note(stream, "outer")
    outer = call(driver.cuStreamEndCapture(stream))
    call(driver.cuGraphExecDestroy(executable))
    call(driver.cuGraphDestroy(inner))
    run(outer, stream)
    assert log.names == ["inner", "outer"]
    call(driver.cuGraphDestroy(outer))


def test_destroying_the_origin_ends_the_capture(context: Any, new_stream: Any, log: Any) -> None:
    stream = call(driver.cuStreamCreate(1))
    begin(stream)
    log.note(stream, "lost")
    call(driver.cuStreamDestroy(stream))
    call(driver.cuCtxSynchronize())
    assert log.names == []
