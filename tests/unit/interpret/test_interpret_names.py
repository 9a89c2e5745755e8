"""How a kernel may spell things, and that compiled and interpreted launches agree."""

from __future__ import annotations

import enum
import math
import random
import sys
import threading
import types
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from numba import cuda, njit
from numba import cuda as c
from numba.cuda import blockDim, blockIdx, grid, laneid, threadIdx, warpsize

import nbrt
from nbrt import config
from nbrt.backends.cpu.interpret import interpret
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    CompileError,
    UnsupportedConstructError,
)

ONE = (1, 1, 1)
N = 100
SCALE = 3


def both(kernel: Any, *arrays: Any, block: int = 32, extra: tuple[Any, ...] = ()) -> None:
    """Launch compiled and interpreted; all arrays must come out equal, bit for bit."""
    size = (-(-N // block), 1, 1)
    copies = [array.copy() for array in arrays]
    CpuProgram(kernel).plan(0, size, (block, 1, 1))(*arrays, *extra)
    interpret(kernel, size, (block, 1, 1), 0, (*copies, *extra))
    for position, (compiled, interpreted) in enumerate(zip(arrays, copies, strict=True)):
        assert compiled.tobytes() == interpreted.tobytes(), f"array {position}"


@cuda.jit(device=True)
def clamped(x: Any, low: Any, high: Any = 5.0) -> Any:
    return min(max(x, low), high)


@njit
def cubed(x: Any) -> Any:
    return x * x * x


@cuda.jit(device=True)
def here() -> Any:
    return grid(1) + SCALE


library = types.ModuleType("library_of_kernels")
library.here = here  # type: ignore[attr-defined]
library.cuda = cuda  # type: ignore[attr-defined]


class Pair(NamedTuple):
    first: Any
    second: Any


class Level(enum.IntEnum):
    HIGH = 7


def spelt_in_many_ways(x: Any, out: Any) -> None:
    i = threadIdx.x + blockIdx.x * blockDim.x
    if i < out.size:
        out[i] = c.grid(1) + numba.cuda.gridsize(1) + here() + library.here() + laneid + warpsize
        out[i] += library.cuda.threadIdx.x + SCALE


def device_functions(x: Any, out: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = clamped(x[i] * 9.0, 1.0) + clamped(cubed(x[i]), 0.25, 0.5)


def single_times_double(x: Any, out: Any) -> None:
    """A literal is double, so the product is; stored into float32 it is rounded once."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * 0.1 + x[i] / 3
        for k in range(4):
            out[i] += x[i] * k


def integers(x: Any, out: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        v = np.int64(x[i] * 1e6) - 300000
        out[i] = v // 7 + v % 11 + (v << 3) + (v >> 2) + (v ^ 0x55) + (-v // 3)
        out[i] += cuda.popc(v) * 2 + cuda.clz(v) + cuda.ffs(v) + cuda.selp(i % 2 == 0, v, -v)
        out[i] *= 6364136223846793005  # wraps around


def rounding(x: Any, out: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = cuda.fma(x[i], x[(i + 1) % out.size], -x[(i + 2) % out.size] * x[i])


def scratch(x: Any, out: Any) -> None:
    i = cuda.grid(1)
    if i >= out.size:
        return
    mine = cuda.local.array((2, 3), numba.float64)
    for row in range(2):
        for column in range(3):
            mine[row, column] = x[i] + row * column
    out[i] = mine[1, 2] + mine[0, 1]


X = np.random.default_rng(7).random(N)


@pytest.mark.parametrize(
    ("kernel", "kinds"),
    [
        (spelt_in_many_ways, ("f8", "i8")),
        (device_functions, ("f8", "f8")),
        (device_functions, ("f4", "f4")),
        (single_times_double, ("f4", "f4")),
        (integers, ("f8", "i8")),
        (rounding, ("f8", "f8")),
        (rounding, ("f4", "f4")),
        (scratch, ("f4", "f8")),
    ],
)
def test_compiled_and_interpreted_agree(kernel: Any, kinds: tuple[str, str]) -> None:
    both(kernel, X.astype(kinds[0]), np.zeros(N, kinds[1]))


def test_arguments_of_every_kind() -> None:
    def kernel(out: Any, pair: Any, scale: Any, level: Any, flag: Any) -> None:
        i = cuda.grid(1)
        if i < out.size and flag:
            out[i] = (pair.first[i] + pair.second) * scale + level

    both(kernel, np.zeros(N), extra=(Pair(X, 2), 1.5, np.int32(Level.HIGH), True))


LOST = """
def make(k):
    def kernel(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i] * k
    return kernel
"""


def test_source_that_is_lost_and_closures() -> None:
    namespace: dict[str, Any] = {"cuda": cuda}
    exec(LOST, namespace)
    both(namespace["make"](2.5), X.copy(), np.zeros(N))


def test_modules_of_the_user_stay_as_they_are() -> None:
    before = dict(vars(sys.modules[__name__])), dict(vars(library)), spelt_in_many_ways.__code__
    interpret(spelt_in_many_ways, ONE, (4, 1, 1), 0, (X, np.zeros(4)))
    after = dict(vars(sys.modules[__name__])), dict(vars(library)), spelt_in_many_ways.__code__
    assert all(a is b for old, new in zip(before[:2], after[:2], strict=True)
               for a, b in zip(old.values(), new.values(), strict=True))  # fmt: skip
    assert after[2] is before[2]


def test_half_precision_libdevice_vectors_and_cache_hints() -> None:
    from numba.cuda import fp16, libdevice

    def kernel(x: Any, out: Any) -> None:
        i = cuda.grid(1)
        quad = cuda.float32x4(cuda.float32x2(1, 2), 3.0, i)
        out[0, i] = fp16.hadd(np.float16(2048), np.float16(1)) + quad.y
        out[1, i] = libdevice.sinf(x[i]) + cuda.libdevice.rsqrt(4.0)
        cuda.stcg(out, (2, i), cuda.ldca(x, i) + quad.w)
        cuda.threadfence()
        cuda.nanosleep(10)

    x, out = np.linspace(0, 1, 8), np.zeros((3, 8))
    interpret(kernel, ONE, (8, 1, 1), 0, (x, out))
    assert (out[0] == 2050).all()  # 2049 is no half; it rounds to 2048
    sines = np.sin(x.astype(np.float32).astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(out[1], sines.astype(np.float64) + 0.5)
    np.testing.assert_array_equal(out[2], x + np.arange(8))


def test_arithmetic_that_says_how_it_rounds() -> None:
    def kernel(x: Any, y: Any, out: Any, wide: Any) -> None:
        i = cuda.grid(1)
        out[0, i] = cuda.libdevice.fmul_rn(x[i], y[i])
        out[1, i] = cuda.libdevice.fadd_rn(x[i], y[i])
        out[2, i] = cuda.libdevice.fdiv_rn(x[i], y[i])
        out[3, i] = cuda.libdevice.frcp_rn(y[i])
        wide[i] = cuda.libdevice.dmul_rn(x[i], y[i])

    x, y = np.random.default_rng(3).normal(size=(2, 64)).astype("float32")
    out, wide = np.zeros((4, 64), "float32"), np.zeros(64)
    interpret(kernel, (2, 1, 1), (32, 1, 1), 0, (x, y, out, wide))
    np.testing.assert_array_equal(out, [x * y, x + y, x / y, 1 / y])
    np.testing.assert_array_equal(wide, x.astype("float64") * y)


def test_fma_rounds_once() -> None:
    def kernel(out: Any) -> None:
        out[0] = cuda.fma(1.0 + 2.0**-30, 1.0 - 2.0**-30, -1.0)

    out = np.zeros(1)
    interpret(kernel, ONE, ONE, 0, (out,))
    assert out[0] == -(2.0**-60)


def test_what_has_no_meaning_here() -> None:
    def kernel(out: Any) -> None:
        out[0] = cuda.libdevice.nonsense(1.0)

    with pytest.raises(UnsupportedConstructError, match=r"libdevice.nonsense.*NBRT_INTERPRET"):
        interpret(kernel, ONE, ONE, 0, (np.zeros(1),))


def test_extremes_of_a_number_and_a_nan_are_the_number() -> None:
    alias = max

    def kernel(a: Any, out: Any) -> None:
        i = cuda.grid(1)
        b = a[(i + 1) % a.size]
        out[i, 0] = max(a[i], b)
        out[i, 1] = min(a[i], b)
        out[i, 2] = alias(a[i], b)
        out[i, 3] = max(a[i], b, 0.5)
        out[i, 4] = min((a[i], b))

    for dtype in ("float32", "float64"):
        a = np.array([1.0, np.nan, 2.0, 3.0, np.inf, -np.inf], dtype)
        out, compiled = np.zeros((6, 5)), np.zeros((6, 5))
        interpret(kernel, ONE, (6, 1, 1), 0, (a, out))
        CpuProgram(kernel, cache=False).plan(0, ONE, (6, 1, 1))(a, compiled)
        np.testing.assert_array_equal(out, compiled)
        np.testing.assert_array_equal(out[:, 0], np.fmax(a, np.roll(a, -1)))
        np.testing.assert_array_equal(out[:, 1], np.fmin(a, np.roll(a, -1)))


def test_generators_with_hidden_state_are_refused() -> None:
    generator = np.random.default_rng(0)

    def by_module(out: Any) -> None:
        out[0] = random.random()

    def by_numpy(out: Any) -> None:
        out[0] = np.random.normal()  # noqa: NPY002

    def by_generator(out: Any) -> None:
        out[0] = generator.random()

    for kernel in (by_module, by_numpy, by_generator):
        with pytest.raises(UnsupportedConstructError, match=r"nbrt_kernels\.random"):
            interpret(kernel, ONE, ONE, 0, (np.zeros(1),))


# -- through the front door ----------------------------------------------------------------------


@nbrt.kernel
def who_runs(out):  # type: ignore[no-untyped-def]
    import_nothing = threading.get_ident()
    cuda.syncthreads()
    out[cuda.grid(1)] = import_nothing


def test_the_watched_thread_runs_in_the_caller() -> None:
    out = np.zeros(24, np.int64)
    with nbrt.device("cpu:0"), nbrt.interpret(block=(1, 0, 0), thread=(3, 0, 0)):
        who_runs[3, 8](out)
    (watched,) = np.flatnonzero(out == threading.get_ident())
    assert watched == 8 + 3


def test_launches_on_any_stream_are_done_and_in_order() -> None:
    @nbrt.kernel
    def double(x):  # type: ignore[no-untyped-def]
        x[cuda.grid(1)] *= 2

    with nbrt.device("cpu:0"):
        stream = nbrt.Stream()
        x = nbrt.zeros(64)
        with nbrt.stream(stream):
            nbrt.copy(x, np.full(64, 3, np.float32))
            double[1, 64](x)
            with nbrt.interpret():
                double[1, 64](x)
                assert (np.asarray(x) == 12).all()
            double[1, 64](x)
        stream.synchronize()
    assert (np.asarray(x) == 24).all()


def test_wrong_arguments() -> None:
    with nbrt.device("cpu:0"), nbrt.interpret():
        with pytest.raises(ArgumentTypeError, match="got 2 arguments"):
            who_runs[1, 1](np.zeros(1), 1)
        assert config.settings().interpret
    assert not config.settings().interpret


def test_compiled_kernels_say_how_to_stop_in_them() -> None:
    def kernel(out: Any) -> None:
        breakpoint()
        out[0] = 1

    with pytest.raises(CompileError, match=r"NBRT_INTERPRET=1"):
        CpuProgram(kernel).plan(0, ONE, ONE)(np.zeros(1))


@pytest.mark.parametrize("bad", [(0, 0), 3, (0, 0, -1), (0.0, 0, 0), None])
def test_wrong_places(bad: Any) -> None:
    with pytest.raises(ArgumentError, match="NBRT_INTERPRET_THREAD"), nbrt.interpret(thread=bad):
        pytest.fail("entered")


def test_environment() -> None:
    chosen = config._parse({"NBRT_INTERPRET": "1", "NBRT_INTERPRET_THREAD": "(3, 1)"})
    assert (chosen.interpret, chosen.interpret_thread) == (True, (3, 1, 0))
    assert chosen.interpret_block == (0, 0, 0)
    assert not config._parse({"NBRT_INTERPRET": "0"}).interpret
    with pytest.raises(ArgumentError, match="NBRT_INTERPRET to be 0 or 1, got 'yes'"):
        config._parse({"NBRT_INTERPRET": "yes"})
    with pytest.raises(ArgumentError, match="NBRT_INTERPRET_BLOCK to be x, or x,y"):
        config._parse({"NBRT_INTERPRET_BLOCK": "a,1"})


def test_math_of_one_thread() -> None:
    def kernel(x: Any, out: Any) -> None:
        i = cuda.grid(1)
        out[i] = math.sin(x[i]) + math.pow(x[i], 2.0)

    out = np.zeros(N)
    interpret(kernel, ONE, (N, 1, 1), 0, (X, out))
    np.testing.assert_allclose(out, np.sin(X) + X**2, rtol=1e-15)
