# mypy: disable-error-code="no-untyped-def"
"""Threads that spin: other threads, warps and blocks make progress; a deadlock names its line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.coroutines import compiled, thread
from helpers.spinning import CASES, DEADLOCKS, line_of, ticket_lock
from nbrt.backends.cpu import waiting
from nbrt.backends.cpu.block_scheduler import get_num_threads, set_num_threads
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.cpu.simt.codegen.resident_calls import MAX_RESIDENT_BLOCKS
from nbrt.backends.cpu.simt.stop_codes import STOPPED
from nbrt.backends.fingerprint import fingerprint
from nbrt.config import override
from nbrt.errors import KernelDeadlockError

TESTS = Path(__file__).parents[2]
_kernels: dict[object, CpuProgram] = {}
_checked: dict[object, nbrt.Kernel] = {}


def _native(kernel, grid, block, *arguments) -> None:
    made = _kernels.setdefault(kernel, CpuProgram(kernel, cache=False))
    made.plan(0, (grid, 1, 1), (block, 1, 1))(*arguments)


def _check(kernel, grid, block, *arguments) -> None:
    made = _checked.setdefault(kernel, nbrt.kernel(kernel, check=True))
    made[grid, block](*arguments)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest):
    before = get_num_threads()
    set_num_threads(request.param)
    yield request.param
    set_num_threads(before)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_other_threads_get_on(case, threads) -> None:
    for _ in range(3):  # the first launch of several blocks is timed, the next go by that
        case.check(_native)


_RACY = ("plain_lanes", "counted_attempts")


@pytest.mark.parametrize(
    "case", [each for each in CASES if not each.name.startswith(_RACY)], ids=lambda case: case.name
)
def test_checked_mode_finds_nothing(case) -> None:
    case.check(_check)


@pytest.mark.parametrize("case", [CASES[1], CASES[-6]], ids=lambda case: case.name)
def test_any_order_of_threads(case) -> None:
    kernel = nbrt.kernel(case.kernel, check=True, seed=5)
    case.check(lambda _, grid, block, *arguments: kernel[grid, block](*arguments))


@pytest.mark.parametrize(("kernel", "where"), DEADLOCKS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("run", [_native, _check])
def test_a_deadlock_names_its_line(kernel, where, run, threads) -> None:
    for grid in (1, 3) if kernel.__name__ != "one_is_missing" else (2, 5):
        flag, out = np.zeros(1, np.int32), np.zeros(8 * grid, np.int32)
        with override(deadlock_timeout=0), pytest.raises(KernelDeadlockError) as caught:
            run(kernel, grid, 8, flag, out)
        text = str(caught.value)
        assert line_of(where) in text
        assert f"kernel {kernel.__name__} " in text
        assert "block (0, 0, 0), thread (0, 0, 0)" in text
        assert "NBRT_DEADLOCK_TIMEOUT" in text or run is _check


def all_for_the_last(flag, out):
    if cuda.blockIdx.x < cuda.gridDim.x - 1:
        while cuda.atomic.add(flag, 0, 0) == 0:  # waits
            pass
    cuda.atomic.exch(flag, 0, 1)
    out[cuda.blockIdx.x] = 1


def test_the_number_of_resident_blocks_is_as_stated() -> None:
    out = np.zeros(MAX_RESIDENT_BLOCKS + 1, np.int32)
    _native(all_for_the_last, MAX_RESIDENT_BLOCKS, 1, np.zeros(1, np.int32), out)
    assert out[:-1].all()
    with override(deadlock_timeout=0), pytest.raises(KernelDeadlockError) as caught:
        _native(all_for_the_last, MAX_RESIDENT_BLOCKS + 1, 1, np.zeros(1, np.int32), out)
    assert str(MAX_RESIDENT_BLOCKS) in str(caught.value)


def raises_in_the_last(flag, out):
    if cuda.blockIdx.x == cuda.gridDim.x - 1:
        raise ValueError("the last")
    while cuda.atomic.add(flag, 0, 0) == 0:
        pass
    out[cuda.blockIdx.x] = 1


def test_an_exception_ends_those_that_spin(threads) -> None:
    # With a deadlock found after a million seconds only, a thread that went on would hang.
    with override(deadlock_timeout=10**6):
        for _ in range(2):
            with pytest.raises(ValueError, match="the last") as caught:
                _native(raises_in_the_last, 6, 2, np.zeros(1, np.int32), np.zeros(6))
            assert caught.value.__notes__ == ["in block (5, 0, 0), thread (0, 0, 0)"]


def test_an_interrupt_ends_the_launch(monkeypatch: pytest.MonkeyPatch, threads) -> None:
    def interrupted(_attempt: int) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(waiting, "wait", interrupted)
    kernel, _ = DEADLOCKS[0]
    for grid in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            _native(kernel, grid, 8, np.zeros(1, np.int32), np.zeros(8 * grid, np.int32))


@pytest.mark.parametrize("entry", ["block", "grid"])
def test_a_stop_word_ends_threads_that_wait(entry) -> None:
    body = """
