"""Grid-stride loops: the launch runs their iterations if it can, with the same results."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numba import cuda, float64

from helpers.grid_stride import LAUNCHES, LENGTH, SIZES, arrays, axes_taken_out, compare
from helpers.simt_reference import run_reference
from nbrt.backends.cpu.block_scheduler import LaunchRecord, run_shared
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.cpu.simt.runtime.inspection import CpuCode

PLANE_LAUNCHES = [((2, 3, 1), (4, 2, 1)), ((1, 1, 1), (3, 5, 1)), ((3, 1, 2), (1, 4, 1))]


@cuda.jit(device=True)
def squared_plus(value: Any, other: Any) -> Any:
    return value * value + other


@cuda.jit(device=True)
def position_plus(value: Any) -> Any:
    return value + cuda.grid(1)


def range_form(x: Any, y: Any, n: Any) -> None:
    start = cuda.grid(1)
    stride = cuda.gridsize(1)
    for i in range(start, n, stride):
        y[i] = 3 * x[i] + y[i]


def all_in_one_line(x: Any, y: Any, n: Any) -> None:
    for i in range(cuda.grid(1), min(n, len(x)), cuda.gridsize(1)):
        y[i] = x[i] + 1


def by_formula(x: Any, y: Any, n: Any) -> None:
    start = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    for i in range(start, n, cuda.blockDim.x * cuda.gridDim.x):
        y[i] += x[i]


def with_continue(x: Any, y: Any, n: Any) -> None:
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        if x[i] < 0.3:
            continue
        y[i] = x[i]


def while_form(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    stride = cuda.gridsize(1)
    while i < n:
        y[i] = 3 * x[i] + y[i]
        i += stride


def while_by_formula(x: Any, y: Any, n: Any) -> None:
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    stride = cuda.gridDim.x * cuda.blockDim.x
    while n > i:
        y[i] -= x[i]
        i = stride + i


def while_not(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    while not i >= n:
        y[i] += 1
        i += cuda.gridsize(1)


def while_inclusive(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    while i <= n:
        y[i] += x[i]
        i += cuda.gridsize(1)


def while_true(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    while True:
        if i >= n:
            break
        y[i] += x[i]
        i += cuda.gridsize(1)


def while_ending_in_a_choice(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    while i < n:
        here = i
        i += cuda.gridsize(1)
        if x[here] < 0.5:
            y[here] += 1


def while_ending_in_a_while(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    while i < n:
        here = i
        i += cuda.gridsize(1)
        k = 0
        while k < here % 4:
            y[here] += x[k]
            k += 1


def while_below_a_shape(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    while i < x.shape[0] - n % 7:
        y[i] += x[i]
        i += cuda.gridsize(1)


def position_used_after_advance(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    while i < n:
        y[i] += x[i]
        i += cuda.gridsize(1)
        y[i - cuda.gridsize(1)] += i


def shifted(x: Any, y: Any, n: Any) -> None:
    for i in range(cuda.grid(1) + 2, n - 1, cuda.gridsize(1)):
        y[i] = x[i - 1] + x[i + 1]


def shifted_down(x: Any, y: Any, n: Any) -> None:
    for i in range(cuda.grid(1) - 3, n, cuda.gridsize(1)):
        y[i] += i


def guard_in_front(x: Any, y: Any, n: Any) -> None:
    start = cuda.grid(1)
    if start >= n - 2:
        return
    for i in range(start, n, cuda.gridsize(1)):
        y[i] += x[i]


def guards_inside(x: Any, y: Any, n: Any) -> None:
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        if 2 < i < n - 2:
            y[i] = x[i - 1] + x[i + 1]


def choice_inside(x: Any, y: Any, n: Any) -> None:
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        if i % 3 == 0:
            y[i] = x[i]
        else:
            y[i] = -x[i]


def uniform_preamble(x: Any, y: Any, n: Any) -> None:
    scale = 1.0 / (n * n + 1)
    last = max(n - 3, 0)
    start = cuda.grid(1)
    for i in range(start, last, cuda.gridsize(1)):
        y[i] = x[i] * scale + start


def loop_variable_changed(x: Any, y: Any, n: Any) -> None:
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        y[i] += 1
        i += 1
        y[i - 1] += i


def device_functions(x: Any, y: Any, n: Any) -> None:
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        y[i] = squared_plus(x[i], y[i]) + position_plus(i)


def nested_loop(x: Any, y: Any, n: Any) -> None:
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        total = 0.0
        for k in range(i % 5):
            if k == 3:
                break
            total += x[k] * k
        y[i] = total


def several_arrays(x: Any, y: Any, n: Any) -> None:
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        old = y[i]
        y[i] = x[i] + 1
        x[i] = old


def local_array(x: Any, y: Any, n: Any) -> None:
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        buffer = cuda.local.array(4, float64)
        for k in range(4):
            buffer[k] = x[(i + k) % 8]
        y[i] = buffer[0] - buffer[3] + buffer[i % 4]


def own_earlier_turn(x: Any, y: Any, n: Any) -> None:
    stride = cuda.gridsize(1)
    for i in range(cuda.grid(1), n, stride):
        if i >= stride:
            y[i] = y[i - stride] * 0.5 + x[i]


def own_slot(x: Any, y: Any, n: Any) -> None:
    thread = cuda.grid(1)
    for i in range(thread, n, cuda.gridsize(1)):
        y[thread] = y[thread] * 0.5 + x[i]


def innermost_loop_stays(x: Any, y: Any, n: Any) -> None:
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        for j in range(cuda.grid(1), n, cuda.gridsize(1)):
            y[i] += x[j] * 0 + 1


TAKEN_OUT = [
    range_form,
    all_in_one_line,
    by_formula,
    with_continue,
    while_form,
    while_by_formula,
    while_not,
    while_inclusive,
    while_true,
    while_ending_in_a_choice,
    while_ending_in_a_while,
    while_below_a_shape,
    position_used_after_advance,
    shifted,
    shifted_down,
    guard_in_front,
    guards_inside,
    choice_inside,
    uniform_preamble,
    loop_variable_changed,
    device_functions,
    nested_loop,
    several_arrays,
    local_array,
    own_earlier_turn,
    own_slot,
    innermost_loop_stays,
]


@pytest.mark.parametrize("kernel", TAKEN_OUT, ids=lambda kernel: kernel.__name__)
def test_turns_made_by_the_launch(kernel: Any) -> None:
    compiled = CpuProgram(kernel, cache=False)
    for launch in LAUNCHES:
        for n in SIZES:
            compare(kernel, compiled, launch, LENGTH, n)
    assert axes_taken_out(compiled) == [[0]] * len(LAUNCHES)


@pytest.mark.parametrize("kernel", [range_form, while_form, by_formula])
def test_limits_of_other_types(kernel: Any) -> None:
    compiled = CpuProgram(kernel, cache=False)
    for n in (np.int32(23), np.uint8(23), np.uint64(23), np.int16(-1)):
        compare(kernel, compiled, LAUNCHES[0], LENGTH, n)


@pytest.mark.parametrize("kernel", [while_form, while_not, while_inclusive])
@pytest.mark.parametrize("n", [7.5, 20.0, -0.5, -float("inf")])
def test_a_limit_between_the_positions(kernel: Any, n: float) -> None:
    compare(kernel, CpuProgram(kernel, cache=False), LAUNCHES[0], LENGTH, n)


def test_no_turn_below_nan() -> None:
    compare(while_form, CpuProgram(while_form, cache=False), LAUNCHES[0], LENGTH, float("nan"))


# -- two and three dimensions ----------------------------------------------------------------


def rows_then_columns(x: Any, y: Any) -> None:
    x0, y0 = cuda.grid(2)
    xs, ys = cuda.gridsize(2)
    height, width = x.shape
    for j in range(y0, height, ys):
        for i in range(x0, width, xs):
            y[j, i] = 2 * x[j, i] + y[j, i]


def columns_then_rows(x: Any, y: Any) -> None:
    x0, y0 = cuda.grid(2)
    for i in range(x0, x.shape[1], cuda.gridsize(2)[0]):
        for j in range(y0, x.shape[0], cuda.gridsize(2)[1]):
            y[j, i] += x[j, i] + i - j


def row_worked_out_first(x: Any, y: Any) -> None:
    column = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    row = cuda.threadIdx.y + cuda.blockIdx.y * cuda.blockDim.y
    for j in range(row, x.shape[0], cuda.blockDim.y * cuda.gridDim.y):
        scale = (j * 3 + 1) / x.shape[0]
        for i in range(column, x.shape[1], cuda.blockDim.x * cuda.gridDim.x):
            y[j, i] = x[j, i] * scale


def whiles(x: Any, y: Any) -> None:
    x0, j = cuda.grid(2)
    while j < x.shape[0]:
        i = x0
        while i < x.shape[1]:
            y[j, i] = x[j, i] + j
            i += cuda.gridsize(2)[0]
        j += cuda.gridsize(2)[1]


def stencil(x: Any, y: Any) -> None:
    x0, y0 = cuda.grid(2)
    xs, ys = cuda.gridsize(2)
    for j in range(y0 + 1, x.shape[0] - 1, ys):
        for i in range(x0 + 1, x.shape[1] - 1, xs):
            y[j, i] = x[j, i - 1] + x[j, i + 1] + x[j - 1, i] + x[j + 1, i]


def rows_only(x: Any, y: Any) -> None:
    x0, y0 = cuda.grid(2)
    for j in range(y0, x.shape[0], cuda.gridsize(2)[1]):
        if x0 < x.shape[1]:
            y[j, x0] += x[j, x0]


def column_sums_of_rows(x: Any, y: Any) -> None:
    x0, y0 = cuda.grid(2)
    xs, ys = cuda.gridsize(2)
    for j in range(y0, x.shape[0], ys):
        total = 0.0
        for i in range(x0, x.shape[1], xs):
            total += x[j, i]
        if x0 < x.shape[1]:
            y[j, x0] = total


def column_left_to_run_out(x: Any, y: Any) -> None:
    i, y0 = cuda.grid(2)
    for j in range(y0, x.shape[0], cuda.gridsize(2)[1]):
        while i < x.shape[1]:
            y[j, i] = x[j, i] + j
            i += cuda.gridsize(2)[0]


def work_between(x: Any, y: Any) -> None:
    x0, y0 = cuda.grid(2)
    xs, ys = cuda.gridsize(2)
    for j in range(y0, x.shape[0], ys):
        if x0 == 0 and x.shape[1] > 0:
            y[j, 0] = -1
        for i in range(x0, x.shape[1], xs):
            y[j, i] += x[j, i]


PLANES = [
    (rows_then_columns, [1, 0]),
    (columns_then_rows, [0, 1]),
    (row_worked_out_first, [1, 0]),
    (whiles, [1, 0]),
    (stencil, [1, 0]),
    (rows_only, [1]),
    (column_sums_of_rows, [1]),
    (column_left_to_run_out, None),
    (work_between, [1]),
]


@pytest.mark.parametrize(("kernel", "axes"), PLANES, ids=lambda v: getattr(v, "__name__", ""))
def test_two_dimensions(kernel: Any, axes: Any) -> None:
    compiled = CpuProgram(kernel, cache=False)
    for launch in PLANE_LAUNCHES:
        for shape in ((0, 5), (5, 0), (1, 1), (7, 19), (20, 3)):
            if kernel is rows_only and shape[1] > 8:
                continue
            compare(kernel, compiled, launch, shape)
    assert axes_taken_out(compiled) == ([axes] * len(PLANE_LAUNCHES) if axes else [])


def test_three_dimensions() -> None:
    def kernel(x: Any, y: Any) -> None:
        x0, y0, z0 = cuda.grid(3)
        xs, ys, zs = cuda.gridsize(3)
        for k in range(z0, x.shape[0], zs):
            for j in range(y0, x.shape[1], ys):
                for i in range(x0, x.shape[2], xs):
                    y[k, j, i] += x[k, j, i] * (k + 1) - j

    compiled = CpuProgram(kernel, cache=False)
    for shape in ((3, 5, 7), (1, 1, 1), (6, 0, 2), (4, 4, 4)):
        compare(kernel, compiled, ((2, 1, 2), (2, 3, 1)), shape)
    assert axes_taken_out(compiled) == [[2, 1, 0]]


# -- what comes out ----------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_turns_are_shared_out_like_any_blocks(chunk: int) -> None:
    for kernel in (range_form, own_earlier_turn):
        expected, got = arrays(4000), arrays(4000)
        plan = CpuProgram(kernel, cache=False).plan(0, (7, 1, 1), (8, 1, 1))
        run_shared(plan._entry, LaunchRecord(7, 1, 1, 7, chunk, 0), (*got, 4000))
        run_reference(kernel, (7, 1, 1), (8, 1, 1), *expected, 4000)
        np.testing.assert_array_equal(got[1], expected[1])


@pytest.mark.parametrize("kernel", [range_form, while_form, by_formula, while_true])
def test_neighbouring_positions_share_vectors(kernel: Any) -> None:
    line = np.zeros(512, np.float32)
    text = CpuCode(kernel, (line, line, 512), (256, 1, 1)).llvm
    assert "masked" not in text
    assert "gather" not in text
    assert {"load", "store"} <= set(re.findall(r"(load|store) <\d+ x float>", text))


def test_a_failed_turn_is_reported() -> None:
    @cuda.jit(device=True)
    def checked(value: Any) -> Any:
        if value > 0.5:
            raise ValueError("too large")
        return value

    def kernel(x: Any, y: Any, n: Any) -> None:
        for i in range(cuda.grid(1), n, cuda.gridsize(1)):
            y[i] = checked(x[i])

    compiled = CpuProgram(kernel, cache=False)
    with pytest.raises(ValueError, match="too large"):
        compiled.plan(0, *LAUNCHES[0])(*arrays(LENGTH), LENGTH)
    assert axes_taken_out(compiled) == [[0]]


def test_the_size_of_the_grid_is_a_limit_like_any_other() -> None:
    def kernel(out: Any) -> None:
        i = cuda.grid(1)
        if i < cuda.gridsize(1) - 2 and i < cuda.gridDim.x * 4:
            out[i] = 1

    got = np.zeros(20)
    CpuProgram(kernel, cache=False).plan(0, (4, 1, 1), (5, 1, 1))(got)
    assert got.sum() == 16
