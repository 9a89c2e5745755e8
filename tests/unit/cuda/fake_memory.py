"""CUDA's memory on paper: what the simulated runtime, driver and CuPy know of it.

Device memory is host memory; a call that CUDA would refuse is refused here.
"""

# ruff: noqa: N815  # CUDA spells its constants so

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = 2 << 20
OUT_OF_MEMORY = 2
INVALID = 1


def aligned(nbytes: int) -> tuple[Any, int]:
    """Return memory and its address, a multiple of 512 as CUDA's are."""
    buffer = ctypes.create_string_buffer(nbytes + 511)
    return buffer, -(-ctypes.addressof(buffer) // 512) * 512


class MemorySimulation:
    """The memory state of `Simulation`.

    Attributes
    ----------
    capacity : int
        Bytes that the device has in all.
    taken : int
        Bytes that are handed out now, by whatever call.
    """

    cudaMemAllocationTypePinned = 1
    cudaMemHandleTypeNone = 0
    cudaMemLocationTypeDevice = 1
    cudaMemPoolAttrReleaseThreshold = 4
    cudaMemPoolAttrReservedMemCurrent = 5
    cudaDevAttrManagedMemory = 83
    cudaDevAttrPageableMemoryAccess = 88
    cudaDevAttrMemoryPoolsSupported = 115
    hostAllocPortable = 1

    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED=102
    )
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_MINIMUM=0)
    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
    CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE=3)

    def __init__(self, error: type[Exception]) -> None:
        self.error = error
        self.capacity = 1 << 30
        self.taken = 0
        self.log: list[Any] = []
        self.attributes: dict[int, int] = {}
        self.page_locked: set[int] = set()
        self.pools: dict[int, SimpleNamespace] = {}
        self.pool_memory: dict[int, tuple[SimpleNamespace, int, Any]] = {}
        self.reservations: dict[int, tuple[int, Any]] = {}
        self.handles: dict[int, SimpleNamespace] = {}
        self.mappings: dict[int, SimpleNamespace] = {}
        self.local = threading.local()
        self._numbers = iter(range(5000, 10**9))

    def take(self, nbytes: int) -> None:
        if self.taken + nbytes > self.capacity:
            raise self.error(OUT_OF_MEMORY)
        self.taken += nbytes

    def deviceGetAttribute(self, number: int, index: int) -> int:
        return self.attributes.get(number, 1)

    def pointerGetAttributes(self, address: int) -> Any:
        return SimpleNamespace(type=1 if address in self.page_locked else 0)

    # -- pools of the driver
    def MemPoolProps(self, *properties: int) -> tuple[int, ...]:
        return properties

    def memPoolCreate(self, properties: tuple[int, int, int, int]) -> int:
        assert properties[:3] == (1, 0, 1)
        handle = next(self._numbers)
        self.pools[handle] = SimpleNamespace(index=properties[3], threshold=0, reserved=0, used=0)
        return handle

    def cuMemPoolSetAccess(self, pool: int, access: list[Any], count: int) -> tuple[int]:
        assert len(access) == count
        self.pools[pool].readers = [each.location.id for each in access]
        return (0,)

    def memPoolDestroy(self, pool: int) -> None:
        self.memPoolTrimTo(pool, 0)
        self.pools.pop(pool).threshold = -1  # what is still out goes with its last block

    def memPoolSetAttribute(self, pool: int, attribute: int, value: int) -> None:
        assert attribute == self.cudaMemPoolAttrReleaseThreshold
        self.pools[pool].threshold = value

    def memPoolGetAttribute(self, pool: int, attribute: int) -> int:
        assert attribute == self.cudaMemPoolAttrReservedMemCurrent
        return int(self.pools[pool].reserved)

    def memPoolTrimTo(self, pool: int, nbytes: int) -> None:
        self._trim(self.pools[pool], nbytes)

    def _trim(self, pool: SimpleNamespace, nbytes: int) -> None:
        kept = min(pool.reserved, max(pool.used, nbytes))
        self.taken -= pool.reserved - kept
        pool.reserved = kept

    def mallocFromPoolAsync(self, nbytes: int, handle: int, stream: int) -> int:
        pool = self.pools[handle]
        more = max(0, pool.used + nbytes - pool.reserved)
        self.take(more)
        pool.reserved += more
        pool.used += nbytes
        buffer, address = aligned(nbytes)
        self.pool_memory[address] = (pool, nbytes, buffer)
        return address

    def freeAsync(self, address: int, stream: int) -> None:
        def free() -> None:
            pool, nbytes, _ = self.pool_memory.pop(address)
            pool.used -= nbytes
            if pool.threshold < 0:
                self._trim(pool, 0)

        self.log.append(("free in order", stream))
        self.enqueue(stream, free)

    def enqueue(self, stream: int, work: Any) -> None:
        raise NotImplementedError

    # -- virtual memory
    CUmemAllocationProp = CUmemAccessDesc = staticmethod(
        lambda: SimpleNamespace(location=SimpleNamespace())
    )

    def cuDeviceGetAttribute(self, number: int, index: int) -> tuple[int, int]:
        return 0, self.attributes.get(number, 1)

    def cuMemGetAllocationGranularity(self, kind: Any, option: int) -> tuple[int, int]:
        assert (kind.type, kind.location.type, option) == (1, 1, 0)
        return 0, PAGE

    def cuMemAddressReserve(
        self, nbytes: int, alignment: int, address: int, flags: int
    ) -> tuple[int, int]:
        assert nbytes % PAGE == 0
        memory = mmap.mmap(-1, nbytes)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.reservations[start] = (nbytes, memory)
        return 0, start

    def cuMemAddressFree(self, address: int, nbytes: int) -> tuple[int]:
        behind = [each for each in self.mappings if address <= each < address + nbytes]
        assert not behind, "addresses are given back with memory behind them"
        assert self.reservations.pop(address)[0] == nbytes
        return (0,)

    def cuMemCreate(self, nbytes: int, kind: Any, flags: int) -> tuple[int, int]:
        assert nbytes % PAGE == 0
        if self.taken + nbytes > self.capacity:
            return OUT_OF_MEMORY, 0
        self.taken += nbytes
        handle = next(self._numbers)
        self.handles[handle] = SimpleNamespace(nbytes=nbytes, references=1, index=kind.location.id)
        return 0, handle

    def cuMemMap(
        self, address: int, nbytes: int, offset: int, handle: int, flags: int
    ) -> tuple[int]:
        home, (size, _) = max(each for each in self.reservations.items() if each[0] <= address)
        assert (address - home) % PAGE == 0
        assert address + nbytes <= home + size
        assert all(
            address + nbytes <= start or start + each.nbytes <= address
            for start, each in self.mappings.items()
        ), "two mappings of one address"
        self.handles[handle].references += 1
        self.mappings[address] = SimpleNamespace(nbytes=nbytes, handle=handle, access=[])
        return (0,)

    def cuMemSetAccess(
        self, address: int, nbytes: int, access: list[Any], count: int
    ) -> tuple[int]:
        assert len(access) == count
        assert self.mappings[address].nbytes == nbytes
        self.mappings[address].access = [each.location.id for each in access]
        return (0,)

    def cuMemUnmap(self, address: int, nbytes: int) -> tuple[int]:
        mapping = self.mappings.get(address)
        if mapping is None or mapping.nbytes != nbytes:  # a part cannot be unmapped
            return (INVALID,)
        del self.mappings[address]
        return self.cuMemRelease(mapping.handle)

    def cuMemRelease(self, handle: int) -> tuple[int]:
        found = self.handles[handle]
        found.references -= 1
        if found.references == 0:
            self.taken -= found.nbytes
            del self.handles[handle]
        return (0,)


