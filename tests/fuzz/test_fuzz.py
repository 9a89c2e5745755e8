"""Random kernels have the same bits in every lowering and in a plain Python reference."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings

from fuzz import compiled, reference
from fuzz.programs import programs

if TYPE_CHECKING:
    from fuzz.program import Program

PROGRAMS = int(os.environ.get("NBRT_FUZZ_PROGRAMS", "120"))
PARTS = 6
"""Tests that share the programs, so that several workers run them."""

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


@pytest.mark.parametrize("part", range(PARTS))
def test_every_lowering_equals_the_reference(part: int) -> None:
    @settings(
        # One more, as each part starts with the smallest program.
        max_examples=PROGRAMS // PARTS + 1,
        database=None,
        report_multiple_bugs=False,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs())
    def run(program: Program) -> None:
        check(program)

    (seed(part)(run) if IS_FIXED else run)()
