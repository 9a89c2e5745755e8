# mypy: disable-error-code="no-untyped-def"
"""Lanes: strips of neighbouring blocks that run in step, and kernels that keep single blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda, float32, int32

from helpers.lowerings import agree, run
from nbrt.backends.cpu.block_scheduler import get_num_threads, set_num_threads
from nbrt.backends.cpu.simt.lanes import block_strips
from nbrt.backends.cpu.simt.runtime.inspection import CpuCode

if TYPE_CHECKING:
    from collections.abc import Iterator

SHAPES = [(16, 16), (8, 8), (4, 8), (32, 3), (8, 5), (16, 3, 2), (5, 4)]
WIDTHS = [1, 7, 64, 150]


def shared_kernel(o, x):
    """Neighbours from shared memory, an average, and the index of the block."""
    tile = cuda.shared.array((16, 34), float32)
    sums = cuda.shared.array(16, float32)
    i, j = cuda.grid(2)
    t = cuda.threadIdx
    height, width = x.shape
    tx = t.x + 1
    here = x[min(j, height - 1), min(i, width - 1)]
    if t.z == 0:
        tile[t.y, tx] = here
        if t.x == 0:
            tile[t.y, 0] = x[min(j, height - 1), min(max(i - 1, 0), width - 1)]
        if t.x == cuda.blockDim.x - 1:
            tile[t.y, tx + 1] = x[min(j, height - 1), min(i + 1, width - 1)]
    cuda.syncthreads()
    if t.x == 0 and t.z == 0:
        total = float32(0)
        for k in range(cuda.blockDim.x):
            total += tile[t.y, k + 1]
        sums[t.y] = total
    kept = here * 3 + cuda.blockIdx.x
    cuda.syncthreads()
    if i < width and j < height and t.z == 0:
        o[j, i] = tile[t.y, tx - 1] - tile[t.y, tx + 1] + kept + sums[t.y]


def expected_of(x: Any, block: Any) -> tuple[Any, tuple[int, int]]:
    width, height = block[0], block[1]
    rows, columns = x.shape
    across, down = -(-columns // width), -(-rows // height)
    wide = np.pad(x, ((0, down * height - rows), (0, across * width - columns)), mode="edge")
    sums = wide.reshape(wide.shape[0], across, width).sum(2).repeat(width, 1)
    near = np.pad(x, ((0, 0), (1, 1)), mode="edge")
    index = np.arange(columns) // width
    result = near[:, :-2] - near[:, 2:] + x * 3 + index + sums[:rows, :columns]
    return result.astype(np.float32), (across, down)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("block", SHAPES, ids=str)
def test_strips_are_blocks(block, width) -> None:
    # Strips of three blocks: whole ones, a part of one, and blocks at the edges.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_strips, "_MAX_STRIP", 3)
        x = np.random.default_rng(width).integers(0, 9, (2 * block[1] + 1, width))
        x = x.astype(np.float32)
        expected, grid = expected_of(x, block)
        agree(shared_kernel, grid, block, np.zeros_like(x), x, expected=expected)


@pytest.fixture
def _one_os_thread() -> Iterator[None]:
    """Blocks run in order: those on several OS threads may take their tickets in any order."""
    before = get_num_threads()
    set_num_threads(1)
    yield
    set_num_threads(before)


def reasons_of(kernel: Any, *args: Any, block: Any = (16, 16, 1)) -> tuple[str, ...]:
    return CpuCode(kernel, args, block).lowering.reasons


def is_strip(reasons: tuple[str, ...]) -> bool:
    return any("neighbouring blocks run in step" in reason for reason in reasons)


def test_inspection_tells_of_strips() -> None:
    x = np.zeros((4, 4), np.float32)
    assert is_strip(reasons_of(shared_kernel, x, x))
    assert not is_strip(reasons_of(shared_kernel, x, x, block=(33, 4, 1)))
    assert not is_strip(reasons_of(shared_kernel, x, x, block=(32, 1, 1)))


def stops_kernel(o, x):
    tile = cuda.shared.array(256, float32)
    i, j = cuda.grid(2)
    t = cuda.threadIdx.y * 16 + cuda.threadIdx.x
    tile[t] = x[j, i]
    cuda.syncthreads()
    # Blocks wait a different number of times.
    for k in range(cuda.blockIdx.x):
        value = tile[255 - t]
        cuda.syncthreads()
        tile[t] = value + k
        cuda.syncthreads()
    o[j, i] = tile[t]


def some_wait_kernel(o, x):
    tile = cuda.shared.array(256, float32)
    i, j = cuda.grid(2)
    t = cuda.threadIdx.y * 16 + cuda.threadIdx.x
    tile[t] = x[j, i]
    if cuda.blockIdx.x % 2 == 0:
        cuda.syncthreads()
        o[j, i] = tile[255 - t]
    else:
        o[j, i] = -tile[t]


def sum_kernel(o, x, total):
    tile = cuda.shared.array(256, float32)
    i, j = cuda.grid(2)
    t = cuda.threadIdx.y * 16 + cuda.threadIdx.x
    tile[t] = x[j, i]
    cuda.syncthreads()
    cuda.atomic.add(total, 0, tile[255 - t])
    o[j, i] = tile[255 - t]


def ticket_kernel(o, x, count):
    tile = cuda.shared.array(256, float32)
    i, j = cuda.grid(2)
    t = cuda.threadIdx.y * 16 + cuda.threadIdx.x
    tile[t] = x[j, i]
    cuda.syncthreads()
    o[j, i] = tile[255 - t] + cuda.atomic.add(count, 0, 1)


def votes_kernel(o, x):
    i, j = cuda.grid(2)
    o[j, i] = cuda.syncthreads_count(x[j, i] > 4) + x[j, i]


def dynamic_kernel(o, x):
    tile = cuda.shared.array(0, float32)
    i, j = cuda.grid(2)
    t = cuda.threadIdx.y * 16 + cuda.threadIdx.x
    tile[t] = x[j, i]
    cuda.syncthreads()
    o[j, i] = tile[255 - t]


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (stops_kernel, "a barrier is in a loop"),
        (some_wait_kernel, "some threads may return before others wait"),
        (sum_kernel, "the order of blocks may matter"),
        (ticket_kernel, "the order of blocks may matter"),
        (votes_kernel, "a barrier counts the threads"),
        (dynamic_kernel, "the order of blocks may matter (nbrt.shared.dynamic)"),
    ],
)
@pytest.mark.usefixtures("_one_os_thread")
def test_blocks_that_run_one_by_one(kernel, reason) -> None:
    x = np.random.default_rng(2).integers(0, 9, (32, 64)).astype(np.float32)
    more = {sum_kernel: (np.zeros(1, np.float32),), ticket_kernel: (np.zeros(1, np.int32),)}
    args = np.zeros_like(x), x, *more.get(kernel, ())
    reasons = reasons_of(kernel, *args)
    assert not is_strip(reasons)
    assert any("one by one" in text and reason in text for text in reasons)
    agree(kernel, (4, 2), (16, 16), *args, shared=1024 * (kernel is dynamic_kernel))


def counts_kernel(o, counts, largest, x):
    tile = cuda.shared.array(256, int32)
    i, j = cuda.grid(2)
    t = cuda.threadIdx.y * 16 + cuda.threadIdx.x
    tile[t] = x[j, i]
    cuda.syncthreads()
    value = tile[255 - t]
    cuda.atomic.add(counts, value, 1)
    cuda.atomic.max(largest, 0, value * (cuda.blockIdx.x + 1))
    o[j, i] = value


def test_atomic_operations_of_any_order() -> None:
    x = np.random.default_rng(4).integers(0, 9, (32, 160)).astype(np.int32)
    o, counts, largest = np.zeros_like(x), np.zeros(9, np.int32), np.zeros(1, np.int32)
    assert is_strip(reasons_of(counts_kernel, o, counts, largest, x))
    agree(counts_kernel, (10, 2), (16, 16), o, counts, largest, x)
    _, found, top, _ = run("lanes", counts_kernel, (10, 2), (16, 16), o, counts, largest, x)
    np.testing.assert_array_equal(found, np.bincount(x.ravel(), minlength=9))
    index = np.arange(160) // 16 + 1
    assert top[0] == (x.reshape(32, 10, 16).max((0, 2)) * index[::16]).max()


def big_kernel(o, x):
    tile = cuda.shared.array(10240, float32)
    i, j = cuda.grid(2)
    t = cuda.threadIdx.y * 16 + cuda.threadIdx.x
    tile[t], tile[t + 9984] = x[j, i], x[j, i] + t
    cuda.syncthreads()
    o[j, i] = tile[255 - t] + tile[10239 - t]


def test_strips_of_blocks_with_much_shared_memory() -> None:
    # Of blocks with 40 KiB, three fit.
    x = np.random.default_rng(5).integers(0, 9, (32, 128)).astype(np.float32)
    reasons = reasons_of(big_kernel, np.zeros_like(x), x)
    assert any("up to 3 neighbouring blocks" in reason for reason in reasons)
    agree(big_kernel, (8, 2), (16, 16), np.zeros_like(x), x)
