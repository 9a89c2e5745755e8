"""Names of the dialect as values, what programs add through numba.cuda.extending, reductions."""

from __future__ import annotations

import warnings
from typing import Any

import numba
import numpy as np
import pytest
from numba import cuda, types
from numba.cuda.extending import intrinsic, overload, register_jitable
from numba.cuda.typing import signature

from helpers.processes import output_of
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.errors import CompileError, UnsupportedConstructError

LANES = 32


def run(kernel: Any, *arguments: Any) -> None:
    CpuProgram(kernel, cache=False).plan(0, (2, 1, 1), (LANES, 1, 1))(*arguments)


# -- names as values -------------------------------------------------------------------------


@cuda.jit(device=True)
def update(operation: Any, array: Any, index: Any, value: Any) -> Any:
    return operation(array, index, value)


@cuda.jit(device=True)
def call(function: Any) -> None:
    function()


@pytest.mark.parametrize(
    ("name", "expected"), [("add", 2 * LANES * 3), ("max", 3), ("sub", -2 * LANES * 3)]
)
def test_atomics_are_passed_to_device_functions(name: str, expected: int) -> None:
    operation = getattr(cuda.atomic, name)

    def kernel(out: Any) -> None:
        update(operation, out, 0, 3)

    out = np.zeros(1, np.int32)
    run(kernel, out)
    assert out[0] == expected


def test_a_barrier_that_is_passed_on_is_one() -> None:
    def kernel(out: Any) -> None:
        shared = cuda.shared.array(LANES, cuda.float32)
        i = cuda.threadIdx.x
        shared[i] = i
        call(cuda.syncthreads)
        out[cuda.grid(1)] = shared[LANES - 1 - i]

    out = np.zeros(2 * LANES)
    run(kernel, out)
    np.testing.assert_array_equal(out, np.tile(np.arange(LANES)[::-1], 2))


def test_a_barrier_alone_is_seen_through_a_closure() -> None:
    barrier = cuda.syncthreads

    def kernel(out: Any) -> None:
        i = cuda.grid(1)
        out[i] = i
        call(barrier)
        beside = out[i ^ 1]
        call(barrier)
        out[i] = beside

    out = np.zeros(2 * LANES)
    run(kernel, out)
    np.testing.assert_array_equal(out, np.arange(2 * LANES) ^ 1)


def test_what_needs_more_than_its_arguments_is_no_value() -> None:
    def kernel(out: Any) -> None:
        update(cuda.shared.array, out, 0, 3)

    with pytest.raises(UnsupportedConstructError, match=r"cuda\.shared\.array is used as a value"):
        run(kernel, np.zeros(1))


def test_types_of_numba_cuda_convert() -> None:
    def kernel(out: Any) -> None:
        out[0] = cuda.float32(0.1)
        out[1] = cuda.uint8(257)

    out = np.zeros(2)
    run(kernel, out)
    np.testing.assert_array_equal(out, [np.float32(0.1), 1])


def test_atomics_cut_off_a_real_index() -> None:
    def kernel(out: Any) -> None:
        cuda.atomic.add(out, (1.75, np.uint64(5) % 3), 1)

    out = np.zeros((2, 3), np.int32)
    run(kernel, out)
    np.testing.assert_array_equal(out, [[0, 0, 0], [0, 0, 2 * LANES]])


_SUBMODULES = """
import numpy as np
from numba import cuda
from nbrt.backends.cpu.launch import CpuProgram

for name in ("fp16", "libdevice"):
    vars(cuda).pop(name, None)

def kernel(out):
    out[0] = cuda.fp16.hadd(np.float16(1.5), np.float16(2))
    out[1] = cuda.libdevice.sqrt(4.0)

out = np.zeros(2)
CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (1, 1, 1))(out)
print(*out)
"""


def test_modules_that_numba_cuda_imports_late_are_found() -> None:
    assert output_of(_SUBMODULES).split() == ["3.5", "2.0"]


# -- numba.cuda.extending --------------------------------------------------------------------


def described(x: Any) -> Any:
    raise NotImplementedError


# Numba compares the parameters of both functions, annotations included.
overload(described)(
    lambda x: (lambda x: above(x) + 1) if isinstance(x, types.Integer) else (lambda x: x * 2)
)


