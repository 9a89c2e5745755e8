"""Where the elements of a part lie in the whole: for kernels that run on one part of many.

A part is described by an index map, an int64 array: where it starts, its number of axes, then four
numbers for each axis, the innermost first, then the runs that axes refer to.

- An axis is (size, stride, runs, at). Without runs, its index j lies j times the stride further.
- With runs, the index takes them one after the other; ``at`` says where in the map the first is. A
  run is (end, start, length, step): indices below ``end`` that the runs before have not taken are,
  counted from there, in pieces of ``length``, of which one starts ``step`` after the other. What
  this gives counts strides.
"""

from __future__ import annotations

import numpy as np

from nbrt_kernels._dialect import Array, Scalar, device_function

__all__ = ["global_index"]

_HEADER = 2
_NUMBERS = 4


@device_function
def _through_runs(index_map: Array, at: Scalar, runs: Scalar, index: Scalar) -> Scalar:
    before = np.int64(0)
    found = np.int64(0)
    for run in range(runs):
        place = at + _NUMBERS * run
        end = index_map[place]
        if before <= index < end:
            length = index_map[place + 2]
            number = (index - before) // length
            within = index - before - number * length
            found = index_map[place + 1] + number * index_map[place + 3] + within
        before = end
    return found


@device_function
def global_index(index_map: Array, index: Scalar) -> Scalar:
    """Return where in the whole array the element of a part lies.

    A part that is one block of memory, such as some rows, takes no division.

    Parameters
    ----------
    index_map : array of int64
        Of the part; ``nbrt.distributed.index_map`` makes it.
    index : int
        Of the element in the part, in C order; below its size.

    Returns
    -------
    index : int64
        Of the element in the whole, in C order.
    """
    rest = np.int64(index)
    found = index_map[0]
    axes = index_map[1]
    for axis in range(axes):
        place = _HEADER + _NUMBERS * axis
        own = rest
        if axis < axes - 1:
            rest = own // index_map[place]
            own = own - rest * index_map[place]
        runs = index_map[place + 2]
        if runs > 0:
            own = _through_runs(index_map, index_map[place + 3], runs, own)
        found += own * index_map[place + 1]
    return found
