"""Right kernels whose threads part and meet again: early returns, loops, warp operations."""

from __future__ import annotations

import numba
import numpy as np
from numba import cuda

from checked.cases import Suite, ramp, zeros

suite = Suite()
legal = suite.legal

FULL = 0xFFFFFFFF


@cuda.jit(device=True)
def warp_sum(v):
    k = 16
    while k > 0:
        v += cuda.shfl_down_sync(FULL, v, k)
        k //= 2
    return v


@legal(zeros(40), grid=2, expected=lambda y: np.r_[np.arange(31, -1, -1), np.arange(7, -1, -1)])
def early_return_before_a_barrier(y):
    tile = cuda.shared.array(32, numba.float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if i >= y.size:
        return
    tile[t] = t
    cuda.syncthreads()
    n = min(32, y.size - 32 * cuda.blockIdx.x)
    y[i] = tile[n - 1 - t]


@legal(zeros(32), np.int64(3), expected=lambda y, n: np.arange(32) + 3)
def barrier_in_a_uniform_if(y, n):
    t = cuda.threadIdx.x
    y[t] = t
    if n > 2:
        cuda.syncthreads()
        y[t] += n


@legal(zeros(64), grid=2, expected=lambda y: np.repeat([1, 2], 32))
def barrier_in_an_if_about_the_block(y):
    i = cuda.grid(1)
    if cuda.blockIdx.x == 0:
        cuda.syncthreads()
        y[i] = 1
    else:
        y[i] = 2


@legal(zeros(32), np.int64(5), expected=lambda y, n: np.full(32, 5))
def barriers_in_a_loop(y, n):
    t = cuda.threadIdx.x
    for _ in range(n):
        v = y[(t + 1) % 32]
        cuda.syncthreads()
        y[t] = v + 1
        cuda.syncthreads()


@legal(zeros(32), expected=lambda y: np.full(32, 4))
def endless_loop_with_a_uniform_break(y):
    t = cuda.threadIdx.x
    k = 0
    while True:
        cuda.syncthreads()
        k += 1
        if k == 4:
            break
    y[t] = k


@legal(zeros(32, dtype=np.int32), expected=lambda y: np.full(32, 10))
def counting_barrier(y):
    t = cuda.threadIdx.x
    y[t] = cuda.syncthreads_count(int(t < 10))


@legal(zeros(32, dtype=np.int32), expected=lambda y: np.full(32, 1))
def loop_until_nobody_changes(y):
    changed = cuda.shared.array(1, numba.int32)
    t = cuda.threadIdx.x
    left = t % 4
    while cuda.syncthreads_or(int(left > 0)):
        left -= 1
    if t == 0:
        changed[0] = 1
    cuda.syncthreads()
    y[t] = changed[0]


@legal(zeros(2), ramp(64), block=64, expected=lambda y, x: [x[:32].sum(), x[32:].sum()])
def warp_sums(y, x):
    t = cuda.threadIdx.x
    s = warp_sum(x[t])
    if t % 32 == 0:
        y[t // 32] = s


@legal(zeros(1), ramp(64), block=64, expected=lambda y, x: [x.sum()])
def warp_sums_through_shared(y, x):
    part = cuda.shared.array(2, numba.float32)
    t = cuda.threadIdx.x
    s = warp_sum(x[t])
    if t % 32 == 0:
        part[t // 32] = s
    cuda.syncthreads()
    if t == 0:
        y[0] = part[0] + part[1]


@legal(zeros(32), expected=lambda y: np.arange(32) ^ 1)
def warp_synchronous_shared_memory(y):
    tile = cuda.shared.array(32, numba.float32)
    t = cuda.threadIdx.x
    tile[t] = t
    cuda.syncwarp()
    y[t] = tile[t ^ 1]


@legal(zeros(32), ramp(32), expected=lambda y, x: np.full(32, x.sum()))
def warp_synchronous_reduction(y, x):
    s = cuda.shared.array(32, numba.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncwarp()
    k = 16
    while k > 0:
        v = s[(t + k) % 32]
        cuda.syncwarp()
        s[t] += v
        cuda.syncwarp()
        k //= 2
    y[t] = s[t]


@legal(zeros(32), ramp(32), expected=lambda y, x: np.where(x < 16, x[np.arange(32) ^ 1], 0))
def half_of_the_warp_with_its_mask(y, x):
    t = cuda.threadIdx.x
    if t < 16:
        y[t] = cuda.shfl_xor_sync(0x0000FFFF, x[t], 1)


@legal(zeros(32), ramp(32), expected=lambda y, x: np.where(x < 16, x[0], x[16]))
def each_half_with_its_mask(y, x):
    t = cuda.threadIdx.x
    if t < 16:
        y[t] = cuda.shfl_sync(0x0000FFFF, x[t], 0)
    else:
        y[t] = cuda.shfl_sync(0xFFFF0000, x[t], 16)


@legal(
    zeros(32, dtype=np.int32),
    ramp(32, dtype=np.int32),
    expected=lambda y, x: np.where(x % 3 == 0, x[30], 0),
)
def mask_from_a_ballot(y, x):
    t = cuda.threadIdx.x
    takes = x[t] % 3 == 0
    mask = cuda.ballot_sync(FULL, takes)
    if takes:
        y[t] = cuda.shfl_sync(mask, x[t], 30)


@legal(zeros(48), ramp(48), block=48, expected=lambda y, x: x[np.arange(48) ^ 1])
def last_warp_is_not_full(y, x):
    t = cuda.threadIdx.x
    y[t] = cuda.shfl_xor_sync(FULL, x[t], 1)


@legal(zeros(32, dtype=np.int32), expected=lambda y: np.full(32, 2))
def votes(y):
    t = cuda.threadIdx.x
    every = cuda.all_sync(FULL, t < 32)
    some = cuda.any_sync(FULL, t == 9)
    y[t] = int(every) + int(some)


@legal(zeros(32, dtype=np.int32), expected=lambda y: np.where(np.arange(32) < 5, 1, 0))
def active_mask(y):
    t = cuda.threadIdx.x
    if t < 5:
        mask = cuda.activemask()
        y[t] = (mask >> t) & 1


@legal(zeros(64), ramp(64), block=64, expected=lambda y, x: np.r_[x[:32] + 31, x[32:] + 63 + 1])
def warps_take_different_ways(y, x):
    t = cuda.threadIdx.x
    if t < 32:
        y[t] = x[t] + cuda.shfl_sync(FULL, x[t], 31)
    else:
        v = cuda.shfl_sync(FULL, x[t], 31)
        cuda.syncwarp()
        y[t] = x[t] + v + 1


@legal(zeros(64), block=64, expected=lambda y: np.r_[np.full(32, 5.0), np.zeros(32)])
def warp_specialisation(y):
    box = cuda.shared.array(1, numba.float32)
    t = cuda.threadIdx.x
    if t == 40:
        box[0] = 5
    cuda.syncthreads()
    if t < 32:
        y[t] = box[0]


@legal(zeros(32), expected=lambda y: np.full(32, 3))
def different_numbers_of_turns_between_barriers(y):
    t = cuda.threadIdx.x
    n = 0
    for _ in range(t % 4):
        n += 1
    cuda.syncthreads()
    for _ in range(3 - t % 4):
        n += 1
    cuda.syncthreads()
    y[t] = n


@legal(zeros(4, 8), block=(8, 4), expected=lambda y: np.arange(32).reshape(4, 8) ^ 1)
def warp_across_rows(y):
    x, z = cuda.threadIdx.x, cuda.threadIdx.y
    rank = np.float32(z * 8 + x)
    y[z, x] = cuda.shfl_xor_sync(FULL, rank, 1)


@legal(ramp(64), grid=2, expected=lambda x: x[::-1] + 1)
def reverse_through_a_barrier_of_the_grid(x):
    i = cuda.grid(1)
    grid = cuda.cg.this_grid()
    v = x[x.size - 1 - i]
    grid.sync()
    x[i] = v
    grid.sync()
    other = x[(i + 32) % 64]
    grid.sync()
    x[i] += other - other + 1


@legal(zeros(2), zeros(2), grid=2, expected=lambda y, part: [62, 62])
def shared_memory_and_a_barrier_of_the_grid(y, part):
    tile = cuda.shared.array(32, numba.float32)
    local = cuda.local.array(1, numba.float32)
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    tile[t] = t
    local[0] = t
    cuda.syncthreads()
    if t == 0:
        part[b] = tile[31]
    cuda.cg.this_grid().sync()
    if t == 31:
        y[b] = part[1 - b] + local[0]


@legal(zeros(32), zeros(1, dtype=np.int32), expected=lambda y, flag: np.full(32, 5))
def flag_that_is_read_past_the_caches(y, flag):
    t = cuda.threadIdx.x
    if t == 0:
        y[0] = 5
        cuda.threadfence()
        cuda.atomic.exch(flag, 0, 1)
    else:
        while cuda.ldcv(flag, 0) == 0:
            pass
        y[t] = y[0]
