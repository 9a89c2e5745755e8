"""Contexts: primary and created ones, the stack of a thread, limits, peers, broken contexts."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from cuda.bindings import driver

from helpers.driver_calls import call, status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

L = driver.CUlimit
FLAGS = driver.CUctx_flags
SPARE = 1  # a device that the fixtures do not use


@pytest.fixture
def created(initialised: ModuleType) -> Iterator[Callable[..., driver.CUcontext]]:
    """Create contexts, which are destroyed after the test."""
    contexts = []

    def create(device: int = 0, flags: int = 0) -> driver.CUcontext:
        contexts.append(call(driver.cuCtxCreate(None, flags, device)))
        return contexts[-1]

    yield create
    for context in contexts:
        driver.cuCtxDestroy(context)


def current() -> int:
    return int(call(driver.cuCtxGetCurrent()))


def active(device: int) -> int:
    return int(call(driver.cuDevicePrimaryCtxGetState(device))[1])


# --- the stack of a thread ------------------------------------------------------------------------


def test_the_stack_of_contexts(created: Callable[..., driver.CUcontext]) -> None:
    first, second = created(0), created(1)
    assert current() == int(second)
    call(driver.cuCtxPushCurrent(first))
    assert int(call(driver.cuCtxGetDevice())) == 0
    assert int(call(driver.cuCtxPopCurrent())) == int(first)
    call(driver.cuCtxSetCurrent(first))  # replaces the top
    call(driver.cuCtxSetCurrent(None))  # removes it
    assert current() == int(first)
    call(driver.cuCtxPopCurrent())
    assert current() == 0
    call(driver.cuCtxSetCurrent(None))
    assert status(driver.cuCtxPopCurrent()) == "INVALID_CONTEXT"
    assert status(driver.cuCtxGetDevice()) == "INVALID_CONTEXT"
    assert status(driver.cuCtxSynchronize()) == "INVALID_CONTEXT"


def test_each_thread_has_its_own_stack(primary: driver.CUcontext) -> None:
    seen = []
    thread = threading.Thread(target=lambda: seen.append(current()))
    thread.start()
    thread.join()
    assert seen == [0]
    assert current() == int(primary)


def test_a_handle_that_is_no_context(initialised: ModuleType) -> None:
    stranger = driver.CUcontext(0x1234)
    assert status(driver.cuCtxPushCurrent(stranger)) == "INVALID_CONTEXT"
    assert status(driver.cuCtxSetCurrent(stranger)) == "INVALID_CONTEXT"
    assert status(driver.cuCtxDestroy(stranger)) == "INVALID_CONTEXT"
    assert status(driver.cuCtxGetId(stranger)) == "INVALID_CONTEXT"


# --- primary contexts -----------------------------------------------------------------------------


@pytest.mark.own_process
def test_a_primary_context_is_active_while_it_is_retained(initialised: ModuleType) -> None:
    assert not active(SPARE)
    first = call(driver.cuDevicePrimaryCtxRetain(SPARE))
    second = call(driver.cuDevicePrimaryCtxRetain(SPARE))
    assert int(first) == int(second)
    identifier = call(driver.cuCtxGetId(first))
    call(driver.cuDevicePrimaryCtxRelease(SPARE))
    assert active(SPARE)
    call(driver.cuDevicePrimaryCtxRelease(SPARE))
    assert not active(SPARE)
    assert status(driver.cuDevicePrimaryCtxRelease(SPARE)) == "INVALID_CONTEXT"
    again = call(driver.cuDevicePrimaryCtxRetain(SPARE))
    assert call(driver.cuCtxGetId(again)) != identifier
    call(driver.cuDevicePrimaryCtxRelease(SPARE))


@pytest.mark.own_process
def test_a_reset_destroys_the_primary_context_but_keeps_its_references(
    initialised: ModuleType,
) -> None:
    context = call(driver.cuDevicePrimaryCtxRetain(SPARE))
    call(driver.cuCtxPushCurrent(context))
    call(driver.cuDevicePrimaryCtxReset(SPARE))
    assert not active(SPARE)
    assert status(driver.cuCtxSynchronize()) == "CONTEXT_IS_DESTROYED"
    assert status(driver.cuMemAlloc(16)) == "CONTEXT_IS_DESTROYED"
    call(driver.cuDevicePrimaryCtxRetain(SPARE))
    call(driver.cuCtxSynchronize())
    call(driver.cuCtxPopCurrent())
    call(driver.cuDevicePrimaryCtxRelease(SPARE))
    assert active(SPARE)
    call(driver.cuDevicePrimaryCtxRelease(SPARE))
    assert not active(SPARE)


@pytest.mark.own_process
def test_flags_of_primary_contexts(initialised: ModuleType) -> None:
    call(driver.cuDevicePrimaryCtxSetFlags(SPARE, FLAGS.CU_CTX_SCHED_BLOCKING_SYNC))
    assert call(driver.cuDevicePrimaryCtxGetState(SPARE))[0] == FLAGS.CU_CTX_SCHED_BLOCKING_SYNC
    both = FLAGS.CU_CTX_SCHED_SPIN | FLAGS.CU_CTX_SCHED_YIELD
    assert status(driver.cuDevicePrimaryCtxSetFlags(SPARE, both)) == "INVALID_VALUE"
    assert status(driver.cuDevicePrimaryCtxSetFlags(SPARE, 1 << 20)) == "INVALID_VALUE"
    call(driver.cuDevicePrimaryCtxSetFlags(SPARE, 0))


def test_a_primary_context_cannot_be_destroyed(primary: driver.CUcontext) -> None:
    assert status(driver.cuCtxDestroy(primary)) == "INVALID_CONTEXT"


# --- created contexts -----------------------------------------------------------------------------


def test_a_destroyed_context_is_popped_and_stays_destroyed(
    created: Callable[..., driver.CUcontext],
) -> None:
    context = created(1, int(FLAGS.CU_CTX_SCHED_YIELD))
    assert call(driver.cuCtxGetFlags()) == FLAGS.CU_CTX_SCHED_YIELD
    call(driver.cuCtxPushCurrent(context))
    call(driver.cuCtxDestroy(context))
    assert current() == int(context)  # once more below the popped one
    assert status(driver.cuCtxSynchronize()) == "CONTEXT_IS_DESTROYED"
    assert status(driver.cuCtxGetLimit(L.CU_LIMIT_STACK_SIZE)) == "CONTEXT_IS_DESTROYED"
    assert status(driver.cuCtxDestroy(context)) == "INVALID_CONTEXT"
    call(driver.cuCtxPopCurrent())


@pytest.mark.own_process
def test_memory_of_a_context_ends_with_it(created: Callable[..., driver.CUcontext]) -> None:
    free = call(driver.cuMemGetInfo())[0] if current() else None
    context = created(SPARE)
    before = call(driver.cuMemGetInfo())[0]
    call(driver.cuMemAlloc(1 << 20))
    call(driver.cuCtxDestroy(context))
    other = created(SPARE)
    assert call(driver.cuMemGetInfo())[0] == before
    assert free is None
    call(driver.cuCtxDestroy(other))


def test_arguments_of_creation(initialised: ModuleType) -> None:
    assert status(driver.cuCtxCreate(None, 1 << 20, 0)) == "INVALID_VALUE"
    assert status(driver.cuCtxCreate(None, 0, driver.CUdevice(99))) == "INVALID_DEVICE"
    affinity = driver.CUexecAffinityParam()
    parameters = driver.CUctxCreateParams()
    parameters.execAffinityParams = [affinity]
    parameters.numExecAffinityParams = 1
    assert status(driver.cuCtxCreate(parameters, 0, 0)) == "UNSUPPORTED_EXEC_AFFINITY"


def test_queries_of_a_context(primary: driver.CUcontext) -> None:
    assert call(driver.cuCtxGetApiVersion(primary)) == 3020
    assert call(driver.cuCtxGetStreamPriorityRange()) == (0, -5)
    assert call(driver.cuCtxGetId(None)) == call(driver.cuCtxGetId(primary))
    shared = driver.CUsharedconfig.CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE
    assert call(driver.cuCtxGetSharedMemConfig()) == shared
    call(driver.cuCtxSetCacheConfig(driver.CUfunc_cache.CU_FUNC_CACHE_PREFER_L1))
    assert call(driver.cuCtxGetCacheConfig()) == driver.CUfunc_cache.CU_FUNC_CACHE_PREFER_L1
    call(driver.cuCtxSetCacheConfig(driver.CUfunc_cache.CU_FUNC_CACHE_PREFER_NONE))
    affinity = call(
        driver.cuCtxGetExecAffinity(driver.CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT)
    )
    assert affinity.param.smCount.val == 132


# --- limits ---------------------------------------------------------------------------------------


def test_limits(created: Callable[..., driver.CUcontext]) -> None:
    created()
    assert call(driver.cuCtxGetLimit(L.CU_LIMIT_STACK_SIZE)) == 1024
    call(driver.cuCtxSetLimit(L.CU_LIMIT_MALLOC_HEAP_SIZE, 1 << 20))
    assert call(driver.cuCtxGetLimit(L.CU_LIMIT_MALLOC_HEAP_SIZE)) == 1 << 20
    call(driver.cuCtxSetLimit(L.CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 4096))
    assert call(driver.cuCtxGetLimit(L.CU_LIMIT_MAX_L2_FETCH_GRANULARITY)) == 128
    assert status(driver.cuCtxSetLimit(L.CU_LIMIT_STACK_SIZE, 1 << 40)) == "INVALID_VALUE"
    # An H100 has no device-side synchronisation.
    assert status(driver.cuCtxGetLimit(L.CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH)) == "UNSUPPORTED_LIMIT"
    assert status(driver.cuCtxSetLimit(L.CU_LIMIT_MAX, 1)) == "UNSUPPORTED_LIMIT"


# --- peers ----------------------------------------------------------------------------------------


def test_peer_access_goes_one_way(created: Callable[..., driver.CUcontext]) -> None:
    one, two = created(0), created(1)
    call(driver.cuCtxEnablePeerAccess(one, 0))
    assert status(driver.cuCtxEnablePeerAccess(one, 0)) == "PEER_ACCESS_ALREADY_ENABLED"
    assert status(driver.cuCtxEnablePeerAccess(two, 0)) == "INVALID_CONTEXT"
    assert status(driver.cuCtxEnablePeerAccess(one, 1)) == "INVALID_VALUE"
    call(driver.cuCtxSetCurrent(one))
    assert status(driver.cuCtxDisablePeerAccess(two)) == "PEER_ACCESS_NOT_ENABLED"
    call(driver.cuCtxSetCurrent(two))
    call(driver.cuCtxDisablePeerAccess(one))
    assert status(driver.cuCtxDisablePeerAccess(one)) == "PEER_ACCESS_NOT_ENABLED"


def test_contexts_of_one_device_are_no_peers(created: Callable[..., driver.CUcontext]) -> None:
    one = created(0)
    created(0)
    assert status(driver.cuCtxEnablePeerAccess(one, 0)) == "PEER_ACCESS_UNSUPPORTED"


def test_peer_access_can_be_turned_off(run_child: Callable[..., str]) -> None:
    program = """
