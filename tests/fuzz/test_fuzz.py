"""Random kernels have the same bits in every lowering and in a plain Python reference."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import HealthCheck, given, settings

from fuzz import compiled, reference
from fuzz.programs import programs

if TYPE_CHECKING:
    from fuzz.program import Program

PROGRAMS = int(os.environ.get("NBRT_FUZZ_PROGRAMS", "120"))
IS_FIXED = "NBRT_FUZZ_PROGRAMS" not in os.environ


def bits(array: np.ndarray) -> np.ndarray:
    """Return an array's bits, the same ones for every NaN: LLVM may choose which one comes out."""
    if array.dtype.kind != "f":
        return array
    return np.where(np.isnan(array), np.nan, array).view(f"i{array.itemsize}")


def check(program: Program) -> None:
    expected = compiled.arrays_of(program)
    reference.run(program, expected)
    kinds = (None, "coroutines") if program.waits else (None,)
    for kind, arrays in zip(kinds, compiled.run(program, kinds), strict=True):
        for name, array in arrays.items():
            wrong = np.flatnonzero(bits(array) != bits(expected[name]))
            assert not wrong.size, (
                f"lowered {f'as {kind}' if kind else 'by default'}: {name}[{wrong[0]}] is "
                f"{array[wrong[0]]!r}, expected {expected[name][wrong[0]]!r}"
            )


@settings(
    max_examples=PROGRAMS,
    derandomize=IS_FIXED,
    database=None,
    report_multiple_bugs=False,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(programs())
def test_every_lowering_equals_the_reference(program: Program) -> None:
    check(program)
