"""Right kernels with returns, loops and branches around barriers."""

from __future__ import annotations

import numba
import numpy as np
from numba import cuda

from checked.cases import Suite, ramp, zeros

suite = Suite()
legal = suite.legal


@cuda.jit(device=True)
def neighbour(tile, t, n):
    cuda.syncthreads()
    if t + 1 < n:
        return tile[t + 1]
    return tile[0]


@cuda.jit(device=True)
def waits_if(flag):
    if flag > 0:
        cuda.syncthreads()
    return flag


@legal(zeros(64), grid=3, expected=lambda y: np.full(64, 1))
def return_on_the_line_of_its_if(y):
    i = cuda.grid(1)
    if i >= y.size: return  # noqa: E701  # fmt: skip
    cuda.syncthreads()
    y[i] = 1


@legal(zeros(40), grid=2, expected=lambda y: np.full(40, 3))
def return_and_three_barriers(y):
    i = cuda.grid(1)
    if i >= y.size:
        return
    for _ in range(3):
        cuda.syncthreads()
        y[i] += 1


@legal(zeros(32), expected=lambda y: np.where(np.arange(32) < 20, 1, 5))
def return_behind_some_work(y):
    t = cuda.threadIdx.x
    if t >= 20:
        y[t] = 5
        return
    cuda.syncthreads()
    y[t] = 1


@legal(zeros(32), expected=lambda y: np.where(np.arange(32) < 20, 1, 0))
def return_in_an_else(y):
    t = cuda.threadIdx.x
    if t < 20:
        cuda.syncthreads()
        y[t] = 1
    else:
        return


@legal(zeros(32), np.int64(3), expected=lambda y, n: np.where(np.arange(32) < 20, 1, 0))
def return_in_an_if_in_an_if(y, n):
    t = cuda.threadIdx.x
    if n > 2:  # noqa: SIM102
        if t >= 20:
            return
    cuda.syncthreads()
    y[t] = 1


@legal(zeros(32), expected=lambda y: np.minimum(np.arange(32), 10))
def return_in_a_loop(y):
    t = cuda.threadIdx.x
    for k in range(10):
        if k >= t:
            return
        cuda.syncthreads()
        y[t] += 1


@legal(zeros(32), expected=lambda y: np.arange(32) + 1)
def return_out_of_an_endless_loop(y):
    t = cuda.threadIdx.x
    while True:
        y[t] += 1
        if y[t] > t:
            return
        cuda.syncthreads()


@legal(zeros(32), expected=lambda y: np.where(np.arange(32) < 20, 6, 0))
def return_in_a_loop_in_a_loop(y):
    t = cuda.threadIdx.x
    for _ in range(2):
        for _ in range(3):
            if t >= 20:
                return
            cuda.syncthreads()
            y[t] += 1


@legal(zeros(32), expected=lambda y: np.select([np.arange(32) < 8, np.arange(32) < 16], [0, 1], 2))
def two_returns_before_two_barriers(y):
    t = cuda.threadIdx.x
    if t < 8:
        return
    cuda.syncthreads()
    if t < 16:
        y[t] = 1
        return
    cuda.syncthreads()
    y[t] = 2


@legal(zeros(32), expected=lambda y: np.full(32, 1))
def return_that_ends_every_thread(y):
    cuda.syncthreads()
    y[cuda.threadIdx.x] = 1
    return


@legal(zeros(20), ramp(32), expected=lambda y, x: np.r_[np.arange(1, 20), 0])
def device_function_behind_a_return(y, x):
    tile = cuda.shared.array(32, numba.float32)
    t = cuda.threadIdx.x
    if t >= y.size:
        return
    tile[t] = x[t]
    y[t] = neighbour(tile, t, y.size)


@legal(zeros(32), np.int64(1), expected=lambda y, n: np.full(32, 1))
def device_function_with_a_uniform_branch(y, n):
    y[cuda.threadIdx.x] = waits_if(n)


@legal(zeros(32), np.int64(5), expected=lambda y, n: np.full(32, 2))
def uniform_continue(y, n):
    t = cuda.threadIdx.x
    for k in range(n):
        if k % 2 == 0:
            continue
        cuda.syncthreads()
        y[t] += 1


@legal(zeros(32), np.int64(3), expected=lambda y, n: np.full(32, 3))
def uniform_break(y, n):
    t = cuda.threadIdx.x
    for k in range(10):
        if k == n:
            break
        cuda.syncthreads()
        y[t] += 1


@legal(zeros(32), expected=lambda y: np.full(32, 4))
def uniform_while_through_shared_memory(y):
    left = cuda.shared.array(1, numba.int32)
    t = cuda.threadIdx.x
    if t == 0:
        left[0] = 4
    cuda.syncthreads()
    while left[0] > 0:
        y[t] += 1
        cuda.syncthreads()
        if t == 0:
            left[0] -= 1
        cuda.syncthreads()


@legal(zeros(64), grid=2, expected=lambda y: np.repeat([0, 1], 32))
def whole_blocks_run_to_the_end_without_one(y):
    if cuda.blockIdx.x == 1:
        cuda.syncthreads()
        y[cuda.grid(1)] = 1


@legal(zeros(64), grid=2, expected=lambda y: np.repeat([1, 3], 32))
def trip_counts_of_blocks_differ(y):
    i = cuda.grid(1)
    for _ in range(1 + 2 * cuda.blockIdx.x):
        cuda.syncthreads()
        y[i] += 1


@legal(zeros(32), np.int64(2), expected=lambda y, n: np.full(32, 1))
def assertions_before_a_barrier(y, n):
    t = cuda.threadIdx.x
    assert n > 1
    if n > 100:
        raise ValueError("too many")
    cuda.syncthreads()
    y[t] = 1


@legal(zeros(40), grid=2, expected=lambda y: np.full(40, 2))
def threads_return_before_the_barrier_of_the_grid(y):
    i = cuda.grid(1)
    if i >= y.size:
        return
    y[i] = 1
    cuda.cg.this_grid().sync()
    y[i] += 1


@legal(zeros(32), expected=lambda y: np.where(np.arange(32) % 2, 1, 0))
def a_closure_that_returns_early(y):
    t = cuda.threadIdx.x

    def odd(k):
        if k % 2:
            return 1
        return 0

    cuda.syncthreads()
    y[t] = odd(t)


@legal(zeros(32, dtype=np.int32), expected=lambda y: np.where(np.arange(32) < 9, 2, 0))
def active_threads_of_a_branch(y):
    t = cuda.threadIdx.x
    if t < 9:
        mask = cuda.activemask()
        y[t] = cuda.shfl_sync(mask, cuda.popc(mask) - 7, 0)
