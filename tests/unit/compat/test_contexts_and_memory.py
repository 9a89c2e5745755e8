"""Devices, contexts, memory managers and errors of numba-cuda on CPU devices."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda.cudadrv import driver
from numba.cuda.cudadrv.driver import CudaAPIError, MemoryPointer

import nbrt
from nbrt.compat.numba_cuda.driver.ipc import PAGE

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture
def no_devices() -> Iterator[None]:
    """The test begins and ends without contexts, and with numba-cuda's memory manager."""
    before = driver._memory_manager
    cuda.close()
    yield
    cuda.close()
    driver._memory_manager = before


def fill(x: Any, value: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        x[i] = value


def test_devices_are_those_of_nbrt() -> None:
    assert cuda.is_available()
    assert len(cuda.gpus) == len(cuda.list_devices()) == nbrt.device_count("cpu") == 4
    assert cuda.detect()
    device = cuda.get_current_device()
    assert (device.id, device.WARP_SIZE, device.MAX_THREADS_PER_BLOCK) == (0, 32, 1024)
    assert device.MULTIPROCESSOR_COUNT >= 1
    assert len({gpu.uuid for gpu in cuda.gpus}) == 4
    with pytest.raises(AttributeError):
        device.NUMBER_OF_WHEELS  # noqa: B018
    assert cuda.current_context().can_access_peer(1)


def test_memory_and_kernels_belong_to_the_current_device() -> None:
    kernel = cuda.jit(fill)
    arrays = []
    for gpu in cuda.gpus:
        with gpu:
            arrays.append(cuda.device_array(10))
            assert nbrt.memory.memory_allocated(f"cpu:{gpu.id}") > 0
            kernel[1, 32](arrays[-1], gpu.id)
    assert cuda.current_context().device.id == 0
    assert [array.copy_to_host()[0] for array in arrays] == [0, 1, 2, 3]


@pytest.mark.usefixtures("no_devices")
def test_contexts_of_devices_nest() -> None:
    seen = []
    with cuda.gpus[2]:
        with cuda.gpus[3]:
            seen.append(cuda.get_current_device().id)
            array = cuda.to_device([1.0])
        seen.append(cuda.get_current_device().id)
        assert array.copy_to_host()[0] == 1
    assert seen == [3, 2]


def test_machine_code_for_a_gpu_is_refused() -> None:
    with pytest.raises(nbrt.errors.NotSupportedError, match="write the kernel in Python"):
        cuda.current_context().create_module_ptx(".version 9.0")


def test_contexts_belong_to_threads() -> None:
    seen: list[int] = []

    def work() -> None:
        cuda.select_device(2)
        seen.append(cuda.current_context().device.id)
        cuda.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [2]
    assert cuda.current_context().device.id == 0


def test_pushed_contexts_are_popped_in_order() -> None:
    contexts = [gpu.get_primary_context() for gpu in cuda.gpus]
    contexts[1].push()
    contexts[3].push()
    assert cuda.current_context() == contexts[3]
    contexts[3].pop()
    assert cuda.current_context() == contexts[1]
    contexts[1].pop()


@pytest.mark.usefixtures("no_devices")
def test_a_closed_device_can_be_used_again() -> None:
    before = cuda.to_device(np.arange(4))
    cuda.close()
    with pytest.raises(CudaAPIError, match="CUDA_ERROR_INVALID_VALUE"):
        before.copy_to_host()
    with pytest.raises(CudaAPIError, match="memory of an argument was freed"):
        cuda.jit(fill)[1, 32](before, 0)
    assert cuda.to_device(np.arange(4)).copy_to_host().tolist() == [0, 1, 2, 3]


@pytest.mark.usefixtures("no_devices")
def test_freed_arrays_wait_for_a_common_free() -> None:
    manager = cuda.current_context().memory_manager
    with cuda.defer_cleanup():
        for _ in range(30):
            cuda.device_array(10)
        assert len(manager.deallocations) == 30
    cuda.device_array(10)
    gc.collect()
    assert len(manager.deallocations) <= 1


def test_queued_work_keeps_memory_that_is_freed() -> None:
    kernel, stream = cuda.jit(fill), cuda.stream()
    pinned = cuda.pinned_array(1000)
    with nbrt.testing.Latch() as latch:
        latch.hold(nbrt_stream(stream))
        array = cuda.device_array(1000, stream=stream)
        kernel[8, 128, stream](array, 5)
        array.copy_to_host(pinned, stream=stream)
        released = weakref.ref(array)
        del array
        assert released() is None
        cuda.current_context().memory_manager.deallocations.clear()
        others = [cuda.to_device(np.zeros(1000), stream=cuda.stream()) for _ in range(4)]
    stream.synchronize()
    assert set(pinned) == {5.0}
    assert not any(other.copy_to_host().any() for other in others)


def nbrt_stream(stream: Any) -> nbrt.Stream:
    from nbrt.compat.numba_cuda.driver.binding import process_binding

    return process_binding().streams.ordered(int(stream))


def test_errors_of_the_driver_have_the_codes_of_cuda() -> None:
    api = driver.driver
    with pytest.raises(CudaAPIError, match="OUT_OF_MEMORY") as caught:
        cuda.device_array(1 << 50, np.uint8)
    assert caught.value.code == driver.binding.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    pointer = api.cuMemAlloc(64)
    with pytest.raises(CudaAPIError, match="INVALID_VALUE"):
        api.cuMemcpyDtoH(np.zeros(100).ctypes.data, pointer, 65)
    api.cuMemFree(pointer)
    with pytest.raises(CudaAPIError, match="INVALID_VALUE"):
        api.cuMemFree(pointer)
    with pytest.raises(CudaAPIError, match="INVALID_DEVICE"):
        api.cuDeviceGet(99)
    with pytest.raises(CudaAPIError, match="NOT_SUPPORTED"):
        api.cuModuleLoadData(b"")
    array = np.zeros(4)
    with cuda.pinned(array), pytest.raises(CudaAPIError, match="ALREADY_REGISTERED"):
        cuda.pinned(array).__enter__()


@pytest.mark.parametrize("nbytes", [1, 511, 4096, 4097, 100_000, (1 << 20) - 1, 1 << 20, 3 << 20])
def test_no_other_memory_is_in_the_pages_of_a_block(nbytes: int) -> None:
    arrays = [cuda.device_array(nbytes, np.uint8) for _ in range(3)]
    addresses = sorted(array.device_ctypes_pointer.value for array in arrays)
    assert all(address % PAGE == 0 for address in addresses)
    pages = -(-nbytes // PAGE) * PAGE
    assert all(b - a >= pages for a, b in itertools.pairwise(addresses))
    nbrt_array = nbrt.empty(nbytes, "uint8", device="cpu:0")
    address = nbrt_array.ctypes.data
    assert not any(start - nbytes < address < start + pages for start in addresses)


class CountingManager(cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc]  # not annotated
    """A memory manager of a program, over memory of NumPy."""

    made = 0

    def memalloc(self, size: int) -> Any:
        type(self).made += 1
        memory = np.empty(size, np.uint8)
        pointer = driver.binding.CUdeviceptr(memory.ctypes.data)
        keep = [memory]
        return MemoryPointer(weakref.proxy(self.context), pointer, size, finalizer=keep.clear)

    def initialize(self) -> None:
        pass

    def get_ipc_handle(self, memory: Any) -> Any:
        raise NotImplementedError

    def get_memory_info(self) -> Any:
        return cuda.MemoryInfo(free=32, total=64)

    @property
    def interface_version(self) -> int:
        return 1


@pytest.mark.usefixtures("no_devices")
def test_a_memory_manager_of_the_program_supplies_memory() -> None:
    cuda.set_memory_manager(CountingManager)
    array = cuda.to_device(np.arange(6.0))
    cuda.jit(fill)[1, 32](array, 3)
    assert array.copy_to_host().tolist() == [3] * 6
    assert CountingManager.made == 1
    assert cuda.current_context().get_memory_info() == (32, 64)


@pytest.mark.usefixtures("no_devices")
def test_the_memory_manager_of_nbrt_supplies_memory() -> None:
    from nbrt.compat.numba_cuda.memory_manager import MemoryManager

    cuda.set_memory_manager(MemoryManager)
    before = nbrt.memory.memory_allocated("cpu:0")
    array = cuda.to_device(np.arange(1000.0))
    assert nbrt.memory.memory_allocated("cpu:0") >= before + 8000
    assert array.copy_to_host()[-1] == 999


@pytest.mark.parametrize("size", [1, 4096, 8000, 8192, 100_000])
@pytest.mark.parametrize("offset", [0, 64, 448, 4032])
def test_a_block_is_whole_at_any_address_that_nbrt_gives(
    monkeypatch: pytest.MonkeyPatch, size: int, offset: int
) -> None:
    def empty_at(nbytes: int, *_: Any, **__: Any) -> Any:
        memory = np.zeros(nbytes + 2 * PAGE, np.uint8)
        start = -memory.ctypes.data % PAGE + offset
        return memory[start : start + nbytes]

    monkeypatch.setattr("nbrt.compat.numba_cuda.driver.memory.empty", empty_at)
    values = np.random.default_rng(1).integers(0, 255, size).astype(np.uint8)
    array = cuda.to_device(values)
    np.testing.assert_array_equal(array.copy_to_host(), values)
    assert array.device_ctypes_pointer.value % PAGE == 0
