# mypy: disable-error-code="no-untyped-def"
"""Lanes: accesses at addresses that exchange threads, in versions for run-time distances."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, int32, int64

from helpers.lowerings import agree, run
from nbrt.backends.cpu.simt.runtime.inspection import CpuCode

RNG = np.random.default_rng(7)
DISTANCES = np.array([1, 2, 4, 8, 16, 32, 3, 7, 15, 31, 63, 5, 33, 48, 64, 96, 0, 21])
BLOCKS = [128, 100, 48, (32, 4), (16, 5), 7]


def blocks_and_types(*others: str) -> Any:
    """Return each block with float32, and each other type with whole and with partial warps.

    Which lanes a block has does not depend on the type of the elements: the types decide how wide
    the vectors are, the block decides which lanes are masked.
    """
    cases = [(block, "float32") for block in BLOCKS]
    cases += [(block, dtype) for dtype in others for block in (128, (16, 5))]
    return pytest.mark.parametrize(("block", "dtype"), cases)


def size_of(block: Any) -> int:
    return int(np.prod(block))


def data(dtype: Any, size: int) -> Any:
    if np.dtype(dtype).kind == "f":
        return RNG.normal(size=size).astype(dtype)
    return RNG.integers(-100, 100, size).astype(dtype)


@blocks_and_types("float64", "int32", "int8")
def test_reads_at_t_xor_distance(block: Any, dtype: str) -> None:
    kind = np.dtype(dtype).type

    def kernel(o, x, distances):
        s = cuda.shared.array(256, kind)
        t = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y
        s[t] = x[t]
        s[t + 128] = x[t] + kind(1)
        cuda.syncthreads()
        for k in range(distances.size):
            o[k, t] = s[t ^ distances[k]]
            o[k, t] += s[(t | distances[k]) + 1]
            o[k, t] += s[(t & distances[k]) * 2]

    size, t = size_of(block), np.arange(size_of(block))
    x = data(dtype, size)
    s = np.zeros(256, dtype)
    s[:size], s[128 : 128 + size] = x, x + kind(1)
    # Threads that do not exist have stored nothing.
    s[size:128] = s[128 + size :] = 0
    known = np.zeros(256, bool)
    known[:size] = known[128 : 128 + size] = True
    d = DISTANCES[:, None]
    places = (t ^ d, (t | d) + 1, (t & d) * 2)
    expected = np.zeros((DISTANCES.size, size), dtype)
    for place in places:
        expected += s[place]
    is_known = np.logical_and.reduce([known[place] for place in places])
    for lowered in ("lanes", "coroutines"):
        result = run(lowered, kernel, 1, block, np.zeros_like(expected), x, DISTANCES)[0]
        np.testing.assert_array_equal(result[is_known], expected[is_known], err_msg=lowered)


@blocks_and_types("float64", "int16")
def test_guarded_exchanges(block: Any, dtype: str) -> None:
    """The classic form: the lower thread of a pair sorts it, in a direction by a bit of t."""
    kind = np.dtype(dtype).type

    def kernel(o, x, distances, n):
        s = cuda.shared.array(128, kind)
        t = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y
        s[t] = x[t]
        cuda.syncthreads()
        for k in range(distances.size):
            distance = distances[k]
            other = t ^ distance
            if other > t and other < n:
                if (t & (2 * distance)) == 0:
                    if s[t] > s[other]:
                        s[t], s[other] = s[other], s[t]
                elif s[t] < s[other]:
                    s[t], s[other] = s[other], s[t]
            cuda.syncthreads()
        o[t] = s[t]

    size = size_of(block)
    x = data(dtype, size)
    expected = x.copy()
    for distance in DISTANCES.tolist():
        for t in range(size):
            other = t ^ distance
            if not t < other < size or expected[t] == expected[other]:
                continue
            if (expected[t] > expected[other]) == (t & (2 * distance) == 0):
                expected[[t, other]] = expected[[other, t]]
    agree(kernel, 1, block, np.zeros(size, dtype), x, DISTANCES, size, expected=expected)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("threads", [16, 64, 128])
def test_a_bitonic_sort(threads: int, dtype: str) -> None:
    kind = np.dtype(dtype).type

    def kernel(o, x, n):
        s = cuda.shared.array(256, kind)
        t = cuda.threadIdx.x
        s[t] = x[t]
        s[t + n // 2] = x[t + n // 2]
        cuda.syncthreads()
        size = 2
        while size <= n:
            distance = size // 2
            while distance > 0:
                low = 2 * t - (t & (distance - 1))
                a, b = s[low], s[low + distance]
                if (a > b) == ((low & size) == 0):
                    s[low] = b
                    s[low + distance] = a
                cuda.syncthreads()
                distance //= 2
            size *= 2
        o[t] = s[t]
        o[t + n // 2] = s[t + n // 2]

    x = data(dtype, 2 * threads)
    agree(kernel, 1, threads, np.zeros_like(x), x, 2 * threads, expected=np.sort(x))


def test_a_distance_from_before_a_barrier_with_its_successor_from_behind() -> None:
    """The mask is of the old distance; versions for the new one must not change it."""

    def kernel(o, x, first):
        s = cuda.shared.array(256, float32)
        t = cuda.threadIdx.x
        s[t] = x[t]
        s[t + 64] = x[t] + float32(1)
        distance = first
        k = 0
        cuda.syncthreads()
        while distance > 0:
            mask = distance - 1
            swapped = t ^ (distance + 3)
            o[k, t] = s[t & mask]
            cuda.syncthreads()
            distance //= 2
            o[k, t] += s[2 * t - (t & mask)] + s[(t ^ distance) & 127] + s[swapped & 127]
            cuda.syncthreads()
            s[t ^ mask] = float32(k) + o[k, t]
            k += 1
            cuda.syncthreads()

    x = data("float32", 64)
    agree(kernel, 1, 64, np.zeros((7, 64), np.float32), x, 64)


@pytest.mark.parametrize("block", [64, 50, (32, 2), 24])
def test_constant_permutations_of_shared_and_global_arrays(block: Any) -> None:
    """Windows of global arrays are read and written if all lanes are there and cover them."""

    def kernel(o, p, x):
        s = cuda.shared.array(256, float32)
        t = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y
        s[t ^ 5] = x[t ^ 1]
        cuda.syncthreads()
        o[t ^ 3] = s[t ^ 5] + x[(t >> 1) & 15]
        cuda.syncthreads()
        s[2 * t] = x[t]
        s[2 * t + 1] = x[t] * float32(2)
        cuda.syncthreads()
        if t % 3 == 0:
            s[4 * (t // 2) + 2 * (t & 1)] = float32(-1)
        cuda.syncthreads()
        p[t] = s[2 * t + 1 - (t & 1)]

    size = size_of(block)
    n = size + 8
    x = data("float32", n)
    t = np.arange(size)
    o = np.zeros(n, np.float32)
    o[t ^ 3] = x[t ^ 1] + x[(t >> 1) & 15]
    s = np.zeros(256, np.float32)
    s[2 * t], s[2 * t + 1] = x[t], x[t] * np.float32(2)
    s[2 * t[t % 3 == 0]] = -1
    p = s[2 * t + 1 - (t & 1)]
    for lowered in ("lanes", "coroutines"):
        got = run(lowered, kernel, 1, block, np.zeros_like(o), np.zeros(size, np.float32), x)
        np.testing.assert_array_equal(got[0], o, err_msg=lowered)
        np.testing.assert_array_equal(got[1], p, err_msg=lowered)


def test_stores_of_several_threads_to_one_place_keep_one_of_them() -> None:
    def kernel(o, masks):
        s = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        for k in range(masks.size):
            s[t] = -1
            cuda.syncthreads()
            s[t & masks[k]] = t
            cuda.syncthreads()
            o[k, t] = s[t]
            cuda.syncthreads()

    masks, t = np.array([0, 1, 3, 7, 15, 31, 63, 32, 48, 5]), np.arange(64)
    for lowered in ("lanes", "coroutines"):
        o = run(lowered, kernel, 1, 64, np.zeros((masks.size, 64), np.int64), masks)[0]
        for row, mask in zip(o, masks, strict=True):
            written = np.unique(t & mask)
            assert (row[np.setdiff1d(t, written)] == -1).all()
            assert ((row[written] & mask) == written).all()


def test_inspection_names_the_versions_and_what_stands_in_their_way() -> None:
    def exchange(o, x, distance):
        s = cuda.shared.array(64, float32)
        t = cuda.threadIdx.x
        s[t] = x[t]
        cuda.syncthreads()
        o[t] = s[t ^ distance]

    def add_many(o, x, distance):
        s = cuda.shared.array(128, float32)
        t = cuda.threadIdx.x
        s[t] = x[t]
        s[t + 64] = x[t]
        cuda.syncthreads()
        total = float32(0)
        for k in range(16):
            total += s[(t ^ distance) + k]
        o[t] = total

    x = np.zeros(64, np.float32)

    def notes(kernel: Any) -> list[str]:
        reasons = CpuCode(kernel, (x, x, 1), (64, 1, 1)).lowering.reasons
        return [reason for reason in reasons if "exchanged by `distance`" in reason]

    (applied,) = notes(exchange)
    assert "permutations of vectors for 1, 2, 3, 4, 7, 8, 15, 16, 31" in applied
    assert "runs for multiples of 32" in applied
    (missed,) = notes(add_many)
    assert "of single elements" in missed
    assert "too many to be written in versions" in missed


def expressions(seed: int) -> list[str]:
    """Return random integer expressions in the thread index and two uniform scalars."""
    chance = random.Random(seed)

    def grown(depth: int) -> str:
        if depth == 0:
            return "t"
        inner = grown(depth - 1)
        number = chance.choice([0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 33, 64, 127, -1, -8, -32])
        scalar = chance.choice(["a", "b", "(a - 1)", "(b + 1)", str(number)])
        return chance.choice(
            [
                f"({inner} ^ {scalar})",
                f"({inner} & {scalar})",
                f"({inner} | {scalar})",
                f"({inner} + {scalar})",
                f"({inner} - {scalar})",
                f"({scalar} - {inner})",
                f"({inner} * {abs(number) % 5})",
                f"({inner} >> {abs(number) % 4})",
                f"({inner} << {abs(number) % 3})",
                f"({inner} - (t & {scalar}))",
                f"int64(int32({inner}))",
            ]
        )

    return [grown(chance.randint(1, 4)) for _ in range(4)]


@pytest.mark.parametrize("seed", range(12))
def test_random_expressions_of_the_thread_index(seed: int) -> None:
    """As values, as indices of shared memory, and in comparisons, against NumPy."""
    first, second, third, fourth = expressions(seed)
    relation = ["<", "<=", ">", ">=", "==", "!="][seed % 6]
    source = f"""
