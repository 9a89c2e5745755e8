"""Functions for child processes: importable, so that they can be pickled."""

from __future__ import annotations

import numpy as np

import nbrt
from nbrt.errors import ForkedProcessError


def draw_sum(count: int) -> object:
    """Sum 0 to count - 1 on a CPU stream, or name the error."""
    try:
        with nbrt.stream(nbrt.Stream("cpu:0")):
            x = nbrt.zeros(count)
            nbrt.copy(x, np.arange(count, dtype=np.float32))
            return float(nbrt.to_host(x).sum())
    except ForkedProcessError as error:
        return f"{type(error).__name__}: {'spawn' in str(error)}"


def echo(value: object) -> object:
    """Return the value."""
    return value