@register_jitable  # type: ignore[untyped-decorator]
def above(x: Any) -> Any:
    return x + 10


@intrinsic  # type: ignore[untyped-decorator]
def negative(_typing: Any, x: Any) -> Any:
    return signature(x, x), lambda _context, builder, _sig, args: builder.neg(args[0])


def test_overloads_and_intrinsics_of_numba_cuda_are_known() -> None:
    def kernel(out: Any) -> None:
        out[0] = described(1)
        out[1] = described(2.5)
        out[2] = negative(3)

    out = np.zeros(3)
    run(kernel, out)
    np.testing.assert_array_equal(out, [12, 5, -3])


def test_an_overload_for_cuda_comes_before_one_for_any_target() -> None:
    def target() -> Any: ...

    overload(target, target="generic")(lambda: lambda: 1)
    overload(target)(lambda: lambda: 2)

    def kernel(out: Any) -> None:
        out[0] = target()

    out = np.zeros(1)
    run(kernel, out)
    assert out[0] == 2


def test_an_overload_of_numba_for_cuda_is_known() -> None:
    def target() -> Any: ...

    numba.extending.overload(target, target="cuda")(lambda: lambda: 3)

    def kernel(out: Any) -> None:
        out[0] = target()

    out = np.zeros(1)
    run(kernel, out)
    assert out[0] == 3


def test_a_barrier_in_an_overload_is_one() -> None:
    def meet() -> Any: ...

    @overload(meet)
    def _meet() -> Any:
        def implementation() -> None:
            cuda.syncthreads()

        return implementation

    def kernel(out: Any) -> None:
        shared = cuda.shared.array(LANES, cuda.float32)
        i = cuda.threadIdx.x
        shared[i] = i
        meet()
        out[cuda.grid(1)] = shared[LANES - 1 - i]

    out = np.zeros(2 * LANES)
    run(kernel, out)
    np.testing.assert_array_equal(out, np.tile(np.arange(LANES)[::-1], 2))


def test_a_later_overload_is_seen_by_the_next_kernel() -> None:
    def kind(x: Any) -> Any: ...

    overload(kind)(lambda x: (lambda x: 1) if isinstance(x, types.Integer) else None)

    def kernel(out: Any) -> None:
        out[0] = kind(1.5)

    with pytest.raises(CompileError, match="kind"):
        run(kernel, np.zeros(1))
    overload(kind)(lambda x: (lambda x: 2) if isinstance(x, types.Float) else None)
    out = np.zeros(1)
    run(kernel, out)
    assert out[0] == 2


def test_code_that_is_no_kernel_does_not_see_them() -> None:
    with pytest.raises(numba.TypingError, match="described"):
        numba.njit(lambda: described(1))()


# -- reductions ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["max", "min", "amax", "amin", "nanmax", "nanmin"])
@pytest.mark.parametrize(
    "values",
    [
        np.array([3, -7, 5, 5], np.int16),
        np.array([False, True]),
        np.array([[1.5, np.nan], [-2.0, np.inf]], np.float32),
        np.array([np.nan, 1.0, np.nan]),
        np.array([np.nan, np.nan]),
        np.arange(12.0)[::-3],
    ],
)
def test_extremes_are_those_of_numpy(name: str, values: Any) -> None:
    function = getattr(np, name)

    def kernel(out: Any, a: Any) -> None:
        out[0] = function(a)

    out = np.zeros(1, values.dtype)
    run(kernel, out, values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        np.testing.assert_array_equal(out[0], function(values))


def test_what_is_not_zero_is_counted() -> None:
    def kernel(out: Any, a: Any) -> None:
        out[0] = np.count_nonzero(a)

    values = np.array([[0.0, np.nan, -0.0], [3.0, 1e-300, 0.0]])
    out = np.zeros(1, np.int64)
    run(kernel, out, values)
    assert out[0] == np.count_nonzero(values) == 3


def test_an_extreme_of_nothing_is_an_error() -> None:
    def kernel(out: Any, a: Any) -> None:
        out[0] = np.max(a)

    with pytest.raises(ValueError, match="zero-size array"):
        run(kernel, np.zeros(1), np.zeros(0))
