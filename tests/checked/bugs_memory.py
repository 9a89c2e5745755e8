"""Memory that was never written, dynamic shared memory used wrongly, and limits of a GPU."""

from __future__ import annotations

import numba
import numpy as np
from numba import cuda

from checked.cases import Suite, ramp, zeros

suite = Suite()
bug = suite.bug

CELL = np.dtype([("mass", np.float32), ("speed", np.float64)])
cell = numba.from_dtype(CELL)


@cuda.jit(device=True)
def sum_of(a, n):
    result = 0.0
    for k in range(n):
        result += a[k]  # bug
    return result


@bug("uninitialised", "a", zeros(32))
def local_never_written(y):
    a = cuda.local.array(4, numba.float32)
    y[cuda.grid(1)] = a[2]  # bug


@bug("uninitialised", "a", zeros(32))
def local_half_written(y):
    a = cuda.local.array(4, numba.float64)
    for k in range(2):
        a[k] = k
    s = 0.0
    for k in range(4):
        s += a[k]  # bug
    y[cuda.grid(1)] = s


@bug("uninitialised", "count", zeros(32, dtype=np.int32))
def local_counter(y):
    count = cuda.local.array(2, numba.int32)
    for k in range(8):
        count[k % 2] += k  # bug
    y[cuda.grid(1)] = count[0]


@bug("uninitialised", "a", zeros(32))
def written_in_one_branch(y):
    a = cuda.local.array(1, numba.float32)
    i = cuda.grid(1)
    if i % 2 == 0:
        a[0] = i
    y[i] = a[0]  # bug


@bug("uninitialised", "a", zeros(32))
def local_in_two_dimensions(y):
    a = cuda.local.array((2, 3), numba.float32)
    for k in range(2):
        a[k, k] = 1
    y[cuda.grid(1)] = a[1, 0]  # bug


@bug("uninitialised", "a", zeros(32))
def local_read_by_a_device_function(y):
    a = cuda.local.array(4, numba.float32)
    a[0] = 1
    a[1] = 2
    y[cuda.grid(1)] = sum_of(a, 3)


@bug("uninitialised", "a[0].speed", zeros(32, dtype=np.float64))
def local_record(y):
    a = cuda.local.array(1, cell)
    a[0].mass = 1
    y[cuda.grid(1)] = a[0].speed  # bug


@bug("uninitialised", "a", zeros(32))
def local_partly_filled_by_slice(y):
    a = cuda.local.array(6, numba.float32)
    a[0:4] = 1
    y[cuda.grid(1)] = a[3] + a[4]  # bug


@bug("uninitialised", "tile", zeros(32))
def shared_never_written(y):
    tile = cuda.shared.array(32, numba.float32)
    t = cuda.threadIdx.x
    y[t] = tile[t]  # bug


@bug("uninitialised", "tile", zeros(32))
def shared_with_a_hole(y):
    tile = cuda.shared.array(32, numba.float32)
    t = cuda.threadIdx.x
    if t != 7:
        tile[t] = t
    cuda.syncthreads()
    y[t] = tile[31 - t]  # bug


@bug("uninitialised", "bins", zeros(8, dtype=np.int32), ramp(32, dtype=np.int32))
def histogram_without_zeros(h, x):
    bins = cuda.shared.array(8, numba.int32)
    t = cuda.threadIdx.x
    cuda.atomic.add(bins, x[t] % 8, 1)  # bug
    cuda.syncthreads()
    if t < 8:
        cuda.atomic.add(h, t, bins[t])


@bug("uninitialised", "tile", ramp(40), zeros(64), grid=2)
def halo_not_loaded(x, y):
    tile = cuda.shared.array(34, numba.float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t + 1] = x[i] if i < x.size else 0
    cuda.syncthreads()
    y[i] = tile[t] + tile[t + 1]  # bug


@bug("uninitialised", "tile", zeros(2), grid=2)
def left_over_from_another_block(y):
    tile = cuda.shared.array(32, numba.float32)
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        tile[t] = t
    cuda.syncthreads()
    if t == 0:
        y[cuda.blockIdx.x] = tile[5]  # bug


@bug("uninitialised", "work", zeros(32), shared=256)
def dynamic_memory_never_written(y):
    work = cuda.shared.array(0, numba.float32)
    t = cuda.threadIdx.x
    work[t] = t
    cuda.syncthreads()
    y[t] = work[t + 32]  # bug


@bug("dynamic_shared", "work", zeros(32))
def no_dynamic_memory(y):
    work = cuda.shared.array(0, numba.float32)  # bug
    t = cuda.threadIdx.x
    work[t] = t
    cuda.syncthreads()
    y[t] = work[31 - t]


@bug("out_of_bounds", "work", zeros(32), shared=64)
def too_little_dynamic_memory(y):
    work = cuda.shared.array(0, numba.float32)
    t = cuda.threadIdx.x
    work[t] = t  # bug
    cuda.syncthreads()
    y[t] = 1


@bug("out_of_bounds", "counts", zeros(32), shared=192)
def second_part_does_not_fit(y):
    values = cuda.shared.array(0, numba.float32)[:32]
    counts = cuda.shared.array(0, numba.int32)[32:]
    t = cuda.threadIdx.x
    values[t] = t
    counts[t] = t  # bug
    cuda.syncthreads()
    y[t] = values[31 - t]


@bug("race", None, zeros(32), shared=128)
def parts_overlap(y):
    values = cuda.shared.array(0, numba.float32)
    counts = cuda.shared.array(0, numba.int32)[16:]
    t = cuda.threadIdx.x
    values[t] = t
    if t < 16:
        counts[t] = t  # bug
    cuda.syncthreads()
    y[t] = values[0]


@bug("limits", None, zeros(32), target="sm_75")
def too_much_static_shared_memory(y):
    tile = cuda.shared.array(16384, numba.float32)
    t = cuda.threadIdx.x
    tile[t] = t
    y[t] = tile[t]


@bug("limits", None, zeros(4), grid=(1, 1, 1), block=(1, 1, 4), shared=40_000, target="sm_89")
def static_and_dynamic_together(y):
    tile = cuda.shared.array(16000, numba.float32)
    work = cuda.shared.array(0, numba.float32)
    t = cuda.threadIdx.z
    tile[t] = t
    work[t] = t
    y[t] = tile[t] + work[t]
