"""Loops that look like grid-stride loops but must stay with their thread."""

from __future__ import annotations

from typing import Any

import pytest
from numba import cuda, float64

from helpers.grid_stride import LAUNCHES, LENGTH, SIZES, axes_taken_out, compare
from nbrt.backends.cpu.launch import CpuProgram


def accumulator(x: Any, y: Any, n: Any) -> None:
    total = 0.0
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        total += x[i]
    y[cuda.grid(1)] = total


def carried_but_written_inside(x: Any, y: Any, n: Any) -> None:
    total = 0.0
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        total = total * 0.5 + x[i]
        y[i] = total


def carried_now_and_then(x: Any, y: Any, n: Any) -> None:
    last = -1
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        if i % 2 == 0:
            last = i
        y[i] = last


def carried_in_while(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    turn = 0
    while i < n:
        y[i] = turn
        turn += 1
        i += cuda.gridsize(1)


def with_break(x: Any, y: Any, n: Any) -> None:
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        if x[i] > 0.7:
            break
        y[i] = x[i]


def while_with_break(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    while i < n:
        if x[i] > 0.7:
            break
        y[i] = x[i]
        i += cuda.gridsize(1)


def while_with_continue(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    while i < n:
        here = i
        i += cuda.gridsize(1)
        if x[here] > 0.7:
            continue
        y[here] = x[here]


def while_two_tests(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    while i < n and i < 40:
        y[i] += x[i]
        i += cuda.gridsize(1)


def with_return(x: Any, y: Any, n: Any) -> None:
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        if x[i] > 0.7:
            return
        y[i] = x[i]


def with_raise(x: Any, y: Any, n: Any) -> None:
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        if x[i] > 2:
            raise ValueError("too large")
        y[i] = x[i]


def two_loops(x: Any, y: Any, n: Any) -> None:
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        y[i] = x[i]
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        y[i] += 1


def work_before(x: Any, y: Any, n: Any) -> None:
    y[cuda.grid(1)] = 7
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        y[i] += x[i]


def work_after(x: Any, y: Any, n: Any) -> None:
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        y[i] += x[i]
    y[cuda.grid(1)] += 1


def load_before(x: Any, y: Any, n: Any) -> None:
    first = y[cuda.grid(1)]
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        y[i] = first + x[i]


def membership_before(x: Any, y: Any, n: Any) -> None:
    clean = 0.125 in y
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        y[i] = x[i] + clean


def local_array_before(x: Any, y: Any, n: Any) -> None:
    buffer = cuda.local.array(2, float64)
    buffer[0] = 0
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        buffer[0] += x[i]
        y[i] = buffer[0]


def limit_changes(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    while i < n:
        y[i] += 1
        n -= 1
        i += cuda.gridsize(1)


def limit_in_memory(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    while i < n + y[i % 8] * 0:
        y[i] += 1
        i += cuda.gridsize(1)


def limit_from_an_array(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    while i < min(max(y), 60):
        y[0] = n
        i += cuda.gridsize(1)


def largest_before(x: Any, y: Any, n: Any) -> None:
    largest = max(x)
    for i in range(cuda.grid(1), n, cuda.gridsize(1)):
        y[i] = largest + x[i]


def other_stride(x: Any, y: Any, n: Any) -> None:
    for i in range(cuda.grid(1), n, cuda.gridsize(1) * 2):
        y[i] += 1


def constant_stride(x: Any, y: Any, n: Any) -> None:
    for i in range(cuda.grid(1) % 5, n, 15):
        y[i] = 1


def stride_of_another_axis(x: Any, y: Any, n: Any) -> None:
    for i in range(cuda.grid(1), n, cuda.blockDim.x * cuda.gridDim.y):
        y[i] = 1


def start_changed(x: Any, y: Any, n: Any) -> None:
    start = cuda.grid(1)
    if n > 8:
        start += 1
    for i in range(start, n, cuda.gridsize(1)):
        y[i] += 1


def downwards(x: Any, y: Any, n: Any) -> None:
    for i in range(n - 1 - cuda.grid(1), -1, -cuda.gridsize(1)):
        y[i] += x[i]


def advance_now_and_then(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    while i < n:
        y[i] += 1
        if y[i] > 1.5:
            i += cuda.gridsize(1)


def advance_in_a_loop(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    while i < n:
        y[i] += 1
        for _ in range(2):
            i += cuda.gridsize(1)


def advance_twice(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    while i < n:
        y[i] += 1
        i += cuda.gridsize(1)
        i += cuda.gridsize(1)


def advance_first(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    while True:
        i += cuda.gridsize(1)
        if i >= n:
            break
        y[i] += x[i]


def checked_against_less(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    if i < n:
        while True:
            y[i] += 1
            i += cuda.gridsize(1)
            if i >= n - 3:
                break


def while_above(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    while i > n and i < 40:
        y[i] += 1
        i += cuda.gridsize(1)


def while_unequal(x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    while i != i % 40 + n * 0:
        y[i] += 1
        i += cuda.gridsize(1)


KEPT = [
    accumulator,
    carried_but_written_inside,
    carried_now_and_then,
    carried_in_while,
    with_break,
    while_with_break,
    while_with_continue,
    while_two_tests,
    with_return,
    with_raise,
    two_loops,
    work_before,
    work_after,
    load_before,
    membership_before,
    local_array_before,
    limit_changes,
    limit_in_memory,
    limit_from_an_array,
    largest_before,
    other_stride,
    constant_stride,
    stride_of_another_axis,
    start_changed,
    downwards,
    advance_now_and_then,
    advance_in_a_loop,
    advance_twice,
    advance_first,
    checked_against_less,
    while_above,
    while_unequal,
]


@pytest.mark.parametrize("kernel", KEPT, ids=lambda kernel: kernel.__name__)
def test_turns_made_by_the_thread(kernel: Any) -> None:
    compiled = CpuProgram(kernel, cache=False)
    # One thread at a time, as the reference does: some of these kernels have races else.
    for launch in LAUNCHES[:1]:
        for n in SIZES:
            compare(kernel, compiled, launch, LENGTH, n)
    assert axes_taken_out(compiled) == []
