"""Indices that are outside of their array, negative, or overflow."""

from __future__ import annotations

import numba
import numpy as np
from numba import cuda

from checked.cases import Suite, ramp, zeros

suite = Suite()
bug = suite.bug

PAIR = np.dtype([("key", np.int32), ("value", np.float64)])
TABLE = np.arange(8, dtype=np.float32)
BIG = 2**40


@cuda.jit(device=True)
def load(a, i):
    return a[i]  # bug


@cuda.jit(device=True)
def store_two(a, i, value):
    a[i] = value
    a[i + 32] = value  # bug


@cuda.jit(device=True)
def total(a, n):
    result = a[0]
    for k in range(1, n + 1):
        result += a[k]  # bug
    return result


@numba.njit
def plain_load(a, i):
    return a[i]  # bug


@bug("out_of_bounds", "x", zeros(40), grid=2)
def no_guard(x):
    x[cuda.grid(1)] = 1  # bug


@bug("out_of_bounds", "x", zeros(32), zeros(32))
def one_too_far(y, x):
    i = cuda.grid(1)
    y[i] = x[i + 1]  # bug


@bug("out_of_bounds", "x", zeros(40), grid=2)
def guard_off_by_one(x):
    i = cuda.grid(1)
    if i <= x.size:
        x[i] = 1  # bug


@bug("out_of_bounds", "x", zeros(8, 4), block=(8, 8))
def second_axis(x):
    i, j = cuda.grid(2)
    x[i, j] = 1  # bug


@bug("out_of_bounds", "x", zeros(6, 4), block=(6, 4))
def axes_swapped(x):
    i, j = cuda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        x[j, i] = 1  # bug


@bug("out_of_bounds", "x", zeros(2, 3, 4), block=(2, 3, 5))
def third_axis(x):
    i, j, k = cuda.grid(3)
    x[i, j, k] += 1  # bug


@bug("out_of_bounds", "row", zeros(8, 4), block=8)
def through_a_view(x):
    row = x[cuda.grid(1)]
    row[4] = 1  # bug


@bug("out_of_bounds", "x", zeros(8, 4), block=9)
def row_does_not_exist(x):
    i = cuda.grid(1)
    x[i][0] = 1  # bug


@bug("out_of_bounds", "part", ramp(64), zeros(32))
def through_a_slice(x, y):
    part = x[8:32]
    i = cuda.grid(1)
    y[i] = part[i]  # bug


@bug("out_of_bounds", "odd", ramp(64), zeros(33), block=33)
def through_a_stepped_slice(x, y):
    odd = x[1::2]
    i = cuda.grid(1)
    y[i] = odd[i]  # bug


@bug("out_of_bounds", "a", ramp(32), zeros(32), also=())
def in_a_device_function(x, y):
    i = cuda.grid(1)
    y[i] = load(x, i + 1)


@bug("out_of_bounds", "a", ramp(8), zeros(32), block=8)
def in_an_njit_function(x, y):
    i = cuda.grid(1)
    y[i] = plain_load(x, 2 * i)


@bug("out_of_bounds", "a", zeros(36), block=8)
def device_function_store(x):
    store_two(x, cuda.grid(1), 1.0)


@bug("out_of_bounds", "a", ramp(4, 8), zeros(4), block=4)
def loop_in_a_device_function(x, y):
    i = cuda.grid(1)
    y[i] = total(x[i], 8)


@bug("out_of_bounds", "x", ramp(32), zeros(1), block=1)
def loop_runs_too_far(x, y):
    s = 0.0
    for k in range(0, 36, 4):
        s += x[k]  # bug
    y[0] = s


@bug("out_of_bounds", "x", ramp(32), zeros(1), block=1)
def while_loop(x, y):
    k = 0
    while x[k] >= 0 and k < 33:  # bug
        k += 1
    y[0] = k


@bug("out_of_bounds", "r", np.zeros(32, PAIR), block=33)
def record_field(r):
    i = cuda.grid(1)
    r[i].value = 1.5  # bug


@bug("out_of_bounds", "r", np.zeros(32, PAIR), zeros(33, dtype=np.int32), block=33)
def record_by_name(r, y):
    i = cuda.grid(1)
    y[i] = r[i]["key"]  # bug


@bug("out_of_bounds", "r.key", np.zeros(32, PAIR), block=33)
def field_of_all_records(r):
    r.key[cuda.grid(1)] = 1  # bug


