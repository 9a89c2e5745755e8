# mypy: disable-error-code="no-untyped-def"
"""Loops over sums in registers, which neighbouring threads run together."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda, float32, float64, int32

import nbrt
from helpers.lowerings import agree, run
from nbrt.backends.cpu.simt.lanes.analysis.divergence import Divergence
from nbrt.backends.cpu.simt.lanes.analysis.thread_distances import ThreadDistances
from nbrt.backends.cpu.simt.llvm.parse import parse_function
from nbrt.backends.cpu.simt.processor import Processor, processor

GENERATOR = np.random.default_rng(8)
REGISTERS = [(32, 16), (16, 32), (32, 64)]
"""Neon, AVX2 and AVX-512; LLVM splits vectors that are too long for this machine."""
TOGETHER = "neighbouring threads run a loop over sums together"


def agree_in_any_registers(kernel, *args) -> None:
    """Run a kernel for each vector unit: only the lanes are compiled for each again."""
    for registers in REGISTERS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Processor, "vector_registers", registers)
            agree(kernel, *args)


def course_kernel(tile_m, tile_n, tile_k, mine_m, mine_n, dtype, is_transposed=False):
    """Make a matrix product as in courses: blocks of two axes, factors in local arrays."""
    a_shape = (tile_k, tile_m) if is_transposed else (tile_m, tile_k)

    def product(c, a, b):
        a_tile = cuda.shared.array(a_shape, dtype)
        b_tile = cuda.shared.array((tile_k, tile_n), dtype)
        total = cuda.local.array((mine_m, mine_n), dtype)
        left = cuda.local.array(mine_m, dtype)
        right = cuda.local.array(mine_n, dtype)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        threads = cuda.blockDim.x * cuda.blockDim.y
        t = ty * cuda.blockDim.x + tx
        first_row, first_column = cuda.blockIdx.y * tile_m, cuda.blockIdx.x * tile_n
        for i in range(mine_m):
            for j in range(mine_n):
                total[i, j] = 0
        for start in range(0, a.shape[1], tile_k):
            for e in range(t, tile_m * tile_k, threads):
                i, k = e // tile_k, e % tile_k
                is_inside = first_row + i < a.shape[0] and start + k < a.shape[1]
                value = a[first_row + i, start + k] if is_inside else 0
                if is_transposed:
                    a_tile[k, i] = value
                else:
                    a_tile[i, k] = value
            for e in range(t, tile_k * tile_n, threads):
                k, j = e // tile_n, e % tile_n
                is_inside = start + k < b.shape[0] and first_column + j < b.shape[1]
                b_tile[k, j] = b[start + k, first_column + j] if is_inside else 0
            cuda.syncthreads()
            for k in range(tile_k):
                for i in range(mine_m):
                    row = ty * mine_m + i
                    left[i] = a_tile[k, row] if is_transposed else a_tile[row, k]
                for j in range(mine_n):
                    right[j] = b_tile[k, tx * mine_n + j]
                for i in range(mine_m):
                    for j in range(mine_n):
                        total[i, j] += left[i] * right[j]
            cuda.syncthreads()
        for i in range(mine_m):
            for j in range(mine_n):
                y, x = first_row + ty * mine_m + i, first_column + tx * mine_n + j
                if y < c.shape[0] and x < c.shape[1]:
                    c[y, x] = total[i, j]

    return product


@pytest.mark.parametrize(
    ("tiles", "dtype", "is_transposed"),
    [
        ((64, 64, 8, 8, 8), float32, False),
        ((24, 48, 7, 6, 8), float32, False),
        ((32, 32, 4, 8, 4), float32, True),
        ((32, 32, 8, 4, 4), float32, False),
        ((40, 40, 8, 8, 8), float64, False),
        ((16, 64, 8, 4, 8), int32, True),
    ],
    ids=str,
)
def test_products_in_any_registers(tiles, dtype, is_transposed, monkeypatch) -> None:
    block = tiles[1] // tiles[4], tiles[0] // tiles[3]
    kind = np.dtype(str(dtype))
    m, n, inner = 67, 53, 31
    a = (GENERATOR.standard_normal((m, inner)) * 9).astype(kind)
    b = (GENERATOR.standard_normal((inner, n)) * 9).astype(kind)
    c = np.zeros((m, n), kind)
    grid = -(-n // tiles[1]), -(-m // tiles[0])
    kernel = course_kernel(*tiles, dtype, is_transposed)
    (expected, *_) = run("coroutines", kernel, grid, block, c, a, b)
    np.testing.assert_allclose(expected, a.astype(float) @ b, rtol=1e-3, atol=1e-3)
    for registers in REGISTERS:
        monkeypatch.setattr(Processor, "vector_registers", registers)
        (got, *_) = run("lanes", kernel, grid, block, c, a, b)
        # The same operations in the same order: the same bits.
        np.testing.assert_array_equal(got, expected, err_msg=str(registers))


def reasons_of(kernel, *args, block):
    with nbrt.device("cpu:0"):
        return nbrt.kernel(kernel).inspect(*args, block=block).lowering.reasons


def test_the_reasons_name_the_threads_and_the_parts(monkeypatch) -> None:
    a = np.zeros((64, 64), np.float32)
    width = processor().vector_registers[1]
    for registers, parts in (((16, 32), ", in 2 parts"), ((32, 64), "")):
        if registers[1] < width:  # LLVM makes wider vectors of the code of a thread before
            continue
        monkeypatch.setattr(Processor, "vector_registers", registers)
        kernel = course_kernel(64, 64, 8, 8, 8, float32, is_transposed=not parts)
        found = [r for r in reasons_of(kernel, a, a, a, block=(8, 8)) if TOGETHER in r]
        assert found == [f"{2 if parts else 4} {TOGETHER}{parts}"]


def test_code_around_the_loop_runs_thread_by_thread() -> None:
    """The loop begins with computed values, and its results are used at once and later."""

    def kernel(o, x, n):
        s = cuda.shared.array((16, 64), float32)
        total = cuda.local.array((4, 8), float32)
        t = cuda.threadIdx.x
        for j in range(8):
            s[t % 16, t // 16 * 8 + j] = x[t + j]
        for i in range(4):
            for j in range(8):
                total[i, j] = t * i + j
        cuda.syncthreads()
        for repeat in range(n):
            scale = x[t] + repeat
            for i in range(4):
                for j in range(8):
                    total[i, j] *= scale
            for k in range(16):
                for i in range(4):
                    for j in range(8):
                        total[i, j] += s[k, i] * s[k, t % 4 * 8 + j]
            for i in range(4):
                for j in range(8):
                    total[i, j] -= total[i, 0] * x[j]
            cuda.syncthreads()
        for i in range(4):
            for j in range(8):
                o[t, i, j] = total[i, j]

    x = GENERATOR.integers(-2, 3, 200).astype(np.float32)
    o = np.zeros((64, 4, 8), np.float32)
    for n in (0, 1, 3):
        agree_in_any_registers(kernel, 1, 64, o, x, n)


def test_sums_that_depend_on_each_other_stay_together() -> None:
    def kernel(o, x, n):
        s = cuda.shared.array((12, 128), float32)
        total = cuda.local.array((4, 8), float32)
        t = cuda.threadIdx.x
        for k in range(12):
            for j in range(8):
                s[k, t * 8 + j] = x[k * 128 + t * 8 + j]
        for i in range(4):
            for j in range(8):
                total[i, j] = 0
        cuda.syncthreads()
        for _ in range(n):
            for k in range(12):
                for j in range(8):
                    value = s[k, t * 8 + j]
                    old = total[0, j]
                    total[0, j] = total[3, j] + value
                    total[1, j] += old
                    total[2, j] += total[1, j] * 2
                    total[3, j] = old - value
            cuda.syncthreads()
        for i in range(4):
            for j in range(8):
                o[t, i, j] = total[i, j]

    x = GENERATOR.integers(-2, 3, 12 * 128).astype(np.float32)
    o = np.zeros((16, 4, 8), np.float32)
    for n in (1, 2):
        agree_in_any_registers(kernel, 1, 16, o, x, n)


def test_threads_with_loops_of_different_length_run_one_by_one() -> None:
    def kernel(o, x, n):
        s = cuda.shared.array((16, 64), float32)
        total = cuda.local.array((4, 8), float32)
        t = cuda.threadIdx.x
        for i in range(4):
            for j in range(8):
                total[i, j] = 0
        for repeat in range(n):
            for k in range(16):
                s[k, t] = x[t + k + repeat]
            cuda.syncthreads()
            for k in range(t % 5):
                for i in range(4):
                    for j in range(8):
                        total[i, j] += s[k, i] * s[k, t // 8 * 8 + j]
            cuda.syncthreads()
        for i in range(4):
            for j in range(8):
                o[t, i, j] = total[i, j]

    x = GENERATOR.integers(-2, 3, 200).astype(np.float32)
    o = np.zeros((64, 4, 8), np.float32)
    agree_in_any_registers(kernel, 1, 64, o, x, 3)
    assert not any(TOGETHER in reason for reason in reasons_of(kernel, o, x, 3, block=64))


@pytest.mark.parametrize("stride", [1, 3, 8, 11])
def test_vectors_of_neighbours_need_not_be_neighbours(stride) -> None:
    def kernel(o, x, n):
        s = cuda.shared.array((8, 400), float32)
        total = cuda.local.array((4, 8), float32)
        t = cuda.threadIdx.x
        for i in range(4):
            for j in range(8):
                total[i, j] = 0
        for repeat in range(n):
            for k in range(8):
                for e in range(t, 400, 32):
                    s[k, e] = x[e + k + repeat]
            cuda.syncthreads()
            for k in range(8):
                for i in range(4):
                    for j in range(8):
                        total[i, j] += s[k, i + t // 4] * s[k, t * stride + j]
            cuda.syncthreads()
        for i in range(4):
            for j in range(8):
                o[t, i, j] = total[i, j]

    x = GENERATOR.integers(-2, 3, 500).astype(np.float32)
    agree_in_any_registers(kernel, 1, 32, np.zeros((32, 4, 8), np.float32), x, 2)


def test_rotated_sums_do_not_overwrite_each_other() -> None:
    """A sum of the next iteration is another sum of this one, so they share slots crosswise."""

    def kernel(o, x, n):
        s = cuda.shared.array((8, 128), float32)
        total = cuda.local.array((4, 8), float32)
        t = cuda.threadIdx.x
        for i in range(4):
            for j in range(8):
                total[i, j] = i
        for repeat in range(n):
            for k in range(8):
                for j in range(8):
                    s[k, t * 8 + j] = x[repeat * 5 + k * t + j]
            cuda.syncthreads()
            for k in range(8):
                for i in range(4):
                    for j in range(8):
                        total[i, j] += s[k, i] * s[k, t * 8 + j]
            cuda.syncthreads()
            for j in range(8):
                first = total[0, j]
                for i in range(3):
                    total[i, j] = total[i + 1, j]
                total[3, j] = first
        for i in range(4):
            for j in range(8):
                o[t, i, j] = total[i, j]

    x = GENERATOR.integers(-2, 3, 500).astype(np.float32)
    for n in (1, 2, 5):
        agree_in_any_registers(kernel, 1, 16, np.zeros((16, 4, 8), np.float32), x, n)


OPERATIONS = {
    "lshr": lambda value, number: value >> number % 6,
    "shl": lambda value, number: value << number % 6,
    "and": lambda value, number: value & number,
    "or": lambda value, number: value | number,
    "add": lambda value, number: value + number,
    "mul": lambda value, number: value * number,
}


@pytest.mark.parametrize("threads", [2, 4, 8])
def test_distances_between_threads(threads) -> None:
    """Random chains of operations on an index: known distances hold for every first thread."""
    known = 0
    for _ in range(300):
        names = GENERATOR.choice(list(OPERATIONS), 4).tolist()
        numbers = [int(number) for number in GENERATOR.choice([0, 1, 3, 8, 24, 120, 255], 4)]
        lines = ["%v0 = zext nneg i32 %x to i64"]
        for position, (name, number) in enumerate(zip(names, numbers, strict=True)):
            operand = number % 6 if name in ("lshr", "shl") else number
            lines.append(f"%v{position + 1} = {name} i64 %v{position}, {operand}")
        text = "define i64 @f(i32 %x) {\nentry:\n  " + "\n  ".join(lines) + "\n  ret i64 %v4\n}\n"
        function = parse_function(text, "f")
        divergence = Divergence(function, {"%x": 1}, {"%x": threads}, threads)
        operand = function.blocks["%entry"].terminator.operands[0]
        distances = ThreadDistances(divergence, threads).of(operand)
        if distances is None:
            continue
        known += 1
        for first in range(0, 512, threads):
            values = []
            for x in range(first, first + threads):
                value = x
                for name, number in zip(names, numbers, strict=True):
                    value = OPERATIONS[name](value, number)
                values.append(value - 0)
            assert tuple(value - values[0] for value in values) == distances, text
    assert known > 50
