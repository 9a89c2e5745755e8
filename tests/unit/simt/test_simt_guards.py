"""Bounds checks become loop bounds: the same threads must run for every form of the check."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

from helpers.simt_reference import run_reference
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.cpu.simt.frontend.pipeline import bounds_of

N = 29


def if_less(out: Any, n: Any) -> None:
    i = cuda.grid(1)
    if i < n:
        out[i] += 1


def if_less_or_equal(out: Any, n: Any) -> None:
    i = cuda.grid(1)
    if i <= n:
        out[i] += 1


def early_return(out: Any, n: Any) -> None:
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i >= n:
        return
    out[i] += 1


def early_return_greater(out: Any, n: Any) -> None:
    i = cuda.grid(1)
    if i > n:
        return
    out[i] += 1


def mirrored(out: Any, n: Any) -> None:
    i = cuda.grid(1)
    if n > i:
        out[i] += 1


def negated(out: Any, n: Any) -> None:
    i = cuda.grid(1)
    if not i >= n:
        out[i] += 1


def both_sides(out: Any, n: Any) -> None:
    i = cuda.grid(1)
    if 1 < i < n - 1:
        out[i] += 1 + out[i - 1] * 0


def from_below(out: Any, n: Any) -> None:
    i = cuda.grid(1)
    if i > n and i < out.size:
        out[i] += 1


def not_below(out: Any, n: Any) -> None:
    i = cuda.grid(1)
    if i < n or i >= len(out):
        return
    out[i] += 1


def shifted(out: Any, n: Any) -> None:
    i = cuda.grid(1) + 2
    if i - 1 < n:
        out[i - 2] += i


def equal(out: Any, n: Any) -> None:
    i = cuda.grid(1)
    if i == n:
        out[i] += 1


def not_equal(out: Any, n: Any) -> None:
    i = cuda.grid(1)
    if i < out.size and i != n:
        out[i] += 1


def thread_index(out: Any, n: Any) -> None:
    t = cuda.threadIdx.x
    if t < n % 5:
        out[cuda.blockIdx.x * 5 + t] += 1


def with_else(out: Any, n: Any) -> None:
    i = cuda.grid(1)
    if i < n:
        out[i] += 1
    elif i < out.size:
        out[i] -= 1


def work_after(out: Any, n: Any) -> None:
    i = cuda.grid(1)
    if i < n:
        out[i] += 1
    if i < out.size:
        out[i] += 10


def work_before(out: Any, n: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 5
    if i < n:
        out[i] += 1


def changed_limit(out: Any, n: Any) -> None:
    i = cuda.grid(1)
    n = n - 3
    if i < n:
        out[i] += 1


def changed_position(out: Any, n: Any) -> None:
    i = cuda.grid(1)
    i += 1
    if i < n:
        out[i] += 1


def computed_limit(out: Any, n: Any) -> None:
    i = cuda.grid(1)
    last = min(int(n * 2) // 2, out.shape[0] - 1)
    if i < last:
        out[i] += 1


def limit_in_memory(out: Any, n: Any) -> None:
    i = cuda.grid(1)
    if i < out[0] + n - out[0]:
        out[i] += 1


def in_a_loop(out: Any, n: Any) -> None:
    i = cuda.grid(1)
    for k in range(3):
        if i < n:
            out[i] += k


KERNELS = [
    (if_less, 1),
    (if_less_or_equal, 1),
    (early_return, 1),
    (early_return_greater, 1),
    (mirrored, 1),
    (negated, 1),
    (both_sides, 2),
    (from_below, 2),
    (not_below, 2),
    (shifted, 1),
    (equal, 2),
    (not_equal, 1),
    (thread_index, 1),
    (with_else, 0),
    (work_after, 0),
    (work_before, 0),
    (changed_limit, 1),
    (changed_position, 0),
    (computed_limit, 1),
    (limit_in_memory, 0),
    (in_a_loop, 0),
]


VALUES = [N - 4, 0, -3, 1, np.uint64(7), 7.0, 7.5, float("nan"), float("inf"), -float("inf")]
INTEGER_KERNELS = (thread_index, computed_limit, limit_in_memory)


@pytest.mark.parametrize(("kernel", "bounds"), KERNELS, ids=lambda v: getattr(v, "__name__", v))
def test_the_same_threads_run(kernel: Any, bounds: int) -> None:
    launch = ((6, 1, 1), (5, 1, 1))
    compiled = CpuProgram(kernel, cache=False)
    values = [n for n in VALUES if not isinstance(n, float) or kernel not in INTEGER_KERNELS]
    for n in values:
        # Room beyond the threads, for the forms that let a thread past the end.
        expected, got = np.zeros(N + 4), np.zeros(N + 4)
        run_reference(kernel, *launch, expected, n)
        compiled.plan(0, *launch)(got, n)
        np.testing.assert_array_equal(got, expected, err_msg=f"n = {n}")
    # That many limits came out of the body; the rest of the tests stayed in it.
    limits = list(compiled.body._limits.overloads.values())
    assert len(bounds_of(limits[0]) if limits else []) == bounds


def in_two_dimensions(out: Any) -> None:
    x, y = cuda.grid(2)
    if 0 < x < out.shape[1] - 1 and 0 < y < out.shape[0] - 1:
        out[y, x] += 1 + x + 100 * y


def in_three_dimensions(out: Any) -> None:
    x, y, z = cuda.grid(3)
    if x >= out.shape[2] or y >= out.shape[1] or z >= out.shape[0]:
        return
    out[z, y, x] += 1 + x + 100 * y + 10000 * z


@pytest.mark.parametrize("block", [(4, 4, 1), (1, 3, 1), (8, 1, 1), (32, 32, 1)])
def test_two_dimensions(block: tuple[int, int, int]) -> None:
    launch = ((-(-30 // block[0]), -(-16 // block[1]), 1), block)
    compiled = CpuProgram(in_two_dimensions, cache=False)
    for shape in ((7, 9), (1, 1), (16, 8), (3, 30), (0, 4)):
        expected, got = np.zeros(shape), np.zeros(shape)
        run_reference(in_two_dimensions, *launch, expected)
        compiled.plan(0, *launch)(got)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("shape", [(3, 5, 7), (4, 4, 4), (1, 1, 9)])
@pytest.mark.parametrize("block", [(4, 2, 2), (1, 1, 4), (9, 1, 1)])
def test_three_dimensions(shape: tuple[int, int, int], block: tuple[int, int, int]) -> None:
    grid = (-(-shape[2] // block[0]), -(-shape[1] // block[1]), -(-shape[0] // block[2]))
    expected, got = np.zeros(shape), np.zeros(shape)
    run_reference(in_three_dimensions, grid, block, expected)
    CpuProgram(in_three_dimensions, cache=False).plan(0, grid, block)(got)
    np.testing.assert_array_equal(got, expected)
    assert (got != 0).all()


def test_a_limit_of_an_odd_type_leaves_the_guard_in_the_body() -> None:
    def kernel(out: Any, flag: Any) -> None:
        i = cuda.grid(1)
        if i < flag:
            out[i] += 1

    got = np.zeros(4)
    CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (4, 1, 1))(got, True)
    assert got.tolist() == [1, 0, 0, 0]


def test_the_source_function_is_left_as_it_was() -> None:
    before = if_less.__code__
    CpuProgram(if_less, cache=False).plan(0, (1, 1, 1), (4, 1, 1))(np.zeros(4), 2)
    assert if_less.__code__ is before
    assert not hasattr(if_less, "__signature__")
