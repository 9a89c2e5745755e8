"""Device arrays that kernels capture: their memory is used, as numba-cuda documents it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.processes import output_of
from nbrt.backends.device_arrays import host_view
from nbrt.errors import DeviceMismatchError

if TYPE_CHECKING:
    from pathlib import Path


class DeviceArray:
    """An object with the CUDA array interface over host memory."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.array.__array_interface__, "version": 3}


@cuda.jit(device=True)
def read(i: Any) -> Any:
    return PRICES[i]


PRICES = DeviceArray(np.array([10.0, 25.0, 5.0]))


def launch(kernel: Any, *arguments: Any, threads: int = 1) -> None:
    """Launch a kernel with one block on a CPU device."""
    with nbrt.device("cpu:0"):
        nbrt.kernel(kernel)[1, threads](*arguments)


def test_later_writes_to_a_captured_array_are_seen() -> None:
    @nbrt.kernel
    def kernel(out: Any) -> None:
        i = cuda.grid(1)
        out[i] = read(i) + PRICES[i] * 100 + PRICES.size

    out = np.zeros(3)
    with nbrt.device("cpu:0"):
        for prices in ([10.0, 25.0, 5.0], [20.0, 50.0, 10.0]):
            PRICES.array[:] = prices
            kernel[1, 3](out)
            np.testing.assert_array_equal(out, PRICES.array * 101 + 3)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.int32).reshape(3, 4),
        np.arange(12.0).reshape(4, 3).T,
        np.arange(24.0).reshape(3, 8)[:, ::-2],
        np.arange(12).reshape(3, 4) > 5,
        np.arange(12).reshape(3, 4) * (1 + 2j),
    ],
    ids=["C", "F", "strided", "bool", "complex"],
)
def test_layouts_and_dtypes(array: Any) -> None:
    captured = DeviceArray(array)

    def kernel(out: Any) -> None:
        i, j = cuda.grid(2)
        out[i, j] = captured[i, j]

    out = np.zeros((3, 4), array.dtype)
    with nbrt.device("cpu:0"):
        nbrt.kernel(kernel)[1, (3, 4)](out)
    np.testing.assert_array_equal(out, array)


def test_records_and_arrays_without_dimensions() -> None:
    records = DeviceArray(np.array([(1, 2.5), (3, 4.5)], [("n", np.int64), ("x", np.float64)]))
    single = DeviceArray(np.array(7.0))

    def kernel(out: Any) -> None:
        out[0] = records[1].x + records[0].n
        out[1] = single[()]

    out = np.zeros(2)
    launch(kernel, out)
    np.testing.assert_array_equal(out, [5.5, 7])


def test_kernels_write_into_a_captured_array() -> None:
    captured = DeviceArray(np.zeros(4))

    def kernel() -> None:
        captured[cuda.threadIdx.x] = cuda.threadIdx.x + 1

    launch(kernel, threads=4)
    np.testing.assert_array_equal(captured.array, [1, 2, 3, 4])


def test_another_array_under_the_name_is_taken() -> None:
    captured = DeviceArray(np.array([1.0]))

    @nbrt.kernel
    def kernel(out: Any) -> None:
        out[0] = captured[0]

    out = np.zeros(1)
    with nbrt.device("cpu:0"):
        kernel[1, 1](out)
        captured = DeviceArray(np.array([2.0]))
        kernel[1, 1](out)
    assert out[0] == 2.0


def test_memory_that_the_cpu_cannot_read_is_refused() -> None:
    class OnGpu:
        __cuda_array_interface__ = {  # noqa: RUF012
            "shape": (4,),
            "typestr": "<f8",
            "strides": None,
            "data": (2**46 + 64, False),
            "version": 3,
        }

    captured = OnGpu()
    assert host_view(captured) is None

    def kernel(out: Any) -> None:
        out[0] = captured[0]

    with pytest.raises(DeviceMismatchError, match=r"'captured'.*nbrt.to"):
        launch(kernel, np.zeros(1))


def test_the_address_is_not_stored_on_disk(tmp_path: Path) -> None:
    for _ in range(2):
        done = output_of(_STORED, environment={"NBRT_CACHE_DIR": str(tmp_path / "cache")})
        assert done.split() == ["42.0"]
    assert not list(tmp_path.rglob("*.nbrtc"))


_STORED = """
import numpy as np
import nbrt
from numba import cuda

class DeviceArray:
    def __init__(self, array):
        self.array = array
        self.__cuda_array_interface__ = {**array.__array_interface__, "version": 3}

VALUES = DeviceArray(np.array([42.0]))

@nbrt.kernel
def kernel(out):
    out[0] = VALUES[0]

out = np.zeros(1)
with nbrt.device("cpu:0"):
    kernel[1, 1](out)
print(out[0])
"""


def test_a_captured_tuple_may_hold_device_arrays() -> None:
    first, second = np.array([1.0, 2.0]), np.array([[3, 4]], np.int32)
    pair = DeviceArray(first), DeviceArray(second), 0.5

    def kernel(out: Any) -> None:
        out[0] = pair[0][1] + pair[1][0, 1] + pair[2]

    out = np.zeros(1)
    launch(kernel, out)
    assert out[0] == 6.5
