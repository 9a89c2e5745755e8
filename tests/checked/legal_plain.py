"""Right kernels without barriers: guards, loops, views, records, device functions, local arrays."""

from __future__ import annotations

import numba
import numpy as np
from numba import cuda

from checked.cases import Suite, ramp, zeros

suite = Suite()
legal = suite.legal

PAIR = np.dtype([("key", np.int32), ("value", np.float64)])
BLOB = np.dtype([("tag", np.int8), ("data", np.float32, (3,))])
TABLE = np.arange(8, dtype=np.float32)
pair = numba.from_dtype(PAIR)


@cuda.jit(device=True)
def fill(a, value):
    for k in range(a.size):
        a[k] = value


@cuda.jit(device=True)
def largest(a, n):
    best = a[0]
    for k in range(1, n):
        if a[k] > best:
            best = a[k]
    return best


@numba.njit
def twice(a, i):
    return 2 * a[i]


@legal(zeros(50), grid=2, expected=lambda x: np.arange(50))
def guarded(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = i


@legal(zeros(50), grid=2, expected=lambda x: np.arange(50))
def early_return(x):
    i = cuda.grid(1)
    if i >= x.size:
        return
    x[i] = i


@legal(zeros(100), grid=2, expected=lambda x: np.arange(100))
def grid_stride(x):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        x[i] = i


@legal(zeros(100), grid=1, expected=lambda x: np.full(100, 3))
def contiguous_chunks(x):
    first = cuda.grid(1) * 4
    for i in range(first, min(first + 4, x.size)):
        x[i] += 1
        x[i] += 2


@legal(ramp(32), expected=lambda x: x * x)
def in_place(x):
    i = cuda.grid(1)
    x[i] = x[i] * x[i]


@legal(zeros(30), ramp(32), expected=lambda y, x: x[:-2] + x[1:-1] + x[2:])
def three_point_stencil(y, x):
    i = cuda.grid(1)
    if 0 < i < x.size - 1:
        y[i - 1] = x[i - 1] + x[i] + x[i + 1]


@legal(zeros(8, 8), ramp(8, 8), block=(8, 8), expected=lambda y, x: x.T)
def transpose(y, x):
    i, j = cuda.grid(2)
    y[j, i] = x[i, j]


@legal(zeros(4, 3, 2), block=(4, 3, 2), expected=lambda x: ramp(4, 3, 2))
def three_axes(x):
    i, j, k = cuda.grid(3)
    x[i, j, k] = (i * 3 + j) * 2 + k


@legal(zeros(32), ramp(32), expected=lambda y, x: x[::-1])
def reversed_view(y, x):
    backwards = x[::-1]
    i = cuda.grid(1)
    y[i] = backwards[i]


@legal(zeros(32), ramp(32)[::-1], expected=lambda y, x: x)
def negative_stride_argument(y, x):
    i = cuda.grid(1)
    y[i] = x[i]


@legal(zeros(32), ramp(64), expected=lambda y, x: x[1::2])
def stepped_view(y, x):
    odd = x[1::2]
    i = cuda.grid(1)
    y[i] = odd[i]


@legal(zeros(8, 4), block=8, expected=lambda x: np.repeat(np.arange(8), 4).reshape(8, 4))
def row_of_each_thread(x):
    i = cuda.grid(1)
    x[i, :] = i


@legal(zeros(4, 8), block=8, expected=lambda x: np.tile(np.arange(8), (4, 1)))
def column_of_each_thread(x):
    j = cuda.grid(1)
    column = x[:, j]
    for i in range(column.size):
        column[i] = j


@legal(zeros(32), ramp(32), expected=lambda y, x: np.full(32, x[-1] + x[-2]))
def last_element_by_constant(y, x):
    y[cuda.grid(1)] = x[-1] + x[-2]


@legal(zeros(64), expected=lambda x: np.tile([1, 2], 32))
def interleaved_views(x):
    i = cuda.grid(1)
    even, odd = x[::2], x[1::2]
    even[i] = 1
    odd[i] = 2


@legal(zeros(64), grid=2, expected=lambda x: np.repeat([0, 1], 32))
def disjoint_blocks(x):
    first = cuda.blockIdx.x * 32
    part = x[first : first + 32]
    part[cuda.threadIdx.x] = cuda.blockIdx.x


@legal(zeros(40), grid=2, expected=lambda x: np.where(np.arange(40) % 2, 1, 0))
def threads_skip(x):
    i = cuda.grid(1)
    if i < x.size and i % 2:
        x[i] = 1


@legal(zeros(64), ramp(1), grid=2, expected=lambda y, x: np.zeros(64))
def all_read_one_element(y, x):
    y[cuda.grid(1)] = x[0]


@legal(zeros(32), expected=lambda y: np.full(32, 6))
def local_filled_by_loop(y):
    a = cuda.local.array(4, numba.float32)
    for k in range(4):
        a[k] = k
    s = 0.0
    for k in range(4):
        s += a[k]
    y[cuda.grid(1)] = s


@legal(zeros(32), expected=lambda y: np.full(32, 8))
def local_filled_by_slice(y):
    a = cuda.local.array((2, 4), numba.float32)
    a[:] = 1
    s = 0.0
    for i in range(2):
        for j in range(4):
            s += a[i, j]
    y[cuda.grid(1)] = s


@legal(zeros(32), ramp(32), expected=lambda y, x: x + 7)
def local_filled_by_device_function(y, x):
    a = cuda.local.array(3, numba.float32)
    i = cuda.grid(1)
    fill(a, x[i])
    a[1] = x[i] + 7
    y[i] = largest(a, 3)


@legal(zeros(32), expected=lambda y: np.arange(32) % 4)
def local_written_before_each_read(y):
    a = cuda.local.array(4, numba.float32)
    i = cuda.grid(1)
    a[i % 4] = i % 4
    y[i] = a[i % 4]


@legal(zeros(32), expected=lambda y: np.full(32, 3))
def local_by_method(y):
    a = cuda.local.array(4, numba.float32)
    a.fill(3)
    y[cuda.grid(1)] = a[2]


@legal(zeros(32), ramp(32), expected=lambda y, x: np.where(x < 5, 1, 2))
def local_written_in_both_branches(y, x):
    a = cuda.local.array(1, numba.int32)
    i = cuda.grid(1)
    if x[i] < 5:
        a[0] = 1
    else:
        a[0] = 2
    y[i] = a[0]


@legal(zeros(32, dtype=np.float64), expected=lambda y: np.arange(32) + 0.5)
def local_record(y):
    a = cuda.local.array(1, pair)
    i = cuda.grid(1)
    a[0].key = i
    a[0].value = 0.5
    y[i] = a[0].key + a[0].value


@legal(zeros(32), np.zeros(32, PAIR), expected=lambda y, r: np.arange(32))
def fields_of_records(y, r):
    i = cuda.grid(1)
    r[i].key = i
    r[i]["value"] = 2.0
    y[i] = r[i].value * r[i].key / 2


@legal(zeros(64), np.zeros(32, PAIR), grid=2, expected=lambda y, r: np.arange(64))
def blocks_write_different_fields(y, r):
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        r[t].key = 1
    else:
        r[t].value = 1.0
    y[cuda.grid(1)] = cuda.grid(1)


@legal(zeros(8), np.zeros(8, BLOB), block=8, expected=lambda y, r: np.full(8, 3))
def nested_array_in_a_record(y, r):
    i = cuda.grid(1)
    for k in range(3):
        r[i].data[k] = 1
    y[i] = r[i].data[0] + r[i].data[1] + r[i].data[2]


@legal(zeros(32), (ramp(32), ramp(32)), expected=lambda y, xs: xs[0] + xs[1])
def arrays_in_a_tuple(y, xs):
    i = cuda.grid(1)
    y[i] = xs[0][i] + xs[1][i]


@legal(zeros(32), (1, 2.5), expected=lambda y, t: np.full(32, 3.5))
def numbers_in_a_tuple(y, t):
    a, b = t
    y[cuda.grid(1)] = a + t[1] if b > 0 else 0


@legal(zeros(32), expected=lambda y: np.arange(32) % 8)
def constant_table(y):
    i = cuda.grid(1)
    y[i] = TABLE[i % 8]


@legal(zeros(32), expected=lambda y: 7 - np.arange(32) % 8)
def constant_memory(y):
    table = cuda.const.array_like(TABLE)
    y[cuda.grid(1)] = table[7 - cuda.grid(1) % 8]


@legal(zeros(32), ramp(32), expected=lambda y, x: 2 * x)
def njit_function(y, x):
    i = cuda.grid(1)
    y[i] = twice(x, i)


@legal(np.zeros(32, np.complex64), expected=lambda y: np.arange(32) * 1j)
def complex_elements(y):
    i = cuda.grid(1)
    y[i] = i * 1j


@legal(np.zeros(33, np.int8), expected=lambda y: np.r_[np.arange(32), 0])
def neighbours_in_one_word(y):
    i = cuda.grid(1)
    y[i] = i


@legal(np.zeros(32, np.bool_), expected=lambda y: np.arange(32) % 2 == 0)
def truth_values(y):
    i = cuda.grid(1)
    y[i] = i % 2 == 0


@legal(zeros(32), np.arange(32, dtype=np.uint8), expected=lambda y, at: np.arange(32))
def bytes_as_indices(y, at):
    i = cuda.grid(1)
    y[at[i]] = at[i]


@legal(zeros(32), ramp(32, dtype=np.int64), expected=lambda y, x: np.ones(32))
def a_hash_wraps_on_purpose(y, x):
    i = cuda.grid(1)
    h = (x[i] + 1) * np.int64(0x5851F42D4C957F2D)
    h = h * h * 77
    slot = (h >> 60) & 15
    if slot >= 0:
        y[i] = y[(i + slot - slot) % 32] + 1


@legal(zeros(32), expected=lambda y: np.full(32, 10))
def loop_over_a_tuple(y):
    s = 0
    for k in (1, 2, 3, 4):
        s += k
    y[cuda.grid(1)] = s


@legal(zeros(8, 8), ramp(4, 4), block=(8, 8), expected=lambda y, x: np.pad(x, 2))
def padding(y, x):
    i, j = cuda.grid(2)
    inside = 2 <= i < 6 and 2 <= j < 6
    y[i, j] = x[i - 2, j - 2] if inside else 0


@legal(zeros(32), np.int64(2), expected=lambda y, k: np.arange(32))
def short_circuit(y, k):
    i = cuda.grid(1)
    if i + k - 2 < y.size and y[i] == 0:
        y[i] = i
