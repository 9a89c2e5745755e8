"""Streams of the simulated driver: order, default streams, handles, waiting."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from cuda.bindings import driver

from helpers.driver_calls import Latch, call, status

if TYPE_CHECKING:
    from types import ModuleType

NON_BLOCKING = int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
LEGACY, PER_THREAD = driver.CUstream(1), driver.CUstream(2)


def test_stream_runs_in_order(new_stream: Any, log: Any, schedule: str) -> None:
    stream = new_stream()
    for number in range(20):
        log.note(stream, number)
    call(driver.cuStreamSynchronize(stream))
    assert log.names == list(range(20))


def test_streams_run_concurrently(new_stream: Any, schedule: str) -> None:
    latches = [Latch().hold(new_stream()) for _ in range(3)]
    for latch in latches:
        latch.wait_until_reached()
    for latch in latches:
        latch.open()


def test_query_tells_whether_work_is_done(new_stream: Any) -> None:
    stream = new_stream()
    assert status(driver.cuStreamQuery(stream)) == "SUCCESS"
    latch = Latch().hold(stream)
    assert status(driver.cuStreamQuery(stream)) == "NOT_READY"
    latch.open()
    call(driver.cuStreamSynchronize(stream))
    assert status(driver.cuStreamQuery(stream)) == "SUCCESS"


def test_late_schedule_waits_for_a_synchronisation(
    new_stream: Any, log: Any, set_schedule: Any
) -> None:
    set_schedule("late", 60)
    first, second = new_stream(), new_stream()
    log.note(first, "first")
    log.note(second, "second")
    call(driver.cuStreamSynchronize(second))
    assert log.names == ["second"]
    call(driver.cuStreamSynchronize(first))
    assert log.names == ["second", "first"]


def test_held_work_runs_after_a_short_time(new_stream: Any, set_schedule: Any) -> None:
    set_schedule("late", 0.0001)
    latch = Latch().hold(new_stream())
    latch.wait_until_reached()  # nothing but time makes it run
    latch.open()


def test_unknown_schedule_is_refused(initialised: ModuleType) -> None:
    with pytest.raises(ValueError, match="never"), initialised.schedule("never"):
        pass


@pytest.mark.parametrize("handle", [driver.CUstream(0), LEGACY])
def test_legacy_stream_waits_for_blocking_streams(
    new_stream: Any, log: Any, schedule: str, handle: driver.CUstream
) -> None:
    before, after, apart = new_stream(0), new_stream(0), new_stream(NON_BLOCKING)
    latch = Latch().hold(before)
    log.note(handle, "legacy")
    log.note(after, "after")
    log.note(apart, "apart")
    call(driver.cuStreamSynchronize(apart))
    assert log.names == ["apart"]
    assert status(driver.cuStreamQuery(after)) == "NOT_READY"
    latch.open()
    call(driver.cuStreamSynchronize(after))
    assert log.names == ["apart", "legacy", "after"]


def test_synchronising_the_legacy_stream_waits_for_blocking_streams(
    new_stream: Any, log: Any, schedule: str
) -> None:
    log.note(new_stream(0), "blocking")
    call(driver.cuStreamSynchronize(LEGACY))
    assert log.names == ["blocking"]


def test_per_thread_stream_belongs_to_its_thread(context: Any, log: Any) -> None:
    latch = Latch().hold(PER_THREAD)
    ids = [int(call(driver.cuStreamGetId(PER_THREAD)))]

    def other() -> None:
        call(driver.cuCtxSetCurrent(context))
        ids.append(int(call(driver.cuStreamGetId(PER_THREAD))))
        log.note(PER_THREAD, "other")
        call(driver.cuStreamSynchronize(PER_THREAD))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert log.names == ["other"]
    assert ids[0] != ids[1]
    latch.open()


def test_per_thread_stream_synchronises_with_the_legacy_stream(context: Any, log: Any) -> None:
    latch = Latch().hold(PER_THREAD)
    log.note(LEGACY, "legacy")
    assert status(driver.cuStreamQuery(LEGACY)) == "NOT_READY"
    latch.open()
    call(driver.cuStreamSynchronize(LEGACY))
    assert log.names == ["legacy"]


def test_work_of_a_thread_that_ended_is_done(context: Any, log: Any, set_schedule: Any) -> None:
    set_schedule("late", 60)

    def submit() -> None:
        call(driver.cuCtxSetCurrent(context))
        log.note(PER_THREAD, "done")

    thread = threading.Thread(target=submit)
    thread.start()
    thread.join()
    call(driver.cuCtxSynchronize())
    assert log.names == ["done"]


def test_no_work_goes_to_a_destroyed_stream(context: Any) -> None:
    address = call(driver.cuMemAlloc(64))
    stream = call(driver.cuStreamCreate(NON_BLOCKING))
    call(driver.cuStreamDestroy(stream))
    results = [
        driver.cuMemsetD8Async(address, 0, 64, stream),
        driver.cuMemcpyDtoDAsync(address, address, 64, stream),
        driver.cuMemAllocAsync(64, stream),
        driver.cuMemFreeAsync(address, stream),
        driver.cuStreamSynchronize(stream),
    ]
    assert {status(result) for result in results} == {"INVALID_HANDLE"}
    call(driver.cuMemFree(address))


def test_destroyed_stream_completes_its_work(context: Any, log: Any, schedule: str) -> None:
    stream = call(driver.cuStreamCreate(NON_BLOCKING))
    latch = Latch().hold(stream)
    log.note(stream, "done")
    call(driver.cuStreamDestroy(stream))
    latch.open()
    call(driver.cuCtxSynchronize())
    assert log.names == ["done"]


def test_stale_and_foreign_handles_are_refused(context: Any, new_event: Any) -> None:
    stream = call(driver.cuStreamCreate(0))
    call(driver.cuStreamDestroy(stream))
    for handle in (stream, driver.CUstream(12345), driver.CUstream(int(new_event()))):
        for function in (
            driver.cuStreamSynchronize,
            driver.cuStreamQuery,
            driver.cuStreamDestroy,
            driver.cuStreamGetPriority,
        ):
            assert status(function(handle)) == "INVALID_HANDLE"


@pytest.mark.parametrize("handle", [driver.CUstream(0), LEGACY, PER_THREAD])
def test_default_streams_are_not_destroyed(context: Any, handle: driver.CUstream) -> None:
    assert status(driver.cuStreamDestroy(handle)) == "INVALID_HANDLE"


def test_invalid_flags_are_refused(context: Any) -> None:
    assert status(driver.cuStreamCreate(2)) == "INVALID_VALUE"
    assert status(driver.cuStreamCreateWithPriority(4, 0)) == "INVALID_VALUE"


def test_stream_needs_a_context(context: Any) -> None:
    driver.cuCtxSetCurrent(driver.CUcontext(0))
    assert status(driver.cuStreamCreate(0)) == "INVALID_CONTEXT"
    assert status(driver.cuStreamSynchronize(driver.CUstream(0))) == "INVALID_CONTEXT"


def test_properties(context: Any) -> None:
    stream = call(driver.cuStreamCreateWithPriority(NON_BLOCKING, -2))
    assert call(driver.cuStreamGetFlags(stream)) == NON_BLOCKING
    assert call(driver.cuStreamGetPriority(stream)) == -2
    assert int(call(driver.cuStreamGetCtx(stream))) == int(context)
    assert int(call(driver.cuStreamGetDevice(stream))) == 0
    call(driver.cuStreamDestroy(stream))


@pytest.mark.parametrize(("asked", "given"), [(3, 0), (-1, -1), (-77, -5)])
def test_priority_is_clamped(context: Any, asked: int, given: int) -> None:
    stream = call(driver.cuStreamCreateWithPriority(0, asked))
    assert call(driver.cuStreamGetPriority(stream)) == given
    call(driver.cuStreamDestroy(stream))


def test_ids_differ(new_stream: Any) -> None:
    handles = [new_stream(), new_stream(), LEGACY, PER_THREAD]
    assert len({int(call(driver.cuStreamGetId(handle))) for handle in handles}) == 4


def test_attributes_are_copied(new_stream: Any) -> None:
    policy = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY
    value = driver.CUstreamAttrValue()
    value.syncPolicy = driver.CUsynchronizationPolicy.CU_SYNC_POLICY_YIELD
    source, target = new_stream(), new_stream()
    call(driver.cuStreamSetAttribute(source, policy, value))
    call(driver.cuStreamCopyAttributes(target, source))
    copied = call(driver.cuStreamGetAttribute(target, policy))
    assert copied.syncPolicy == driver.CUsynchronizationPolicy.CU_SYNC_POLICY_YIELD
    cooperative = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    assert status(driver.cuStreamGetAttribute(target, cooperative)) == "INVALID_VALUE"


def test_thousands_of_short_streams_are_cheap(context: Any, log: Any) -> None:
    before = threading.active_count()
    for number in range(2000):
        stream = call(driver.cuStreamCreate(NON_BLOCKING))
        log.note(stream, number)
        call(driver.cuStreamDestroy(stream))
    call(driver.cuCtxSynchronize())
    assert sorted(log.names) == list(range(2000))
    assert threading.active_count() < before + 10


def test_chain_over_many_streams_is_demanded(
    context: Any, new_event: Any, log: Any, set_schedule: Any
) -> None:
    set_schedule("late", 60)
    streams = [call(driver.cuStreamCreate(NON_BLOCKING)) for _ in range(200)]
    event = new_event()
    for number, stream in enumerate(streams):
        call(driver.cuStreamWaitEvent(stream, event, 0))
        log.note(stream, number)
        call(driver.cuEventRecord(event, stream))
    call(driver.cuStreamSynchronize(streams[-1]))
    assert log.names == list(range(200))
    for stream in streams:
        call(driver.cuStreamDestroy(stream))
