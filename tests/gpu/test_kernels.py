from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from nbrt.errors import CompileError, DeviceMismatchError, LaunchError

pytestmark = pytest.mark.gpu

LAYOUTS = {
    "C": lambda array: array,
    "F": lambda array: array.T,
    "every other": lambda array: array[:, ::2],
    # numba-cuda 0.30.4 takes this one for dense: strides of 32 bytes, items of 32 bits.
    "every eighth": lambda array: array[:, ::8],
    "reversed": lambda array: array[::-1, ::-1],
}


@nbrt.kernel
def scale(x, factor, out):  # type: ignore[no-untyped-def]
    i, j = cuda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = x[i, j] * factor


@nbrt.kernel
def count_up(out):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < out.size:
        out[i] += 1


@nbrt.kernel
def reverse_tile(x):  # type: ignore[no-untyped-def]
    tile = cuda.shared.array(0, np.float32)
    i = cuda.threadIdx.x
    n = x.size
    for k in range(i, n, cuda.blockDim.x):
        tile[k] = x[k]
    cuda.syncthreads()
    for k in range(i, n, cuda.blockDim.x):
        x[k] = tile[n - 1 - k]


@nbrt.kernel
def broken(x):  # type: ignore[no-untyped-def]
    x[0] = x.nonsense


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    values = np.arange(16 * 32, dtype=np.float32).reshape(16, 32)
    x = LAYOUTS[layout](nbrt.to(values, "cuda:0"))
    out = nbrt.zeros(x.shape, "float32", device="cuda:0")
    scale[(4, 4), (8, 8)](x, np.float32(2), out)
    np.testing.assert_array_equal(nbrt.to_host(out), LAYOUTS[layout](values) * 2)


@pytest.mark.parametrize(
    "factor",
    [3, 3.0, True, np.int8(3), np.uint16(3), np.int32(3), np.float16(3), np.float32(3)],
    ids=lambda value: type(value).__name__,
)
def test_scalars(factor: Any) -> None:
    x = nbrt.full((8, 8), 2.0, "float64", device="cuda:0")
    out = nbrt.zeros((8, 8), "float64", device="cuda:0")
    scale[1, (8, 8)](x, factor, out)
    assert (nbrt.to_host(out) == 2.0 * float(factor)).all()


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_scalars(dtype: str) -> None:
    factor = np.dtype(dtype).type(1 + 2j)
    x = nbrt.full((4, 4), 2, dtype, device="cuda:0")
    out = nbrt.zeros((4, 4), dtype, device="cuda:0")
    scale[1, (4, 4)](x, factor, out)
    assert (nbrt.to_host(out) == 2 + 4j).all()


def test_packed_and_plain_arguments_agree(cuda_interface: Any) -> None:
    compiler = cuda_interface._get_compiler()
    values = np.random.default_rng(0).random((16, 32), np.float32)
    results = []
    for is_packed in (True, False):
        fresh = nbrt.kernel(cuda.jit(scale.function))
        before, compiler.is_packed = compiler.is_packed, is_packed
        try:
            out = nbrt.zeros((32, 16), "float32", device="cuda:0")
            fresh[(4, 4), (8, 8)](nbrt.to(values, "cuda:0").T, 1.5, out)
        finally:
            compiler.is_packed = before
        results.append(nbrt.to_host(out))
    np.testing.assert_array_equal(*results)


@nbrt.kernel
def add_pair(pair, out):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < out.size:
        out[i] = pair[0][i] + pair[1]


def test_reversed_arrays_of_launches_by_numba() -> None:
    """cuda-core 1.2 refuses the negative strides of the arrays that numba-cuda launches with."""
    values = np.arange(8, dtype=np.float32)
    x, out = nbrt.to(values, "cuda:0"), nbrt.zeros(8, device="cuda:0")
    add_pair[1, 8]((x[::-1], 1.0), out)
    np.testing.assert_array_equal(nbrt.to_host(out), values[::-1] + 1)
    debug = nbrt.kernel(cuda.jit(debug=True, opt=False)(scale.function))
    grid = nbrt.to(values.reshape(2, 4), "cuda:0")
    debug[1, (2, 4)](grid[::-1, ::-1], 2.0, out.reshape(2, 4))
    np.testing.assert_array_equal(nbrt.to_host(out), values[::-1] * 2)


def test_debug_kernels_and_dispatchers_work() -> None:
    debug = nbrt.kernel(cuda.jit(debug=True, opt=False)(count_up.function))
    out = nbrt.zeros(100, "int32", device="cuda:0")
    debug.forall(100)(out)
    assert nbrt.to_host(out).sum() == 100


def test_launches_keep_stream_order() -> None:
    out = nbrt.zeros(1 << 16, "int32", device="cuda:0")
    stream = nbrt.Stream("cuda:0")
    stream.wait_stream(nbrt.default_stream("cuda:0"))
    for _ in range(100):
        count_up.forall(out.size, stream=stream)(out)
    assert (nbrt.to_host(out, stream=stream) == 100).all()


@pytest.mark.parametrize("nbytes", [1024, 48 * 1024, 64 * 1024])
def test_dynamic_shared_memory_above_the_static_limit(nbytes: int) -> None:
    if nbytes > nbrt.get_device_properties("cuda:0").shared_memory_per_block:
        pytest.skip(f"the device has less than {nbytes} bytes of shared memory per block")
    values = np.arange(nbytes // 4, dtype=np.float32)
    x = nbrt.to(values, "cuda:0")
    reverse_tile[1, 256, None, nbytes](x)
    np.testing.assert_array_equal(nbrt.to_host(x), values[::-1])


def test_errors() -> None:
    x = nbrt.zeros(4, device="cuda:0")
    with pytest.raises(LaunchError, match="threads per block"):
        count_up[1, 4096](x)
    with pytest.raises(DeviceMismatchError, match=r"nbrt\.to"):
        count_up[1, 32](np.zeros(4))
    with pytest.raises(CompileError, match=r"test_kernels\.py"):
        broken[1, 32](x)
    count_up[1, 32](x)
    assert nbrt.to_host(x).sum() == 4


def test_launch_in_a_new_thread() -> None:
    out = nbrt.zeros(100, "int32", device="cuda:0")
    count_up.forall(100)(out)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with nbrt.device("cuda:0"):
                count_up.forall(100)(out)
                nbrt.synchronize("cuda:0")
        except BaseException as error:  # noqa: BLE001  # shown in the test's own thread
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failures == []
    assert nbrt.to_host(out).tolist() == [2] * 100


def test_threads_that_first_launch_one_kernel_together() -> None:
    fresh = nbrt.kernel(cuda.jit(count_up.function))
    out = nbrt.zeros(100, "int32", device="cuda:0")
    nbrt.synchronize("cuda:0")
    together = threading.Barrier(4, timeout=60)

    def work(_: int) -> None:
        with nbrt.device("cuda:0"):
            together.wait()
            fresh.forall(100)(out)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    nbrt.synchronize("cuda:0")
    assert nbrt.to_host(out).tolist() == [4] * 100


@pytest.mark.multi_gpu
def test_second_device(second_device: nbrt.Device, cupy: Any) -> None:
    x = nbrt.zeros(10, device=second_device)
    with nbrt.device(second_device):
        count_up.forall(10)(x)
    assert cupy.cuda.runtime.getDevice() == 0
    assert nbrt.to_host(x).sum() == 10
    with pytest.raises(DeviceMismatchError, match="cuda:1"):
        count_up.forall(10)(x)
