"""Draws of unbiased integers: of one range, and with a range for each element."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt_kernels._dialect import Array, Scalar, cuda
from nbrt_kernels.random._index_maps import make_index_map
from nbrt_kernels.random._tiles import first_block, keys
from nbrt_kernels.random.distributions import DistributionSpec
from nbrt_kernels.random.parameters import integer_parameters
from nbrt_kernels.random.philox import block_values
from nbrt_kernels.random.transforms import (
    remainder_32,
    remainder_64,
    scale_integer_32,
    scale_integer_64,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["each_kernel", "integer_spec"]

_HALF = np.uint64(32)


def integer_spec(dtype: str, low: int, high: int) -> DistributionSpec:
    """Return the specification of a draw in [low, high), whose kernel rejects biased words.

    Parameters
    ----------
    dtype : str
        Name of the elements' dtype.
    low, high : int
        Bounds.

    Raises
    ------
    TypeError
        If it is no dtype of integers.
    ValueError
        If the range is empty or does not fit the dtype.
    """
    return _spec(integer_parameters(low, high, dtype)[0] == "integers_wide")


@cache
def _spec(wide: bool) -> DistributionSpec:
    return DistributionSpec(
        None, scale_integer_64 if wide else scale_integer_32, None, wide, _parameters
    )


def _parameters(parameters: tuple[Any, ...], dtype: str) -> tuple[Any, Any, Any]:
    low, high = parameters
    return integer_parameters(low, high, dtype)[1]


@cache
def each_kernel(wide: bool, listed: bool) -> Callable[..., None]:
    """Return the kernel of integers with a range for each element.

    It takes ``(out, state, skip, base, run, inner_rows, inner_stride, outer_stride, low, span,
    threshold)``: a box of a draw as `fill_rows` has it, and three arrays of uint64, see
    `each_integer_parameters`. One thread for each element.

    Parameters
    ----------
    wide : bool
        Whether an element takes 64 bits of its block, not 32.
    listed : bool
        Whether the box is a table, see `_places`.
    """
    place_of = make_index_map(listed)
    per_block = 2 if wide else 4
    remainder = remainder_64 if wide else remainder_32
    scale = scale_integer_64 if wide else scale_integer_32
    word: Any = np.uint64 if wide else np.uint32

    def fill_each(
        out: Array, state: Array, skip: Scalar, base: Any, run: Any, inner_rows: Scalar,
        inner_stride: Scalar, outer_stride: Scalar, low: Array, span: Array, threshold: Array,
    ) -> None:  # fmt: skip
        i = cuda.grid(1)
        if i < out.shape[0]:
            index = place_of(i, (base, run, inner_rows, inner_stride, outer_stride))
            key0, key1 = keys(state)
            block = first_block(state, skip) + np.uint64(index // per_block)
            position = index % per_block
            attempt = np.uint64(0)
            searching = True
            drawn = word(0)
            while searching:
                v0, v1 = block_values(block, attempt, key0, key1)
                if wide:
                    drawn = v0 if position == 0 else v1
                else:
                    value = v0 if position < 2 else v1
                    drawn = word(value >> _HALF if position % 2 else value)
                searching = remainder(drawn, span[i]) < word(threshold[i])
                attempt += np.uint64(1)
            out[i] = scale(drawn, low[i], span[i], threshold[i])

    return fill_each