from cuda.bindings import driver
driver.cuInit(0)
one, two = (driver.cuDevicePrimaryCtxRetain(device)[1] for device in (0, 1))
driver.cuCtxSetCurrent(one)
print(driver.cuDeviceCanAccessPeer(0, 1)[1], driver.cuCtxEnablePeerAccess(two, 0)[0].name)
"""
    assert run_child(program, NBRT_SIM_PEER="0") == "0 CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"


# --- broken contexts ------------------------------------------------------------------------------

TRAP = b"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry fail() { trap; ret; }
"""


@pytest.mark.own_process
def test_a_fault_breaks_its_context_until_the_reset(
    primary: driver.CUcontext, simulation: ModuleType
) -> None:
    broken = call(driver.cuDevicePrimaryCtxRetain(SPARE))
    call(driver.cuCtxPushCurrent(broken))
    module = call(driver.cuModuleLoadData(TRAP))
    function = call(driver.cuModuleGetFunction(module, b"fail"))
    call(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
    error = status(driver.cuCtxSynchronize())
    assert error == "LAUNCH_FAILED"
    later = driver.cuMemAlloc(16), driver.cuStreamCreate(0), driver.cuCtxSynchronize()
    assert {status(result) for result in later} == {error}
    assert int(call(driver.cuCtxGetDevice())) == SPARE
    assert "fail" in simulation.take_report()

    call(driver.cuCtxPopCurrent())
    call(driver.cuMemFree(call(driver.cuMemAlloc(16))))  # of the other device

    call(driver.cuDevicePrimaryCtxReset(SPARE))
    call(driver.cuCtxPushCurrent(call(driver.cuDevicePrimaryCtxRetain(SPARE))))
    call(driver.cuMemFree(call(driver.cuMemAlloc(16))))
    call(driver.cuCtxPopCurrent())
    call(driver.cuDevicePrimaryCtxRelease(SPARE))
    call(driver.cuDevicePrimaryCtxRelease(SPARE))
