from __future__ import annotations

import gc
import itertools
from typing import Any

import numpy as np
import pytest

import nbrt
from nbrt.errors import BackendUnavailableError, NotSupportedError, OutOfMemoryError

pytestmark = pytest.mark.gpu

LAYOUTS = {
    "C": lambda array: array,
    "F": lambda array: array.T,
    "gaps": lambda array: array[:, ::2],
    "reversed": lambda array: array[::-1],
}
VALUES = np.arange(64 * 64, dtype=np.int32).reshape(64, 64)


@pytest.mark.parametrize("to", LAYOUTS)
@pytest.mark.parametrize("origin", LAYOUTS)
@pytest.mark.parametrize("path", ["h2d", "d2h", "d2d", "pinned"])
def test_copies(path: str, origin: str, to: str) -> None:
    source: Any = LAYOUTS[origin](VALUES)
    if path in ("d2h", "d2d"):
        source = LAYOUTS[origin](nbrt.to(VALUES, "cuda:0"))
    if path == "pinned":
        pinned = nbrt.empty_pinned((64, 64), VALUES.dtype, device="cuda:0")
        pinned[...] = VALUES
        source = LAYOUTS[origin](pinned)
    target: Any = np.zeros((64, 64), np.int32)
    if path != "d2h":
        target = nbrt.zeros((64, 64), "int32", device="cuda:0")
    target = LAYOUTS[to](target)
    expected = LAYOUTS[origin](VALUES)
    if target.shape != source.shape:
        source, expected = source[:, :1], expected[:, :1]
    stream = nbrt.current_stream("cuda:0")
    nbrt.copy(target, source, stream=stream)
    stream.synchronize()
    result = target if path == "d2h" else nbrt.to_host(target)
    np.testing.assert_array_equal(result, np.broadcast_to(expected, result.shape))


def test_fill_keeps_bits() -> None:
    for value in (0.0, -0.0, 1.5, np.nan):
        array = nbrt.full(1000, value, "float32", device="cuda:0")
        assert nbrt.to_host(array).tobytes() == np.full(1000, value, np.float32).tobytes()


def test_views_keep_memory_alive() -> None:
    gc.collect()
    before = nbrt.memory_allocated("cuda:0")
    array = nbrt.empty(1 << 20, "uint8", device="cuda:0")
    view = array[100:200]
    del array
    gc.collect()
    assert nbrt.memory_allocated("cuda:0") == before + (1 << 20)
    del view
    gc.collect()
    assert nbrt.memory_allocated("cuda:0") == before


def test_memory_is_reused_and_given_back() -> None:
    nbrt.empty_cache("cuda:0")
    addresses = set()
    for _ in range(10):
        array = nbrt.empty(8 << 20, "uint8", device="cuda:0")
        addresses.add(array.data.ptr)
        del array
    assert len(addresses) == 1
    assert nbrt.memory_reserved("cuda:0") >= 8 << 20
    nbrt.empty_cache("cuda:0")
    assert nbrt.memory_reserved("cuda:0") < 8 << 20


def test_out_of_memory() -> None:
    _, total = nbrt.mem_get_info("cuda:0")
    with pytest.raises(OutOfMemoryError, match="cuda:0"):
        nbrt.empty(2 * total, "uint8", device="cuda:0")
    assert nbrt.zeros(4, device="cuda:0").shape == (4,)


@pytest.fixture(params=["caching", "async", "managed", "system", "plain", "expandable"])
def kind(request: pytest.FixtureRequest) -> str:
    """A kind of pool that the device has."""
    try:
        nbrt.MemoryPool("cuda:0", request.param).close()
    except NotSupportedError as error:
        pytest.skip(str(error))
    return str(request.param)


def test_arrays_of_every_kind_of_pool(kind: str) -> None:
    pool = nbrt.MemoryPool("cuda:0", kind)
    sizes = (1, 1000, 1 << 20, (1 << 20) + 1, 48 << 20)
    for _ in range(2):
        with nbrt.use_pool(pool):
            arrays = [nbrt.full(size, size % 251, "uint8", device="cuda:0") for size in sizes]
        assert pool.memory_reserved() >= sum(sizes)
        for size, array in zip(sizes, arrays, strict=True):
            assert np.unique(nbrt.to_host(array)).tolist() == [size % 251]
        spans = sorted((array.data.ptr, array.data.ptr + array.size) for array in arrays)
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
        del arrays, array
    nbrt.current_stream("cuda:0").synchronize()
    pool.empty_cache()
    assert pool.memory_allocated() == 0
    assert pool.memory_reserved() == 0


