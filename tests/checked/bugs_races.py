"""Two accesses to one element, one of them a write, and nothing that orders them."""

from __future__ import annotations

import numba
import numpy as np
from numba import cuda

from checked.cases import Suite, ramp, zeros

suite = Suite()
bug = suite.bug

POINT = np.dtype([("x", np.float32), ("y", np.float32)])


@cuda.jit(device=True)
def accumulate(a, value):
    a[0] += value  # bug


@cuda.jit(device=True)
def wait_for_all():
    cuda.syncthreads()


@bug("race", "y", zeros(1))
def all_write_one_element(y):
    y[0] = cuda.grid(1)  # bug


@bug("race", "y", zeros(1))
def all_write_one_value(y):
    y[0] = 1  # bug


@bug("race", "y", zeros(1))
def all_store_past_the_caches(y):
    cuda.stcg(y, 0, 1)  # bug


@bug("race", "y", zeros(1), zeros(32))
def load_past_the_caches(y, x):
    if cuda.threadIdx.x == 0:
        y[0] = 1
    x[cuda.threadIdx.x] = cuda.ldcv(y, 0)  # bug


@bug("race", "y", zeros(1))
def plain_write_before_an_atomic_operation_of_all(y):
    if cuda.threadIdx.x == 0:
        y[0] = 1
    cuda.atomic.add(y, 0, 1)  # bug


@bug("race", "y", zeros(1), ramp(64), grid=2)
def sum_without_atomic(y, x):
    y[0] += x[cuda.grid(1)]  # bug


@bug("race", "a", zeros(1), ramp(32))
def sum_in_a_device_function(y, x):
    accumulate(y, x[cuda.grid(1)])


@bug("race", "h", zeros(8, dtype=np.int32), ramp(64, dtype=np.int32), grid=2)
def histogram_without_atomic(h, x):
    h[x[cuda.grid(1)] % 8] += 1  # bug


@bug("race", "x", ramp(33))
def shift_in_place(x):
    i = cuda.grid(1)
    x[i] = x[i + 1]  # bug


@bug("race", "x", ramp(64), grid=2)
def reverse_in_place(x):
    i = cuda.grid(1)
    x[i] = x[x.size - 1 - i]  # bug


@bug("race", "y", zeros(32), grid=2)
def blocks_share_elements(y):
    y[cuda.threadIdx.x] = cuda.blockIdx.x  # bug


@bug("race", "y", zeros(33), grid=2, block=16)
def blocks_overlap_by_one(y):
    t = cuda.threadIdx.x
    first = cuda.blockIdx.x * 16
    y[first + t] = t
    if t == 0:
        y[first + 16] = t  # bug


@bug("race", "x", ramp(64), zeros(2), grid=2)
def block_reads_its_neighbour(x, y):
    i = cuda.grid(1)
    x[i] = 2 * i
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        y[cuda.blockIdx.x] = x[(i + 32) % 64]  # bug


@bug("race", "y", zeros(8, 8), block=(8, 8))
def wrong_axis(y):
    i, j = cuda.grid(2)
    y[i, i] = j  # bug


@bug("race", "h", zeros(1, dtype=np.int32))
def atomic_and_plain(h):
    cuda.atomic.add(h, 0, 1)
    if cuda.grid(1) == 5:
        h[0] = 0  # bug


@bug("race", "h", zeros(1, dtype=np.int32), zeros(2, dtype=np.int32), grid=2)
def reads_a_counter_that_others_still_add_to(h, y):
    cuda.atomic.add(h, 0, 1)
    if cuda.threadIdx.x == 0:
        y[cuda.blockIdx.x] = h[0]  # bug


@bug("race", "p[0].x", np.zeros(1, POINT))
def field_of_a_record(p):
    p[0].x = cuda.grid(1)  # bug


@bug("race", "even", zeros(64))
def views_that_overlap(x):
    i = cuda.grid(1)
    even = x[::2]
    x[i] = 1
    even[i] = 2  # bug


@bug("race", None, zeros(48), grid=1)
def two_arguments_one_memory(x):
    i = cuda.grid(1)
    head, tail = x[:32], x[16:]
    head[i] = 1
    tail[i] = 2  # bug


