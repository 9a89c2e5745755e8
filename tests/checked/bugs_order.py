"""Barriers that not all threads come to, and warp operations without some of their lanes."""

from __future__ import annotations

import numba
import numpy as np
from numba import cuda

from checked.cases import Suite, ramp, zeros

suite = Suite()
bug = suite.bug

FULL = 0xFFFFFFFF


@cuda.jit(device=True)
def half_waits(t):
    if t < 16:
        cuda.syncthreads()  # bug
    return t + 1


@bug("barrier", None, zeros(64), block=64)
def barrier_in_a_divergent_if(y):
    t = cuda.threadIdx.x
    if t < 32:
        cuda.syncthreads()  # bug
    y[t] = 1


@bug("barrier", None, zeros(32))
def barrier_that_odd_threads_leave_out(y):
    t = cuda.threadIdx.x
    s = 0.0
    for k in range(4):
        s += k
        if t % 2 == 0:
            cuda.syncthreads()  # bug
    y[t] = s


@bug("barrier", None, zeros(32))
def different_barriers(y):
    t = cuda.threadIdx.x
    if t < 16:
        y[t] = 1
        cuda.syncthreads()
    else:
        y[t] = 2
        cuda.syncthreads()  # bug


@bug("barrier", None, zeros(32))
def turns_of_a_loop_differ(y):
    t = cuda.threadIdx.x
    for _ in range(t % 3 + 1):
        cuda.syncthreads()  # bug
    y[t] = 1


@bug("barrier", None, zeros(32))
def barrier_in_a_device_function(y):
    t = cuda.threadIdx.x
    y[t] = half_waits(t)


@bug("barrier", None, zeros(32, dtype=np.int32))
def counting_barrier_in_a_branch(y):
    t = cuda.threadIdx.x
    n = 0
    if t > 3:
        n = cuda.syncthreads_count(1)  # bug
    y[t] = n


@bug("barrier", None, ramp(32), zeros(32))
def barrier_behind_a_test_of_data(x, y):
    t = cuda.threadIdx.x
    if x[t] > 5:
        cuda.syncthreads()  # bug
    y[t] = x[t]


@bug("barrier", None, ramp(40), zeros(64), grid=2, strict=True)
def early_return_when_strict(x, y):
    i = cuda.grid(1)
    if i >= x.size:
        return
    cuda.syncthreads()  # bug
    y[i] = x[i]


@bug("barrier", None, zeros(32))
def leaves_the_loop_early(y):
    t = cuda.threadIdx.x
    k = 0
    while True:
        k += 1
        if k > t:
            break
        cuda.syncthreads()  # bug
    y[t] = k


@bug("warp", None, ramp(32), zeros(32))
def shuffle_in_a_branch(x, y):
    t = cuda.threadIdx.x
    v = x[t]
    if t < 16:
        v += cuda.shfl_down_sync(FULL, v, 8)  # bug
    y[t] = v


@bug("warp", None, ramp(32), zeros(32))
def lane_is_not_in_its_mask(x, y):
    t = cuda.threadIdx.x
    y[t] = cuda.shfl_xor_sync(0x0000FFFF, x[t], 1)  # bug


@bug("warp", None, ramp(20), zeros(32))
def lanes_returned(x, y):
    t = cuda.threadIdx.x
    if t >= x.size:
        return
    y[t] = cuda.shfl_sync(FULL, x[t], 0)  # bug


@bug("warp", None, zeros(32, dtype=np.int32))
def ballot_in_a_branch(y):
    t = cuda.threadIdx.x
    if t % 2 == 0:
        y[t] = cuda.ballot_sync(FULL, t > 4)  # bug


@bug("warp", None, zeros(32, dtype=np.int32))
def vote_with_half_the_mask(y):
    t = cuda.threadIdx.x
    if t < 8:
        y[t] = cuda.all_sync(0x0000FFFF, t < 16)  # bug


@bug("warp", None, zeros(32))
def syncwarp_in_a_branch(y):
    tile = cuda.shared.array(32, numba.float32)
    t = cuda.threadIdx.x
    tile[t] = t
    if t >= 16:
        cuda.syncwarp()  # bug
    cuda.syncthreads()
    y[t] = tile[31 - t]


@bug("warp", None, ramp(48), zeros(48), block=48)
def shuffles_in_a_loop_of_different_length(x, y):
    t = cuda.threadIdx.x
    v = x[t]
    for _ in range(1 + t % 2):
        v += cuda.shfl_xor_sync(FULL, v, 2)  # bug
    y[t] = v


@bug("warp", None, ramp(32, dtype=np.int32), zeros(32, dtype=np.int32))
def match_without_all_lanes(x, y):
    t = cuda.threadIdx.x
    if x[t] != 7:
        y[t] = cuda.match_any_sync(FULL, x[t] % 4)  # bug