class FakeMemory:
    """Stand-in for `cupy.cuda.Memory`: memory that is freed with the object."""

    def __init__(self, simulation: Any, kind: str, nbytes: int) -> None:
        self.simulation, self.kind, self.size = simulation, kind, nbytes
        self.ptr = 0
        simulation.take(nbytes)
        if kind != "pinned":
            simulation.contexts.add(simulation.get_device())
        self.buffer, self.ptr = aligned(nbytes)
        simulation.log.append(("take", kind, nbytes))
        if kind == "pinned":
            simulation.page_locked.add(self.ptr)

    def __del__(self) -> None:
        if self.ptr:
            self.simulation.taken -= self.size
            self.simulation.log.append(("release", self.kind, self.size))
            self.simulation.page_locked.discard(self.ptr)


class _Chunk:
    def __init__(self, arena: list[_Chunk], memory: Any, offset: int, size: int) -> None:
        self.arena, self.memory, self.offset, self.size = arena, memory, offset, size


class FakePool:
    """`cupy.cuda.MemoryPool`: best fit, split and merge, one arena for each current stream."""

    def __init__(self, simulation: Any, allocator: Any) -> None:
        self.simulation, self.allocator = simulation, allocator
        self._arenas: dict[tuple[int, int], list[_Chunk]] = {}

    def malloc(self, nbytes: int) -> Any:
        size = -(-nbytes // 512) * 512
        device = self.simulation.get_device()
        stream = self.simulation.current_streams[device].ptr
        arena = self._arenas.setdefault((device, stream), [])
        fitting = [chunk for chunk in arena if chunk.size >= size]
        if fitting:
            chunk = min(reversed(fitting), key=lambda each: each.size)
            arena.remove(chunk)
            if chunk.size > size:
                rest = _Chunk(arena, chunk.memory, chunk.offset + size, chunk.size - size)
                arena.append(rest)
                chunk.size = size
        else:
            chunk = _Chunk(arena, self._grow(size), 0, size)
        address = chunk.memory.ptr + chunk.offset
        pointer = FakePointer(ptr=address, mem=SimpleNamespace(size=size, ptr=address))
        weakref.finalize(pointer, self._free, chunk)
        return pointer

    def _grow(self, size: int) -> Any:
        for _ in range(2):
            try:
                return self.allocator(size).mem
            except self.simulation.error as error:
                if error.status != OUT_OF_MEMORY:
                    raise
                self.free_all_blocks()
        raise MemoryError(f"Out of memory allocating {size} bytes")

    def _free(self, chunk: _Chunk) -> None:
        for other in list(chunk.arena):
            if other.memory is chunk.memory:
                if other.offset + other.size == chunk.offset:
                    chunk.offset = other.offset
                elif chunk.offset + chunk.size != other.offset:
                    continue
                chunk.size += other.size
                chunk.arena.remove(other)
        chunk.arena.append(chunk)

    def free_all_blocks(self) -> None:
        for arena in self._arenas.values():
            arena[:] = [chunk for chunk in arena if chunk.size != chunk.memory.size]


class FakePointer(SimpleNamespace):
    pass


class FakePinnedPool:
    """`cupy.cuda.PinnedMemoryPool`: powers of two."""

    def __init__(self, allocator: Any) -> None:
        self.allocator = allocator
        self._free: dict[int, list[Any]] = {}

    def malloc(self, nbytes: int) -> Any:
        size = max(512, 1 << (nbytes - 1).bit_length())
        free = self._free.setdefault(size, [])
        memory = free.pop() if free else self.allocator(size).mem
        pointer = FakePinnedPointer(memory)
        weakref.finalize(pointer, free.append, memory)
        return pointer

    def free_all_blocks(self) -> None:
        for free in self._free.values():
            free.clear()


class FakePinnedPointer:
    """`cupy.cuda.PinnedMemoryPointer`: a buffer."""

    def __new__(cls, memory: Any, offset: int = 0) -> Any:
        assert offset == 0
        kind: Any = type("FakePinnedBuffer", (ctypes.c_char * memory.size,), {"size": _size_of})
        pointer = kind.from_address(memory.ptr)
        pointer.ptr, pointer.mem = memory.ptr, memory
        return pointer


def _size_of(pointer: Any) -> int:
    return int(pointer.mem.size)


class FakeAllocators:
    """CuPy's allocator of the thread, as `get_allocator` and `using_allocator` treat it."""

    def __init__(self, default: Any) -> None:
        self._default = default
        self._local = threading.local()

    def get_allocator(self) -> Any:
        return getattr(self._local, "allocator", None) or self._default

    @contextlib.contextmanager
    def using_allocator(self, allocator: Any) -> Iterator[None]:
        before = getattr(self._local, "allocator", None)
        self._local.allocator = allocator
        try:
            yield
        finally:
            self._local.allocator = before
