"""Fill kernels of the factories: equal to the references wherever a draw begins and is cut."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
from numba.core import types

from helpers.kernels import compile_ptx, launch
from kernels.test_ptx import assert_ieee
from nbrt.backends.cpu.simt.runtime.inspection import CpuCode
from nbrt.backends.fingerprint import fingerprint
from nbrt_kernels._dialect import cuda, device_function
from nbrt_kernels.random import (
    bits_reference,
    integers_reference,
    normal_reference,
    uniform_reference,
)
from nbrt_kernels.random.fills import (
    fill,
    fill_rows,
    fill_rows_threads,
    fill_threads,
    identity,
    touched_blocks,
)
from nbrt_kernels.random.parameters import integer_parameters, uniform_parameters
from nbrt_kernels.random.short_runs import (
    SHORT_BLOCKS,
    fill_short_runs,
    short_runs_threads,
)
from nbrt_kernels.random.transforms import (
    bits_24,
    is_below,
    normal_pair_f32,
    normal_pair_f64,
    scale_integer_32,
    scale_integer_64,
    scale_uniform,
    uniform_f32,
    uniform_f64,
)

SEED = 0x0123456789ABCDEF
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 1000, 4097)
# The last blocks before 2**32 and 2**64 are followed by block 2**32 and block 0.
FIRST_BLOCKS = (0, 1, 2**32 - 7, 2**62 - 3, 2**64 - 3)


@device_function
def affine(x, loc, scale, _c):
    return cuda.fma(x, scale, loc)


class Case:
    """A draw: what its kernels are made of, its parameters, and its reference."""

    def __init__(self, dtype, parts, parameters, reference):
        self.dtype = dtype
        self.parts = parts
        self.parameters = parameters
        self.wide = parts.get("wide", False)
        self._reference = cache(reference)

    def reference(self, n, first=0):
        return self._reference(max(n, *SIZES), first)[:n]


N = max(SIZES)
ZERO, ZERO_64 = np.float32(0), np.float64(0)
WIDE_HIGH = 3 * 2**62
CASES = {
    "bits32": Case(
        "uint32", {}, (ZERO,) * 3, lambda n, b: bits_reference(n, SEED, 4 * b, "uint32")
    ),
    "bits64": Case(
        "uint64",
        {"wide": True},
        (ZERO_64,) * 3,
        lambda n, b: bits_reference(n, SEED, 4 * b, "uint64"),
    ),
    "uniform32": Case(
        "float32",
        {"standard": uniform_f32, "finish": scale_uniform},
        uniform_parameters(-1.5, 2.5, "float32"),
        lambda n, b: uniform_reference(n, SEED, 4 * b, "float32", -1.5, 2.5),
    ),
    "uniform64": Case(
        "float64",
        {"standard": uniform_f64, "finish": scale_uniform, "wide": True},
        uniform_parameters(-1.5, 2.5, "float64"),
        lambda n, b: uniform_reference(n, SEED, 4 * b, "float64", -1.5, 2.5),
    ),
    "normal32": Case(
        "float32",
        {"standard": normal_pair_f32, "finish": affine, "pairs": np.float32},
        (np.float32(1), np.float32(3), ZERO),
        lambda n, b: normal_reference(n, SEED, 4 * b, "float32", 1, 3),
    ),
    "normal64": Case(
        "float64",
        {"standard": normal_pair_f64, "finish": affine, "pairs": np.float64, "wide": True},
        (np.float64(1), np.float64(3), ZERO_64),
        lambda n, b: normal_reference(n, SEED, 4 * b, "float64", 1, 3),
    ),
    # A quarter of all words is rejected in both.
    "integers": Case(
        "uint32",
        {"finish": scale_integer_32, "rejects": True},
        integer_parameters(5, 3 * 2**30 + 5, "uint32")[1],
        lambda n, b: integers_reference(n, 5, 3 * 2**30 + 5, SEED, 4 * b, "uint32"),
    ),
    "integers_wide": Case(
        "uint64",
        {"finish": scale_integer_64, "rejects": True, "wide": True},
        integer_parameters(5, WIDE_HIGH + 5, "uint64")[1],
        lambda n, b: integers_reference(n, 5, WIDE_HIGH + 5, SEED, 4 * b, "uint64"),
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def place(first):
    """Return state and blocks ahead that begin a draw at a block."""
    of_offset = first // 2 % 2**62
    return (np.uint64(SEED), np.uint64(4 * of_offset)), np.uint64(first - of_offset)


def drawn(case, n, first=0, *, state=None, parameters=None, arrays=0):
    kernel = fill(**case.parts, arrays=arrays)
    buffer = np.full(n + 16, 7, dtype=case.dtype)
    usual, skip_blocks = place(first)
    begin = usual if state is None else state
    values = case.parameters if parameters is None else parameters
    threads = (fill_threads(n, wide=case.wide),)
    launch(kernel, threads, buffer[:n], begin, skip_blocks, *values, block=(1,))
    assert np.all(buffer[n:] == 7)
    return buffer[:n]


@pytest.mark.parametrize("first", FIRST_BLOCKS)
@every_case
def test_fill_equals_the_reference(case, first):
    for n in SIZES:
        assert np.array_equal(drawn(case, n, first), case.reference(n, first))


def test_state_in_memory_gives_the_same():
    case = CASES["uniform32"]
    state, _ = place(9)
    result = drawn(case, 1000, 9, state=np.array(state, np.uint64))
    assert np.array_equal(result, case.reference(1000, 9))


def test_parameter_arrays_are_read_at_the_element():
    case, n = CASES["normal32"], 1001
    loc = np.linspace(-1, 1, n, dtype=np.float32)
    scale = np.linspace(0, 5, n, dtype=np.float32)
    same = np.full(n, 1, np.float32), np.full(n, 3, np.float32), ZERO
    assert np.array_equal(drawn(case, n, parameters=same, arrays=2), case.reference(n))
    result = drawn(case, n, parameters=(loc, scale, ZERO), arrays=2)
    for i in (0, 1, 500, 1000):
        expected = normal_reference(n, SEED, 0, "float32", loc[i], scale[i])[i]
        assert result[i] == expected


# -- parts of a draw ---------------------------------------------------------------------------

# base, run, rows, inner rows, inner stride, outer stride
REGIONS = [
    (0, 1, 1, 1, 0, 0),
    (3, 1, 50, 50, 77, 0),
    (0, 2, 40, 40, 3, 0),
    (5, 3, 40, 8, 9, 311),
    (2, 4, 33, 11, 4, 1000),
    (1, 5, 100, 100, 37, 0),
    (7, 33, 21, 7, 64, 555),
    (0, 64, 9, 9, 256, 0),
    (1, 251, 5, 5, 700, 0),
    (2, 253, 4, 4, 301, 0),
    (6, 300, 3, 3, 1001, 0),
    (0, 1024, 3, 3, 1500, 0),
    (9, 1023, 3, 1, 0, 1400),
    (3, 4000, 1, 1, 0, 0),
]


@pytest.mark.parametrize("name", ["uniform32", "normal64", "integers"])
def test_rows_are_parts_of_the_draw(name):
    case, first = CASES[name], 2**32 - 5
    dense = case.reference(N, first)
    for base, run, rows, inner_rows, inner_stride, outer_stride in REGIONS:
        r = np.arange(rows)
        begins = base + r // inner_rows * outer_stride + r % inner_rows * inner_stride
        expected = dense[begins[:, None] + np.arange(run)].reshape(-1)
        out = np.zeros(rows * run, case.dtype)
        threads = fill_rows_threads(out.size, run, wide=case.wide)
        region = base, run, inner_rows, inner_stride, outer_stride
        kernel = fill_rows(**case.parts)
        launch(kernel, (threads,), out, *place(first), *region, *case.parameters, block=(1,))
        assert np.array_equal(out, expected), region


@pytest.mark.parametrize("arrays", [0, 1])
@every_case
def test_short_runs_are_parts_of_the_draw(case, arrays):
    first, low = 2**32 - 5, case.parameters[0]
    longest = SHORT_BLOCKS * (2 if case.wide else 4) - 8
    # More runs than a tile holds, in many groups and in one; then runs as long as a tile takes.
    regions = [
        *((*numbers,) for numbers in REGIONS if numbers[1] <= longest),
        (1, 7, 900, 30, 9, 280),
        (1, 7, 900, 30, 12, 364),
        (3, 6, 900, 30, 12, 366),
        (3, 64, 130, 200, 68, 0),
        (2, 16, 1000, 1000, 8, 0),
        (1, longest, 3, 2, longest + 3, 2 * longest + 11),
    ]
    dense = case.reference(2**14, first)
    for base, run, rows, inner_rows, inner_stride, outer_stride in regions:
        r = np.arange(rows)
        begins = base + r // inner_rows * outer_stride + r % inner_rows * inner_stride
        expected = dense[begins[:, None] + np.arange(run)].reshape(-1)
        buffer = np.full(expected.size + 40, 7, case.dtype)
        out = buffer[: expected.size]
        values = (np.full(out.size, low), *case.parameters[1:]) if arrays else case.parameters
        region = base, run, inner_rows, inner_stride, outer_stride
        kernel = fill_short_runs(**case.parts, arrays=arrays)
        assert touched_blocks(run, wide=case.wide) <= SHORT_BLOCKS
        threads = short_runs_threads(out.size, run, wide=case.wide) + 3
        launch(kernel, (threads,), out, *place(first), *region, *values, block=(1,))
        assert np.array_equal(out, expected), region
        assert np.all(buffer[out.size :] == 7)


def test_rows_take_tiles_of_one_block_and_parameter_arrays():
    case = CASES["uniform32"]
    low, span, top = case.parameters
    dense = case.reference(N)
    for run in (1, 3, 10, 33):
        begins = 5 + 70 * np.arange(30)
        expected = dense[begins[:, None] + np.arange(run)].reshape(-1)
        out = np.zeros(30 * run, np.float32)
        lows = np.full(out.size, low)
        threads = fill_rows_threads(out.size, run, blocks=1)
        kernel = fill_rows(**case.parts, arrays=1, blocks=1)
        launch(kernel, (threads,), out, *place(0), 5, run, 30, 70, 0, lows, span, top)
        assert np.array_equal(out, expected)


# -- what the compilers make of them -----------------------------------------------------------


def test_equal_requests_give_one_kernel_and_others_another_fingerprint():
    requests = [
        {},
        {"wide": True},
        {"blocks": 32},
        {"rejects": True},
        {"arrays": 1},
        {"standard": uniform_f32},
        {"finish": scale_uniform},
        {"standard": bits_24, "finish": is_below},
        {"standard": normal_pair_f32, "pairs": np.float32},
        {"standard": normal_pair_f32, "pairs": np.float32, "finish": affine},
    ]
    for factory in (fill, fill_rows):
        kernels = [factory(**request) for request in requests]
        assert kernels == [factory(**request) for request in requests]
        assert len({fingerprint(kernel) for kernel in kernels}) == len(requests)
        # Made anew, as in another process, a kernel is found in the cache on disk.
        again = factory.__wrapped__(standard=uniform_f32, finish=identity)
        assert again is not factory(standard=uniform_f32)
        assert fingerprint(again) == fingerprint(factory(standard=uniform_f32))


@pytest.mark.parametrize("name", ["uniform32", "uniform64", "normal32", "normal64"])
def test_tiles_are_vectorised(name):
    case, n = CASES[name], 4096
    arguments = np.zeros(n, case.dtype), *place(0), *case.parameters
    code = CpuCode(fill(**case.parts), arguments, (1, 1, 1)).llvm
    kind = {"float32": "float", "float64": "double"}[case.dtype]
    assert re.search(r"mul nuw <\d+ x i64>", code)
    assert re.search(rf"call [^\n]*<\d+ x {kind}> @llvm\.fma", code)


def signature(case, rows):
    element = getattr(types, case.dtype)
    parameters = tuple(getattr(types, type(p).__name__) for p in case.parameters)
    head = (types.Array(element, 1, "C"), types.UniTuple(types.uint64, 2), types.uint64)
    return head + (types.int64,) * (5 if rows else 0) + parameters


@pytest.mark.parametrize("factory", [fill, fill_rows])
@pytest.mark.parametrize("name", ["uniform32", "normal64", "integers", "integers_wide"])
def test_tile_of_one_block_stays_in_registers_on_a_gpu(name, factory):
    case = CASES[name]
    kernel = factory(**case.parts, blocks=1)
    ptx = compile_ptx(kernel, signature(case, factory is fill_rows), (8, 0))
    assert_ieee(ptx)
    assert ".local" not in ptx
