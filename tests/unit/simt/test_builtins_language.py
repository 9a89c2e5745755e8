"""Vector types, cache hints, Python's functions as on CUDA, and how functions call each other."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import numba
import numpy as np
import pytest
from numba import cuda, njit
from numba.cuda.vector_types import vector_types

import nbrt
from helpers.processes import output_of
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.dialect import dialect_name
from nbrt.backends.fingerprint import fingerprint
from nbrt.errors import CompileError


def run(kernel: Any, *arguments: Any) -> None:
    CpuProgram(kernel, cache=False).plan(0, (2, 1, 1), (32, 1, 1))(*arguments)


# -- vector types ----------------------------------------------------------------------------


@cuda.jit(device=True)
def total(vector: Any) -> Any:
    return vector.x + vector.y + vector.z + vector.w


def test_vectors_are_made_of_numbers_and_shorter_vectors() -> None:
    def kernel(out: Any) -> None:
        i = cuda.grid(1)
        a = cuda.float4(i, 2, 3.5, True)
        b = cuda.float32x4(cuda.float2(1, 2), cuda.float32x2(i, 7))
        c = cuda.float32x4(a.x, cuda.float32x3(1, cuda.float32x2(2, 3)))
        out[i] = total(a) * 10000 + total(b) * 100 + total(c)

    out, i = np.zeros(64, np.float64), np.arange(64)
    run(kernel, out)
    np.testing.assert_array_equal(out, (i + 6.5) * 10000 + (i + 10) * 100 + (i + 6))


def test_elements_are_converted_to_the_type_of_the_vector() -> None:
    def kernel(out: Any) -> None:
        out[0] = cuda.uint8x2(300, 1).x
        out[1] = cuda.int16x1(-2.75).x
        out[2] = cuda.float32x1(0.1).x
        out[3] = cuda.ulonglong2(1, -1).y

    out = np.zeros(4)
    run(kernel, out)
    np.testing.assert_array_equal(out, [300 % 256, -2, np.float32(0.1), 2.0**64])


def test_vectors_live_in_arrays_of_the_kernel() -> None:
    kind = vector_types["float64x3"]

    def kernel(out: Any) -> None:
        i = cuda.grid(1)
        kept = cuda.local.array(4, kind)
        again = cuda.local.array((2, 2), cuda.double3)
        kept[i % 4] = cuda.double3(i, 2 * i, 3 * i)
        again[i % 2, 1] = kept[i % 4]
        out[i] = again[i % 2, 1].z + again[i % 2, 1].y

    out = np.zeros(64)
    run(kernel, out)
    np.testing.assert_array_equal(out, 5 * np.arange(64))


@pytest.mark.parametrize("call", ["float2(1)", "float2(1, 2, 3)", "float3(int2(1, 2), 3)"])
def test_vectors_of_the_wrong_length_or_kind_are_refused(call: str) -> None:
    scope: dict[str, Any] = {"cuda": cuda}
    exec(f"def kernel(out):\n    out[0] = cuda.{call.replace('int2', 'cuda.int2')}.x\n", scope)
    with pytest.raises(CompileError):
        run(scope["kernel"], np.zeros(4))


# -- hints -----------------------------------------------------------------------------------


def test_cache_hints_load_and_store() -> None:
    def kernel(a: Any, b: Any) -> None:
        i = cuda.grid(1)
        cuda.nanosleep(10)
        x = cuda.ldca(a, i) + cuda.ldcg(a, i) + cuda.ldcs(a, i) + cuda.ldlu(a, i) + cuda.ldcv(a, i)
        cuda.stcg(b, (0, i), x)
        cuda.stcs(b, (1, i), x + 1)
        cuda.stwb(b, (2, i), x + 2)
        cuda.stwt(b, (3, i), x + 3)

    a, b = np.arange(64, dtype=np.float32), np.zeros((4, 64), np.int32)
    run(kernel, a, b)
    np.testing.assert_array_equal(b, 5 * np.arange(64) + np.arange(4)[:, None])


# -- Python's functions ----------------------------------------------------------------------


@njit
def rounded(x: Any) -> Any:
    return math.floor(x) / 2


def test_functions_of_python_mean_what_they_mean_on_cuda() -> None:
    floor = math.floor

    def kernel(x: Any, out: Any) -> None:
        i = cuda.grid(1)
        out[i, 0], out[i, 1], out[i, 2] = math.floor(1e30 * x[i]), math.ceil(x[i]), floor(x[i])
        out[i, 3], out[i, 4] = max(x[i], np.nan), min(np.nan, x[i])
        out[i, 5], out[i, 6] = max(1, 2, i), min(np.float32(x[i]), i)
        out[i, 7], out[i, 8] = math.modf(x[i])
        out[i, 9], out[i, 10] = math.fmod(x[i], 0.7), math.remainder(x[i], 0.7)
        out[i, 11] = math.pow(np.float32(x[i]), np.int32(3))
        out[i, 12], out[i, 13] = math.ldexp(x[i], 3), math.trunc(x[i])
        out[i, 14] = rounded(x[i])

    x, i = np.random.default_rng(1).standard_normal(64) * 10, np.arange(64)
    out = np.zeros((64, 15))
    run(kernel, x, out)
    single = x.astype(np.float32)
    expected = [
        np.floor(1e30 * x), np.ceil(x), np.floor(x), x, x, np.maximum(i, 2), np.minimum(single, i),
        *np.modf(x), np.fmod(x, 0.7), [math.remainder(v, 0.7) for v in x],
        (single.astype(float) ** 3).astype(np.float32), x * 8, np.trunc(x), np.floor(x) / 2,
    ]  # fmt: skip
    np.testing.assert_array_equal(out.T, expected)


def test_the_index_of_a_floor_is_cast_by_hand_as_on_cuda() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[math.floor(x[0])] = 1

    with pytest.raises(CompileError):
        run(kernel, np.ones(64), np.zeros(64))


def test_integers_count_their_bits() -> None:
    def kernel(out: Any) -> None:
        i = cuda.grid(1)
        out[i] = i.bit_count()

    out = np.zeros(64, np.int64)
    run(kernel, out)
    assert out.tolist() == [i.bit_count() for i in range(64)]


# -- functions that call each other ----------------------------------------------------------


@cuda.jit(device=True)
def factorial(n: Any) -> Any:
    if n <= 1:
        return 1
    return n * factorial(n - 1)


@njit
def fibonacci(n: Any) -> Any:
    if n < 2:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)


@cuda.jit
def adds(a: Any, value: Any) -> None:
    a[cuda.grid(1)] += value


@cuda.jit(device=True, inline="always")
def scaled(x: Any, by: Any = 2) -> Any:
    return x * by


def test_functions_recurse_and_kernels_call_kernels() -> None:
    def kernel(out: Any) -> None:
        i = cuda.grid(1)
        out[i] = factorial(i % 10) + fibonacci(i % 10)
        adds(out, scaled(5) + scaled(1, by=3))

    out = np.zeros(64, np.int64)
    run(kernel, out)
    fib = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]
    assert out.tolist() == [math.factorial(i % 10) + fib[i % 10] + 13 for i in range(64)]


def test_loops_over_mixed_tuples_are_unrolled() -> None:
    def kernel(out: Any) -> None:
        i = cuda.grid(1)
        for value in cuda.literal_unroll((1, 2.5, np.float32(3))):
            out[i] += value

    out = np.zeros(64)
    run(kernel, out)
    assert (out == 6.5).all()


# -- the other package with the same names ---------------------------------------------------


def test_numba_cuda_mlir_is_the_same_dialect(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package, which need not be installed: names are known by their module."""
    package, other = ModuleType("numba_cuda_mlir"), ModuleType("numba_cuda_mlir.cuda")

    class Dim3:
        __module__ = "numba_cuda_mlir.cuda.stubs"

    def grid(ndim: int) -> Any: ...

    grid.__module__ = "numba_cuda_mlir.cuda.intrinsics"
    package.cuda, other.grid, other.threadIdx = other, grid, Dim3()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "numba_cuda_mlir", package)
    monkeypatch.setitem(sys.modules, "numba_cuda_mlir.cuda", other)

    def kernel(out: Any) -> None:
        out[other.grid(1)] = other.threadIdx.x

    def both(out: Any) -> None:
        out[other.grid(1)] = cuda.threadIdx.x

    for each in (kernel, both):
        out = np.zeros(64)
        run(each, out)
        np.testing.assert_array_equal(out, np.arange(64) % 32)
    assert dialect_name(numba.cuda.grid) == dialect_name(grid) == "grid"


