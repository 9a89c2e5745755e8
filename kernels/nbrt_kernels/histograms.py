"""Histogram without atomics and without barriers.

Two kernels: `histogram_partial` counts into one row per thread, `column_sum` adds the rows.
`histogram_plan` chooses the number of rows for a device::

    rows, run = histogram_plan(n, bins, parallel)
    partial = zeros((rows, bins), int32); coarse = zeros((64, bins), int32)
    histogram_partial[ceil(rows / 64), 64](partial, values, low, scale, run)
    column_sum[(ceil(bins / 64), 64), (64, 1)](coarse, partial)
    column_sum[(ceil(bins / 64), 1), (64, 1)](counts, coarse)     # counts has shape (1, bins)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nbrt_kernels._costs import costs, per_element
from nbrt_kernels._dialect import Array, Scalar, cuda

__all__ = [
    "column_sum",
    "column_sum_reference",
    "histogram_partial",
    "histogram_partial_reference",
    "histogram_plan",
    "histogram_reference",
]

# The rows of all threads should fit a shared cache.
_CACHE_BYTES = 16 << 20
_MIN_VALUES_PER_ROW = 256
_GPU_RUN = 16


def histogram_partial(
    partial: Array, values: Array, low: Scalar, scale: Scalar, run: Scalar
) -> None:
    """Count values into bins, one row of counts per thread.

    The bin of a value v is ``floor((v - low) * scale)``; values outside all bins (and NaN) are
    not counted.  A thread takes runs of `run` consecutive values, the runs of all threads
    interleaved. Use long runs for a CPU core; with short ones, the threads of a warp share cache
    lines.

    Parameters
    ----------
    partial : integer, shape (rows, bins)
        Counts, zero on entry; row t belongs to thread t.
    values : numeric, shape (n,)
        Input.
    low, scale : float32 or float64
        Lower edge of bin 0 and bins per unit.
    run : int
        Values per run, at least 1.
    """
    t = cuda.grid(1)
    rows, bins = partial.shape
    if t < rows:
        n = values.shape[0]
        limit = type(scale)(bins)
        start = t * run
        while start < n:
            stop = start + run if start + run < n else n
            for i in range(start, stop):
                position = (values[i] - low) * scale
                # Compare as floats: the conversion of a value beyond the integers is undefined.
                if position >= 0 and position < limit:
                    partial[t, int(position)] += 1
            start += rows * run


def histogram_partial_reference(
    rows: int, bins: int, values: npt.NDArray[Any], low: Any, scale: Any, run: int
) -> npt.NDArray[np.int32]:
    """Return the rows of counts of `histogram_partial`."""
    partial = np.zeros((rows, bins), dtype=np.int32)
    position = (values - low) * scale
    owner = np.arange(values.size) // run % rows
    inside = (position >= 0) & (position < bins)
    np.add.at(partial, (owner[inside], position[inside].astype(np.int64)), 1)
    return partial


@costs(per_element(0))
def column_sum(out: Array, partial: Array) -> None:
    """Add the rows of a matrix in groups: row g of the result sums rows g, g + groups, ...

    One thread per result; x is the column. With one group, it sums all rows. For many rows, use two
    launches, the first with many groups.

    Parameters
    ----------
    out : integer, shape (groups, columns)
        Result.
    partial : integer, shape (rows, columns)
        Input.
    """
    x, y = cuda.grid(2)
    groups, columns = out.shape
    if y < groups and x < columns:
        total = out.dtype.type(0)
        for row in range(y, partial.shape[0], groups):
            total += partial[row, x]
        out[y, x] = total


def column_sum_reference(partial: npt.NDArray[Any], groups: int) -> npt.NDArray[Any]:
    """Return the grouped sums of `column_sum`."""
    return np.stack([partial[g::groups].sum(axis=0) for g in range(groups)]).astype(partial.dtype)


def histogram_reference(
    values: npt.NDArray[Any], bins: int, low: float, high: float
) -> npt.NDArray[np.int64]:
    """Return the counts of `bins` equal bins over [low, high), by NumPy."""
    scale = values.dtype.type(bins / (high - low)) if values.dtype.kind == "f" else 1.0
    partial = histogram_partial_reference(1, bins, values, values.dtype.type(low), scale, 1)
    return np.asarray(partial[0], dtype=np.int64)


def histogram_plan(n: int, bins: int, parallel: int) -> tuple[int, int]:
    """Choose rows and run of a histogram.

    Parameters
    ----------
    n : int
        Number of values.
    bins : int
        Number of bins.
    parallel : int
        Threads that the device runs at once: cores of a CPU, resident threads of a GPU.

    Returns
    -------
    rows, run : int
        Shape of the partial counts and length of a run.
    """
    fitting = max(1, _CACHE_BYTES // (4 * bins))
    rows = max(1, min(parallel, fitting, -(-n // _MIN_VALUES_PER_ROW)))
    # With few threads (a CPU), each reads one contiguous run.
    run = _GPU_RUN if rows >= 1024 else -(-n // rows)
    return rows, max(1, run)
