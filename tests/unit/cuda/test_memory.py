from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import nbrt
from nbrt.errors import ArgumentError, ArgumentTypeError, DeviceMismatchError, StreamError
from nbrt.testing import Latch

if TYPE_CHECKING:
    from types import ModuleType

    from nbrt.backends.cuda.backend import CudaInterface


def values_of(array: Any) -> Any:
    """Return the values of a CuPy array, behind the work of its device."""
    with array.device:
        array.device.synchronize()
        return array.get()


def make(interface: CudaInterface, shape: tuple[int, ...], dtype: str, index: int = 0) -> Any:
    queue = interface.default_queue(index)
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    block = interface.create_pool(index, "caching", {}).allocate(queue, max(nbytes, 1))
    return interface.as_array(block, shape, np.dtype(dtype), block.handle(block))


def test_array_and_views_keep_the_handle_and_give_the_owner(interface: CudaInterface) -> None:
    pool = interface.create_pool(1, "caching", {})
    block = pool.allocate(interface.default_queue(1), 96)
    handle = block.handle("owner")
    alive = weakref.ref(handle)
    array: Any = interface.as_array(block, (4, 6), np.dtype("float32"), handle)
    view = array[1:, ::2].T
    assert interface.owner_of(array) == interface.owner_of(view) == "owner"
    assert interface.index_of(view) == 1
    assert interface.owner_of(np.zeros(3)) is None
    assert interface.index_of(np.zeros(3)) is None
    del handle, array
    assert alive() is not None
    del view
    assert alive() is None


def test_owner_of_foreign_memory_is_none(interface: CudaInterface) -> None:
    array = interface._driver.cupy.empty((3,), "f4")
    assert interface.owner_of(array) is None
    assert interface.index_of(array) == 0
    held = interface.external_owner(array)
    assert held is array.data


def test_another_allocators_memory_as_a_block(interface: CudaInterface) -> None:
    block = interface.block_at(1, 1 << 20, 4096, "kept")
    assert (block.address, block.nbytes, block.kept) == (1 << 20, 4096, "kept")
    array: Any = interface.as_array(block, (3,), np.dtype("int8"), block.handle("owner"))
    assert array.data.ptr == 1 << 20
    assert (interface.owner_of(array), interface.index_of(array)) == ("owner", 1)


def test_empty_allocation(interface: CudaInterface) -> None:
    array = make(interface, (0, 3), "float64")
    assert array.shape == (0, 3)


@pytest.mark.parametrize(("text", "limit"), [("", None), ("0", None), ("4096", 4096)])
def test_limit_that_cupy_would_keep(
    interface: CudaInterface, monkeypatch: pytest.MonkeyPatch, text: str, limit: int | None
) -> None:
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", text)
    assert interface.initial_memory_limit(0) == limit


def test_share_that_cupy_would_keep(
    interface: CudaInterface, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", "25%")
    total = interface.get_device_properties(0).total_memory
    assert interface.initial_memory_limit(0) == total // 4


def test_bad_limit_of_cupy_is_named(
    interface: CudaInterface, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", "half")
    with pytest.raises(ArgumentError, match=r"CUPY_GPU_MEMORY_LIMIT.*'half'"):
        interface.initial_memory_limit(0)


def test_dtype_is_converted_within_its_kind(interface: CudaInterface) -> None:
    queue = interface.default_queue(0)
    array = make(interface, (3,), "float64")
    interface.copy(queue, array, np.array([1, 2, 3], np.int16))
    assert values_of(array).tolist() == [1.0, 2.0, 3.0]
    result = np.zeros(3, np.float32)
    interface.copy(queue, result, array)
    queue.synchronize()
    assert result.tolist() == [1.0, 2.0, 3.0]


def test_page_locked_source_is_held_until_its_copy_is_done(interface: CudaInterface) -> None:
    stream = nbrt.Stream("cuda:0")
    array = make(interface, (3,), "int32")
    source: Any = nbrt.empty_pinned(3, "int32", device="cuda:0")
    source[...] = 0, 1, 2
    alive = weakref.ref(source)
    with Latch() as latch:
        latch.hold(stream)
        interface.copy(stream.queue, array, source)
        del source
        gc.collect()
        assert alive() is not None
    stream.synchronize()
    assert alive() is None
    assert values_of(array).tolist() == [0, 1, 2]


def test_nothing_is_held_in_capture(interface: CudaInterface) -> None:
    queue = interface.create_queue(0, 0)
    resource = object()
    queue.stream.begin_capture()
    queue.hold(resource)
    assert not queue._held
    with pytest.raises(StreamError, match="captured"):
        queue.synchronize()
    with pytest.raises(interface._driver.errors):
        queue.stream.end_capture()
    queue.hold(resource)
    assert queue._held


def test_copy_refuses_a_stranger(interface: CudaInterface) -> None:
    queue = interface.default_queue(0)
    with pytest.raises(DeviceMismatchError, match=r"cuda:1 to cuda:1.*stream of one of them"):
        interface.copy(queue, make(interface, (1,), "int8", 1), make(interface, (1,), "int8", 1))
    with pytest.raises(ArgumentTypeError, match=r"nbrt\.asarray"):
        interface.copy(queue, make(interface, (1,), "int8"), [1])


@pytest.mark.parametrize(("value", "launches"), [(0, 0), (7, 1), (-0.0, 1)])
def test_fill(
    interface: CudaInterface, simulation: ModuleType, value: float, launches: int
) -> None:
    queue = interface.create_queue(0, 0)
    array = make(interface, (5,), "float32")
    interface.fill(queue, array, 9)
    before = simulation.call_count("cuLaunchKernel")
    interface.fill(queue, array, value)
    assert simulation.call_count("cuLaunchKernel") == before + launches
    queue.synchronize()
    assert values_of(array).tobytes() == np.full(5, value, np.float32).tobytes()


def test_fill_follows_numpy(interface: CudaInterface) -> None:
    queue = interface.default_queue(0)
    array = make(interface, (4, 4), "uint8")
    interface.fill(queue, array[:, ::2], 3)
    assert values_of(array)[:, ::2].tolist() == [[3, 3]] * 4
    with pytest.raises(OverflowError):
        interface.fill(queue, array, -1)
    with pytest.raises(DeviceMismatchError):
        interface.fill(interface.default_queue(1), array, 0)


def test_adopt_refuses_host_arrays(interface: CudaInterface) -> None:
    with pytest.raises(DeviceMismatchError, match="device memory"):
        interface.adopt(np.zeros(2))
    with pytest.raises(ArgumentTypeError, match="__dlpack__"):
        interface.adopt(object())
    array = make(interface, (2,), "int8")
    assert interface.adopt(array) is array
