"""Arguments of launches of numba-cuda's kernels on CPU devices: host memory behaves as copied."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from numba import cuda

import nbrt

pytestmark = pytest.mark.usefixtures("installed")

Pair = namedtuple("Pair", "first second")
POINT = np.dtype([("x", "f8"), ("n", "i4")])


@pytest.fixture(scope="module")
def add() -> Any:
    @cuda.jit
    def add(out: Any, x: Any) -> None:
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i] + 1

    return add


def copied(kernel: Any, first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> None:
    """Launch as a GPU does: copy each argument in, then out, in their order."""
    arrays = [cuda.to_device(np.ascontiguousarray(each)) for each in (first, second)]
    kernel[1, 64](*arrays)
    for host, device in zip((first, second), arrays, strict=True):
        host[...] = device.copy_to_host()


@pytest.mark.parametrize("parts", [(slice(0, 6), slice(0, 6)), (slice(0, 6), slice(2, 8))], ids=str)
def test_arguments_that_share_memory_behave_as_copies(add: Any, parts: Any) -> None:
    found, expected = np.arange(8.0), np.arange(8.0)
    add[1, 64](found[parts[0]], found[parts[1]])
    copied(add, expected[parts[0]], expected[parts[1]])
    np.testing.assert_array_equal(found, expected)


def test_hints_copy_as_their_names_say(add: Any) -> None:
    x = np.arange(4.0)
    add[1, 64](cuda.In(x), np.ones(4))
    assert x.tolist() == [0, 1, 2, 3]
    add[1, 64](cuda.Out(x), cuda.In(np.ones(4)))
    assert x.tolist() == [2] * 4
    add[1, 64](cuda.InOut(x), cuda.In(x))
    assert x.tolist() == [3] * 4


def test_read_only_arrays_and_arrays_with_gaps(add: Any) -> None:
    fixed = np.arange(4.0)
    fixed.flags.writeable = False
    out = np.zeros((4, 3))
    add[1, 64](out[:, 1], fixed)
    assert out.tolist() == [[0, i + 1, 0] for i in range(4)]
    add[1, 64](out[::-1, 2], fixed)
    assert out[:, 2].tolist() == [4, 3, 2, 1]


def test_a_launch_with_host_arrays_is_done_when_it_returns(add: Any) -> None:
    out = np.zeros(100_000)
    add[1024, 128, cuda.stream()](out, np.arange(100_000.0))
    assert out[-1] == 100_000


def test_records_and_structured_scalars_come_back() -> None:
    @cuda.jit
    def change(point: Any, points: Any) -> None:
        point.n += 1
        point.x = 2.5
        points[0].n = point.n

    points = np.zeros(3, POINT)
    change[1, 1](points[1], points[2:])
    assert points.tolist() == [(0.0, 0), (2.5, 1), (0.0, 1)]


def test_tuples_of_arrays(add: Any) -> None:
    @cuda.jit
    def add_pair(pair: Any, scale: Any) -> None:
        i = cuda.grid(1)
        if i < pair[0].size:
            pair[0][i] = pair[1][i] * scale

    out = np.zeros(3)
    add_pair[1, 32](Pair(out, cuda.to_device(np.arange(3.0))), 2)
    assert out.tolist() == [0, 2, 4]
    add_pair[1, 32]((out, out), 2)
    assert out.tolist() == [0, 2, 4]  # the second copy comes back last


class Foreign:
    """Host memory with the CUDA array interface."""

    def __init__(self, array: Any, **entries: Any) -> None:
        self.__cuda_array_interface__ = {**array.__array_interface__, **entries}
        self.array = array


def test_objects_with_the_array_interface_are_used_in_place(add: Any) -> None:
    target = np.zeros((4, 2))
    add[1, 64](Foreign(target[:, 1]), Foreign(np.arange(4.0), stream=int(cuda.stream())))
    assert target[:, 1].tolist() == [1, 2, 3, 4]
    with pytest.raises(NotImplementedError, match="Masked"):
        add[1, 64](Foreign(target[:, 1], mask=np.ones(4)), target[:, 0])


def test_memory_that_the_processor_cannot_read_is_refused(add: Any) -> None:
    from numba.cuda.cudadrv.driver import CudaAPIError

    with pytest.raises(CudaAPIError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        add[1, 64](Foreign(np.zeros(4), data=(1 << 46, False)), np.zeros(4))


def test_arrays_of_nbrt_and_views_of_cuda_core(add: Any) -> None:
    from cuda.core import Buffer
    from cuda.core.utils import StridedMemoryView

    out = nbrt.zeros(4, "float64", device="cpu:0")
    add[1, 64](out, nbrt.full(4, 2.0, "float64", device="cpu:0"))
    cuda.synchronize()
    assert out.tolist() == [3] * 4
    values = np.arange(8.0)
    view = StridedMemoryView.from_dlpack(values, stream_ptr=-1)
    add[1, 64](out, view)
    cuda.synchronize()
    assert out.tolist() == [1, 2, 3, 4]
    buffer = Buffer.from_handle(values[4:].ctypes.data, size=4)
    count = np.zeros(4, np.uint8)
    add[1, 64](count, buffer)
    np.testing.assert_array_equal(count, values[4:].view(np.uint8)[:4] + 1)


def test_arrays_of_other_libraries_by_dlpack(add: Any) -> None:
    class Exported:
        def __init__(self, array: Any) -> None:
            self.array = array

        def __dlpack__(self, **keywords: Any) -> Any:
            return self.array.__dlpack__(**keywords)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    out = np.zeros(4)
    add[1, 64, cuda.stream()](Exported(out), Exported(np.arange(4.0)))
    assert out.tolist() == [1, 2, 3, 4]


def test_the_copies_of_a_gpu_are_warned_of_on_request(
    add: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from numba.cuda.core import config
    from numba.cuda.core.errors import NumbaPerformanceWarning

    monkeypatch.setattr(config, "CUDA_WARN_ON_IMPLICIT_COPY", 1)
    with pytest.warns(NumbaPerformanceWarning, match="copy overhead"):
        add[1, 64](np.zeros(4), cuda.to_device(np.zeros(4)))


def test_constant_memory() -> None:
    table = np.arange(8, dtype=np.int32)

    @cuda.jit
    def read(out: Any) -> None:
        i = cuda.grid(1)
        constant = cuda.const.array_like(table)
        out[i] = constant[7 - i]

    out = np.zeros(8, np.int32)
    read[1, 8](out)
    assert out.tolist() == table[::-1].tolist()


@pytest.mark.parametrize("is_on_stream", [False, True])
def test_a_kernel_with_debug_that_raises_leaves_host_arrays_alone(*, is_on_stream: bool) -> None:
    @cuda.jit(debug=True, opt=False)
    def fail(x: Any) -> None:
        x[0] = 5
        if x[1] == 0:
            raise ValueError("zero")

    x = np.zeros(2)
    with pytest.raises(ValueError, match=r"tid=\[0, 0, 0\] ctaid=\[0, 0, 0\]: zero"):
        fail[1, 1, cuda.stream() if is_on_stream else 0](x)
    assert x.tolist() == [0, 0]
    x[1] = 1
    fail[1, 1](x)
    assert x.tolist() == [5, 1]


def test_a_launch_on_a_stream_that_waits_raises_the_error_of_the_driver(fail: Any) -> None:
    from numba.cuda.cudadrv.driver import CudaAPIError

    with pytest.raises(CudaAPIError, match="CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
        fail[1, 1, cuda.stream()](np.zeros(2))
    assert isinstance(caught.value.__cause__, nbrt.errors.KernelCheckError)


def test_configurations_that_no_device_has_are_errors_of_the_driver(add: Any) -> None:
    from numba.cuda.cudadrv.driver import CudaAPIError

    for configuration in ((1, 1025), (1 << 31, 1), (1, (1, 1, 65))):
        with pytest.raises(CudaAPIError, match="CUDA_ERROR_INVALID_VALUE") as caught:
            add[configuration](np.zeros(2), np.zeros(2))
        assert isinstance(caught.value, nbrt.errors.LaunchError)
        assert caught.value.code.value == 1


def test_host_array_passed_twice_keeps_its_layout() -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    out = np.zeros((2, 3))

    @cuda.jit("void(float64[::1, :], float64[::1, :], float64[:, ::1])")
    def add(x, y, z):
        for i in range(2):
            for j in range(3):
                z[i, j] = x[i, j] + y[i, j]

    add[1, 1](array, array, out)
    np.testing.assert_array_equal(out, 2 * array)
