# mypy: disable-error-code="no-untyped-def"
"""Local arrays: in the vector registers of one thread between barriers, or in thread loops."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numba import cuda, float32, float64, int32

import nbrt
from helpers.lowerings import agree, code_of, interpreted, run

ONE_BY_ONE = "threads of a block run one after the other between barriers"
GENERATOR = np.random.default_rng(5)


@cache
def product_kernel(tile_m, tile_n, tile_k, mine_m, mine_n, dtype):
    """Make a matrix product with a tile of the result in the local array of each thread."""
    wide = tile_n // mine_n
    threads = tile_m // mine_m * wide

    def product(c, a, b):
        a_tile = cuda.shared.array((tile_m, tile_k), dtype)
        b_tile = cuda.shared.array((tile_k, tile_n), dtype)
        total = cuda.local.array((mine_m, mine_n), dtype)
        t = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y
        first_row, first_column = cuda.blockIdx.y * tile_m, cuda.blockIdx.x * tile_n
        row, column = t // wide * mine_m, t % wide * mine_n
        for i in range(mine_m):
            for j in range(mine_n):
                total[i, j] = 0
        for start in range(0, a.shape[1], tile_k):
            for e in range(t, tile_m * tile_k, threads):
                i, k = e // tile_k, e % tile_k
                is_inside = first_row + i < a.shape[0] and start + k < a.shape[1]
                a_tile[i, k] = a[first_row + i, start + k] if is_inside else 0
            for e in range(t, tile_k * tile_n, threads):
                k, j = e // tile_n, e % tile_n
                is_inside = start + k < b.shape[0] and first_column + j < b.shape[1]
                b_tile[k, j] = b[start + k, first_column + j] if is_inside else 0
            cuda.syncthreads()
            for k in range(tile_k):
                for i in range(mine_m):
                    for j in range(mine_n):
                        total[i, j] += a_tile[row + i, k] * b_tile[k, column + j]
            cuda.syncthreads()
        for i in range(mine_m):
            for j in range(mine_n):
                if first_row + row + i < c.shape[0] and first_column + column + j < c.shape[1]:
                    c[first_row + row + i, first_column + column + j] = total[i, j]

    return product


def reason_of(kernel, *args, block):
    return code_of(kernel, block, *args).lowering.reasons[0]


@pytest.mark.parametrize("shape", [(64, 64, 64), (70, 33, 41), (1, 100, 7)], ids=str)
@pytest.mark.parametrize(
    ("tiles", "dtype", "block"),
    [
        ((64, 64, 8, 8, 8), float32, (64,)),
        ((64, 64, 16, 8, 8), float32, (8, 8)),
        ((32, 64, 8, 8, 8), float64, (32,)),
        ((48, 32, 5, 4, 8), float32, (16, 3)),
        ((64, 32, 8, 8, 8), int32, (32,)),
    ],
    ids=str,
)
def test_products_with_edges(tiles, dtype, block, shape) -> None:
    kernel = product_kernel(*tiles, dtype)
    m, n, inner = shape
    # Small integers: every order of the additions gives the same bits.
    kind = np.dtype(str(dtype))
    a = GENERATOR.integers(-8, 9, (m, inner)).astype(kind)
    b = GENERATOR.integers(-8, 9, (inner, n)).astype(kind)
    c = np.full((m, n), -1, kind)
    grid = -(-n // tiles[1]), -(-m // tiles[0])
    for lowering in ("lanes", "coroutines"):
        (got, *_) = run(lowering, kernel, grid, block, c, a, b)
        np.testing.assert_array_equal(got, a @ b, err_msg=lowering)
    assert reason_of(kernel, c, a, b, block=block).startswith(ONE_BY_ONE)


def test_an_accumulator_is_used_between_its_barriers() -> None:
    """The new value and the old one are both needed behind the barrier that follows the new one."""

    def kernel(o, x, n):
        s = cuda.shared.array(64, float32)
        total = cuda.local.array(32, float32)
        old = cuda.local.array(32, float32)
        t = cuda.threadIdx.x
        for i in range(32):
            total[i] = x[t] + i
            old[i] = 0
        for k in range(n):
            s[t] = total[k % 2] if k % 2 else total[3]
            cuda.syncthreads()
            for i in range(32):
                old[i] = total[i]
            for i in range(32):
                total[i] += s[t ^ 1] * x[k + i]
            cuda.syncthreads()
            for i in range(32):
                total[i] -= old[i] * x[i]
            cuda.syncthreads()
            if k == 3:
                for i in range(32):
                    o[t, i] += old[i]
        for i in range(32):
            o[t, i] += total[i] + 2 * old[i]

    x = GENERATOR.integers(-3, 4, 64).astype(np.float32)
    for n in (0, 1, 2, 5):
        agree(kernel, 1, 64, np.zeros((64, 32), np.float32), x, n)


def test_values_that_are_equal_in_the_block_change_between_barriers() -> None:
    """They have one slot for all threads; each thread must see those from before the region."""

    def kernel(o, x, n):
        s = cuda.shared.array(40, float32)
        total = cuda.local.array(32, float32)
        t = cuda.threadIdx.x
        for i in range(32):
            total[i] = t
        previous, current, last = 0, 1, 0
        for k in range(n):
            s[t] = x[current + t] - previous
            cuda.syncthreads()
            for i in range(32):
                total[i] += s[(t + 1) % 40] * x[i + current]
            previous, current = current, previous + current
            if k % 2:
                last = current * 2
            cuda.syncthreads()
            for i in range(32):
                total[i] -= s[(t + 3) % 40] + x[previous] * last
            cuda.syncthreads()
        for i in range(32):
            o[t, i] = total[i]

    x = GENERATOR.integers(-3, 4, 100).astype(np.float32)
    for n in (0, 1, 2, 3, 6):
        agree(kernel, 1, 40, np.zeros((40, 32), np.float32), x, n)


def test_loops_in_loops_around_barriers() -> None:
    def kernel(o, x, n, m):
        s = cuda.shared.array((16, 8), float32)
        total = cuda.local.array((4, 8), float32)
        t = cuda.threadIdx.x
        for i in range(4):
            for j in range(8):
                total[i, j] = i * j
        for k in range(n):
            for h in range(m):
                for j in range(8):
                    s[t, j] = x[k + h + j] + t
                cuda.syncthreads()
                for repeat in range(k + 1):
                    for i in range(4):
                        for j in range(8):
                            total[i, j] += s[(t + i) % 16, j] * x[repeat]
                cuda.syncthreads()
            for i in range(4):
                for j in range(8):
                    total[i, j] *= x[k]
        for i in range(4):
            for j in range(8):
                o[t, i, j] = total[i, j]

    x = GENERATOR.integers(-2, 3, 32).astype(np.float32)
    o = np.zeros((16, 4, 8), np.float32)
    with nbrt.device("cpu:0"):
        launch = nbrt.kernel(kernel)[1, 16]
    for n, m in ((0, 1), (1, 0), (2, 3), (4, 2)):
        (expected, *_) = interpreted(kernel, 1, 16, o, x, n, m)
        got = o.copy()
        launch(got, x, n, m)
        np.testing.assert_array_equal(got, expected)


def test_threads_count_vote_and_take_their_own_way() -> None:
    def kernel(o, x, n):
        total = cuda.local.array(32, float32)
        t = cuda.threadIdx.x
        for i in range(32):
            total[i] = t
        for k in range(n):
            count = cuda.syncthreads_count(x[t] > k)
            some = cuda.syncthreads_or(x[t] == k)
            every = cuda.syncthreads_and(x[t] >= k)
            if x[t] % 2 == 0:
                for i in range(32):
                    total[i] += x[i] * count
            elif every or some:
                for i in range(32):
                    total[i] -= x[31 - i]
            cuda.syncthreads()
        for i in range(32):
            o[t, i] = total[i]

    x = GENERATOR.integers(0, 6, 40).astype(np.float32)
    for n in (0, 1, 4):
        agree(kernel, 1, 40, np.zeros((40, 32), np.float32), x, n)


def test_threads_that_return_before_others_wait() -> None:
    def kernel(o, x, n):
        total = cuda.local.array(32, float32)
        t = cuda.threadIdx.x
        for i in range(32):
            total[i] = t
        if t >= n:
            return
        for k in range(3):
            cuda.syncthreads()
            for i in range(32):
                total[i] += x[i + k]
        for i in range(32):
            o[t, i] = total[i]

    x = np.arange(40, dtype=np.float32)
    for n in (0, 5, 40):
        agree(kernel, 1, 40, np.zeros((40, 32), np.float32), x, n)


def test_a_thread_that_raises_is_named() -> None:
    def kernel(o, x, n):
        total = cuda.local.array(32, float32)
        t = cuda.threadIdx.x
        for i in range(32):
            total[i] = t
        for k in range(n):
            cuda.syncthreads()
            if x[t] < 0:
                raise ValueError("negative")
            for i in range(32):
                total[i] += x[k] * i
        for i in range(32):
            o[t, i] = total[i]

    x = np.ones(20, np.float32)
    o = np.zeros((20, 32), np.float32)
    agree(kernel, 1, 20, o, x, 4)
    x[13] = -1
    with nbrt.device("cpu:0"), pytest.raises(ValueError, match="negative") as caught:
        nbrt.kernel(kernel)[1, 20](o, x, 4)
    assert "thread (13, 0, 0)" in caught.value.__notes__[0]


def test_small_local_arrays_stay_in_lanes() -> None:
    def kernel(o, x):
        s = cuda.shared.array(64, float32)
        mine = cuda.local.array(4, float32)
        t = cuda.threadIdx.x
        s[t] = x[t]
        cuda.syncthreads()
        for i in range(4):
            mine[i] = s[(t + i) % 64]
        o[t] = mine[0] + mine[1] * mine[2] - mine[3]

    x = GENERATOR.random(64, np.float32)
    agree(kernel, 1, 64, np.zeros(64, np.float32), x)
    assert not reason_of(kernel, x, x, block=64).startswith(ONE_BY_ONE)


def test_divergent_loops_over_local_arrays_are_no_lanes() -> None:
    def kernel(o, x):
        window = cuda.local.array(9, float32)
        i = cuda.grid(1)
        if i < o.size:
            for k in range(9):
                value = x[i + k]
                place = k
                while place > 0 and window[place - 1] > value:
                    window[place] = window[place - 1]
                    place -= 1
                window[place] = value
            o[i] = window[4]

    x = GENERATOR.random(108, np.float32)
    expected = np.median(np.lib.stride_tricks.sliding_window_view(x, 9), axis=1)
    with nbrt.device("cpu:0"):
        launch = nbrt.kernel(kernel)
        o = np.zeros(100, np.float32)
        launch[4, 32](o, x)
        assert launch.inspect(o, x, block=32).lowering.kind == "threads"
    np.testing.assert_array_equal(o, expected)
