"""Static shared memory has the limit that CUDA sets, alone and beside dynamic memory."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from numba import cuda

import nbrt
from nbrt.errors import KernelCheckError, LaunchError

LIMIT = 48 * 1024


@cuda.jit(device=True)
def tile_of_32_kib(t: Any) -> Any:
    tile = cuda.shared.array(8192, numba.float32)
    tile[t] = t
    cuda.syncthreads()
    return tile[7 - t]


def exactly(y: Any) -> None:
    tile = cuda.shared.array(6144, numba.float64)
    t = cuda.threadIdx.x
    tile[t] = t
    y[t] = tile[t]


def one_more(y: Any) -> None:
    tile = cuda.shared.array(6145, numba.float64)
    t = cuda.threadIdx.x
    tile[t] = t
    y[t] = tile[t]


def two_arrays(y: Any) -> None:
    first = cuda.shared.array((64, 64), numba.float64)
    second = cuda.shared.array((64, 64), numba.float64)
    t = cuda.threadIdx.x
    first[t, 0] = t
    second[t, 0] = 1
    y[t] = first[t, 0] + second[t, 0]


def with_a_device_function(y: Any) -> None:
    tile = cuda.shared.array(8192, numba.float32)
    t = cuda.threadIdx.x
    tile[t] = 1
    y[t] = tile_of_32_kib(t) + tile[t]


def two_calls_of_one_function(y: Any) -> None:
    t = cuda.threadIdx.x
    y[t] = tile_of_32_kib(t)
    cuda.syncthreads()
    y[t] += tile_of_32_kib(t)


def with_dynamic(y: Any) -> None:
    tile = cuda.shared.array(5120, numba.float64)  # 40 KiB
    more = cuda.shared.array(0, numba.float64)
    t = cuda.threadIdx.x
    tile[t] = 1
    more[t] = t
    y[t] = tile[t] + more[t]


def launched(kernel: Any, shared: int = 0, *, check: bool = False, grid: int = 1) -> np.ndarray:
    y = np.zeros(8)
    with nbrt.device("cpu:0"):
        nbrt.kernel(check=check)(kernel)[grid, 8, None, shared](y)
    return y


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (exactly, np.arange(8)),
        # A function has its array once, as on CUDA, however often it is called.
        (two_calls_of_one_function, 2 * np.arange(7, -1, -1)),
    ],
)
@pytest.mark.parametrize("check", [False, True])
def test_up_to_the_limit_it_is_accepted(kernel: Any, expected: np.ndarray, check: bool) -> None:
    np.testing.assert_array_equal(launched(kernel, check=check), expected)


@pytest.mark.parametrize(
    ("kernel", "total"),
    [(one_more, LIMIT + 8), (two_arrays, 65536), (with_a_device_function, 65536)],
)
def test_beyond_the_limit_it_is_refused_as_dynamic_memory_is(kernel: Any, total: int) -> None:
    with pytest.raises(LaunchError, match=f"at most {LIMIT} bytes of shared memory .* got {total}"):
        launched(kernel, total)
    with pytest.raises(LaunchError) as caught:
        launched(kernel)
    message = str(caught.value)
    assert f"at most {LIMIT} bytes of static shared memory per block" in message
    assert f"got {total} bytes" in message
    assert f"{__file__}:" in message
    assert "cuda.shared.array(0, ...)" in message


@pytest.mark.parametrize(
    ("kernel", "total"),
    [(one_more, LIMIT + 8), (two_arrays, 65536), (with_a_device_function, 65536)],
)
def test_checked_mode_reports_it_with_block_and_thread(kernel: Any, total: int) -> None:
    with pytest.raises(KernelCheckError) as caught:
        launched(kernel, check=True)
    (report,) = caught.value.reports
    assert (report.kind, report.block, report.thread) == ("limits", (0, 0, 0), (0, 0, 0))
    assert report.message.startswith(f"{total} bytes of static shared memory, where {LIMIT} is")
    assert "cuda.shared.array(" in report.source
    assert "thread (0, 0, 0) of block (0, 0, 0)" in str(caught.value)


@pytest.mark.parametrize("grid", [1, 3])
def test_static_and_dynamic_memory_share_the_limit(grid: int) -> None:
    if grid == 1:
        np.testing.assert_array_equal(launched(with_dynamic, 8192), np.arange(8) + 1)
    with pytest.raises(LaunchError, match="at most 8192 bytes of dynamic shared memory beside"):
        launched(with_dynamic, 8193, grid=grid)
    with pytest.raises(KernelCheckError) as caught:
        launched(with_dynamic, 8193, check=True, grid=grid)
    assert [report.kind for report in caught.value.reports] == ["limits"]
