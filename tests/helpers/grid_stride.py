"""Comparison of grid-stride kernels with the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from helpers.simt_reference import run_reference
from nbrt.backends.cpu.simt.frontend.pipeline import strides_of

if TYPE_CHECKING:
    from nbrt.backends.cpu.launch import CpuProgram

LAUNCHES = [((3, 1, 1), (5, 1, 1)), ((1, 1, 1), (4, 1, 1)), ((6, 1, 1), (1, 1, 1))]
SIZES = [0, 1, 3, 16, 61, -4]
LENGTH = 64


def axes_taken_out(compiled: CpuProgram) -> list[list[int]]:
    """Return the axes along which the launch makes the turns, for each version compiled."""
    results = compiled.body._turn.overloads.values()
    return [strides_of(result) for result in results]


def arrays(shape: Any) -> tuple[Any, Any]:
    """Make two arrays of random numbers, the same each time."""
    generator = np.random.default_rng(5)
    return generator.random(shape), generator.random(shape)


def compare(kernel: Any, compiled: CpuProgram, launch: Any, shape: Any, *scalars: Any) -> None:
    """Check that a compiled kernel leaves the same bits as the reference."""
    expected, got = arrays(shape), arrays(shape)
    run_reference(kernel, *launch, *expected, *scalars)
    compiled.plan(0, *launch)(*got, *scalars)
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=f"{launch} {scalars}")
