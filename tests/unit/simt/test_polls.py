"""Polls of the stop word in LLVM text: loops keep their results and vectors, and can be stopped."""

from __future__ import annotations

import ctypes
import itertools
import re
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers import endless
from helpers.endless import counted, diverging, integers, meeting
from nbrt.backends.cpu.interrupts import STOP
from nbrt.backends.cpu.simt.codegen.polled_library import with_polls
from nbrt.backends.cpu.simt.stop_codes import STOPPED

_LOOP = """
define i32 @work(ptr %nbrt.stop, ptr %out, {kind} %start, {kind} %end) {{
entry:
  br label %loop
loop:
  %at = phi {kind} [ %start, %entry ], [ %next, %loop ]
  %turns = phi i64 [ 0, %entry ], [ %more, %loop ]
  %more = add i64 %turns, 1
  %next = add {kind} %at, {step}
  %going = icmp {predicate} {kind} {compared}, %end
  {branch}
done:
  store i64 %more, ptr %out
  ret i32 0
}}
"""

_BRANCHES = (
    "br i1 %going, label %loop, label %done",
    "%gone = xor i1 %going, true\n  br i1 %gone, label %done, label %loop",
)


class _Compiled:
    def __init__(self, text: str, kind: Any) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        module = llvm.parse_assembly(text)
        module.verify()
        machine = llvm.Target.from_default_triple().create_target_machine(opt=2, jit=True)
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()
        types = (ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, kind, kind)
        self._call = ctypes.CFUNCTYPE(*types)(self._engine.get_function_address("work"))

    def __call__(self, start: int, end: int, word: int = 0) -> tuple[int, int]:
        """Return the status and the turns."""
        stop, out = np.array([word]), np.array([-1])
        status = self._call(stop.ctypes.data, out.ctypes.data, start, end)
        return status, int(out[0])


def _polled(text: str) -> str:
    return with_polls(str(llvm.parse_assembly(text)), "%none", 0)


@pytest.mark.parametrize("kind", ["i32", "i64"])
@pytest.mark.parametrize("branch", _BRANCHES)
@pytest.mark.parametrize("compared", ["%at", "%next"])
@pytest.mark.parametrize(
    ("predicate", "steps"),
    [
        ("ne", (1, 8, -1, -4)),
        ("slt", (1, 3, 64)),
        ("ult", (1, 16)),
        ("sle", (1, 5)),
        ("ule", (2,)),
        ("sgt", (-1, -3)),
        ("uge", (-2,)),
        ("sge", (-16,)),
        ("ugt", (-1,)),
    ],
)
def test_counting_loops_make_as_many_turns(
    kind: str, branch: str, compared: str, predicate: str, steps: tuple[int, ...]
) -> None:
    ctype = {"i32": ctypes.c_int32, "i64": ctypes.c_int64}[kind]
    for step in steps:
        text = _LOOP.format(
            kind=kind, step=step, predicate=predicate, compared=compared, branch=branch
        )
        plain, polled = _Compiled(text, ctype), _Compiled(_polled(text), ctype)
        for turns, start in itertools.product((1, 2, 4095, 4096, 4097, 8192, 20_001), (40, 5, 900)):
            first = start if step > 0 else start + turns * abs(step)
            end = first + turns * step
            assert polled(first, end) == plain(first, end), (step, turns, start)
        if predicate in ("slt", "sle"):
            assert polled(7, -100) == plain(7, -100) == (0, 1)
            assert polled(-9000, 3) == plain(-9000, 3)


def test_a_counting_loop_polls_between_strips() -> None:
    text = _LOOP.format(kind="i64", step=1, predicate="ne", compared="%next", branch=_BRANCHES[0])
    polled = _polled(text)
    loop = polled[polled.index("\nloop:") : polled.index("\ndone:")]
    assert "nbrt.stop" not in loop
    work = _Compiled(polled, ctypes.c_int64)
    assert work(0, 4000, STOP) == (0, 4000)
    assert work(0, 2**62, STOP) == (STOPPED, -1)
    # The identifier of another thread asks that thread, not this one.
    assert work(0, 10_000, 2) == (0, 10_000)


def test_loops_of_few_turns_do_not_poll() -> None:
    text = _LOOP.format(kind="i64", step=1, predicate="ne", compared="%next", branch=_BRANCHES[0])
    text = text.replace("[ %start, %entry ]", "[ 0, %entry ]").replace(", %end\n", ", 1000\n")
    assert "nbrt.poll" not in _polled(text)


def test_other_loops_poll_in_every_turn() -> None:
    text = """
define i32 @work(ptr %nbrt.stop, ptr %out, i64 %start, i64 %end) {
entry:
  br label %outer
outer:
  %a = phi i64 [ %start, %entry ], [ %b, %odd ], [ %b, %even ]
  %low = and i64 %a, 1
  %is_odd = icmp eq i64 %low, 1
  %b = lshr i64 %a, 1
  br i1 %is_odd, label %odd, label %even
odd:
  %more = icmp eq i64 %end, 0
  br i1 %more, label %outer, label %done
even:
  br label %outer
done:
  store i64 %b, ptr %out
  ret i32 0
}
"""
    work = _Compiled(_polled(text), ctypes.c_int64)
    assert work(8, 1) == (0, 0)
    assert work(0, 0, STOP) == (STOPPED, -1)


def test_loops_stay_vectors() -> None:
    def saxpy(y: Any, x: Any, a: Any) -> None:
        i = cuda.grid(1)
        if i < y.size:
            y[i] += a * x[i]

    found = nbrt.kernel(saxpy).inspect("float32[::1]", "float32[::1]", "float32")
    assert any(loop.lanes > 1 for loop in found.loops)
    # The threads of a strip run without a poll: there is none but those of the loops over strips.
    assert found.llvm.count("\nnbrt.strip.") == 0
    found = integers.inspect("int64[::1]", "int64[::1]", "int64")
    assert any(loop.lanes > 1 for loop in found.loops)
    assert "\nnbrt.strip." in found.llvm


@pytest.mark.parametrize("kernel", [counted, diverging, meeting])
def test_kernels_poll(kernel: Any) -> None:
    found = kernel.inspect("float64[::1]", "int64[::1]", "int64", block=64)
    assert "\nnbrt.poll." in found.llvm


def test_the_scheduler_of_threads_that_spin_polls() -> None:
    found = endless.endless.inspect("float64[::1]", "int64[::1]", block=64)
    assert found.lowering.kind == "coroutines"
    assert re.search(r"call \w+ i32 @nbrt_attend[.\w]*\(", found.llvm)


def test_a_loop_around_a_loop_in_strips_polls() -> None:
    found = endless.integers.inspect("float64[::1]", "int64[::1]", "int64", block=64)
    outer = found.llvm.count("\nnbrt.poll.") - found.llvm.count("\nnbrt.strip.")
    assert outer > 0