@nbrt.kernel
def first_half(x: Any, value: Any, width: Any = 4) -> None:
    i = cuda.grid(1)
    if i >= width:
        return
    x[i] = value


@nbrt.kernel
@cuda.jit(inline="always")
def increase(x: Any, amount: Any = 0.5) -> None:
    first_half(x, 7)
    x[cuda.grid(1)] += amount


@cuda.jit
def reverse(x: Any) -> None:
    kept = cuda.shared.array(8, np.float64)
    t = cuda.threadIdx.x
    kept[t] = x[t]
    cuda.syncthreads()
    x[t] = kept[7 - t]


@pytest.mark.parametrize("checked", [False, True])
def test_kernels_call_kernels(checked: bool) -> None:
    @nbrt.kernel
    def kernel(x: Any) -> None:
        increase(x)
        reverse(x)
        first_half(x, 9, width=2)
        increase(x, amount=1)

    x = np.zeros(8)
    with nbrt.device("cpu:0"):
        (kernel.checked() if checked else kernel)[1, 8](x)
    # 7 x 4 and 0 x 4, plus a half; turned round; 9 x 2; again 7 x 4, plus one.
    assert x.tolist() == [8, 8, 8, 8, 8.5, 8.5, 8.5, 8.5]


def test_the_cache_tells_kernels_apart_by_those_they_call() -> None:
    def made(value: float) -> bytes:
        @nbrt.kernel
        def inner(x: Any) -> None:
            x[0] = value

        def outer(x: Any) -> None:
            inner(x)

        return fingerprint(outer)

    assert made(1.0) == made(1.0) != made(2.0)


def test_checked_kernels_print() -> None:
    code = """
        import nbrt, numpy as np
        from numba import cuda

        @nbrt.kernel
        def kernel(x):
            i = cuda.grid(1)
            if i == 1:
                print("thread", i, x[i])

        with nbrt.device("cpu:0"):
            kernel.checked()[1, 2](np.array([0.0, 0.5]))
    """
    assert output_of(code) == "thread 1 0.5\n"