def kernel(o, p, q, numbers):
    s = cuda.shared.array(128, int64)
    t = int64(cuda.threadIdx.x)
    s[t] = 3 * t + 1
    cuda.syncthreads()
    for i in range(numbers.size):
        a = numbers[i]
        for j in range(2):
            b = numbers[(i + j) % numbers.size]
            k = 2 * i + j
            p[k, t] = s[({first}) & (cuda.blockDim.x - 1)]
            o[k, t] = {second}
            cuda.syncthreads()
            if ({third}) {relation} ({fourth}):
                q[k, t] = s[t ^ a & (cuda.blockDim.x - 1)] + 1
                s[t ^ a & (cuda.blockDim.x - 1)] += 1
            cuda.syncthreads()
            if ({third}) & b == a:
                s[t] = ({third}) & 255
            cuda.syncthreads()
"""
    space: dict[str, Any] = {"cuda": cuda, "int64": int64, "int32": int32}
    exec(source, space)
    numbers = np.array([1, 2, 4, 8, 16, 32, 3, 31, 0, 64, 17])
    width, rows = 64, 2 * len(numbers)
    t, s = np.arange(width), 3 * np.arange(width) + 1
    o, p, q = (np.zeros((rows, width), np.int64) for _ in range(3))
    for i, a in enumerate(numbers):
        for j in range(2):
            names = {"t": t, "a": a, "b": numbers[(i + j) % len(numbers)]}
            names |= {"int64": np.int64, "int32": np.int32}
            one, two, three, four = (
                eval(text, dict(names)) + 0 * t for text in (first, second, third, fourth)
            )
            k = 2 * i + j
            p[k], o[k] = s[one & (width - 1)], two
            is_true = eval(f"x {relation} y", {"x": three, "y": four})
            places = (t ^ (a & (width - 1)))[is_true]
            q[k][is_true] = s[places] + 1
            s[places] += 1
            chosen = (three & names["b"]) == a
            s = np.where(chosen, three & 255, s)
    for lowered in ("lanes", "coroutines"):
        got = run(lowered, space["kernel"], 1, width, 0 * o, 0 * p, 0 * q, numbers)
        for name, mine, right in zip("opq", got, (o, p, q), strict=False):
            np.testing.assert_array_equal(mine, right, err_msg=f"{name} in {lowered}: {source}")


def narrow_kernel(o, is_less, is_same, d):
    s = cuda.shared.array(256, int32)
    t = int64(cuda.threadIdx.x)
    for i in range(t, 256, cuda.blockDim.x):
        s[i] = 3 * i
    cuda.syncthreads()
    o[0, t] = np.int8((t ^ 1) << 4) >> 2
    o[1, t] = np.int8((t << 4) & 240)
    o[2, t] = np.uint8((t ^ 3) * 48) >> 2
    o[3, t] = np.uint8(np.int8((t ^ 4) * 1000 * 48)) >> 4
    o[4, t] = np.int16((t ^ 5) << 12) >> 3
    o[5, t] = s[np.uint8(t) ^ d] + s[np.uint8(t * 8) | d]
    o[6, t] = np.uint8(t * 4) ^ d
    is_less[0, t] = np.int8((t ^ 1) * 24) < 0
    is_less[1, t] = np.int8((t & 31) * 24) < np.int8((t & 31) * 56)
    is_same[0, t] = np.uint8((t & 31) * 24) == np.uint8((t & 31) * 56)
    is_same[1, t] = (np.uint8(t) ^ d) == d


@pytest.mark.parametrize("number", [1, 2, 8, 31, 100, 128, 255])
@pytest.mark.parametrize("block", [32, 64, 100])
def test_narrow_integers_wrap_around(block: int, number: int) -> None:
    o = np.zeros((7, block), np.int64)
    is_less, is_same = np.zeros((2, block), bool), np.zeros((2, block), bool)
    t, d, s = np.arange(block), np.uint8(number), 3 * np.arange(256)
    byte, u_byte, short = (lambda x, k=k: x.astype(k) for k in ("int8", "uint8", "int16"))
    right = [
        byte((t ^ 1) << 4) >> 2,
        byte((t << 4) & 240),
        u_byte((t ^ 3) * 48) >> 2,
        u_byte(byte((t ^ 4) * 1000 * 48)) >> 4,
        short((t ^ 5) << 12) >> 3,
        s[u_byte(t) ^ d] + s[u_byte(t * 8) | d],
        u_byte(t * 4) ^ d,
    ]
    less = [byte((t ^ 1) * 24) < 0, byte((t & 31) * 24) < byte((t & 31) * 56)]
    same = [u_byte((t & 31) * 24) == u_byte((t & 31) * 56), (u_byte(t) ^ d) == d]
    for lowered in ("lanes", "coroutines"):
        got = run(lowered, narrow_kernel, 1, block, o, is_less, is_same, d)
        for mine, wanted in zip(got, (right, less, same), strict=False):
            np.testing.assert_array_equal(mine, np.array(wanted), err_msg=lowered)


@pytest.mark.parametrize("number", [0, 100, 2**31 - 10, 2**31 - 40, 2**32 - 20, -(2**31) + 3])
@pytest.mark.parametrize("block", [32, 100])
def test_sums_wrap_around_between_lanes(block: int, number: int) -> None:
    def kernel(o, d):
        s = cuda.shared.array(128, int32)
        t = cuda.threadIdx.x
        s[t] = t
        cuda.syncthreads()
        o[0, t] = np.int32(t + d) < np.int32(d)
        o[1, t] = np.uint32(t + d) < np.uint32(d)
        o[2, t] = np.int32(t + d) == np.int32(-(2**31) + 5)
        o[3, t] = np.int32(t + d) + s[t]
        o[4, t] = np.int8(t + d) < np.int8(d)
        o[5, t] = np.int8(t * 3) + s[t]

    t = np.arange(block)
    whole, short = (t + number).astype(np.int32), (t + number).astype(np.int8)
    right = [
        whole < whole[0],
        whole.astype(np.uint32) < whole.astype(np.uint32)[0],
        whole == np.int32(-(2**31) + 5),
        whole.astype(np.int64) + t,
        short < short[0],
        (t * 3).astype(np.int8) + t,
    ]
    for lowered in ("lanes", "coroutines"):
        (got, _) = run(lowered, kernel, 1, block, np.zeros((6, block), np.int64), np.int64(number))
        np.testing.assert_array_equal(got, np.array(right), err_msg=lowered)
