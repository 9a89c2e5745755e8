"""Device functions that are inlined in Numba IR, as numba-cuda inlines them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import pytest
from numba import cuda

import nbrt
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.errors import CompileError, KernelCheckError, UnsupportedConstructError

if TYPE_CHECKING:
    from collections.abc import Callable


def run(kernel: Callable[..., None], *arguments: Any, blocks: int = 1, threads: int = 1) -> None:
    """Launch a kernel."""
    program = CpuProgram(kernel, cache=False)
    program.plan(0, (blocks, 1, 1), (threads, 1, 1))(*arguments)


@cuda.jit(device=True, inline="always")
def row_of(array: Any, i: Any) -> Any:
    return array[i, :]


@cuda.jit(device=True, inline="always")
def powers(x: Any) -> Any:
    found = cuda.local.array(3, numba.float64)
    for i in range(3):
        found[i] = x**i
    return found


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def evens(array: Any) -> Any:
    return array[::2]


def test_an_inlined_function_returns_a_slice_or_an_array_of_its_own() -> None:
    def kernel(out: Any, table: Any) -> None:
        i = cuda.threadIdx.x
        row = row_of(table, i)
        own = powers(row[1])
        out[i, 0] = row[0]
        out[i, 1] = own[0] + own[1] + own[2]
        out[i, 2] = evens(row)[1]

    table = np.arange(12.0).reshape(4, 3)
    out = np.zeros((4, 3))
    run(kernel, out, table, threads=4)
    expected = np.stack([table[:, 0], 1 + table[:, 1] + table[:, 1] ** 2, table[:, 2]], axis=1)
    np.testing.assert_array_equal(out, expected)


@cuda.jit(device=True)
def column_of(array: Any, i: Any) -> Any:
    return array[:, i]


def test_without_inlining_the_error_says_how() -> None:
    def kernel(out: Any, table: Any) -> None:
        out[0] = column_of(table, 0)[1]

    with pytest.raises(CompileError, match=r"Only accept returning of array.*inline='always'"):
        run(kernel, np.zeros(1), np.zeros((2, 2)))


@cuda.jit(device=True, inline="always")
def clamped(x: Any, low: Any = 0.0, high: Any = 10.0) -> Any:
    if x < low:
        return low
    if x > high:
        return high
    return x


@cuda.jit(device=True, inline="always")
def position(scale: Any) -> Any:
    return clamped(cuda.grid(1) * scale, high=5.0)


def test_inlined_functions_call_each_other_and_name_the_thread() -> None:
    def kernel(out: Any) -> None:
        i = cuda.grid(1)
        if i < out.size:
            out[i] = position(2.0) + position(-1.0) + clamped(x=-3, low=-2.5)

    out = np.zeros(7)
    run(kernel, out, blocks=2, threads=4)
    np.testing.assert_array_equal(out, np.minimum(np.arange(7) * 2.0, 5.0) - 2.5)


@cuda.jit(device=True, inline="always")
def sum_of_block(x: Any) -> Any:
    shared = cuda.shared.array(8, numba.float64)
    i = cuda.threadIdx.x
    shared[i] = x
    cuda.syncthreads()
    total = 0.0
    for k in range(8):
        total += shared[k]
    cuda.syncthreads()
    return total


def test_barriers_of_inlined_functions_are_barriers_of_the_kernel() -> None:
    def kernel(out: Any, x: Any) -> None:
        i = cuda.grid(1)
        first = sum_of_block(x[i])
        out[i] = first + 100 * sum_of_block(x[i] * x[i])

    out, x = np.zeros(16), np.arange(16.0)
    run(kernel, out, x, blocks=2, threads=8)
    sums, squares = x.reshape(2, 8).sum(1), (x * x).reshape(2, 8).sum(1)
    np.testing.assert_array_equal(out, np.repeat(sums + 100 * squares, 8))


def test_a_cost_model_decides() -> None:
    asked = []

    def cost_model(call: Any, caller: Any, callee: Any) -> bool:
        asked.append((call.op, caller.func_id.func_name, callee.func_id.func_name))
        return accepted

    for accepted in (True, False):

        @cuda.jit(device=True, inline=cost_model)
        def tail_of(array: Any) -> Any:
            return array[1:]

        def kernel(out: Any, x: Any) -> None:
            out[0] = tail_of(x)[0]

        out = np.zeros(1)
        if accepted:
            run(kernel, out, np.array([1.0, 2.0]))
            assert out[0] == 2.0
        else:
            with pytest.raises(CompileError, match="Only accept returning of array"):
                run(kernel, out, np.array([1.0, 2.0]))
    assert set(asked) == {("call", "kernel", "tail_of")}


def test_a_closure_is_inlined_with_its_values() -> None:
    def made(offset: float) -> Any:
        @cuda.jit(device=True, inline="always")
        def moved(x: Any) -> Any:
            def inner(y: Any) -> Any:
                return y + offset

            return inner(x) * 2

        return moved

    first, second = made(1.0), made(10.0)

    def kernel(out: Any) -> None:
        out[0] = first(1.0)
        out[1] = second(1.0)

    out = np.zeros(2)
    run(kernel, out)
    np.testing.assert_array_equal(out, [4, 22])


@cuda.jit(device=True, inline="always")
def itself(x: Any) -> Any:
    return itself(x - 1) if x > 0 else 0


@cuda.jit(device=True, inline="always")
def starred(*values: Any) -> Any:
    return values[0]


@pytest.mark.parametrize(
    ("function", "reason"), [(itself, "calls itself"), (starred, r"takes \*args")]
)
def test_what_cannot_be_inlined_is_refused(function: Any, reason: str) -> None:
    def kernel(out: Any) -> None:
        out[0] = function(3)

    with pytest.raises(UnsupportedConstructError, match=f"{function.__name__} .*{reason}"):
        run(kernel, np.zeros(1))


def test_checked_mode_sees_accesses_through_an_inlined_slice() -> None:
    @nbrt.kernel(check=True)
    def kernel(out: Any, table: Any) -> None:
        out[0] = row_of(table, 1)[2]

    with nbrt.device("cpu:0"):
        kernel[1, 1](np.zeros(1), np.zeros((2, 3)))
        with pytest.raises(KernelCheckError):
            kernel[1, 1](np.zeros(1), np.zeros((2, 2)))
