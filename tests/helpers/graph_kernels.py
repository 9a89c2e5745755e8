"""Kernels in a module, for graphs that other processes load."""

from __future__ import annotations

from typing import Any

from numba import cuda

import nbrt
from nbrt_kernels.random import uniform4

STEP = 1
"""A value that `count_down` captures."""


@nbrt.kernel
def scale(x: Any, factor: Any) -> None:
    """Multiply."""
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= factor


@nbrt.kernel
def add(x: Any, y: Any) -> None:
    """Add the elements of `y`."""
    i = cuda.grid(1)
    if i < x.size:
        x[i] += y[i]


@nbrt.kernel
def count_down(flag: Any) -> None:
    """Subtract `STEP`."""
    flag[0] -= STEP


@nbrt.kernel
def add_tuple(x: Any, pair: Any, is_on: Any) -> None:
    """Add the members of a tuple."""
    i = cuda.grid(1)
    if i < x.size and is_on:
        x[i] += pair[0] + pair[1]


@nbrt.kernel
def draw(x: Any, state: Any, before: Any) -> None:
    """Fill with random numbers, four for each thread."""
    i = cuda.grid(1)
    if 4 * i < x.size:
        a, b, c, d = uniform4(state[0], state[1] + before, i)
        x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3] = a, b, c, d
