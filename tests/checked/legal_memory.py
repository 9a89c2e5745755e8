"""Right kernels with shared memory, static and dynamic, and with atomics."""

from __future__ import annotations

import numba
import numpy as np
from numba import cuda

from checked.cases import Suite, ramp, zeros

suite = Suite()
legal = suite.legal

PAIR = np.dtype([("key", np.int32), ("value", np.float64)])
pair = numba.from_dtype(PAIR)


@cuda.jit(device=True)
def exchange(value, other):
    box = cuda.shared.array(64, numba.float32)
    box[cuda.threadIdx.x] = value
    cuda.syncthreads()
    result = box[other]
    cuda.syncthreads()
    return result


@cuda.jit(device=True)
def put(a, i, value):
    a[i] = value


@legal(zeros(64), ramp(64), block=64, expected=lambda y, x: x[::-1])
def reverse_through_shared(y, x):
    tile = cuda.shared.array(64, numba.float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncthreads()
    y[t] = tile[63 - t]


@legal(ramp(64), block=64, expected=lambda x: x[::-1])
def reverse_in_place_through_shared(x):
    tile = cuda.shared.array(64, numba.float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncthreads()
    x[t] = tile[63 - t]


@legal(ramp(64), block=64, expected=lambda x: np.r_[x[1:], x[0]])
def rotate_in_place_with_a_barrier(x):
    t = cuda.threadIdx.x
    v = x[(t + 1) % 64]
    cuda.syncthreads()
    x[t] = v


@legal(np.zeros(8, np.int64), block=64)
def bytes_of_a_view(x):
    x.view(np.int8)[cuda.grid(1)] = 1


@legal(np.zeros(64, np.int8), block=64, expected=lambda y: np.arange(64))
def bytes_of_a_view_of_shared_memory(y):
    words = cuda.shared.array(8, numba.int64)
    t = cuda.threadIdx.x
    words.view(np.int8)[t] = t
    cuda.syncthreads()
    y[t] = words.view(np.int8)[t]


@legal(zeros(2), ramp(100), grid=2, block=64, expected=lambda y, x: [x[:64].sum(), x[64:].sum()])
def block_reduction(y, x):
    s = cuda.shared.array(64, numba.float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    s[t] = x[i] if i < x.size else 0
    cuda.syncthreads()
    k = 32
    while k > 0:
        if t < k:
            s[t] += s[t + k]
        cuda.syncthreads()
        k //= 2
    if t == 0:
        y[cuda.blockIdx.x] = s[0]


@legal(zeros(64), ramp(64), block=64, expected=lambda y, x: np.cumsum(x))
def double_buffered_scan(y, x):
    s = cuda.shared.array((2, 64), numba.float32)
    t = cuda.threadIdx.x
    s[0, t] = x[t]
    now = 0
    k = 1
    while k < 64:
        cuda.syncthreads()
        s[1 - now, t] = s[now, t] + (s[now, t - k] if t >= k else 0)
        now = 1 - now
        k *= 2
    y[t] = s[now, t]


@legal(ramp(64), block=64, expected=np.cumsum)
def scan_with_two_barriers(x):
    s = cuda.shared.array(64, numba.float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    k = 1
    while k < 64:
        cuda.syncthreads()
        v = s[t - k] if t >= k else 0
        cuda.syncthreads()
        s[t] += v
        k *= 2
    x[t] = s[t]


@legal(
    zeros(16, 16),
    ramp(16, 16),
    ramp(16, 16).T.copy(),
    grid=(2, 2),
    block=(8, 8),
    expected=lambda c, a, b: a @ b,
)
def tiled_matmul(c, a, b):
    sa = cuda.shared.array((8, 8), numba.float32)
    sb = cuda.shared.array((8, 8), numba.float32)
    i, j = cuda.grid(2)
    ti, tj = cuda.threadIdx.x, cuda.threadIdx.y
    s = np.float32(0)
    for k in range(2):
        sa[ti, tj] = a[i, 8 * k + tj]
        sb[ti, tj] = b[8 * k + ti, j]
        cuda.syncthreads()
        for m in range(8):
            s += sa[ti, m] * sb[m, tj]
        cuda.syncthreads()
    c[i, j] = s


@legal(zeros(8, 8), ramp(8, 8), block=(8, 8), expected=lambda y, x: x.T)
def transpose_with_padding(y, x):
    tile = cuda.shared.array((8, 9), numba.float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    tile[i, j] = x[i, j]
    cuda.syncthreads()
    y[i, j] = tile[j, i]


@legal(zeros(64), ramp(64), grid=2, expected=lambda y, x: np.convolve(x, [1, 1, 1], "same"))
def stencil_with_halo(y, x):
    tile = cuda.shared.array(34, numba.float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t + 1] = x[i]
    if t == 0:
        tile[0] = x[i - 1] if i > 0 else 0
    if t == 31:
        tile[33] = x[i + 1] if i + 1 < x.size else 0
    cuda.syncthreads()
    y[i] = tile[t] + tile[t + 1] + tile[t + 2]


@legal(
    zeros(8, dtype=np.int32),
    ramp(128, dtype=np.int32),
    grid=2,
    block=64,
    expected=lambda h, x: np.full(8, 16),
)
def histogram_by_shared_atomics(h, x):
    bins = cuda.shared.array(8, numba.int32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if t < 8:
        bins[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(bins, x[i] % 8, 1)
    cuda.syncthreads()
    if t < 8:
        cuda.atomic.add(h, t, bins[t])


@legal(zeros(1), ramp(128), grid=4, expected=lambda y, x: [x.sum()])
def sum_by_atomics_of_all_blocks(y, x):
    cuda.atomic.add(y, 0, x[cuda.grid(1)])


@legal(zeros(2, dtype=np.int32), ramp(64, dtype=np.int32), grid=2, expected=lambda y, x: [63, 0])
def several_kinds_of_atomics(y, x):
    i = cuda.grid(1)
    cuda.atomic.max(y, 0, x[i])
    cuda.atomic.min(y, 1, x[i])


@legal(zeros(2, 2, dtype=np.int32), block=32, expected=lambda y: np.full((2, 2), 8))
def atomics_in_two_dimensions(y):
    i = cuda.grid(1)
    cuda.atomic.add(y, (i % 2, i // 2 % 2), 1)


@legal(
    zeros(64, dtype=np.int32), zeros(1, dtype=np.int32), grid=2, expected=lambda y, n: np.ones(64)
)
def places_given_out_by_an_atomic(y, n):
    at = cuda.atomic.add(n, 0, 1)
    y[at] = 1


@legal(zeros(32), shared=256, expected=lambda y: 2 * np.arange(31, -1, -1))
def dynamic_memory_in_two_parts(y):
    a = cuda.shared.array(0, numba.float32)[:32]
    b = cuda.shared.array(0, numba.int32)[32:]
    t = cuda.threadIdx.x
    a[t] = t
    b[t] = t
    cuda.syncthreads()
    y[t] = a[31 - t] + b[31 - t]


@legal(zeros(32), shared=384, expected=lambda y: np.arange(32) + 0.5)
def dynamic_memory_of_two_types(y):
    wide = cuda.shared.array(0, numba.float64)
    narrow = cuda.shared.array(0, numba.float32)[64:]
    t = cuda.threadIdx.x
    wide[t] = t
    narrow[t] = 0.5
    cuda.syncthreads()
    y[t] = wide[t] + narrow[31 - t]


@legal(zeros(32), shared=128, expected=lambda y: np.full(32, 31))
def dynamic_memory_used_again_as_another_type(y):
    a = cuda.shared.array(0, numba.float32)
    b = cuda.shared.array(0, numba.int32)
    t = cuda.threadIdx.x
    a[t] = t
    cuda.syncthreads()
    v = a[31 - t]
    cuda.syncthreads()
    b[t] = int(v) + t
    cuda.syncthreads()
    y[t] = b[31 - t]


@legal(zeros(64), ramp(64), block=64, expected=lambda y, x: 2 * x[::-1])
def shared_array_of_a_device_function(y, x):
    t = cuda.threadIdx.x
    y[t] = exchange(x[t], 63 - t) + exchange(x[t], 63 - t)


@legal(zeros(32), expected=lambda y: np.arange(31, -1, -1))
def shared_array_handed_to_a_device_function(y):
    tile = cuda.shared.array(32, numba.float32)
    t = cuda.threadIdx.x
    put(tile, t, t)
    cuda.syncthreads()
    y[t] = tile[31 - t]


@legal(zeros(32), expected=lambda y: np.arange(32) + 1.5)
def shared_records(y):
    r = cuda.shared.array(32, pair)
    t = cuda.threadIdx.x
    r[t].key = t
    r[31 - t].value = 1.5
    cuda.syncthreads()
    y[t] = r[t].key + r[t].value


@legal(zeros(64), block=64, expected=lambda y: np.full(64, 3))
def one_thread_writes_for_all(y):
    flag = cuda.shared.array(1, numba.int32)
    t = cuda.threadIdx.x
    if t == 0:
        flag[0] = 3
    cuda.syncthreads()
    y[t] = flag[0]


@legal(zeros(32), expected=lambda y: np.arange(31, -1, -1) % 16)
def only_the_part_that_is_read_is_written(y):
    tile = cuda.shared.array(32, numba.float32)
    t = cuda.threadIdx.x
    if t < 16:
        tile[t] = t
    cuda.syncthreads()
    y[t] = tile[(31 - t) % 16]


@legal(zeros(32), expected=lambda y: np.full(32, 5))
def shared_filled_by_slice_of_one_thread(y):
    tile = cuda.shared.array((4, 8), numba.float32)
    t = cuda.threadIdx.x
    if t == 0:
        tile[:, :] = 5
    cuda.syncthreads()
    y[t] = tile[t // 8, t % 8]


@legal(
    zeros(1),
    zeros(2),
    zeros(1, dtype=np.int32),
    grid=2,
    block=32,
    expected=lambda out, partial, done: [2],
)
def last_block_adds_up(out, partial, done):
    last = cuda.shared.array(1, numba.int32)
    t = cuda.threadIdx.x
    if t == 0:
        partial[cuda.blockIdx.x] = 1
        cuda.threadfence()
        last[0] = cuda.atomic.add(done, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0] and t == 0:
        s = 0.0
        for k in range(cuda.gridDim.x):
            s += partial[k]
        out[0] = s


@legal(zeros(1), zeros(1, dtype=np.int32), grid=2, block=2, expected=lambda y, lock: [4])
def guarded_by_a_lock(y, lock):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    cuda.threadfence()
    y[0] += 1
    cuda.threadfence()
    cuda.atomic.exch(lock, 0, 0)