@bug("race", "tile", ramp(64), zeros(64), block=64)
def no_barrier(x, y):
    tile = cuda.shared.array(64, numba.float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    y[t] = tile[63 - t]  # bug


@bug("race", "tile", ramp(64), zeros(64), block=64)
def barrier_too_late(x, y):
    tile = cuda.shared.array(64, numba.float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncthreads()
    y[t] = tile[63 - t]
    tile[t] = 0  # bug
    cuda.syncthreads()


@bug("race", "s", ramp(64), zeros(1), block=64)
def reduction_without_barrier(x, y):
    s = cuda.shared.array(64, numba.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    k = 32
    while k > 0:
        if t < k:
            s[t] += s[t + k]  # bug
        k //= 2
    if t == 0:
        y[0] = s[0]


@bug("race", "s", ramp(64), block=64)
def scan_in_one_buffer(x):
    s = cuda.shared.array(64, numba.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    k = 1
    while k < 64:
        if t >= k:
            s[t] += s[t - k]  # bug
        cuda.syncthreads()
        k *= 2
    x[t] = s[t]


@bug("race", "tile", ramp(128), zeros(64), block=64)
def second_turn_overwrites(x, y):
    tile = cuda.shared.array(64, numba.float32)
    t = cuda.threadIdx.x
    s = 0.0
    for k in range(2):
        tile[t] = x[64 * k + t]  # bug
        cuda.syncthreads()
        s += tile[63 - t]
    y[t] = s


@bug("race", "tile", zeros(64), block=64)
def syncwarp_across_warps(y):
    tile = cuda.shared.array(64, numba.float32)
    t = cuda.threadIdx.x
    tile[t] = t
    cuda.syncwarp()
    y[t] = tile[(t + 32) % 64]  # bug


@bug("race", "tile", zeros(32))
def warp_without_syncwarp(y):
    tile = cuda.shared.array(32, numba.float32)
    t = cuda.threadIdx.x
    tile[t] = t
    y[t] = tile[t ^ 1]  # bug


@bug("race", "tile", zeros(8, 8), block=(8, 8))
def transpose_without_barrier(y):
    tile = cuda.shared.array((8, 8), numba.float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    tile[i, j] = i
    y[i, j] = tile[j, i]  # bug


@bug("race", "flag", zeros(32), block=64)
def flag_without_barrier(y):
    flag = cuda.shared.array(1, numba.int32)
    t = cuda.threadIdx.x
    if t == 0:
        flag[0] = 3
    if t == 40:
        y[0] = flag[0]  # bug


@bug("race", "work", ramp(64), block=64, shared=512)
def in_dynamic_memory(x):
    work = cuda.shared.array(0, numba.float64)
    t = cuda.threadIdx.x
    work[t] = x[t]
    wait_for_all()
    work[t] = work[(t + 33) % 64]  # bug


@bug("race", "bins", ramp(64, dtype=np.int32), zeros(8, dtype=np.int32), block=64)
def shared_histogram(x, h):
    bins = cuda.shared.array(8, numba.int32)
    t = cuda.threadIdx.x
    if t < 8:
        bins[t] = 0
    cuda.syncthreads()
    bins[x[t] % 8] += 1  # bug
    cuda.syncthreads()
    if t < 8:
        h[t] = bins[t]


@bug("race", "y", zeros(64), block=64)
def slice_written_by_all(y):
    y[0:4] = cuda.threadIdx.x  # bug


@bug("race", "partial", zeros(2), zeros(1, dtype=np.int32), zeros(1), grid=2)
def last_block_without_a_fence(partial, done, out):
    if cuda.threadIdx.x == 0:
        partial[cuda.blockIdx.x] = 1
        if cuda.atomic.add(done, 0, 1) == 1:
            out[0] = partial[0] + partial[1]  # bug


@bug("race", "x", ramp(64), grid=2)
def between_barriers_of_the_grid(x):
    i = cuda.grid(1)
    grid = cuda.cg.this_grid()
    x[i] = i
    grid.sync()
    x[i] = x[(i + 32) % 64]  # bug
    grid.sync()
