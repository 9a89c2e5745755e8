# mypy: disable-error-code="no-untyped-def"
"""Lanes: stores of whole cache lines to large arrays, which bypass the caches."""

from __future__ import annotations

import platform
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda, float32

from helpers.lowerings import dim3, force
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.cpu.simt.lanes.accesses import streaming
from nbrt.backends.cpu.simt.processor import Processor
from nbrt.backends.cpu.simt.runtime.inspection import CpuCode

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="stores and fences of x86-64"
)

LINE = 64


@pytest.fixture(autouse=True)
def any_size() -> Iterator[None]:
    """Arrays of any size count as large, on any processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "_MIN_BYTES", 1)
        patch.setattr(Processor, "has_fast_streaming", True)
        yield


def array_at(offset: int, shape: Any, dtype: Any) -> Any:
    """Return an array that begins some bytes after the start of a cache line."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + 2 * LINE, np.uint8)
    start = -raw.ctypes.data % LINE + offset
    return raw[start : start + nbytes].view(dtype).reshape(shape)


@lru_cache(maxsize=4)
def program_of(kernel: Any, min_bytes: int) -> CpuProgram:
    """Return the program of a kernel for one least size of arrays, which is compiled into it."""
    return CpuProgram(kernel, cache=False)


def launch(kernel: Any, grid: Any, block: Any, *args: Any) -> None:
    program = program_of(kernel, streaming._MIN_BYTES)
    with force("lanes"):
        program.plan(0, dim3(grid), dim3(block), 0)(*args)


def streams(kernel: Any, *args: Any, obstacle: str = "") -> bool:
    """Return whether stores may bypass the caches; else, the reasons must say why."""
    code = CpuCode(kernel, args, (32, 4, 1))
    reasons = code.lowering.reasons
    noted = any("to o bypass caches if" in reason for reason in reasons)
    assert noted == ("!nontemporal" in code.llvm) == ("sfence" in code.asm)
    assert noted or f"stores to o go through the caches {obstacle}" in reasons
    return noted


def march_kernel(o, x):
    """Neighbours in a plane, plane by plane."""
    plane = cuda.shared.array((4, 34), x.dtype)
    i, j = cuda.grid(2)
    depth, height, width = x.shape
    tx, ty = cuda.threadIdx.x + 1, cuda.threadIdx.y
    ii, jj = min(i, width - 1), min(j, height - 1)
    for k in range(depth):
        plane[ty, tx] = x[k, jj, ii]
        if tx == 1:
            plane[ty, 0] = x[k, jj, min(max(i - 1, 0), width - 1)]
        if tx == 32:
            plane[ty, 33] = x[k, jj, min(i + 1, width - 1)]
        cuda.syncthreads()
        if i < width and j < height:
            o[k, j, i] = plane[ty, tx - 1] + plane[ty, tx + 1] - plane[ty, tx]
        cuda.syncthreads()


@pytest.mark.parametrize("offset", [0, 4, 32, 60])
@pytest.mark.parametrize("size", [(5, 8, 64), (1, 1, 1), (4, 7, 65), (3, 4, 31), (3, 9, 80)])
def test_lines_that_begin_anywhere(size, offset) -> None:
    x = np.random.default_rng(5).integers(0, 99, size).astype(np.float32)
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1)), mode="edge")
    out = array_at(offset, size, np.float32)
    around = out.base.copy()
    launch(march_kernel, (-(-size[2] // 32), -(-size[1] // 4)), (32, 4), out, x)
    np.testing.assert_array_equal(out, wide[:, :, :-2] + wide[:, :, 2:] - x)
    out[...] = 0
    np.testing.assert_array_equal(out.base, around)


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32, np.int16, np.uint8])
def test_other_types(dtype) -> None:
    x = np.random.default_rng(6).integers(0, 9, (4, 9, 96)).astype(dtype)
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1)), mode="edge")
    out = array_at(0, x.shape, dtype)
    launch(march_kernel, (3, 3), (32, 4), out, x)
    np.testing.assert_array_equal(out, wide[:, :, :-2] + wide[:, :, 2:] - x)
    # 32 bytes are no line.
    obstacle = "where a vector does not cover whole lines of 64 bytes"
    assert streams(march_kernel, out, x, obstacle=obstacle) == (dtype != np.uint8)


@pytest.mark.parametrize("block", [(16, 16), (32, 8), (64, 2), (10, 3), (33, 2), (128, 1)], ids=str)
def test_other_blocks(block) -> None:
    width, height, _ = dim3(block)
    x = np.random.default_rng(7).random((3 * height, 4 * width)).astype(np.float32)
    out = array_at(0, x.shape, np.float32)
    launch(turned_kernel, (4, 3), block, out, x)
    tiles = x.reshape(3, height, 4, width).transpose(0, 2, 1, 3).reshape(3, 4, -1)[:, :, ::-1]
    expected = tiles.reshape(3, 4, height, width).transpose(0, 2, 1, 3).reshape(x.shape)
    np.testing.assert_array_equal(out, expected)


