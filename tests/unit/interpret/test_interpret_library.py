"""The kernels of the library in plain Python, against their NumPy references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nbrt.backends.cpu.interpret import interpret
from nbrt_kernels import KERNELS

SHAPES: dict[int, tuple[int, ...]] = {1: (70,), 2: (6, 9), 3: (3, 4, 5)}


SLOW = {"bitonic_sort", "nbody"}
"""Ten seconds each, for many threads at many barriers."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in KERNELS],
)
def test_kernel(name: str) -> None:
    spec: Any = KERNELS[name]
    example = spec.example(SHAPES[spec.dimensions], 3)
    threads = (*example.threads, 1, 1)[:3]
    block = (*(spec.block or (16,)), 1, 1)[:3]
    x, y, z = (-(-count // size) for count, size in zip(threads, block, strict=True))
    interpret(spec.function, (x, y, z), block, 0, example.arguments)
    found = np.asarray(example.arguments[0])
    expected = np.asarray(example.expected)
    if spec.tolerance == 0:
        np.testing.assert_array_equal(found, expected)
    else:
        scale = float(np.abs(expected).max()) or 1.0
        np.testing.assert_allclose(found, expected, rtol=0, atol=spec.tolerance * scale)
