"""A kernel, and small arrays for it, for the contract tests of graphs."""

from __future__ import annotations

from typing import Any

from numba import cuda

import nbrt

__all__ = ["add", "arrays", "host"]


@nbrt.kernel
def add(x: Any, y: Any, factor: Any) -> None:
    """Add the elements of `y` times `factor`."""
    i = cuda.grid(1)
    if i < x.size:
        x[i] += factor * y[i]


def arrays(*values: float) -> list[Any]:
    """Return an array of four elements for each value, on the current device."""
    return [nbrt.full(4, value, "float32") for value in values]


def host(array: Any) -> list[Any]:
    """Return the values of an array."""
    values: list[Any] = nbrt.to_host(array).tolist()
    return values
