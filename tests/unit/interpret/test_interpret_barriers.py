"""Kernels in plain Python: barriers, shared memory, warps, atomics, against NumPy."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, int32

from helpers.clocks import HANG_TIMEOUT
from nbrt.backends.cpu.interpret import interpret
from nbrt.errors import KernelError

N = 64
ONE = (1, 1, 1)
FULL = 0xFFFFFFFF
NAN = float("nan")


def run(kernel: Any, *args: Any, grid: int = 1, block: int = N, shared: int = 0) -> None:
    interpret(kernel, (grid, 1, 1), (block, 1, 1), shared, args)


@pytest.fixture
def out() -> Any:
    return np.zeros(N, np.int64)


# -- the barrier patterns that other systems get wrong -------------------------------------------


def return_early(out: Any, n: Any) -> None:
    tile = cuda.shared.array(N, int32)
    t = cuda.threadIdx.x
    if t >= n:
        return
    tile[t] = t
    cuda.syncthreads()
    out[t] = tile[n - 1 - t]


def uniform_if(out: Any, n: Any) -> None:
    tile = cuda.shared.array(N, int32)
    t = cuda.threadIdx.x
    tile[t] = t
    if n > 3:
        cuda.syncthreads()
        out[t] = tile[(t + 1) % N]


def both_arms(out: Any, n: Any) -> None:
    tile = cuda.shared.array(N, int32)
    t = cuda.threadIdx.x
    tile[t] = t
    if t < n:
        cuda.syncthreads()
        out[t] = tile[N - 1 - t]
    else:
        cuda.syncthreads()
        out[t] = -tile[N - 1 - t]


def uniform_loop(out: Any, n: Any) -> None:
    tile = cuda.shared.array(N, int32)
    t = cuda.threadIdx.x
    tile[t] = t
    for _ in range(n):
        cuda.syncthreads()
        value = tile[(t + 1) % N]
        cuda.syncthreads()
        tile[t] = value
    out[t] = tile[t]


def trips_of_its_own(out: Any, n: Any) -> None:
    t = cuda.threadIdx.x
    for _ in range(t % n):
        out[t] += 1
        cuda.syncthreads()


def break_out(out: Any, n: Any) -> None:
    tile = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        tile[0] = 0
    turn = 0
    while True:
        cuda.syncthreads()
        out[t] += tile[0]
        cuda.syncthreads()
        if t == N - 1:  # the last thread stays to the end
            tile[0] += 1
        turn += 1
        if t != N - 1 and turn > t % n:
            break
        if turn == n:
            break


T = np.arange(N)


def test_early_return(out: Any) -> None:
    run(return_early, out, 40)
    np.testing.assert_array_equal(out, np.where(T < 40, 39 - T, 0))


def test_uniform_if(out: Any) -> None:
    run(uniform_if, out, 4)
    np.testing.assert_array_equal(out, (T + 1) % N)


def test_both_arms(out: Any) -> None:
    run(both_arms, out, 10)
    np.testing.assert_array_equal(out, np.where(T < 10, 1, -1) * (N - 1 - T))


def test_uniform_loop(out: Any) -> None:
    run(uniform_loop, out, 5)
    np.testing.assert_array_equal(out, (T + 5) % N)


def test_trips_of_its_own(out: Any) -> None:
    run(trips_of_its_own, out, 7)
    np.testing.assert_array_equal(out, T % 7)


def test_break_out(out: Any) -> None:
    run(break_out, out, 6)
    turns = np.where(T == N - 1, 6, T % 6 + 1)
    np.testing.assert_array_equal(out, turns * (turns - 1) // 2)


# -- shared memory -------------------------------------------------------------------------------


def two_on_one_line(out: Any) -> None:
    a, b = cuda.shared.array(N, int32), cuda.shared.array((2, N), int32)
    t = cuda.threadIdx.x
    a[t] = t
    b[1, t] = 100 + t
    cuda.syncthreads()
    out[t] = a[N - 1 - t] + 1000 * b[1, (t + 1) % N]


def dynamic(out: Any) -> None:
    wide = cuda.shared.array(0, float32)
    narrow = cuda.shared.array(0, "uint8")  # the same memory
    t = cuda.threadIdx.x
    wide[t] = 1.0
    cuda.syncthreads()
    out[t] = narrow[4 * t + 3] + 1000 * wide.size


@cuda.jit(device=True)
def tree_sum(tile: Any, t: Any) -> None:
    half = N // 2
    while half > 0:
        if t < half:
            tile[t] += tile[t + half]
        cuda.syncthreads()
        half //= 2


def reduce_blocks(x: Any, sums: Any) -> None:
    tile = cuda.shared.array(N, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    tree_sum(tile, t)
    if t == 0:
        sums[cuda.blockIdx.x] = tile[0]


def test_two_shared_arrays_on_one_line(out: Any) -> None:
    run(two_on_one_line, out)
    np.testing.assert_array_equal(out, (N - 1 - T) + 1000 * (100 + (T + 1) % N))


def test_dynamic_shared_memory(out: Any) -> None:
    run(dynamic, out, shared=4 * N + 2)
    # 1.0 is 0x3F800000; two bytes are left over.
    assert (out == 0x3F + 1000 * N).all()


def test_reduction_in_a_device_function() -> None:
    x = np.random.default_rng(1).integers(0, 100, 3 * N).astype(np.float32)
    sums = np.zeros(3, np.float32)
    run(reduce_blocks, x, sums, grid=3)
    np.testing.assert_array_equal(sums, x.reshape(3, N).sum(1))


# -- barriers that count, and of the grid --------------------------------------------------------


def counted(out: Any) -> None:
    t = cuda.threadIdx.x
    out[t] = cuda.syncthreads_count(t % 3 == 0)
    out[t] += 100 * cuda.syncthreads_and(t < N - 1)
    out[t] += 1000 * cuda.syncthreads_or(t == 5)


def across_blocks(out: Any, turned: Any) -> None:
    i = cuda.grid(1)
    everybody = cuda.cg.this_grid()
    out[i] = i
    cuda.syncthreads()
    everybody.sync()
    turned[i] = out[(i + 9) % out.size]


def test_barriers_that_reduce(out: Any) -> None:
    run(counted, out)
    assert set(out) == {(N + 2) // 3 + 1000}


def test_grid_barrier(out: Any) -> None:
    turned = np.zeros_like(out)
    run(across_blocks, out, turned, grid=8, block=8)
    np.testing.assert_array_equal(turned, (T + 9) % N)


# -- warps ---------------------------------------------------------------------------------------


def shuffles(x: Any, out: Any) -> None:
    t = cuda.threadIdx.x
    out[0, t] = cuda.shfl_sync(FULL, x[t], 5)
    out[1, t] = cuda.shfl_up_sync(FULL, x[t], 3)
    out[2, t] = cuda.shfl_down_sync(FULL, x[t], 3)
    out[3, t] = cuda.shfl_xor_sync(FULL, x[t], 1)


def votes(x: Any, out: Any) -> None:
    t = cuda.threadIdx.x
    out[0, t] = cuda.all_sync(FULL, x[t] > 0)
    out[1, t] = cuda.any_sync(FULL, x[t] > 0)
    out[2, t] = cuda.eq_sync(FULL, x[t] > 100)
    out[3, t] = cuda.ballot_sync(FULL, x[t] > 0)


def matches(x: Any, out: Any) -> None:
    t = cuda.threadIdx.x
    out[0, t] = cuda.match_any_sync(FULL, x[t])
    mask, same = cuda.match_all_sync(FULL, x[t // 32 * 32])
    out[1, t] = mask
    out[2, t] = same
    out[3, t] = cuda.lanemask_lt()


def divergent(out: Any) -> None:
    t = cuda.threadIdx.x
    if t % 2:
        out[t] = cuda.shfl_down_sync(0xAAAAAAAA, t, 2)
        cuda.syncwarp(0xAAAAAAAA)
    else:
        out[t] = cuda.activemask()


LANES = T % 32


def warp_results(kernel: Any, x: Any, block: int = N) -> Any:
    out = np.zeros((4, N), np.int64)
    run(kernel, x, out, block=block)
    return out


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.float32, np.float64])
def test_shuffles(kind: Any) -> None:
    found = warp_results(shuffles, T.astype(kind))
    base = T // 32 * 32
    np.testing.assert_array_equal(found[0], base + 5)
    np.testing.assert_array_equal(found[1], np.where(LANES < 3, T, T - 3))
    np.testing.assert_array_equal(found[2], np.where(LANES + 3 > 31, T, T + 3))
    np.testing.assert_array_equal(found[3], T ^ 1)


def test_votes() -> None:
    x = np.where(LANES == 7, 0, 1)
    found = warp_results(votes, x)
    assert (found[0] == 0).all()
    assert (found[1] == 1).all()
    assert (found[2] == 1).all()
    # An int32, as numba-cuda types it.
    assert (found[3] == -1 - (1 << 7)).all()


def test_matches() -> None:
    found = warp_results(matches, T % 4)
    expected = [sum(1 << lane for lane in range(32) if lane % 4 == t % 4) for t in T]
    np.testing.assert_array_equal(found[0] & FULL, expected)
    assert (found[1] == -1).all()
    assert (found[2] == 1).all()
    np.testing.assert_array_equal(found[3], (1 << LANES) - 1)


def test_last_warp_may_be_partial() -> None:
    found = warp_results(votes, np.ones(N, np.int64), block=40)
    assert (found[3, :32] == -1).all()
    assert (found[3, 32:40] == 0xFF).all()


def test_divergent_masks(out: Any) -> None:
    run(divergent, out)
    odd = np.where(LANES == 31, T, T + 2)
    np.testing.assert_array_equal(out, np.where(T % 2, odd, 0x55555555))


# -- atomics -------------------------------------------------------------------------------------


def test_atomics() -> None:
    def kernel(ints: Any, floats: Any, old: Any) -> None:
        i = cuda.grid(1)
        old[i] = cuda.atomic.add(ints, 0, 1)
        cuda.atomic.sub(ints, 1, i)
        cuda.atomic.max(ints, 2, i)
        cuda.atomic.min(ints, 3, -i)
        cuda.atomic.or_(ints, 4, 1 << (i % 8))
        cuda.atomic.and_(ints, 5, ~(1 << (i % 4)))
        cuda.atomic.xor(ints, 6, i)
        cuda.atomic.inc(ints, 7, 9)
        cuda.atomic.dec(ints, 8, 9)
        cuda.atomic.cas(ints, 9, 0, i + 1)
        cuda.atomic.exch(ints, 10, 77)
        cuda.atomic.add(floats, (1, 0), 0.5)
        cuda.atomic.max(floats, (0, 0), NAN)
        cuda.atomic.nanmax(floats, (0, 1), i)

    ints, old = np.zeros(11, np.int32), np.zeros(N, np.int32)
    ints[5] = 255
    floats = np.zeros((2, 2), np.float32)
    floats[0, 1] = np.nan
    run(kernel, ints, floats, old, grid=2, block=N // 2)
    xor = 0
    for value in range(N):
        xor ^= value
    assert list(ints) == [
        N, -N * (N - 1) // 2, N - 1, 1 - N, 255, 0xF0, xor, N % 10, (10 - N % 10) % 10, 1, 77,
    ]  # fmt: skip
    assert floats.tolist() == [[0.0, N - 1], [N / 2, 0.0]]
    assert sorted(old) == list(range(N))


# -- what is wrong -------------------------------------------------------------------------------


def test_threads_that_wait_for_ever(out: Any) -> None:
    def kernel(out: Any) -> None:
        if cuda.threadIdx.x < 3:
            cuda.syncthreads()
        else:
            cuda.syncwarp()

    line = kernel.__code__.co_firstlineno + 2
    with pytest.raises(KernelError, match=rf"3 wait at syncthreads at .*:{line}, such") as failed:
        run(kernel, out, block=8)
    assert "5 wait at syncwarp of mask 0xffffffff" in str(failed.value)


def test_lane_that_is_not_in_its_mask(out: Any) -> None:
    def kernel(out: Any) -> None:
        cuda.syncwarp(0b1101)

    with pytest.raises(KernelError, match="lane 1 to be in the mask of the syncwarp"):
        run(kernel, out, block=4)


def test_exceptions_name_block_and_thread(out: Any) -> None:
    def kernel(out: Any) -> None:
        cuda.syncthreads()
        if cuda.grid(1) == 13:
            out[1000] = 1
        cuda.syncthreads()

    with pytest.raises(IndexError) as failed:
        run(kernel, out, grid=2, block=8)
    assert failed.value.__notes__ == ["in block (1, 0, 0), thread (5, 0, 0)"]


def test_every_thread_runs_in_three_dimensions() -> None:
    def kernel(seen: Any) -> None:
        x, y, z = cuda.grid(3)
        cuda.syncthreads()
        seen[x, y, z] += 1 + cuda.gridDim.z * 10 + cuda.blockDim.y * 100

    seen = np.zeros((4, 6, 6), np.int64)
    interpret(kernel, (2, 2, 3), (2, 3, 2), 0, (seen,))
    assert (seen == 331).all()


def test_a_failed_launch_leaves_no_thread_behind(out: Any) -> None:
    """Threads that had just been let go from a barrier unwind as well as those that wait."""

    def kernel(out: Any) -> None:
        cuda.syncthreads()
        if cuda.threadIdx.x == 3:
            out[1000] = 1
        cuda.syncthreads()

    before = set(threading.enumerate())
    for _ in range(20):
        with pytest.raises(IndexError):
            run(kernel, out, block=8)
    for thread in set(threading.enumerate()) - before:
        thread.join(HANG_TIMEOUT)
        assert not thread.is_alive()
