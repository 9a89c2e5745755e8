# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Kernels whose loops may end only when another thread writes memory, and others."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba import cuda

from helpers.endless import endless
from helpers.spinning import CASES, DEADLOCKS
from nbrt.backends.cpu.memory_waits import may_wait_for_memory


def grid_stride(x, n):
    i = cuda.grid(1)
    while i < n:
        x[i] += 1
        i += cuda.gridsize(1)


def tree(x, out):
    shared = cuda.shared.array(64, "float32")
    t = cuda.threadIdx.x
    shared[t] = x[cuda.grid(1)]
    stride = cuda.blockDim.x // 2
    while stride > 0:
        cuda.syncthreads()
        if t < stride:
            shared[t] += shared[t + stride]
        stride //= 2
    if t == 0:
        out[cuda.blockIdx.x] = shared[0]


def escape(out, most):
    i = cuda.grid(1)
    z, turn = float(i), 0
    while abs(z) < 2.0 and turn < most:
        z = math.sqrt(z * z + 0.25)
        if z > 1.5:
            break
        turn += 1
    out[i] = turn


def row_sums(starts, values, out):
    i = cuda.grid(1)
    for k in range(starts[i], starts[i + 1]):
        if values[k] < 0:
            break
        out[i] += values[k]


@cuda.jit(device=True)
def doubled(v):
    while v < 10:
        v *= 2
    return v


def calls_a_device_function(x):
    i = cuda.grid(1)
    x[i] = doubled(x[i])


ENDING = [grid_stride, tree, escape, row_sums, calls_a_device_function]


def flag_of_host(flag, out):
    while flag[0] == 0:
        pass
    out[0] = 1


def counts_attempts(flag, out):
    while True:
        out[0] += 1
        if flag[0]:
            break


def by_a_variable(flag, out):
    is_set = False
    while not is_set:
        value = flag[0]
        seen = value + 1
        is_set = seen > 1
    out[0] = 1


def by_a_condition(flag, out):
    turns = 0
    while turns < 3:
        if flag[0]:
            turns += 1
    out[0] = turns


def by_an_array(flag, out):
    found = 0
    while not found:
        for value in flag:
            found = value
    out[0] = found


def by_a_walrus(flag, out):
    while not (value := flag[0]):
        pass
    out[0] = value


def by_a_return(flag, out):
    while True:
        if flag[0] > 0:
            out[0] = 1
            return


def without_end(flag, out):
    while True:
        out[0] = flag[0]


@cuda.jit(device=True)
def wait_until_set(flag):
    while cuda.atomic.add(flag, 0, 0) == 0:
        pass


def calls_what_waits(flag, out):
    wait_until_set(flag)
    out[0] = 1


def plain(flag):
    return flag[0]


def calls_an_unknown_function(flag, out):
    out[0] = plain(flag)


WAITING = [
    flag_of_host, counts_attempts, by_a_variable, by_a_condition, by_an_array, by_a_walrus,
    by_a_return, without_end, calls_what_waits, calls_an_unknown_function, endless.function,
]  # fmt: skip


@pytest.mark.parametrize("kernel", ENDING, ids=lambda each: each.__name__)
def test_loops_that_end_by_themselves(kernel) -> None:
    assert not may_wait_for_memory(kernel)


@pytest.mark.parametrize("kernel", WAITING, ids=lambda each: each.__name__)
def test_loops_that_may_wait(kernel) -> None:
    assert may_wait_for_memory(kernel)


def test_every_kernel_that_spins_may_wait() -> None:
    kernels = [case.kernel for case in CASES] + [kernel for kernel, _ in DEADLOCKS]
    unseen = [each.__name__ for each in kernels if not may_wait_for_memory(each)]
    assert not unseen


def test_a_function_without_source_may_wait() -> None:
    names: dict[str, object] = {"np": np}
    exec("def made(x):\n    x[0] = np.float32(1)\n", names)
    assert may_wait_for_memory(names["made"])  # type: ignore[arg-type]
