"""Loops that wait for other threads, and kernels whose threads wait for each other."""

from __future__ import annotations

import numpy as np
import pytest

from unit.simulated_cuda.ptx.executor import Program

FRAME = """
    .func waits() {{ bar.sync 0; ret; }}
    .func calls() {{ call waits; ret; }}
    .func unused() {{ bar.sync 1; ret; }}
    .visible .entry k(.param .u64 in)
    {{
      .reg .u64 %p, %f; .reg .u32 %r<4>, %i; .reg .pred %q; .reg .f32 %x;
      ld.param.u64 %p, [in]; mov.u32 %i, 0;
      {0}
      ret;
    }}"""

COUNTED = "again: {0} add.u32 %i, %i, 1; setp.lt.u32 %q, %i, 10; @%q bra again;"
UNTIL = "again: {0} setp.ne.u32 %q, %r0, 0; @%q bra again;"

SPINNING = {
    "volatile": UNTIL.format("ld.volatile.global.u32 %r0, [%p];"),
    "acquire": UNTIL.format("ld.acquire.gpu.global.u32 %r0, [%p];"),
    "lock": UNTIL.format("atom.global.cas.b32 %r0, [%p], 0, 1;"),
    "exchange": UNTIL.format("atom.global.exch.b32 %r0, [%p], 1;"),
    "fence": UNTIL.format("ld.global.u32 %r0, [%p]; membar.gl;"),
    "flag": "again: ld.volatile.u32 %r0, [%p]; and.b32 %r1, %r0, 1;"
    "selp.u32 %r2, 1, 0, %q; setp.eq.u32 %q, %r1, 1; @!%q bra again;",
    "rotated": "bra test; body: nanosleep.u32 20; test: ld.volatile.u32 %r0, [%p];"
    "setp.eq.u32 %q, %r0, 0; @%q bra out; bra body; out:",
    "endless": "again: bra again;",
}
QUIET = {
    "counted": COUNTED.format("ld.global.u32 %r0, [%p];"),
    "histogram": COUNTED.format("atom.global.add.u32 %r0, [%p], 1;"),
    "plain": UNTIL.format("ld.global.u32 %r0, [%p];"),
    "straight": "ld.volatile.global.u32 %r0, [%p]; setp.eq.u32 %q, %r0, 1; @%q bra end; end:",
    "retry": "ld.global.u32 %r0, [%p]; again: add.u32 %r1, %r0, 3;"
    "atom.global.cas.b32 %r2, [%p], %r0, %r1; setp.ne.u32 %q, %r2, %r0; mov.u32 %r0, %r2;"
    "@%q bra again;",
}


@pytest.mark.parametrize("name", [*SPINNING, *QUIET])
def test_loops_that_wait_yield(name: str) -> None:
    program = Program(FRAME.format({**SPINNING, **QUIET}[name]))
    assert program.facts["kernels"]["k"]["spins"] == (name in SPINNING)
    assert ("sim_yield" in program.facts["externals"]) == (name in SPINNING)


def test_a_waiting_loop_lets_others_run_until_it_is_released() -> None:
    data = np.ones(1, np.uint32)
    yields = []

    def release(_thread: int) -> None:
        yields.append(1)
        if len(yields) == 3:
            data[0] = 0

    Program(FRAME.format(SPINNING["volatile"]), sim_yield=release).run("k", data)
    assert len(yields) == 3


@pytest.mark.parametrize(
    ("body", "waits"),
    [
        ("", False),
        ("bar.sync 0;", True),
        ("call calls;", True),
        ("shfl.sync.bfly.b32 %r0, %r1, 1, 31, -1;", True),
        ("mov.u64 %f, waits; proto: .callprototype _ (); call %f, (), proto;", True),
        ("atom.global.add.u32 %r0, [%p], 1; membar.gl;", False),
    ],
)
def test_kernels_wait_if_what_they_call_waits(body: str, waits: bool) -> None:
    assert Program(FRAME.format(body)).facts["kernels"]["k"]["waits"] == waits


@pytest.mark.parametrize(
    ("body", "approximates"),
    [("ex2.approx.f32 %x, %x;", True), ("sqrt.rn.f32 %x, %x;", False)],
)
def test_kernels_that_use_approximate_instructions_are_marked(
    body: str, approximates: bool
) -> None:
    facts = Program(FRAME.format(body)).facts["kernels"]["k"]
    assert facts["approximates"] == approximates