entry:
  call void @nbrt.barrier()
  store i32 1, ptr %out
  ret i32 0
"""
    function = compiled(thread(body), entry)
    out = np.zeros(64, np.int32)
    function.stop[0] = 1
    assert function(out) == STOPPED
    assert out[0] == 0
    function.stop[0] = 0
    assert function(out) == 0
    assert out[0] == 1


def test_a_stop_word_ends_threads_that_spin() -> None:
    kernel, _ = DEADLOCKS[0]
    plan = CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (8, 1, 1))
    plan.record.stop = 1
    out = np.zeros(8, np.int32)
    plan(np.zeros(1, np.int32), out)
    assert not out.any()


def _at_line(source: str, line: int):
    names = {"__name__": __name__}
    exec(compile("\n" * line + source, "somewhere.py", "exec"), names)
    return names["kernel"]


def test_code_on_disk_names_the_lines_of_its_source() -> None:
    spins = "def kernel(x):\n    while x[0] == 0:\n        pass\n"
    works = "def kernel(x):\n    for i in range(3):\n        x[i] = 1\n"
    assert fingerprint(_at_line(spins, 0)) == fingerprint(_at_line(spins, 0))
    assert fingerprint(_at_line(spins, 0)) != fingerprint(_at_line(spins, 5))
    assert fingerprint(_at_line(works, 0)) == fingerprint(_at_line(works, 5))


def waits_for_five(flag, out):
    while flag[0] != 5:
        pass
    out[cuda.grid(1)] = flag[0]


def writes_five(flag):
    if cuda.grid(1) == 0:
        flag[0] = 5


def test_another_stream_may_write_the_flag() -> None:
    flag, out = np.zeros(1, np.int32), np.zeros(64, np.int32)
    first, second = nbrt.Stream(device="cpu"), nbrt.Stream(device="cpu")
    # However long it takes to compile the second kernel, the first one waits for it.
    with override(deadlock_timeout=10**6):
        nbrt.kernel(waits_for_five)[4, 16, first](flag, out)
        nbrt.kernel(writes_five)[1, 2, second](flag)
        second.synchronize()
        first.synchronize()
    assert (out == 5).all()


def test_many_blocks_take_a_lock() -> None:
    ticket, count = np.zeros(2, np.int32), np.zeros(1, np.int32)
    _native(ticket_lock, 600, 64, ticket, count)
    assert ticket.tolist() == [600 * 64] * 2


def test_inspect_says_why() -> None:
    case = next(each for each in CASES if each.name.startswith("float_flag"))
    found = nbrt.kernel(case.kernel)[1, 64].inspect(*case.make()).lowering
    assert found.kind == "coroutines"
    assert "waits for other threads" in found.reasons[0]
    code = case.kernel.__code__
    assert found.reasons[1].startswith(f"a loop that spins at {code.co_filename}:")


_SIMULATED = """
import json
from numba import cuda
from helpers.coroutines import compiled, thread
from helpers.spinning import CASES
names = ("specialised", "float_flag", "plain_lanes", "look_back")
found = {}
for case in CASES:
    if case.name.startswith(names):
        arguments = case.make()
        cuda.jit(case.kernel)[case.grid, case.block](*arguments)
        found[case.name] = arguments[-1].tolist()
print(json.dumps(found))
"""


def test_what_is_expected_is_what_the_simulator_of_numba_cuda_gives() -> None:
    child = subprocess.run(
        [sys.executable, "-c", _SIMULATED],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(TESTS)},
        check=True,
        capture_output=True,
        text=True,
    )
    found = json.loads(child.stdout)
    assert len(found) == 9
    for case in CASES:
        if case.name in found:
            np.testing.assert_array_equal(found[case.name], case.expected)