def turned_kernel(o, x):
    tile = cuda.shared.array(512, float32)
    i, j = cuda.grid(2)
    t = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    last = cuda.blockDim.x * cuda.blockDim.y - 1
    tile[t] = x[j, i]
    cuda.syncthreads()
    o[j, i] = tile[last - t]


def rows_kernel(o, x):
    """A loop of each block over a row, in steps of the block."""
    total = cuda.shared.array(1, float32)
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    if t == 0:
        total[0] = x[row, 0]
    cuda.syncthreads()
    for k in range(t, x.shape[1], cuda.blockDim.x):
        o[row, k] = x[row, k] - total[0]


@pytest.mark.parametrize("columns", [256, 250, 64, 7])
def test_rows(columns) -> None:
    x = np.random.default_rng(columns).random((5, columns)).astype(np.float32)
    out = array_at(0, x.shape, np.float32)
    launch(rows_kernel, 5, 64, out, x)
    np.testing.assert_array_equal(out, x - x[:, :1])


def strided_kernel(o, x):
    """A grid-stride loop."""
    first = cuda.shared.array(1, float32)
    if cuda.threadIdx.x == 0:
        first[0] = x[0]
    cuda.syncthreads()
    for k in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        o[k] = x[k] - first[0]


@pytest.mark.parametrize("size", [1, 31, 1000, 1024])
def test_grid_stride_loops(size) -> None:
    x = np.random.default_rng(size).random(size).astype(np.float32)
    for offset in (0, 4):
        out = array_at(offset, x.shape, np.float32)
        launch(strided_kernel, 2, 64, out, x)
        np.testing.assert_array_equal(out, x - x[0])


@pytest.mark.parametrize("height", [8, 16, 64])
def test_arrays_below_and_above_the_least_size(height) -> None:
    x = np.random.default_rng(8).random((height, 64)).astype(np.float32)
    out = array_at(0, x.shape, np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "_MIN_BYTES", 16 * 64 * 4)
        launch(turned_kernel, (2, height // 4), (32, 4), out, x)
    tiles = x.reshape(-1, 4, 2, 32)[:, ::-1, :, ::-1]
    np.testing.assert_array_equal(out, tiles.reshape(x.shape))


def reads_kernel(o, x):
    tile = cuda.shared.array(512, float32)
    i, j = cuda.grid(2)
    t = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    tile[t] = x[j, i]
    cuda.syncthreads()
    o[j, i] += tile[127 - t]


def twice_kernel(o, x):
    tile = cuda.shared.array(512, float32)
    i, j = cuda.grid(2)
    t = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    tile[t] = x[j, i]
    o[j, i] = tile[t] + 1
    cuda.syncthreads()
    o[j, i] = tile[127 - t]


def repeats_kernel(o, x):
    tile = cuda.shared.array(512, float32)
    i, j = cuda.grid(2)
    t = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    for k in range(x.shape[0]):
        tile[t] = x[k, i]
        cuda.syncthreads()
        o[j, i] = tile[127 - t]
        cuda.syncthreads()


def fence_kernel(o, x):
    tile = cuda.shared.array(512, float32)
    i, j = cuda.grid(2)
    t = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    tile[t] = x[j, i]
    cuda.syncthreads()
    o[j, i] = tile[127 - t]
    cuda.threadfence()


def columns_kernel(o, x):
    tile = cuda.shared.array(512, float32)
    i, j = cuda.grid(2)
    t = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    tile[t] = x[j, i]
    cuda.syncthreads()
    o[i, j] = tile[127 - t]


@pytest.mark.parametrize(
    ("kernel", "obstacle"),
    [
        (reads_kernel, "as the kernel reads it"),
        (twice_kernel, "as the kernel stores to it at several places"),
        (repeats_kernel, "as a loop may store to the same line again"),
        (fence_kernel, "as fences, ordered operations or calls may order them"),
        (columns_kernel, "where threads in a row do not store to neighbouring elements"),
    ],
)
def test_kernels_that_keep_other_stores(kernel, obstacle) -> None:
    x = np.zeros((64, 64), np.float32)
    assert streams(turned_kernel, x, x)
    assert not streams(kernel, x, x, obstacle=obstacle)


def test_no_stores_bypass_the_caches_on_other_processors() -> None:
    x = np.zeros((8, 64), np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Processor, "has_fast_streaming", False)
        obstacle = "as others may be slow on this processor"
        assert not streams(turned_kernel, x, x, obstacle=obstacle)
