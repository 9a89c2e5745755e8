"""CuPy's functions of devices, contexts and errors on the simulated driver."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from cuda.bindings import driver

from simulated_cuda.cupy_runtime import trampolines

if TYPE_CHECKING:
    from collections.abc import Callable


def test_versions(runtime: Any) -> None:
    assert runtime.driverGetVersion() >= runtime.runtimeGetVersion() // 1000 * 1000
    assert runtime.runtimeGetVersion() // 1000 == 13


def test_device_is_one_of_the_thread(runtime: Any) -> None:
    found = []

    def work() -> None:
        found.append(runtime.getDevice())
        runtime.setDevice(1)
        found.append(runtime.getDevice())

    runtime.setDevice(1)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [0, 1]
    assert runtime.getDevice() == 1


def test_set_device_makes_the_primary_context_current(runtime: Any) -> None:
    runtime.setDevice(1)
    _, device = driver.cuCtxGetDevice()
    assert int(device) == 1
    _, _, is_active = driver.cuDevicePrimaryCtxGetState(1)
    assert is_active


def test_context_of_the_driver_api_is_used(runtime: Any) -> None:
    _, context = driver.cuDevicePrimaryCtxRetain(1)
    driver.cuCtxPushCurrent(context)
    assert runtime.getDevice() == 1
    address = runtime.malloc(16)
    assert runtime.pointerGetAttributes(address).device == 1
    runtime.free(address)
    driver.cuCtxPopCurrent()
    assert runtime.getDevice() == 0
    driver.cuDevicePrimaryCtxRelease(1)


def test_devices_that_do_not_exist(runtime: Any, fails: Callable[..., None]) -> None:
    count = runtime.getDeviceCount()
    for device in (-1, count):
        fails("cudaErrorInvalidDevice", runtime.setDevice, device)
        fails("cudaErrorInvalidDevice", runtime.deviceGetAttribute, 1, device)
        fails("cudaErrorInvalidDevice", runtime.getDeviceProperties, device)
        fails("cudaErrorInvalidDevice", runtime.deviceGetPCIBusId, device)
        fails("cudaErrorInvalidDevice", runtime.deviceCanAccessPeer, 0, device)
    assert runtime.getDevice() == 0


def test_properties_agree_with_the_attributes(runtime: Any) -> None:
    properties = runtime.getDeviceProperties(0)
    assert isinstance(properties["name"], bytes)
    assert len(properties["uuid"]) == 16
    assert properties["totalGlobalMem"] == runtime.memGetInfo()[1]
    assert properties["warpSize"] == 32
    assert properties["multiProcessorCount"] == runtime.deviceGetAttribute(16, 0)
    assert properties["maxThreadsDim"] == tuple(runtime.deviceGetAttribute(k, 0) for k in (2, 3, 4))
    capability = runtime.deviceGetAttribute(75, 0), runtime.deviceGetAttribute(76, 0)
    assert (properties["major"], properties["minor"]) == capability


def test_bus_ids(runtime: Any, fails: Callable[..., None]) -> None:
    for device in range(runtime.getDeviceCount()):
        text = runtime.deviceGetPCIBusId(device)
        assert runtime.deviceGetByPCIBusId(text) == device
    fails("cudaErrorInvalid", runtime.deviceGetByPCIBusId, "nothing")


def test_limits(runtime: Any, fails: Callable[..., None]) -> None:
    size = runtime.deviceGetLimit(runtime.cudaLimitMallocHeapSize)
    runtime.deviceSetLimit(runtime.cudaLimitMallocHeapSize, 2 * size)
    assert runtime.deviceGetLimit(runtime.cudaLimitMallocHeapSize) == 2 * size
    runtime.deviceSetLimit(runtime.cudaLimitMallocHeapSize, size)
    fails("cudaError", runtime.deviceGetLimit, 12345)


def test_peer_access(runtime: Any, fails: Callable[..., None]) -> None:
    if runtime.getDeviceCount() < 2:
        pytest.skip("one device")
    assert runtime.deviceCanAccessPeer(0, 1) == 1
    with contextlib.suppress(runtime.CUDARuntimeError):
        runtime.deviceDisablePeerAccess(1)  # an earlier test may have enabled it
    runtime.deviceEnablePeerAccess(1)
    try:
        fails("cudaErrorPeerAccessAlreadyEnabled", runtime.deviceEnablePeerAccess, 1)
    finally:
        runtime.deviceDisablePeerAccess(1)
    fails("cudaErrorPeerAccessNotEnabled", runtime.deviceDisablePeerAccess, 1)
    fails("cudaErrorInvalidDevice", runtime.deviceEnablePeerAccess, 0)


def test_errors_have_one_number_in_both_interfaces(runtime: Any) -> None:
    bindings = pytest.importorskip("cuda.bindings.runtime")
    known = {int(member) for member in bindings.cudaError_t}
    for status in driver.CUresult:
        with pytest.raises(runtime.CUDARuntimeError) as caught:
            runtime.check_status(int(status) or 1)
        assert caught.value.status in known | {int(status)}


def test_error_can_be_pickled(runtime: Any) -> None:
    with pytest.raises(runtime.CUDARuntimeError) as caught:
        runtime.setDevice(99)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (copied.status, str(copied)) == (101, str(caught.value))


def test_arguments_are_checked(runtime: Any) -> None:
    with pytest.raises(AttributeError, match="__int__"):
        runtime.malloc("3")
    with pytest.raises(OverflowError):
        runtime.malloc(-1)
    with pytest.raises(OverflowError):
        runtime.setDevice(1 << 40)
    with pytest.raises(TypeError):
        runtime.malloc(1, 2)
    runtime.free(ptr=runtime.malloc(size=16.5))  # as Cython


def test_arrays_and_textures_are_refused(runtime: Any) -> None:
    names = [name for name in trampolines.REFUSED if hasattr(runtime, name)]
    assert "createTextureObject" in names
    for name in names:
        count = trampolines_arguments(getattr(runtime, name))
        with pytest.raises(runtime.CUDARuntimeError, match="NotSupported") as caught:
            getattr(runtime, name)(*[0] * count)
        assert f"runtime.{name}" in caught.value.__notes__[0]


def trampolines_arguments(function: Callable[..., Any]) -> int:
    """Return how many arguments a function requires, by its error."""
    for count in range(12):
        try:
            function(*[0] * count)
        except TypeError:
            continue
        except RuntimeError:
            return count
    raise AssertionError(function)


def test_unchanged_functions_need_no_driver() -> None:
    """Nothing of NVIDIA's runtime that stays in use reaches a driver."""
    calls = "; ".join(
        f"runtime.{name}()"
        for name in trampolines.UNCHANGED
        if not name.startswith(("make_", "_getLocal"))
    )
    program = (
        "import cupy_backends.cuda.api.runtime as runtime; "
        f"{calls}; str(runtime.CUDARuntimeError(2)); "
        "assert 'libcuda.so' not in open('/proc/self/maps').read()"
    )
    subprocess.run([sys.executable, "-I", "-c", program], check=True)