def test_limit_of_every_kind_of_pool(kind: str) -> None:
    pool = nbrt.MemoryPool("cuda:0", kind, limit=8 << 20)
    with nbrt.use_pool(pool):
        first = nbrt.zeros(4 << 20, "uint8", device="cuda:0")
        with pytest.raises(OutOfMemoryError):
            nbrt.empty(16 << 20, "uint8", device="cuda:0")
    assert not nbrt.to_host(first).any()


def test_statistics_equal_those_of_cupy(cuda_interface: Any) -> None:
    pool = cuda_interface.create_pool(0, "caching", {})
    queue = cuda_interface.create_queue(0, 0)
    blocks = [pool.allocate(queue, size) for size in (100, 1 << 20, 3 << 20, 5 << 20)]
    for _ in range(2):
        totals = pool._small.total_bytes() + pool._large.total_bytes()
        assert pool.reserved() == totals == sum(each.nbytes for each in pool.segments())
        while blocks:
            pool.deallocate(queue, blocks.pop())
        pool.empty_cache()
    assert pool.reserved() == 0
    assert pool.segment_counts() == (3, 3)


def test_expandable_memory_is_the_devices(cuda_interface: Any) -> None:
    try:
        pool = cuda_interface.create_pool(0, "expandable", {})
    except NotSupportedError as error:
        pytest.skip(str(error))
    queue = cuda_interface.create_queue(0, 0)
    before, _ = cuda_interface.mem_get_info(0)
    first = pool.allocate(queue, 64 << 20)
    second = pool.allocate(queue, 64 << 20)
    assert second.address == first.address + first.nbytes
    assert before - cuda_interface.mem_get_info(0)[0] >= 128 << 20
    pool.deallocate(queue, first)
    pool.empty_cache()
    assert pool.reserved() == 64 << 20
    pool.deallocate(queue, second)
    whole = pool.allocate(queue, 128 << 20)
    assert whole.address == first.address
    pool.deallocate(queue, whole)
    pool.close()
    assert pool.reserved() == 0


def test_cupy_allocates_from_the_pool(cupy: Any) -> None:
    pool = nbrt.MemoryPool("cuda:0")
    theirs = cupy.get_default_memory_pool().used_bytes()
    with nbrt.use_pool(pool):
        array = cupy.arange(1000, dtype=cupy.float64) * 2
    assert pool.memory_allocated() >= array.nbytes
    assert cupy.get_default_memory_pool().used_bytes() == theirs
    assert array.sum().item() == 999000
    allocation = nbrt.get_interface_for_device("cuda").owner_of(array)
    assert allocation in pool.allocations()
    del array, allocation
    assert pool.memory_allocated() == 0


@pytest.mark.parametrize("library", ["torch", "rmm"])
def test_memory_of_another_library(library: str) -> None:
    pytest.importorskip(library)
    from nbrt.runtime.memory.adapters.rmm import RmmAllocator
    from nbrt.runtime.memory.adapters.torch import TorchAllocator

    try:
        allocator: Any = {"torch": TorchAllocator, "rmm": RmmAllocator}[library]()
    except BackendUnavailableError as error:
        pytest.skip(str(error))
    pool = nbrt.MemoryPool("cuda:0", allocator=allocator)
    with nbrt.use_pool(pool):
        array = nbrt.full(1000, 7, "int32", device="cuda:0")
    assert nbrt.to_host(array).tolist() == [7] * 1000
    assert pool.memory_allocated() >= 4000
    del array
    assert pool.memory_allocated() == 0


def test_adopts_torch_tensors_and_gives_them_arrays() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA")
    tensor = torch.arange(10, device="cuda:0")
    array = nbrt.asarray(tensor)
    assert array.data.ptr == tensor.data_ptr()
    assert nbrt.device_of(tensor) == nbrt.Device("cuda:0")
    back = torch.from_dlpack(nbrt.to(np.arange(5, dtype=np.float32), "cuda:0"))
    assert back.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.multi_gpu
@pytest.mark.parametrize("to", LAYOUTS)
@pytest.mark.parametrize("origin", LAYOUTS)
def test_copies_between_devices(second_device: nbrt.Device, origin: str, to: str) -> None:
    source = LAYOUTS[origin](nbrt.to(VALUES, "cuda:0"))
    target = LAYOUTS[to](nbrt.zeros((64, 64), "int32", device=second_device))
    expected = LAYOUTS[origin](VALUES)
    if target.shape != source.shape:
        source, expected = source[:, :1], expected[:, :1]
    nbrt.default_stream("cuda:0").synchronize()
    nbrt.copy(target, source)
    np.testing.assert_array_equal(nbrt.to_host(target), np.broadcast_to(expected, target.shape))
