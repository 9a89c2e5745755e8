"""The names that the memory pools call exist in the real CuPy and CUDA bindings; needs no GPU."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nbrt.backends.cuda.memory.pinned import PinnedPool, pinned_owner_of
from nbrt.backends.cuda.memory.segment_tracker import SegmentTracker
from unit.cuda.fake_memory import MemorySimulation

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
bindings = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")

CONSTANTS = [name for name in vars(MemorySimulation) if name.startswith(("cuda", "hostAlloc"))]
CALLS = [
    "MemPoolProps", "deviceGetAttribute", "freeAsync", "mallocFromPoolAsync", "memPoolCreate",
    "memPoolDestroy", "memPoolGetAttribute", "memPoolSetAttribute", "memPoolTrimTo",
]  # fmt: skip
CLASSES = [
    "ManagedMemory", "Memory", "MemoryPointer", "MemoryPool", "PinnedMemory", "PinnedMemoryPointer",
    "PinnedMemoryPool", "UnownedMemory", "get_allocator", "memory.SystemMemory", "using_allocator",
]  # fmt: skip


def test_cupy_has_the_names() -> None:
    for name in CONSTANTS:
        assert getattr(cupy.cuda.runtime, name) == getattr(MemorySimulation, name), name
    for name in CALLS:
        assert callable(getattr(cupy.cuda.runtime, name)), name
    for path in CLASSES:
        found: Any = cupy.cuda
        for name in path.split("."):
            found = getattr(found, name)
        assert callable(found), path
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("cuDeviceGetAttribute", 2),
        ("cuMemGetAllocationGranularity", 2),
        ("cuMemAddressReserve", 4),
        ("cuMemAddressFree", 2),
        ("cuMemCreate", 3),
        ("cuMemMap", 5),
        ("cuMemSetAccess", 4),
        ("cuMemUnmap", 2),
        ("cuMemRelease", 1),
        ("cuMemPoolSetAccess", 3),
    ],
)
def test_the_bindings_take_as_many_arguments(name: str, parameters: int) -> None:
    ours = len(inspect.signature(getattr(MemorySimulation, name)).parameters) - 1
    text = getattr(bindings, name).__doc__.split(")")[0]
    assert ours == parameters == text.count(",") + 1


def test_the_bindings_have_the_kinds() -> None:
    attribute = bindings.CUdevice_attribute
    assert attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED == 102
    kind = bindings.CUmemAllocationProp()
    kind.type = bindings.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    kind.location.type = bindings.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    kind.location.id = 3
    access = bindings.CUmemAccessDesc()
    access.location.id = 3
    access.flags = bindings.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    assert (kind.location.id, access.location.id, int(access.flags)) == (3, 3, 3)


class HostMemory:
    """Pageable memory in the place of `cupy.cuda.PinnedMemory`."""

    def __init__(self, nbytes: int) -> None:
        self.buffer = ctypes.create_string_buffer(nbytes)
        self.ptr, self.size = ctypes.addressof(self.buffer), nbytes


def test_pinned_pool_over_the_real_pool_of_cupy() -> None:
    driver: Any = SimpleNamespace(
        cupy=cupy,
        errors=(cupy.cuda.runtime.CUDARuntimeError,),
        staging=SimpleNamespace(free_all_blocks=lambda: None),
        on_device=lambda index: contextlib.nullcontext(),
    )
    queue: Any = SimpleNamespace(index=0, handle=0, entered=contextlib.nullcontext)
    pool = PinnedPool(driver, 0, SegmentTracker(driver, HostMemory, by_stream=False))
    block = pool.allocate(queue, 700)
    array: Any = np.ndarray((7, 100), np.uint8, block.handle("owner"))
    array[...] = 9
    assert pinned_owner_of(array[2:].T) == "owner"
    assert (block.nbytes, pool.reserved(), pool.segment_counts()) == (1024, 1024, (1, 0))
    assert ctypes.string_at(block.address, 700) == bytes([9]) * 700
    address = block.address
    del array
    pool.deallocate(queue, block)
    again = pool.allocate(queue, 1000)
    assert (again.address, pool.segment_counts()) == (address, (1, 0))
    pool.deallocate(queue, again)
    pool.empty_cache()
    assert (pool.reserved(), pool.segments(), pool.segment_counts()) == (0, [], (1, 1))
