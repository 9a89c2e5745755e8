# mypy: disable-error-code="no-untyped-def"
"""Lanes: threads that part and meet again, loops that they leave at different times, returns."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda, float32, int32, int64

from helpers.lowerings import agree, run

X = np.array([5, 0, -3, 17, 8, 2, 40, 1, 9, 33, -7, 12, 6, 6, 21, 3] * 8, np.int32)[:100]


def out(count=100, dtype=np.int64):
    return np.full(count, -1, dtype)


def test_nested_divergent_loops_with_break_and_continue() -> None:
    def kernel(o, x):
        s = cuda.shared.array(128, int32)
        t = cuda.threadIdx.x
        found = 0
        for i in range(x[t] % 7):
            if i == 4:
                continue
            for j in range(i, 9):
                if (i + j) % 4 == 3:
                    continue
                if i * j > x[t]:
                    break
                found += i * 10 + j
            else:
                found += 1000
            if found > 1500:
                break
        s[t] = found
        cuda.syncthreads()
        o[t] = s[99 - t]

    agree(kernel, 1, 100, out(), X)


def test_a_loop_with_several_ways_out() -> None:
    def kernel(o, x):
        s = cuda.shared.array(128, int32)
        t = cuda.threadIdx.x
        s[t] = 0
        cuda.syncthreads()
        n = x[t]
        turn = 0
        kind = 0
        while True:
            if n < -100:
                kind = 1
                break
            if n % 5 == 4:
                kind = 2
                turn += 100
                break
            turn += 1
            if turn > 6:
                kind = 3
                break
            n = n * 3 - 7
            if n == 11:
                o[t] = -50
                return
        s[t] = kind
        o[t] = turn * 10 + s[t]

    agree(kernel, 1, 100, out(), X)


def test_returns_in_a_loop_in_a_branch() -> None:
    def kernel(o, x):
        s = cuda.shared.array(128, int32)
        t = cuda.threadIdx.x
        s[t] = x[t]
        cuda.syncthreads()
        if t % 3 == 0:
            for k in range(x[t]):
                if s[(t + k) % 100] == 6:
                    o[t] = k
                    return
            o[t] = 1000
        elif t % 3 == 1:
            if x[t] < 0:
                return
            o[t] = s[t]
        o[t] += 5

    agree(kernel, 1, 100, out(), X)


def test_threads_return_before_barriers_one_after_the_other() -> None:
    def kernel(o, n):
        s = cuda.shared.array(128, int32)
        t = cuda.threadIdx.x
        s[t] = t
        cuda.syncthreads()
        if t >= n:
            return
        v = s[n - 1 - t]
        cuda.syncthreads()
        s[t] += v * 100
        cuda.syncthreads()
        if t % 2 == 0:
            o[t] = s[t]
            return
        cuda.syncthreads()
        s[t] += 1
        cuda.syncthreads()
        o[t] = s[t] + s[t - 1]

    for n in (0, 1, 33, 64, 99, 100):
        agree(kernel, 1, 100, out(), n)


@pytest.mark.parametrize("shape", [(32, 4), (64, 3), (16, 2, 3), (8, 9)], ids=str)
def test_whole_rows_return_before_barriers(shape) -> None:
    """All lanes of a group return together, other groups go on."""

    def kernel(o, n):
        s = cuda.shared.array(256, int32)
        t = cuda.threadIdx
        row = t.y + cuda.blockDim.y * t.z
        i = t.x + cuda.blockDim.x * row
        s[i] = i
        if row >= n:
            return
        cuda.syncthreads()
        o[i] = s[i] + 100
        cuda.syncthreads()
        if row + 1 == n:
            o[i] += 1000
            return
        cuda.syncthreads()
        o[i] += 10000

    rows = shape[1] * (shape[2] if len(shape) > 2 else 1)
    for n in (0, 1, rows - 1, rows):
        agree(kernel, 1, shape, out(256), n)


def test_whole_warps_return_before_barriers() -> None:
    def kernel(o, n):
        s = cuda.shared.array(128, int32)
        t = cuda.threadIdx.x
        warp = t // 32
        s[t] = t
        cuda.syncthreads()
        for k in range(n):
            if warp > k + 1:
                o[t] = -k - 2
                return
            s[t] += k
        count = cuda.syncthreads_count(warp != 1)
        o[t] = s[t] + 1000 * count
        if warp == 0:
            return
        cuda.syncthreads()
        o[t] += 7

    for n in (0, 1, 2, 5):
        agree(kernel, 1, 128, out(128), n)


def test_blocks_return_as_a_whole() -> None:
    def kernel(o, n):
        s = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        s[t] = t if t < 20 else -t
        if cuda.blockIdx.x >= n:
            return
        cuda.syncthreads()
        o[cuda.grid(1)] = s[63 - t]

    for n in (0, 2, 3):
        agree(kernel, 3, 64, out(256), n)


def test_a_chain_of_cases() -> None:
    def kernel(o, x):
        s = cuda.shared.array(128, int32)
        t = cuda.threadIdx.x
        match x[t]:
            case 0:
                v = 10
            case 1 | 2:
                v = 20 + t
            case 5:
                v = 50
                for k in range(t % 3):
                    v += k
            case 6 if t % 2:
                v = 60
            case 8:
                o[t] = 8
                return
            case 9:
                v = s.size
            case _:
                v = -x[t]
        s[t] = v
        cuda.syncthreads()
        o[t] = s[t] + s[0]

    agree(kernel, 1, 100, out(), X)


def test_a_dense_chain_that_becomes_a_table() -> None:
    def kernel(o, x):
        t = cuda.threadIdx.x
        cuda.syncthreads()
        v = x[t] % 8
        if v == 0:
            r = 3
        elif v == 1:
            r = 1
        elif v == 2:
            r = 4
        elif v == 3:
            r = 1
        elif v == 4:
            r = 5
        elif v == 5:
            r = 9
        elif v == 6:
            r = 2
        else:
            r = 6
        o[t] = r

    agree(kernel, 1, 100, out(), X)


def test_conditions_cut_short() -> None:
    def kernel(o, x, n):
        s = cuda.shared.array(128, int32)
        t = cuda.threadIdx.x
        s[t] = x[t]
        cuda.syncthreads()
        if t > 0 and t < n - 1 and (s[t - 1] < s[t] or s[t + 1] == 6) and not s[t] < 0:
            o[t] = 1
        elif (t == 0 or s[t - 1] > 10) != (s[t] % 2 == 0):
            o[t] = 2
        if 3 <= s[t] < 13 and x[(s[t] * 7) % n] > 2:
            o[t] += 10

    agree(kernel, 1, 100, out(), X, 100)


def test_a_loop_in_each_of_two_branches() -> None:
    def kernel(o, x):
        s = cuda.shared.array(128, float32)
        t = cuda.threadIdx.x
        v = float32(x[t])
        if x[t] > 7:
            while v > 1.5:
                v *= float32(0.5)
                if t % 4 == 3 and v < 3:
                    break
        else:
            for k in range(t % 5):
                v += float32(k)
        s[t] = v
        cuda.syncthreads()
        o[t] = s[99 - t]

    agree(kernel, 1, 100, out(dtype=np.float32), X)


@pytest.mark.parametrize("flag", [0, 1, 2])
def test_uniform_branches_around_divergent_ones(flag: int) -> None:
    def kernel(o, x, flag):
        s = cuda.shared.array(128, int32)
        t = cuda.threadIdx.x
        s[t] = 0
        if flag == 0:
            if t % 2:
                s[t] = x[t]
            else:
                s[t] = -x[t]
        elif flag == 1:
            for k in range(3):
                if x[t] > k * 4:
                    s[t] += k + 1
                    if x[t] == 17:
                        break
        cuda.syncthreads()
        if flag:
            o[t] = s[t]
        elif t > 40:
            o[t] = s[99 - t]

    agree(kernel, 1, 100, out(), X, flag)


def test_a_uniform_branch_in_a_divergent_one() -> None:
    def kernel(o, x, flag):
        s = cuda.shared.array(128, int32)
        t = cuda.threadIdx.x
        s[t] = t
        cuda.syncthreads()
        v = 0
        if x[t] > 5:
            if flag > 3:
                v = s[(t * 7) % 100]
            else:
                v = s[(t * 3) % 100]
                if flag == 2:
                    o[t] = -9
                    return
            v += 1
        o[t] = v

    for flag in (1, 2, 5):
        agree(kernel, 1, 100, out(), X, flag)


def test_a_search_in_a_sorted_array() -> None:
    def kernel(o, keys, x):
        s = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        if t < 64:
            s[t] = keys[t]
        cuda.syncthreads()
        low, high = 0, 64
        while low < high:
            middle = (low + high) // 2
            if s[middle] < x[t]:
                low = middle + 1
            else:
                high = middle
        o[t] = low

    keys = np.sort(np.random.default_rng(3).integers(-5, 45, 64)).astype(np.int32)
    agree(kernel, 1, 100, out(), keys, X, expected=np.searchsorted(keys, X))


def test_values_carried_around_a_divergent_loop_in_different_roles() -> None:
    def kernel(o, x):
        s = cuda.shared.array(128, int64)
        t = cuda.threadIdx.x
        a, b, c, last = 0, 1, t * 1.5, False
        for k in range(x[t] % 11):
            a, b = b, a + b
            c = c / 2 if last else c + k
            last = not last
            if b > 30 and last:
                break
        s[t] = a + b * 1000
        cuda.syncthreads()
        o[t] = s[99 - t] + (7 if last else 0) + int64(c)

    agree(kernel, 1, 100, out(), X)


def test_a_loop_whose_trips_count_down_with_the_thread() -> None:
    def kernel(o):
        s = cuda.shared.array(128, int32)
        t = cuda.threadIdx.x
        s[t] = t
        cuda.syncthreads()
        total = 0
        for k in range(t, 100):
            total += s[k]
        o[t] = total
        total = 0
        for k in range(t):
            total += s[k] * 2
        o[t] += total * 10000

    down = np.array([sum(range(t, 100)) + sum(range(t)) * 20000 for t in range(100)])
    agree(kernel, 1, 100, out(), expected=down)


def test_a_device_function_with_barriers_and_early_returns() -> None:
    @cuda.jit(device=True)
    def shifted(s, t, by, n):
        cuda.syncthreads()
        v = s[t]
        if t + by < n:
            v = s[t + by]
        cuda.syncthreads()
        if v == 6:
            return -1
        for k in range(v % 4):
            if k * v > 20:
                return k
        return v

    def kernel(o, x):
        s = cuda.shared.array(128, int32)
        t = cuda.threadIdx.x
        s[t] = x[t]
        a = shifted(s, t, 1, 100)
        s[t] = a
        b = shifted(s, t, 5, 100)
        o[t] = a * 1000 + b

    agree(kernel, 1, 100, out(), X)


def test_an_infinite_loop_of_the_block_left_together() -> None:
    def kernel(o, x):
        s = cuda.shared.array(1, int32)
        t = cuda.threadIdx.x
        turns = 0
        v = x[t]
        while True:
            if t == 0:
                s[0] = 0
            cuda.syncthreads()
            if v > 3:
                v = v // 2
                cuda.atomic.add(s, 0, 1)
            turns += 1
            cuda.syncthreads()
            if s[0] == 0:
                break
            cuda.syncthreads()
        o[t] = turns * 100 + v

    agree(kernel, 1, 100, out(), X)


def test_what_is_computed_for_lanes_that_take_no_part_does_no_harm() -> None:
    def kernel(o, x, y):
        s = cuda.shared.array(128, int64)
        t = cuda.threadIdx.x
        s[t] = y[t]
        cuda.syncthreads()
        v = 0
        if s[t] != 0:
            v = x[t] // s[t] + x[t] % s[t] * 100
            if s[t] > 0:
                v += 7 // y[t]
        for k in range(t % 3):
            if x[t] + k:
                v += 100 // (x[t] + k)
        o[t] = v

    y = np.where(np.arange(100) % 3 == 0, 0, np.arange(100) - 50)
    agree(kernel, 1, 100, out(), X, y)


def test_threads_return_in_front_of_loops_and_choices_with_barriers() -> None:
    def kernel(o, x, n, flag):
        s = cuda.shared.array(128, int32)
        t = cuda.threadIdx.x
        s[t] = x[t]
        if t >= n:
            return
        for k in range(flag):
            cuda.syncthreads()
            v = s[(t + 1) % n]
            cuda.syncthreads()
            s[t] = v + k
            if v == 40 and t % 2:
                o[t] = -3
                return
        if flag == 2:
            cuda.syncthreads()
            o[t] = s[n - 1 - t]
        else:
            cuda.syncthreads()
            o[t] = s[t] + s[n - 1]

    for n, flag in ((100, 2), (61, 3), (33, 0)):
        agree(kernel, 1, 100, out(), X, n, flag)


def test_forced_lanes_refuse_what_they_cannot_do() -> None:
    from nbrt.errors import CompileError

    def arms(o):
        t = cuda.threadIdx.x
        if t % 2:
            cuda.syncthreads()
            o[t] = 1
        else:
            cuda.syncthreads()
            o[t] = 2

    with pytest.raises(CompileError, match="may wait at different barriers"):
        run("lanes", arms, 1, 64, out(64))
    (got,) = run("coroutines", arms, 1, 64, out(64))
    np.testing.assert_array_equal(got, 2 - np.arange(64) % 2)
