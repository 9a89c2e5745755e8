"""Kernels for tests of the graphs of the CUDA backend."""

from __future__ import annotations

from numba import cuda

__all__ = ["add", "copy_flag", "count_down", "note_offset", "scale"]


def scale(x, y, factor):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < x.size:
        y[i] = factor * x[i]


def add(x, y):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < x.size:
        y[i] += x[i]


def count_down(flag):  # type: ignore[no-untyped-def]
    if cuda.grid(1) == 0:
        flag[0] -= 1


def copy_flag(source, flag):  # type: ignore[no-untyped-def]
    if cuda.grid(1) == 0:
        flag[0] = source[0]


def note_offset(state, seen):  # type: ignore[no-untyped-def]
    if cuda.grid(1) == 0:
        seen[0] += 1
        seen[seen[0]] = state[1]
