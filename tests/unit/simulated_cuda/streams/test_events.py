"""Events of the simulated driver."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from cuda.bindings import driver

from helpers.driver_calls import Latch, call, status

NO_TIMING = int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
INTERPROCESS = int(driver.CUevent_flags.CU_EVENT_INTERPROCESS) | NO_TIMING


def test_wait_orders_two_streams(new_stream: Any, new_event: Any, log: Any, schedule: str) -> None:
    first, second, event = new_stream(), new_stream(), new_event()
    latch = Latch().hold(first)
    log.note(first, "first")
    call(driver.cuEventRecord(event, first))
    call(driver.cuStreamWaitEvent(second, event, 0))
    log.note(second, "second")
    latch.open()
    call(driver.cuStreamSynchronize(second))
    assert log.names == ["first", "second"]


def test_wait_refers_to_the_record_at_the_time_of_the_call(
    new_stream: Any, new_event: Any, log: Any
) -> None:
    first, second, third, event = new_stream(), new_stream(), new_stream(), new_event()
    call(driver.cuEventRecord(event, first))
    call(driver.cuStreamWaitEvent(second, event, 0))
    latch = Latch().hold(third)
    call(driver.cuEventRecord(event, third))
    log.note(second, "second")
    call(driver.cuStreamSynchronize(second))
    assert log.names == ["second"]
    assert status(driver.cuEventQuery(event)) == "NOT_READY"
    latch.open()
    call(driver.cuEventSynchronize(event))


def test_unrecorded_event_is_complete(new_stream: Any, new_event: Any) -> None:
    event = new_event()
    call(driver.cuEventQuery(event))
    call(driver.cuEventSynchronize(event))
    call(driver.cuStreamWaitEvent(new_stream(), event, 0))


def test_event_can_be_destroyed_before_it_is_complete(new_stream: Any, log: Any) -> None:
    first, second = new_stream(), new_stream()
    latch = Latch().hold(first)
    event = call(driver.cuEventCreate(0))
    call(driver.cuEventRecord(event, first))
    call(driver.cuStreamWaitEvent(second, event, 0))
    call(driver.cuEventDestroy(event))
    log.note(second, "second")
    assert status(driver.cuStreamQuery(second)) == "NOT_READY"
    latch.open()
    call(driver.cuStreamSynchronize(second))
    assert status(driver.cuEventQuery(event)) == "INVALID_HANDLE"
    assert status(driver.cuEventDestroy(event)) == "INVALID_HANDLE"


def test_elapsed_time(new_stream: Any, new_event: Any) -> None:
    stream, start, end = new_stream(), new_event(), new_event()
    assert status(driver.cuEventElapsedTime(start, end)) == "INVALID_HANDLE"
    call(driver.cuEventRecord(start, stream))
    latch = Latch().hold(stream)
    call(driver.cuEventRecord(end, stream))
    assert status(driver.cuEventElapsedTime(start, end)) == "NOT_READY"
    latch.open()
    call(driver.cuEventSynchronize(end))
    assert call(driver.cuEventElapsedTime(start, end)) > 0
    assert call(driver.cuEventElapsedTime(start, start)) == 0


def test_elapsed_time_needs_timing(new_stream: Any, new_event: Any) -> None:
    stream, start, end = new_stream(), new_event(), new_event(NO_TIMING)
    for event in (start, end):
        call(driver.cuEventRecord(event, stream))
        call(driver.cuEventSynchronize(event))
    assert status(driver.cuEventElapsedTime(start, end)) == "INVALID_HANDLE"


def test_invalid_flags_are_refused(context: Any, new_stream: Any, new_event: Any) -> None:
    assert status(driver.cuEventCreate(8)) == "INVALID_VALUE"
    assert status(driver.cuEventCreate(INTERPROCESS & ~NO_TIMING)) == "INVALID_VALUE"
    # External records and waits exist in captures only.
    assert status(driver.cuEventRecordWithFlags(new_event(), new_stream(), 1)) == "INVALID_VALUE"
    assert status(driver.cuStreamWaitEvent(new_stream(), new_event(), 1)) == "INVALID_VALUE"


def test_event_and_stream_belong_to_one_device(new_stream: Any, context: Any) -> None:
    stream = new_stream()
    other = call(driver.cuDevicePrimaryCtxRetain(1))
    call(driver.cuCtxSetCurrent(other))
    event = call(driver.cuEventCreate(0))
    assert status(driver.cuEventRecord(event, stream)) == "INVALID_HANDLE"
    call(driver.cuStreamWaitEvent(stream, event, 0))  # a wait may cross devices
    call(driver.cuEventDestroy(event))
    call(driver.cuCtxSetCurrent(context))
    call(driver.cuDevicePrimaryCtxRelease(1))


def test_event_records_all_work_of_a_context(
    new_stream: Any, new_event: Any, context: Any, log: Any, schedule: str
) -> None:
    for number in range(3):
        log.note(new_stream(), number)
    event = new_event()
    call(driver.cuCtxRecordEvent(context, event))
    call(driver.cuEventSynchronize(event))
    assert sorted(log.names) == [0, 1, 2]


def test_all_work_of_a_context_waits_for_an_event(
    new_stream: Any, new_event: Any, context: Any, log: Any, schedule: str
) -> None:
    first, known, event = new_stream(), new_stream(), new_event()
    latch = Latch().hold(first)
    log.note(first, "first")
    call(driver.cuEventRecord(event, first))
    call(driver.cuCtxWaitEvent(context, event))
    made_later = new_stream()
    for stream in (known, made_later):
        log.note(stream, "other")
        assert status(driver.cuStreamQuery(stream)) == "NOT_READY"
    latch.open()
    call(driver.cuCtxSynchronize())
    assert log.names == ["first", "other", "other"]


_CHILD = """
import ctypes
import sys
from cuda.bindings import driver
from helpers.driver_calls import call, status
from simulated_cuda.loader import load

load()
call(driver.cuInit(0))
call(driver.cuCtxSetCurrent(call(driver.cuDevicePrimaryCtxRetain(0))))
handle = driver.CUipcEventHandle()
ctypes.memmove(handle.getPtr(), bytes.fromhex(sys.argv[1]), 64)
event = call(driver.cuIpcOpenEventHandle(handle))
print(status(driver.cuEventQuery(event)), flush=True)
sys.stdin.readline()
stream = call(driver.cuStreamCreate(1))
call(driver.cuStreamWaitEvent(stream, event, 0))
call(driver.cuStreamSynchronize(stream))
print(status(driver.cuEventQuery(event)), flush=True)
"""


def test_interprocess_event(new_stream: Any, new_event: Any) -> None:
    stream, event = new_stream(), new_event(INTERPROCESS)
    handle = call(driver.cuIpcGetEventHandle(event))
    latch = Latch().hold(stream)
    call(driver.cuEventRecord(event, stream))
    tests = Path(__file__).parents[3]
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, ctypes.string_at(handle.getPtr(), 64).hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tests)},
    )
    assert child.stdout is not None
    first = child.stdout.readline()
    latch.open()
    assert first == "NOT_READY\n"
    output, _ = child.communicate("\n", timeout=60)
    assert output == "SUCCESS\n"


def test_handle_of_an_ordinary_event_is_refused(new_event: Any) -> None:
    assert status(driver.cuIpcGetEventHandle(new_event())) == "INVALID_HANDLE"
