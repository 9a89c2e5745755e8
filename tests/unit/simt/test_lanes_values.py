# mypy: disable-error-code="no-untyped-def"
"""Lanes: types, arithmetic, memory accesses and atomic operations, held against plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba import cuda, float32, float64, int32, int64, uint32

from helpers.lowerings import LOWERINGS, agree, run
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.errors import CompileError

RNG = np.random.default_rng(5)
T = np.arange(100)

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float32", "float64"]
COMPLEX = ["complex64", "complex128"]


def values(dtype):
    """Numbers of a type, with its extremes among integers."""
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        some = RNG.integers(limits.min, limits.max, 100, dtype=kind, endpoint=True)
        some[:4] = limits.min, limits.max, 0, 1
        return some
    if kind.kind == "c":
        return (RNG.normal(size=100) + 1j * RNG.normal(size=100)).astype(kind)
    return RNG.normal(0, 10, 100).astype(kind)


@pytest.mark.parametrize("dtype", INTEGERS + FLOATS + COMPLEX)
def test_a_shared_array_of_a_type_in_divergent_code(dtype: str) -> None:
    kind = np.dtype(dtype).type

    def kernel(o, x):
        s = cuda.shared.array(128, kind)
        t = cuda.threadIdx.x
        s[t] = x[t]
        cuda.syncthreads()
        v = s[t]
        if 0 < t < 99:
            v = s[t - 1] + s[t + 1] * kind(2)
        cuda.syncthreads()
        if t % 3 != 1:
            s[99 - t] = v
        cuda.syncthreads()
        if t % 2:
            o[t] = s[t]

    # NumPy, not plain Python: there, narrow integers do not wrap in sums as they do here.
    x = values(dtype)
    v = x.copy()
    with np.errstate(over="ignore"):
        v[1:-1] = x[:-2] + x[2:] * kind(2)
    mixed = x.copy()
    mixed[99 - T[T % 3 != 1]] = v[T % 3 != 1]
    agree(kernel, 1, 100, np.zeros(100, dtype), x, rtol=1e-6, expected=np.where(T % 2, mixed, 0))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_division_in_masked_code(dtype: str) -> None:
    kind = np.dtype(dtype).type

    def kernel(o, p, x, y):
        s = cuda.shared.array(128, kind)
        t = cuda.threadIdx.x
        s[t] = y[t]
        cuda.syncthreads()
        if s[t] != 0 and t % 7:
            o[t] = x[t] // s[t]
            p[t] = x[t] % s[t]

    x, y = values(dtype), values(dtype)[::-1].copy()
    y[5:30:3] = 0
    y[y == -1] = 3  # the least number divided by -1 has no answer
    agree(kernel, 1, 100, np.zeros(100, dtype), np.zeros(100, dtype), x, y)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint16", "int64"])
def test_casts_and_bits_in_masked_code(dtype: str) -> None:
    def kernel(o, x):
        s = cuda.shared.array(128, int64)
        t = cuda.threadIdx.x
        cuda.syncthreads()
        s[t] = 0
        if x[t] & 1:
            s[t] = (int64(x[t]) << 3) ^ (int64(x[t]) >> 2) | 4
        else:
            s[t] = int64(float32(x[t]) * float32(0.5))
        cuda.syncthreads()
        o[t] = s[99 - t]

    agree(kernel, 1, 100, np.zeros(100, np.int64), (values(dtype) // 64))


def test_booleans_in_memory_and_across_barriers() -> None:
    def kernel(o, flags, x):
        s = cuda.shared.array(128, np.bool_)
        t = cuda.threadIdx.x
        big = x[t] > 0
        s[t] = big
        cuda.syncthreads()
        both = big and s[(t + 1) % 100]
        if flags[t]:
            both = not both
        cuda.syncthreads()
        s[99 - t] = both
        cuda.syncthreads()
        o[t] = s[t] if t % 2 else both
        flags[t] = s[t] ^ big

    flags = RNG.random(100) < 0.5
    agree(kernel, 1, 100, np.zeros(100, np.bool_), flags, values("float32"))


def test_half_precision() -> None:
    def kernel(o, x):
        s = cuda.shared.array(128, np.float16)
        t = cuda.threadIdx.x
        s[t] = x[t]
        cuda.syncthreads()
        v = s[99 - t]
        if v > np.float16(1):
            v = v * x[t] + np.float16(0.5)
        if t % 3:
            o[t] = v

    x = values("float16")
    v = x[::-1].copy()
    grown = v > 1
    v[grown] = v[grown] * x[grown] + np.float16(0.5)
    agree(kernel, 1, 100, np.zeros(100, np.float16), x, expected=np.where(T % 3, v, 0))


RECORD = np.dtype([("a", np.int32), ("b", np.float64), ("c", np.uint8)], align=True)
PACKED = np.dtype([("a", np.int32), ("b", np.float64), ("c", np.uint8)])


@pytest.mark.parametrize("kind", [RECORD, PACKED], ids=["aligned", "packed"])
def test_records(kind: np.dtype) -> None:
    def kernel(o, x):
        t = cuda.threadIdx.x
        s = cuda.shared.array(128, float64)
        s[t] = x[t].b + x[t].c
        cuda.syncthreads()
        if t % 3 == 0:
            o[t].a = x[99 - t].a
            o[t].b = s[99 - t]
        else:
            for k in range(t % 4):
                o[t].c = o[t].c + x[k].c

    x = np.zeros(100, kind)
    x["a"], x["b"], x["c"] = values("int32"), values("float64"), T
    o = np.zeros(100, kind)
    third = T % 3 == 0
    o["a"][third] = x["a"][::-1][third]
    o["b"][third] = (x["b"] + x["c"])[::-1][third]
    o["c"][~third] = np.array([sum(range(t % 4)) for t in range(100)])[~third]
    agree(kernel, 1, 100, np.zeros(100, kind), x, expected=o)


def test_neighbours_in_shared_memory_guarded_at_the_ends() -> None:
    def kernel(o, x):
        s = cuda.shared.array(256, float32)
        t = cuda.threadIdx.x
        i = cuda.grid(1)
        s[t] = x[i] if i < x.size else float32(0)
        cuda.syncthreads()
        left = s[t - 1] if t > 0 else float32(0)
        right = s[t + 1] if t < 255 else float32(0)
        if i < x.size:
            o[i] = left - 2 * s[t] + right

    x = RNG.random(700, np.float32)
    wide = np.zeros(3 * 256, np.float32)
    wide[:700] = x
    rows = np.pad(wide.reshape(3, 256), ((0, 0), (1, 1)))
    expected = (rows[:, :-2] - np.float32(2) * rows[:, 1:-1]) + rows[:, 2:]
    agree(kernel, 3, 256, np.zeros(700, np.float32), x, rtol=1e-5, expected=expected.ravel()[:700])


def test_a_shared_array_as_long_as_the_block_is_not_overrun() -> None:
    def kernel(o):
        a = cuda.shared.array(37, int32)
        b = cuda.shared.array(37, int32)
        c = cuda.shared.array(1, int32)
        t = cuda.threadIdx.x
        if t == 36:
            c[0] = 77
        b[t] = -t
        cuda.syncthreads()
        a[t] = t
        if t > 3:
            a[t - 4] = 100 + t
        cuda.syncthreads()
        o[t] = a[t] + b[t] * 1000 + c[0]

    agree(kernel, 2, 37, np.zeros(37, np.int64), expected=None)


def test_stores_out_of_order_and_to_one_place() -> None:
    def kernel(o, order, last):
        s = cuda.shared.array(128, int32)
        t = cuda.threadIdx.x
        s[t] = -1
        cuda.syncthreads()
        if order[t] % 3:
            s[order[t]] = t
        last[0] = 7
        cuda.syncthreads()
        o[order[t]] = s[t]
        cuda.syncthreads()
        if t % 5 == 0:
            o[order[(t + 1) % 100]] = 1000 + t

    order = RNG.permutation(100)
    s = np.full(100, -1)
    s[order[order % 3 != 0]] = T[order % 3 != 0]
    expected = np.zeros(100, np.int64)
    expected[order] = s
    fifth = T[::5]
    expected[order[(fifth + 1) % 100]] = 1000 + fifth
    agree(kernel, 1, 100, np.zeros(100, np.int64), order, np.zeros(1), expected=expected)


@pytest.mark.parametrize("layout", ["C", "F", "strided", "reversed"])
def test_global_arrays_of_any_layout(layout: str) -> None:
    base = np.arange(400.0).reshape(20, 20)
    x = {
        "C": base[:10, :10].copy(),
        "F": np.asfortranarray(base[:10, :10]),
        "strided": base[::2, 1::2],
        "reversed": base[9::-1, 9::-1],
    }[layout]

    def kernel(o, x):
        s = cuda.shared.array((10, 10), float64)
        i, j = cuda.threadIdx.y, cuda.threadIdx.x
        s[i, j] = x[i, j]
        cuda.syncthreads()
        if (i + j) % 3:
            o[i, j] = s[j, i] + x[j, 9 - i]
        elif i > 2:
            o[i, j] -= s[i, j]

    agree(kernel, 1, (10, 10), np.zeros((10, 10)), x)


def test_local_arrays_across_barriers() -> None:
    def kernel(o, x):
        s = cuda.shared.array(128, int32)
        own = cuda.local.array(5, float32)
        counts = cuda.local.array((2, 3), int32)
        t = cuda.threadIdx.x
        for k in range(5):
            own[k] = x[(t + k) % 100]
        for k in range(6):
            counts[k // 3, k % 3] = 0
        s[t] = t % 5
        cuda.syncthreads()
        own[s[99 - t]] += float32(100)
        counts[t % 2, s[99 - t] % 3] += 1
        cuda.syncthreads()
        if t % 3:
            counts[0, 0] += 5
            own[t % 5] = float32(-1)
        total = float32(0)
        for k in range(5):
            total += own[k] * (k + 1)
        for k in range(6):
            total += counts[k // 3, k % 3] * (k + 10)
        o[t] = total

    agree(kernel, 1, 100, np.zeros(100, np.float32), (values("float32") * 8).round())


def test_rows_and_slices_that_live_across_barriers() -> None:
    def kernel(o, x):
        s = cuda.shared.array((8, 16), float64)
        y, t = cuda.threadIdx.y, cuda.threadIdx.x
        row = s[y]
        theirs = x[y]
        part = x[y, t:]
        for k in range(3):
            row[t] = theirs[(t + k) % 16] * (k + 1)
            cuda.syncthreads()
            upper = s[(y + 1) % 8, 4:]
            o[y, t] += upper[t % 12] - part[0] * part.size
            cuda.syncthreads()

    agree(kernel, 1, (16, 8), np.zeros((8, 16)), RNG.integers(0, 50, (8, 16)).astype(float))


def test_atomics_in_divergent_code_with_results_used() -> None:
    def kernel(o, counts, x):
        s = cuda.shared.array(4, int32)
        t = cuda.threadIdx.x
        if t < 4:
            s[t] = 0
        cuda.syncthreads()
        place = -1
        if x[t] % 3:
            place = cuda.atomic.add(s, x[t] % 4, 1)
            if place % 2 == 0:
                cuda.atomic.add(counts, x[t] % 4, 10)
        cuda.syncthreads()
        o[t] = place
        if t < 4:
            cuda.atomic.max(counts, 4 + t, s[t])

    x = RNG.integers(0, 50, 100)
    tallied = np.bincount(x[x % 3 > 0] % 4, minlength=4)
    for kind in LOWERINGS:
        o, counts, _ = run(kind, kernel, 1, 100, np.zeros(100, int), np.zeros(8, int), x)
        # Which thread gets which place is open; that each place is given once is not.
        for which in range(4):
            mine = (x % 3 > 0) & (x % 4 == which)
            assert sorted(o[mine]) == list(range(tallied[which]))
        np.testing.assert_array_equal(counts[:4], (tallied + 1) // 2 * 10)
        np.testing.assert_array_equal(counts[4:], tallied)
        assert (o[x % 3 == 0] == -1).all()


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64", "float32", "float64"])
def test_every_atomic_operation_on_shared_and_global_memory(dtype: str) -> None:
    kind = np.dtype(dtype).type

    def kernel(o, x):
        s = cuda.shared.array(8, kind)
        t = cuda.threadIdx.x
        if t < 8:
            s[t] = kind(50)
            o[8 + t] = kind(50)
        cuda.syncthreads()
        if t % 4 != 2:
            cuda.atomic.add(s, 0, x[t])
            cuda.atomic.sub(s, 1, kind(1))
            cuda.atomic.max(s, 2, x[t])
            cuda.atomic.min(s, 3, x[t])
            cuda.atomic.add(o, 8, x[t])
            cuda.atomic.max(o, 10, x[t])
            cuda.atomic.min(o, 11, x[t])
        cuda.syncthreads()
        if t < 4:
            o[t] = s[t]

    x = RNG.integers(0, 99, 100).astype(dtype)
    mine = x[T % 4 != 2]
    expected = np.full(16, 50, dtype)
    with np.errstate(over="ignore"):
        expected[:4] = (
            mine.sum(dtype=dtype) + kind(50), kind(50) - kind(len(mine)), mine.max(), mine.min()
        )  # fmt: skip
    expected[4:8] = 0
    expected[8], expected[10], expected[11] = expected[0], mine.max(), mine.min()
    agree(kernel, 1, 100, np.zeros(16, dtype), x, expected=expected)


def test_bitwise_and_wrapping_atomics() -> None:
    def kernel(o):
        s = cuda.shared.array(8, uint32)
        t = cuda.threadIdx.x
        if t < 8:
            s[t] = uint32(0xFF) if t == 0 else uint32(0)
        cuda.syncthreads()
        if t % 3:
            cuda.atomic.and_(s, 0, uint32(t | 0xF0))
            cuda.atomic.or_(s, 1, uint32(1) << uint32(t % 20))
            cuda.atomic.xor(s, 2, uint32(t))
            cuda.atomic.inc(s, 3, uint32(9))
            cuda.atomic.dec(s, 4, uint32(6))
        cuda.syncthreads()
        if t < 8:
            o[t] = s[t]

    agree(kernel, 1, 100, np.zeros(8, np.uint32))


def test_compare_and_swap_loops() -> None:
    def kernel(o, best, x):
        s = cuda.shared.array(2, int32)
        t = cuda.threadIdx.x
        if t < 2:
            s[t] = -1000
        cuda.syncthreads()
        if t % 5:
            old = s[0]
            while x[t] > old:
                seen = cuda.atomic.cas(s, 0, old, x[t])
                if seen == old:
                    break
                old = seen
            old = best[0]
            while x[t] * 2 > old:
                seen = cuda.atomic.cas(best, 0, old, x[t] * 2)
                if seen == old:
                    break
                old = seen
        cuda.syncthreads()
        o[t] = s[0] + t

    x = values("int32") // 4
    largest = x[T % 5 > 0].max()
    agree(
        kernel, 1, 100, np.zeros(100, np.int64), np.full(1, -(2**31), np.int32), x,
        expected=largest + T,
    )  # fmt: skip


def test_functions_of_the_library_of_mathematics() -> None:
    def kernel(o, x):
        s = cuda.shared.array(128, float64)
        t = cuda.threadIdx.x
        s[t] = x[t]
        cuda.syncthreads()
        v = abs(s[99 - t])
        if v > 1:
            v = math.log(v) + math.sqrt(v) + math.pow(v, 0.3)
        else:
            v = math.sin(v) * math.exp(v) - math.atan2(v, x[t]) + math.floor(x[t])
        if t % 3 == 0:
            v += math.hypot(v, 3.0) + math.tanh(v) + math.erf(v) + math.fmod(x[t], 2.5)
        o[t] = v

    agree(kernel, 1, 100, np.zeros(100), values("float64"), rtol=1e-12)


def test_complex_numbers_in_divergent_code() -> None:
    def kernel(o, x):
        s = cuda.shared.array(128, np.complex128)
        t = cuda.threadIdx.x
        z, c, n = 0j, x[t], 0
        while n < 20 and z.real * z.real + z.imag * z.imag < 4:
            z = z * z + c
            n += 1
        s[t] = z
        cuda.syncthreads()
        if t % 2:
            o[t] = s[99 - t] + n
        elif n == 20:
            o[t] = s[t].conjugate() / (2 + 1j)

    agree(kernel, 1, 100, np.zeros(100, np.complex128), values("complex128"), rtol=1e-9)


def test_numbers_of_64_and_32_bits_that_count_with_the_threads() -> None:
    def kernel(o, x, n):
        s = cuda.shared.array(128, int64)
        t = cuda.threadIdx.x
        i = cuda.blockIdx.x * cuda.blockDim.x + t
        s[t] = x[i] if i < n else -1
        cuda.syncthreads()
        # Beyond 32 bits, below 0, and back.
        far = i * 100_000_000_000
        down = 50 - t
        if (far > 3_000_000_000_000 and down < 20) or uint32(down) > 4_000_000_000:
            s[99 - t] += far + down
        cuda.syncthreads()
        if i < n:
            o[i] = s[t] + (far >> 5) - down * down

    agree(kernel, 3, 100, np.zeros(270, np.int64), np.arange(270) * 3, 270, expected=None)


def test_threads_that_print_run_as_coroutines(capfd: pytest.CaptureFixture[str]) -> None:
    def kernel(x):
        s = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        s[t] = x[t]
        cuda.syncthreads()
        if s[t] > 12:
            print("thread", t, s[63 - t])

    x = np.arange(64)[::-1] % 16
    with pytest.raises(CompileError, match="threads print"):
        run("lanes", kernel, 1, 64, x)
    CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (64, 1, 1))(x)
    lines = capfd.readouterr().out.splitlines()
    told = [f"thread {t} {x[63 - t]}" for t in range(64) if x[t] > 12]
    assert sorted(lines) == sorted(told)
