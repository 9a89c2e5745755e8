"""Atomics: values against NumPy, types and indices as on CUDA, many threads on one element."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numba import cuda, njit

from nbrt.backends.cpu.launch import CpuProgram
from nbrt.errors import CompileError

INTEGERS = [np.int32, np.int64, np.uint32, np.uint64]
NUMBERS = [*INTEGERS, np.float32, np.float64]


def run(kernel: Any, *arguments: Any, threads: int = 64) -> None:
    CpuProgram(kernel, cache=False).plan(0, (2, 1, 1), (threads // 2, 1, 1))(*arguments)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_arithmetic_and_extremes(dtype: Any) -> None:
    def kernel(a: Any, v: Any, old: Any) -> None:
        i = cuda.grid(1)
        old[i] = cuda.atomic.add(a, i % 3, v[i])
        cuda.atomic.sub(a, -1, v[i])
        cuda.atomic.max(a, 4, v[i])
        cuda.atomic.min(a, np.uint64(5), v[i])
        cuda.atomic.nanmax(a, 6, v[i])
        cuda.atomic.nanmin(a, 7, v[i])

    v = np.random.default_rng(1).permutation(np.arange(1, 65)).astype(dtype)
    a, old = np.full(10, 30, dtype), np.zeros(64, dtype)
    a[9] = 5000
    expected = a.copy()
    run(kernel, a, v, old)
    for i in range(3):
        expected[i] += v[i::3].sum(dtype=dtype)
    expected[9] -= v.sum(dtype=dtype)
    expected[[4, 6]] = 64
    expected[[5, 7]] = 1
    np.testing.assert_array_equal(a, expected)
    for i in range(3):
        # Each thread got the sum of those before it, whatever the order was.
        order = np.argsort(old[i::3])
        before = 30 + np.concatenate([[0], np.cumsum(v[i::3][order])[:-1]])
        np.testing.assert_array_equal(old[i::3][order], before)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_bits_and_exchange(dtype: Any) -> None:
    def kernel(a: Any, old: Any) -> None:
        i = cuda.grid(1)
        cuda.atomic.and_(a, (0, 0), ~(1 << (i % 20)))
        cuda.atomic.or_(a, (0, i % 1 + 1), i)
        cuda.atomic.xor(a, (-1, -1), i * i)
        old[i] = cuda.atomic.exch(a, (1, 0), i)

    a, old = np.zeros((2, 3), dtype), np.zeros(64, dtype)
    a[0, 0] = 2**31 - 1
    a[1, 0] = 99
    run(kernel, a, old)
    assert a[0, 0] == (2**31 - 1) & ~(2**20 - 1)
    assert a[0, 1] == 63
    assert a[1, 2] == np.bitwise_xor.reduce(np.arange(64) ** 2)
    assert sorted([*old, a[1, 0]]) == [*range(64), 99]


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_counting_wraps_around_at_the_limit(dtype: Any) -> None:
    def kernel(a: Any, up: Any, down: Any) -> None:
        i = cuda.grid(1)
        up[i] = cuda.atomic.inc(a, 0, 9)
        down[i] = cuda.atomic.dec(a, 1, 9)
        cuda.atomic.dec(a, 2, 9)

    a, up, down = np.array([0, 0, 50], dtype), np.zeros(64, dtype), np.zeros(64, dtype)
    run(kernel, a, up, down)
    assert list(a[:2]) == [64 % 10, -64 % 10]
    # Above the limit it falls to the limit first.
    assert a[2] == (9 - 63) % 10
    np.testing.assert_array_equal(np.sort(up), np.sort(np.arange(64) % 10))
    np.testing.assert_array_equal(np.sort(down), np.sort(-np.arange(64) % 10))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_compare_and_swap(dtype: Any) -> None:
    def kernel(a: Any, old: Any) -> None:
        i = cuda.grid(1)
        old[i] = cuda.atomic.cas(a, 1, i, i + 1)
        cuda.atomic.cas(a.reshape(2, 2), (1, 0), 7, i)
        cuda.atomic.compare_and_swap(a, 5, 8)

    a, old = np.array([5, 0, 7, 3], dtype), np.zeros(4, dtype)
    CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (4, 1, 1))(a, old)
    assert a[0] == 8
    assert a[1] == old[-1] + 1
    assert a[2] < 4
    assert a[3] == 3


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_a_nan_does(dtype: Any) -> None:
    def kernel(a: Any, v: Any) -> None:
        i = cuda.grid(1)
        cuda.atomic.max(a, 0, v[i])
        cuda.atomic.max(a, 1, v[i])
        cuda.atomic.min(a, 2, v[i])
        cuda.atomic.nanmax(a, 3, v[i])
        cuda.atomic.nanmin(a, 4, v[i])
        cuda.atomic.nanmin(a, 5, v[i])

    v = np.arange(1, 65).astype(dtype)
    v[5] = np.nan
    nan = np.nan
    a = np.array([nan, 0, 100, nan, nan, 100], dtype)
    run(kernel, a, v)
    np.testing.assert_array_equal(a, np.array([nan, 64, 1, 64, 1, 1], dtype))


def test_signed_zeros_compare_equal() -> None:
    def kernel(a: Any, v: Any) -> None:
        cuda.atomic.max(a, 0, v[0])
        cuda.atomic.min(a, 1, v[1])

    a = np.array([-0.0, 0.0])
    CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (1, 1, 1))(a, np.array([0.0, -0.0]))
    assert list(np.signbit(a)) == [True, False]


def test_fields_of_records() -> None:
    kind = np.dtype([("a", np.float32), ("b", np.int32, (3,))])

    def kernel(records: Any) -> None:
        i = cuda.grid(1)
        cuda.atomic.add(records["a"], 0, 1)
        cuda.atomic.add(records[1]["b"], 1, i)

    records = np.zeros(4, kind)
    run(kernel, records)
    assert records["a"].tolist() == [64, 0, 0, 0]
    assert records[1]["b"].tolist() == [0, sum(range(64)), 0]


def test_blocks_on_several_os_threads_lose_nothing() -> None:
    def kernel(a: Any) -> None:
        for _ in range(100):
            cuda.atomic.add(a, 0, 1)
            cuda.atomic.max(a, 1, cuda.grid(1))

    a = np.zeros(2, np.float64)
    plan = CpuProgram(kernel, cache=False).plan(0, (64, 1, 1), (32, 1, 1))
    plan.prepare((a,))
    workers = [threading.Thread(target=plan, args=(a,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert a.tolist() == [3 * 64 * 32 * 100, 64 * 32 - 1]


@pytest.mark.parametrize(
    ("call", "array", "message"),
    [
        ("add(a, 0, 1)", np.zeros(4, np.int16), "not on one of int16"),
        ("add(a, 0, 1)", np.zeros(4, np.complex64), "not on one of complex64"),
        ("inc(a, 0, 1)", np.zeros(4, np.int32), "uint32, uint64, not on one of int32"),
        ("xor(a, 0, 1)", np.zeros(4, np.float32), "not on one of float32"),
        ("add(a, 0, 1)", np.zeros((4, 4)), "2 dimensions"),
        ("add(a, 1.5, 1)", np.zeros(4), "as many integers"),
        ("compare_and_swap(a, 0, 1)", np.zeros((4, 4), np.int32), "2 dimensions"),
    ],
)
def test_what_cuda_refuses_is_refused(call: str, array: Any, message: str) -> None:
    scope: dict[str, Any] = {"cuda": cuda}
    exec(f"def kernel(a):\n    cuda.atomic.{call}\n", scope)
    with pytest.raises(CompileError, match=message):
        run(scope["kernel"], array)


@njit
def _bin(x: Any) -> Any:
    if x < 0:
        return None
    return x // 10


def test_an_index_that_may_be_none() -> None:
    def kernel(x: Any, counts: Any, pairs: Any) -> None:
        i = cuda.grid(1)
        place = _bin(x[i])
        if place is not None:
            cuda.atomic.add(counts, place, 1)
            cuda.atomic.add(pairs, (place, 0), 2)

    x = np.random.default_rng(3).integers(-20, 40, 64)
    counts, pairs = np.zeros(4, np.int32), np.zeros((4, 1))
    run(kernel, x, counts, pairs)
    expected = np.bincount(x[x >= 0] // 10, minlength=4)
    np.testing.assert_array_equal(counts, expected)
    np.testing.assert_array_equal(pairs[:, 0], 2 * expected)
