# mypy: disable-error-code="no-untyped-def"
"""Threads that spin in plain Python: the others make progress; a deadlock names its line."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda

from helpers.spinning import CASES, DEADLOCKS, line_of
from nbrt.backends.cpu.interpret import interpret
from nbrt.config import override
from nbrt.errors import KernelDeadlockError


def _run(kernel, grid, block, *arguments) -> None:
    interpret(kernel, (grid, 1, 1), (block, 1, 1), 0, arguments)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_other_threads_get_on(case) -> None:
    case.check(_run)


@pytest.mark.parametrize(("kernel", "where"), DEADLOCKS, ids=lambda each: each.__name__)
def test_a_deadlock_names_its_line(kernel, where) -> None:
    grid = 2
    flag, out = np.zeros(1, np.int32), np.zeros(8 * grid, np.int32)
    with override(deadlock_timeout=0), pytest.raises(KernelDeadlockError) as caught:
        _run(kernel, grid, 8, flag, out)
    text = str(caught.value)
    assert (
        f"a loop that spins at {line_of(where)}" in text or f"nanosleep at {_after(where)}" in text
    )
    assert "such as block (0, 0, 0), thread (" in text


def _after(function) -> str:
    file, _, line = line_of(function).rpartition(":")
    return f"{file}:{int(line) + 1}"


def record_flag(flag, out):
    if cuda.threadIdx.x == 0:
        while flag[0].ready == 0:
            pass
        out[0] = flag[0].ready
    else:
        flag[0].ready = 3


def test_a_field_of_a_record_is_a_flag_too() -> None:
    flag = np.zeros(1, np.dtype([("ready", np.int32), ("more", np.float64)]))
    out = np.zeros(1, np.int32)
    _run(record_flag, 1, 2, flag, out)
    assert out[0] == 3


def reads_much(x, out):
    i = cuda.grid(1)
    total = 0
    for k in range(x.size):
        total += x[k] * x[0]
    out[i] = total


def test_long_work_is_no_spin() -> None:
    out = np.zeros(6, np.int64)
    with override(deadlock_timeout=0):
        _run(reads_much, 3, 2, np.ones(1500, np.int64), out)
    assert (out == 1500).all()


def bounded(flag, out):
    tries = 0
    while cuda.atomic.add(flag, 0, 0) == 0 and tries < 300:
        tries += 1
    out[cuda.grid(1)] = tries


def test_a_loop_that_gives_up_is_no_deadlock() -> None:
    out = np.zeros(4, np.int32)
    with override(deadlock_timeout=0):
        _run(bounded, 2, 2, np.zeros(1, np.int32), out)
    assert (out == 300).all()