@bug("out_of_bounds", "h", zeros(8, dtype=np.int32), ramp(32, dtype=np.int32))
def atomic_bin(h, x):
    cuda.atomic.add(h, x[cuda.grid(1)] // 2, 1)  # bug


@bug("out_of_bounds", "h", zeros(4, 4, dtype=np.int32), block=(4, 5))
def atomic_in_two_dimensions(h):
    i, j = cuda.grid(2)
    cuda.atomic.max(h, (i, j), 7)  # bug


@bug("out_of_bounds", "xs[1]", (zeros(64), zeros(32)), grid=2)
def array_in_a_tuple(xs):
    i = cuda.grid(1)
    xs[0][i] = 1
    xs[1][i] = 1  # bug


@bug("out_of_bounds", "tile", zeros(32))
def shared_tile(y):
    tile = cuda.shared.array(32, numba.float32)
    t = cuda.threadIdx.x
    tile[t + 1] = t  # bug
    cuda.syncthreads()
    y[t] = 1


@bug("out_of_bounds", "tile", ramp(8, 8), block=(8, 8))
def transposed_without_padding(x):
    tile = cuda.shared.array((8, 7), numba.float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    tile[i, j] = x[i, j]  # bug
    cuda.syncthreads()
    if j < 7:
        x[i, j] = tile[i, j]


@bug("out_of_bounds", "window", zeros(32))
def local_window(y):
    window = cuda.local.array(4, numba.float32)
    for k in range(5):
        window[k] = k  # bug
    y[cuda.grid(1)] = window[0]


@bug("out_of_bounds", "TABLE", zeros(32))
def constant_table(y):
    i = cuda.grid(1)
    y[i] = TABLE[i]  # bug


@bug("out_of_bounds", "table", zeros(32))
def constant_memory(y):
    table = cuda.const.array_like(TABLE)
    i = cuda.grid(1)
    y[i] = table[i % 9]  # bug


@bug("out_of_bounds", "x", ramp(32)[::2], zeros(32))
def strided_argument(x, y):
    i = cuda.grid(1)
    y[i] = x[i]  # bug


@bug("out_of_bounds", "x", zeros(0), block=1)
def empty_array(x):
    x[0] = 1  # bug


@bug("out_of_bounds", "x", zeros(32), np.full(32, 2**31, np.uint32))
def unsigned_index(x, at):
    x[at[cuda.grid(1)]] = 1  # bug


@bug("out_of_bounds", "x", ramp(32, dtype=np.uint64), zeros(32), also=())
def unsigned_wraps_below_zero(x, y):
    i = cuda.grid(1)
    y[i] = x[x[i] - np.uint64(1)]  # bug


@bug("negative_index", "x", ramp(32), zeros(32))
def left_neighbour(x, y):
    i = cuda.grid(1)
    y[i] = x[i - 1]  # bug


@bug("negative_index", "x", ramp(8, 8), zeros(8, 8), block=(8, 8))
def stencil_without_edge(x, y):
    i, j = cuda.grid(2)
    if j < 7:
        y[i, j] = x[i, j + 1] + x[i, j - 1]  # bug


@bug("negative_index", "x", ramp(32), np.array([3, -2], np.int32), zeros(2), block=2)
def negative_from_memory(x, at, y):
    i = cuda.grid(1)
    y[i] = x[at[i]]  # bug


@bug("negative_index", "h", zeros(8, dtype=np.int32), ramp(32, dtype=np.int32))
def negative_bin(h, x):
    cuda.atomic.add(h, x[cuda.grid(1)] // 8 - 1, 1)  # bug


@bug("index_overflow", "i", zeros(64), block=2, also=("out_of_bounds", "negative_index"))
def narrowed_product(x):
    i = np.int32(cuda.blockDim.x * (cuda.threadIdx.x + 1) * 2_000_000_000)  # bug
    x[i] = 1


@bug("index_overflow", None, zeros(64), np.int64(BIG), block=1, also=("out_of_bounds",))
def product_of_large_numbers(x, n):
    x[n * n * 3 + cuda.threadIdx.x] = 1  # bug


@bug("index_overflow", None, zeros(64), np.int64(2**62), block=1, also=("negative_index",))
def sum_of_large_numbers(x, n):
    i = n + n + n  # bug
    if i < 64:
        x[i // 2**61 + cuda.threadIdx.x] = 1


@bug("index_overflow", "flat", zeros(8, 8), np.int64(2**33), also=("out_of_bounds",), block=1)
def flattened_in_int32(x, width):
    flat = np.int32(cuda.threadIdx.x + width)  # bug
    x[flat // 8, flat % 8] = 1
