"""Device arrays of numba-cuda on CPU devices, compared with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda.cudadrv.devicearray import DeviceNDArray

pytestmark = pytest.mark.usefixtures("installed")

KEYS: list[Any] = [
    np.s_[:],
    np.s_[1],
    np.s_[:, 2],
    np.s_[1:3, ::2],
    np.s_[-1, -2],
    np.s_[2:2],
]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_an_assigned_part_changes_as_in_numpy(key: Any, order: Any) -> None:
    expected = np.arange(20.0).reshape((4, 5), order=order)
    array = cuda.to_device(expected)
    value = -np.arange(float(expected[key].size)).reshape(expected[key].shape)
    array[key] = value
    expected[key] = value
    np.testing.assert_array_equal(array.copy_to_host(), expected)
    array[key] = 7
    expected[key] = 7
    np.testing.assert_array_equal(array.copy_to_host(), expected)


def test_an_assigned_value_is_broadcast_and_converted() -> None:
    expected = np.zeros((3, 4), np.int32)
    array = cuda.to_device(expected)
    array[:] = np.array([1.0, 2.0, 3.0, 4.0])
    expected[:] = [1, 2, 3, 4]
    np.testing.assert_array_equal(array.copy_to_host(), expected)
    with pytest.raises(ValueError, match="Can't"):
        array[:] = np.arange(3.0)


def test_an_assignment_on_a_stream_is_ordered_behind_its_work() -> None:
    stream = cuda.stream()
    array = cuda.to_device(np.zeros(1000), stream=stream)
    for value in range(50):
        array.setitem(slice(None), value, stream=stream)
    host = array.copy_to_host(stream=stream)
    stream.synchronize()
    assert set(host) == {49.0}


def test_views_share_memory_and_shapes_follow_numpy() -> None:
    expected = np.arange(24, dtype=np.int64).reshape(4, 6)
    array = cuda.to_device(expected)
    assert isinstance(array, DeviceNDArray)
    for view in (
        lambda a: a.reshape(6, 4),
        lambda a: a.reshape(24),
        lambda a: a.ravel(),
        lambda a: a[1:3],
        lambda a: a[::2, 1:],
        lambda a: a.T,
        lambda a: a.view(np.int32),
        lambda a: a[2, 3],
    ):
        found = view(array)
        found = found if np.isscalar(found) else found.copy_to_host()
        np.testing.assert_array_equal(found, view(expected))
    array[1:3][:] = 0
    expected[1:3] = 0
    np.testing.assert_array_equal(array.copy_to_host(), expected)
    parts = [part.copy_to_host().tolist() for part in cuda.to_device(np.arange(5)).split(2)]
    assert parts == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("shape", [(0,), (3, 0), ()])
def test_arrays_without_axes_or_elements_are_copied(shape: tuple[int, ...]) -> None:
    expected = np.ones(shape, np.float32)
    array = cuda.to_device(expected)
    assert array.shape == shape
    np.testing.assert_array_equal(array.copy_to_host(), expected)


def test_arrays_with_gaps_are_refused_as_on_a_gpu() -> None:
    with pytest.raises(ValueError, match="non-contiguous"):
        cuda.to_device(np.arange(10)[::2])
    broadcast = np.broadcast_to(np.arange(4.0), (3, 4))
    array = cuda.to_device(broadcast)
    np.testing.assert_array_equal(array.copy_to_host(), broadcast)


@pytest.mark.parametrize("make", ["pinned_array", "mapped_array", "managed_array"])
def test_host_memory_of_the_driver_is_numpy_memory(make: str) -> None:
    array = getattr(cuda, make)((3, 4), np.float32)
    array[:] = np.arange(12).reshape(3, 4)
    assert array.sum() == 66
    device = cuda.to_device(np.asarray(array))
    np.testing.assert_array_equal(device.copy_to_host(), array)
    if make != "managed_array":
        like = getattr(cuda, f"{make}_like")(array)
        assert (like.shape, like.dtype) == (array.shape, array.dtype)


@pytest.mark.parametrize("make", ["mapped_array", "managed_array"])
def test_a_kernel_writes_mapped_memory_and_its_parts(make: str) -> None:
    @cuda.jit
    def add(x: Any) -> None:
        i = cuda.grid(1)
        if i < x.size:
            x[i] += i

    array = getattr(cuda, make)(6, np.int64)
    array[:] = 10
    add[1, 32](array)
    cuda.synchronize()
    assert array.tolist() == [10, 11, 12, 13, 14, 15]
    add[1, 32](array[3:])
    cuda.synchronize()
    assert array.tolist() == [10, 11, 12, 13, 15, 17]


def test_pinned_and_mapped_blocks_of_host_memory() -> None:
    first, second = np.arange(4.0), np.arange(5.0)
    stream = cuda.stream()
    with cuda.pinned(first, second):
        array = cuda.to_device(first, stream=stream)
        array.copy_to_host(second[:4], stream=stream)
        stream.synchronize()
    with cuda.mapped(first) as mapped:
        mapped[:] = 3
    assert first.tolist() == [3.0] * 4


class Foreign:
    """Host memory with the CUDA array interface."""

    def __init__(self, array: Any, **entries: Any) -> None:
        self.array = array
        self.entries = entries

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.array.__array_interface__, **self.entries}


def test_the_array_interface_works_both_ways() -> None:
    array = np.arange(12.0).reshape(3, 4)
    view = cuda.as_cuda_array(Foreign(array[:, ::2]))
    view[0] = -1
    assert array[0].tolist() == [-1, 1, -1, 3]
    assert cuda.is_cuda_array(view)
    stream = cuda.stream()
    described = cuda.to_device(array, stream=stream).__cuda_array_interface__
    assert described["shape"] == (3, 4)
    assert described["typestr"] == array.dtype.str
    assert described["stream"] == int(stream)
    again = cuda.from_cuda_array_interface(described)
    np.testing.assert_array_equal(again.copy_to_host(), array)


def test_records_are_read_and_written_by_field() -> None:
    dtype = np.dtype([("a", "i4"), ("b", "f8"), ("c", "f4", (3,))])
    expected = np.zeros(4, dtype)
    array = cuda.to_device(expected)
    array[1]["b"] = 2.5
    expected[1]["b"] = 2.5
    array[2]["c"][:] = np.arange(3, dtype=np.float32)
    expected[2]["c"] = np.arange(3)
    np.testing.assert_array_equal(array.copy_to_host(), expected)
    record = cuda.to_device(expected[1])
    record["a"] = 9
    assert record["a"] == 9
    assert record.copy_to_host()[()]["b"] == 2.5


def test_dates_are_copied() -> None:
    dates = np.array(["2020-01-01", "NaT", "2021-03-04"], "M8[D]")
    np.testing.assert_array_equal(cuda.to_device(dates).copy_to_host(), dates)
