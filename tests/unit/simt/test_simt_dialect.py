"""The dialect: every spelling of its names, and kernels against a thread-by-thread reference."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numba.cuda
import numpy as np
import pytest
from numba import cuda, njit
from numba import cuda as renamed
from numba.cuda import blockDim, blockIdx, grid, gridsize, threadIdx

from helpers.simt_reference import run_reference
from nbrt.backends.cpu.launch import CpuProgram

if TYPE_CHECKING:
    from collections.abc import Callable

Dim3 = tuple[int, int, int]

LAUNCHES = [
    ((1, 1, 1), (1, 1, 1)),
    ((3, 1, 1), (32, 1, 1)),
    ((5, 1, 1), (7, 1, 1)),
    ((2, 3, 1), (8, 4, 1)),
    ((3, 2, 2), (4, 3, 2)),
    ((1, 4, 1), (1, 16, 1)),
    ((2, 1, 3), (1, 1, 5)),
]


def check(kernel: Any, launch: tuple[Dim3, Dim3], *args: Any) -> tuple[Any, ...]:
    """Run compiled and by reference on copies of the arguments; compare; give what came out."""
    expected = tuple(a.copy() if isinstance(a, np.ndarray) else a for a in args)
    run_reference(kernel, *launch, *expected)
    got = tuple(a.copy() if isinstance(a, np.ndarray) else a for a in args)
    CpuProgram(kernel, cache=False).plan(0, *launch)(*got)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    return got


def every_index(out: Any) -> None:
    x, y, z = cuda.grid(3)
    nx, ny, nz = cuda.gridsize(3)
    i = (z * ny + y) * nx + x
    out[i, 0] = cuda.threadIdx.x
    out[i, 1] = cuda.threadIdx.y
    out[i, 2] = cuda.threadIdx.z
    out[i, 3] = cuda.blockIdx.x
    out[i, 4] = cuda.blockIdx.y
    out[i, 5] = cuda.blockIdx.z
    out[i, 6] = cuda.blockDim.x
    out[i, 7] = cuda.blockDim.y
    out[i, 8] = cuda.blockDim.z
    out[i, 9] = cuda.gridDim.x
    out[i, 10] = cuda.gridDim.y
    out[i, 11] = cuda.gridDim.z
    out[i, 12] = cuda.laneid
    out[i, 13] = cuda.warpsize
    out[i, 14] = cuda.grid(1)
    out[i, 15] = cuda.gridsize(1)
    out[i, 16] = cuda.grid(2)[1] + 1000 * cuda.gridsize(2)[1]
    out[i, 17] = nz


def by_formula(out: Any) -> None:
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    x = cuda.blockIdx.x * cuda.blockDim.x + tx
    y = ty + cuda.blockDim.y * cuda.blockIdx.y
    z = cuda.threadIdx.z + cuda.blockIdx.z * cuda.blockDim.z
    width = cuda.gridDim.x * cuda.blockDim.x
    height = cuda.gridDim.y * cuda.blockDim.y
    out[(z * height + y) * width + x, 0] += 1


@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize("kernel", [every_index, by_formula])
def test_each_thread_knows_its_place(
    kernel: Callable[..., None], launch: tuple[Dim3, Dim3]
) -> None:
    count = math.prod(launch[0]) * math.prod(launch[1])
    (out,) = check(kernel, launch, np.zeros((count, 18), np.int64))
    assert out[:, 0].any() or kernel is every_index


def test_only_the_positions_named_run_together() -> None:
    def kernel(out: Any) -> None:
        out[cuda.grid(1)] = cuda.threadIdx.x * 100 + cuda.blockIdx.x

    check(kernel, ((4, 1, 1), (5, 1, 1)), np.zeros(20, np.int32))


# -- spellings -------------------------------------------------------------------------------


def with_renamed(out: Any) -> None:
    out[renamed.grid(1)] = renamed.threadIdx.x


def with_names(out: Any) -> None:
    i = threadIdx.x + blockIdx.x * blockDim.x
    if i < out.size:
        out[i] = grid(1) + gridsize(1)


def with_dotted_module(out: Any) -> None:
    out[numba.cuda.grid(1)] = numba.cuda.threadIdx.x


def with_local_names(out: Any) -> None:
    c = cuda
    t, b = c.threadIdx, c.blockIdx
    position = c.grid
    out[position(1)] = t.x + 10 * b.x


@cuda.jit
def already_jitted(out: Any) -> None:
    out[cuda.grid(1)] = cuda.blockIdx.x


@pytest.mark.parametrize(
    "kernel", [with_renamed, with_names, with_dotted_module, with_local_names, already_jitted]
)
def test_every_spelling_of_a_name_is_understood(kernel: Any) -> None:
    check(kernel, ((3, 1, 1), (4, 1, 1)), np.full(12, -1, np.int64))


def test_closure_variables_are_understood() -> None:
    place, jump, scale = cuda.threadIdx, cuda.grid, 7

    def kernel(out: Any) -> None:
        out[jump(1)] = place.x * scale

    check(kernel, ((3, 1, 1), (4, 1, 1)), np.zeros(12, np.int64))


def test_source_text_is_not_needed() -> None:
    scope: dict[str, Any] = {"cuda": cuda}
    exec("def kernel(out):\n    i = cuda.grid(1)\n    out[i] = i * i\n", scope)
    check(scope["kernel"], ((2, 1, 1), (8, 1, 1)), np.zeros(16, np.int64))


def test_lambdas_can_be_kernels() -> None:
    kernel = lambda out: put(out, cuda.grid(1))  # noqa: E731
    check(kernel, ((2, 1, 1), (8, 1, 1)), np.zeros(16, np.int64))


def test_functions_defined_in_a_kernel_are_understood() -> None:
    def kernel(out: Any) -> None:
        def place() -> Any:
            return cuda.grid(1)

        out[place()] = 3 * place()

    check(kernel, ((2, 1, 1), (8, 1, 1)), np.zeros(16, np.int64))


# -- device functions ------------------------------------------------------------------------


@cuda.jit(device=True)
def put(out: Any, i: Any) -> None:
    out[i] += i


@cuda.jit(device=True)
def offset(i: Any, by: Any = 5) -> Any:
    return i + by


@cuda.jit(device=True)
def my_place(scale: Any) -> Any:
    return offset(cuda.grid(1) * scale) + cuda.threadIdx.x


@njit
def plain(a: Any) -> Any:
    return a * 3 + cuda.blockIdx.x


@cuda.jit(device=True)
def apply(function: Any, a: Any) -> Any:
    return function(a)


@cuda.jit(device=True)
def square(a: Any) -> Any:
    return a * a


def calls_device_functions(out: Any) -> None:
    i = cuda.grid(1)
    put(out, i)
    out[i] += my_place(2) + offset(i, by=2) + plain(i) + apply(square, i)


def test_device_functions_nest_and_know_their_place() -> None:
    check(calls_device_functions, ((3, 1, 1), (4, 1, 1)), np.zeros(12, np.int64))


def test_device_functions_are_specialised_for_each_block_shape() -> None:
    @cuda.jit(device=True)
    def width() -> Any:
        return cuda.blockDim.x

    def kernel(out: Any) -> None:
        out[cuda.grid(1)] = width()

    compiled = CpuProgram(kernel, cache=False)
    for size in (2, 6, 3):
        out = np.zeros(6, np.int64)
        compiled.plan(0, (6 // size, 1, 1), (size, 1, 1))(out)
        assert (out == size).all()


def test_random_numbers_of_numba_cuda_are_device_functions_like_others() -> None:
    from numba.cuda import random

    states = np.zeros(4, random.xoroshiro128p_dtype)
    for i in range(4):
        states[i]["s0"], states[i]["s1"] = 2 * i + 1, 3 * i + 2

    def kernel(states: Any, out: Any) -> None:
        i = cuda.grid(1)
        out[i] = random.xoroshiro128p_uniform_float32(states, i)

    out = np.zeros(4, np.float32)
    CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (4, 1, 1))(states, out)
    assert ((out >= 0) & (out < 1)).all()
    assert states["s1"].all()


# -- local arrays ----------------------------------------------------------------------------

ROWS = 3


def with_local_array(a: Any, out: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        kept = cuda.local.array((ROWS, 2), np.float32)
        for row in range(ROWS):
            again = cuda.local.array(shape=2, dtype=numba.float32)
            again[0], again[1] = a[i] + row, a[i] * row
            kept[row, 0], kept[row, 1] = again[1], again[0]
        out[i] = kept[0, 0] + 2 * kept[1, 1] - kept[2, 0] + kept[-1, -1]


def test_local_arrays_belong_to_the_thread() -> None:
    a = np.arange(40, dtype=np.float32)
    check(with_local_array, ((3, 1, 1), (16, 1, 1)), a, np.zeros_like(a))


def test_local_arrays_in_a_loop_do_not_grow_the_stack() -> None:
    @cuda.jit(device=True)
    def one(i: Any) -> Any:
        scratch = cuda.local.array(4096, np.float64)
        scratch[i % 4096] = i
        return scratch[i % 4096]

    def kernel(out: Any) -> None:
        total = 0.0
        for i in range(100_000):
            again = cuda.local.array(4096, np.float64)
            again[i % 4096] = one(i)
            total += again[i % 4096]
        out[cuda.grid(1)] = total

    out = np.zeros(2)
    CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (2, 1, 1))(out)
    assert (out == sum(range(100_000))).all()


# -- meaning of indices ----------------------------------------------------------------------


def test_negative_indices_count_from_the_end() -> None:
    def kernel(a: Any, out: Any) -> None:
        i = cuda.grid(1)
        if i < out.size:
            out[i] = a[-1] + a[-i - 1] * 10 + a[i - 3] * 100

    check(kernel, ((1, 1, 1), (16, 1, 1)), np.arange(9.0), np.zeros(9))


def test_index_types_are_those_of_the_cuda_target() -> None:
    def kernel(out: Any) -> None:
        # int32 + uint32 is int64, int64 + uint64 is float64: what Numba's rules give on CUDA too.
        out[0] = cuda.threadIdx.x + np.uint64(1)
        out[1] = np.int32(2**31 - 1) + cuda.blockDim.x
        out[2] = (cuda.threadIdx.x + np.float32(0.1)) * 3

    out = np.zeros(3)
    CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (1, 1, 1))(out)
    assert out[1] == 2.0**31
    assert out[2] == float(np.float64(np.float32(0.1))) * 3


def test_large_grids_count_past_32_bits() -> None:
    def kernel(out: Any) -> None:
        i = cuda.grid(1)
        if i >= 2**31 * 256 - 512:
            out[i - (2**31 * 256 - 512)] = i

    out = np.zeros(512, np.int64)
    CpuProgram(kernel, cache=False).plan(0, (2**31 - 1, 1, 1), (256, 1, 1))(out)
    assert (out[:256] == np.arange(2**31 * 256 - 512, 2**31 * 256 - 256)).all()


# -- importing -------------------------------------------------------------------------------


def test_the_compiler_imports_numba_cuda_only_if_a_kernel_has() -> None:
    program = """
import sys
import numpy as np
from nbrt.backends.cpu.launch import CpuProgram
def kernel(x):
    x[0] = 1
x = np.zeros(1)
CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (1, 1, 1))(x)
print(x[0], [name for name in ("numba.cuda", "cupy", "nbrt_kernels") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "1.0 []", done.stderr
