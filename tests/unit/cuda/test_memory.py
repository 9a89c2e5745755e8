from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nbrt.errors import ArgumentError, ArgumentTypeError, DeviceMismatchError
from unit.cuda.fake_cuda import host_view

if TYPE_CHECKING:
    from nbrt.backends.cuda.backend import CudaInterface
    from unit.cuda.fake_cuda import Simulation


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


@pytest.mark.parametrize(
    ("text", "limit"), [("", None), ("0", None), ("4096", 4096), ("25%", 16 << 20)]
)
def test_limit_that_cupy_would_keep(
    interface: CudaInterface, monkeypatch: pytest.MonkeyPatch, text: str, limit: int | None
) -> None:
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", text)
    assert interface.initial_memory_limit(0) == limit


def test_bad_limit_of_cupy_is_named(
    interface: CudaInterface, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUPY_GPU_MEMORY_LIMIT", "half")
    with pytest.raises(ArgumentError, match=r"CUPY_GPU_MEMORY_LIMIT.*'half'"):
        interface.initial_memory_limit(0)


LAYOUTS = {
    "C": lambda array: array,
    "F": lambda array: array.T,
    "gaps": lambda array: array[:, ::2],
    "reversed": lambda array: array[::-1],
}


@pytest.mark.parametrize("to", LAYOUTS)
@pytest.mark.parametrize("origin", LAYOUTS)
@pytest.mark.parametrize("path", ["h2d", "d2h", "d2d", "peer", "peer back"])
def test_copies_in_every_layout(
    interface: CudaInterface, simulation: Simulation, path: str, origin: str, to: str
) -> None:
    def device(layout: str, index: int) -> Any:
        return LAYOUTS[layout](make(interface, (4, 4), "int32", index))

    def host(layout: str) -> Any:
        return LAYOUTS[layout](np.zeros((4, 4), np.int32))

    simulation.is_eager = False
    source = host(origin) if path == "h2d" else device(origin, 0)
    target = host(to) if path == "d2h" else device(to, 1 if "peer" in path else 0)
    values = np.arange(source.size, dtype=np.int32).reshape(source.shape)
    (source if path == "h2d" else host_view(source))[...] = values
    if target.shape != source.shape:
        values = values[:, :1]
        source = source[:, :1]
    queue = interface.create_queue(1 if path == "peer" else 0, 0)
    interface.copy(queue, target, source)
    queue.synchronize()
    result = target if path == "d2h" else host_view(target)
    np.testing.assert_array_equal(result, np.broadcast_to(values, result.shape))


def test_dtype_is_converted_within_its_kind(interface: CudaInterface) -> None:
    queue = interface.default_queue(0)
    array = make(interface, (3,), "float64")
    interface.copy(queue, array, np.array([1, 2, 3], np.int16))
    assert host_view(array).tolist() == [1.0, 2.0, 3.0]
    result = np.zeros(3, np.float32)
    interface.copy(queue, result, array)
    assert result.tolist() == [1.0, 2.0, 3.0]


def test_page_locked_source_is_held_until_its_copy_is_done(
    interface: CudaInterface, simulation: Simulation
) -> None:
    simulation.is_eager = False
    queue = interface.create_queue(0, 0)
    array = make(interface, (3,), "int32")
    source = np.arange(3, dtype=np.int32)
    simulation.page_locked.add(source.ctypes.data)
    alive = weakref.ref(source)
    interface.copy(queue, array, source)
    del source
    gc.collect()
    assert alive() is not None
    queue.synchronize()
    assert alive() is None
    assert simulation.events == {}
    assert host_view(array).tolist() == [0, 1, 2]


def test_nothing_is_held_in_capture(interface: CudaInterface, simulation: Simulation) -> None:
    queue = interface.create_queue(0, 0)
    simulation.capturing.add(queue.handle)
    queue.hold(object())
    assert simulation.events == {}


def test_copy_refuses_a_stranger(interface: CudaInterface) -> None:
    queue = interface.default_queue(0)
    with pytest.raises(DeviceMismatchError, match=r"cuda:1 to cuda:1.*stream of one of them"):
        interface.copy(queue, make(interface, (1,), "int8", 1), make(interface, (1,), "int8", 1))
    with pytest.raises(ArgumentTypeError, match=r"nbrt\.asarray"):
        interface.copy(queue, make(interface, (1,), "int8"), [1])


@pytest.mark.parametrize(
    ("value", "path"), [(0, "memset"), (7, "kernel copy"), (-0.0, "kernel copy")]
)
def test_fill(interface: CudaInterface, simulation: Simulation, value: float, path: str) -> None:
    queue = interface.create_queue(0, 0)
    array = make(interface, (5,), "float32")
    host_view(array)[...] = 9
    simulation.log.clear()
    interface.fill(queue, array, value)
    assert simulation.log == [(path, queue.handle)]
    expected = np.full(5, value, np.float32)
    assert host_view(array).tobytes() == expected.tobytes()


def test_fill_follows_numpy(interface: CudaInterface) -> None:
    queue = interface.default_queue(0)
    array = make(interface, (4, 4), "uint8")
    interface.fill(queue, array[:, ::2], 3)
    assert host_view(array)[:, ::2].tolist() == [[3, 3]] * 4
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
