# mypy: disable-error-code="no-untyped-def"
"""Exceptions of kernels name the thread and block that raised them."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda, int32

import nbrt
from helpers.lowerings import force
from nbrt.backends.cpu.block_scheduler import get_num_threads, set_num_threads
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.errors import ArgumentTypeError


def plain(o, x):
    i, j = cuda.grid(2)
    if x[j, i] == 77:
        raise ValueError("seventy-seven")
    o[j, i] = x[j, i]


def waiting(o, x):
    s = cuda.shared.array((4, 8), int32)
    i, j = cuda.grid(2)
    s[cuda.threadIdx.y, cuda.threadIdx.x] = x[j, i]
    cuda.syncthreads()
    if s[cuda.threadIdx.y, cuda.threadIdx.x] == 77:
        raise ValueError("seventy-seven")
    cuda.syncthreads()
    o[j, i] = s[3 - cuda.threadIdx.y, cuda.threadIdx.x]


@pytest.fixture(params=[1, 4])
def threads(request: pytest.FixtureRequest):
    before = get_num_threads()
    set_num_threads(request.param)
    yield request.param
    set_num_threads(before)


@pytest.mark.parametrize("grid", [(1, 1, 1), (3, 2, 1)], ids=["direct", "several blocks"])
@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        (plain, "lanes"),
        (waiting, "lanes"),
        (waiting, "coroutines"),
    ],
    ids=["threads", "lanes", "coroutines"],
)
def test_a_note_names_the_block_and_the_thread(kernel, kind, grid, threads) -> None:
    x = np.ones((4 * grid[1], 8 * grid[0]), np.int32)
    thread, block = (5, 2, 0), (grid[0] - 1, grid[1] - 1, 0)
    x[block[1] * 4 + thread[1], block[0] * 8 + thread[0]] = 77
    with force(kind):
        plan = CpuProgram(kernel, cache=False).plan(0, grid, (8, 4, 1))
    for _ in range(3):  # the first of several blocks is timed, the next launches go by that
        with force(kind), pytest.raises(ValueError, match="seventy-seven") as caught:
            plan(np.zeros_like(x), x)
        assert caught.value.__notes__ == [f"in block {block}, thread {thread}"]
    # A launch without a fault leaves no note to the next error, which is not the kernel's.
    with pytest.raises(ArgumentTypeError) as refused:
        plan(x)
    assert not hasattr(refused.value, "__notes__")


def test_a_launch_shared_between_os_threads_names_the_thread() -> None:
    before = get_num_threads()
    set_num_threads(4)
    try:
        x = np.ones((4 * 500, 8 * 50), np.int32)
        plan = CpuProgram(waiting, cache=False).plan(0, (50, 500, 1), (8, 4, 1))
        plan(np.zeros_like(x), x)
        x[4 * 321 + 3, 8 * 40 + 7] = 77
        with pytest.raises(ValueError, match="seventy-seven") as caught:
            plan(np.zeros_like(x), x)
    finally:
        set_num_threads(before)
    assert caught.value.__notes__ == ["in block (40, 321, 0), thread (7, 3, 0)"]


@pytest.mark.parametrize("grid", [(1, 1), (3, 2)], ids=["direct", "several blocks"])
def test_launches_of_the_runtime_bear_the_note_once(grid) -> None:
    kernel = nbrt.kernel(waiting)
    with nbrt.device("cpu"):
        x = np.ones((4 * grid[1], 8 * grid[0]), np.int32)
        x[1, 6] = 77
        with pytest.raises(ValueError, match="seventy-seven") as caught:
            kernel[grid, (8, 4)](np.zeros_like(x), x)
    assert caught.value.__notes__ == ["in block (0, 0, 0), thread (6, 1, 0)"]


def test_launches_on_a_stream_bear_the_note() -> None:
    kernel = nbrt.kernel(waiting)
    x = np.ones((8, 24), np.int32)
    x[5, 17] = 77
    with nbrt.device("cpu"):
        stream = nbrt.Stream()
        with nbrt.stream(stream):
            kernel[(3, 2), (8, 4)](np.zeros_like(x), x)
        with pytest.raises(nbrt.errors.StreamError) as caught:
            stream.synchronize()
    cause = caught.value.__cause__
    assert isinstance(cause, ValueError)
    assert cause.__notes__ == ["in block (2, 1, 0), thread (1, 1, 0)"]
