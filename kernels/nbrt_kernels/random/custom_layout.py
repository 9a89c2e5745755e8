"""Draws in custom layouts: any map from elements to words."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt_kernels._dialect import Array, Scalar, device_function
from nbrt_kernels.random._tiles import parameter_readers, same_word
from nbrt_kernels.random.distributions import DISTRIBUTIONS, DistributionSpec, spec_of
from nbrt_kernels.random.launches import Box, Fill, box_arguments, is_listed
from nbrt_kernels.random.torch import make_located

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt_kernels.random._floats import DeviceFunction

__all__ = ["custom_layout_launch"]


def custom_layout_launch(
    distribution: str,
    dtype: str,
    n: int,
    parameters: tuple[Any, ...],
    constants: tuple[int, ...],
    index_to_counter: Any,
    count: int,
    box: Box | None,
) -> Fill:
    """Return the launch that fills an array with a draw in a custom layout.

    Parameters
    ----------
    distribution : str
        One of `DISTRIBUTIONS`. Rejection samplers are missing: they need a map for further words.
    dtype, n, parameters
        Of the draw.
    constants : tuple of int
        Up to three numbers for `index_to_counter`.
    index_to_counter : callable
        Device function, see `make_located`.
    count : int
        Elements to fill.
    box : tuple or None
        The elements to fill; None: the first ones.

    Raises
    ------
    TypeError
        If the distribution does not support the dtype, or there are more than 3 constants.
    ValueError
        If a parameter is out of range.
    """
    if distribution not in DISTRIBUTIONS:
        known = ", ".join(DISTRIBUTIONS)
        message = (
            f"expected a distribution of {known} in a custom layout, got {distribution!r}; "
            f"use layout='element'"
        )
        raise TypeError(message)
    if len(constants) > 3:
        message = f"expected at most 3 constants of a layout, got {len(constants)}"
        raise TypeError(message)
    spec = spec_of(distribution, dtype)
    typed = spec.parameters(parameters, dtype)
    arrays = sum(np.ndim(value) > 0 for value in typed)
    lanes = 2 if spec.wide else 4
    where = box or (0, count, 1, 0, 0)
    listed = is_listed(where)
    kernel = make_located(index_to_counter, _block_of(spec), _store_of(spec, arrays), lanes, listed)
    rule = (*constants, 0, 0, 0)[:3]
    numbers = map(np.uint64, (*rule, 0, n))
    return Fill(kernel, count, (*numbers, *box_arguments(where, np.uint64), *typed))


@cache
def _block_of(spec: DistributionSpec) -> Callable[..., Any]:
    """Return the device function that computes the variates of a whole block."""
    standard: Any = spec.standard or same_word
    in_pairs = spec.pairs is not None

    @device_function
    def words(w0: Scalar, w1: Scalar, w2: Scalar, w3: Scalar) -> Any:
        return standard(w0), standard(w1), standard(w2), standard(w3)

    @device_function
    def word_pairs(w0: Scalar, w1: Scalar, w2: Scalar, w3: Scalar) -> Any:
        x0, x1 = standard(w0, w1)
        x2, x3 = standard(w2, w3)
        return x0, x1, x2, x3

    @device_function
    def values(v0: Scalar, v1: Scalar) -> Any:
        return standard(v0), standard(v1)

    @device_function
    def value_pair(v0: Scalar, v1: Scalar) -> Any:
        return standard(v0, v1)

    if spec.wide:
        return value_pair if in_pairs else values
    return word_pairs if in_pairs else words


@cache
def _store_of(spec: DistributionSpec, arrays: int) -> DeviceFunction:
    """Return the device function that stores an element; `arrays` parameters are arrays."""
    finish = spec.finish
    get_a, get_b, get_c = parameter_readers(arrays)

    @device_function
    def store(out: Array, i: Scalar, x: Scalar, a: Any, b: Any, c: Any) -> None:
        out[i] = finish(x, get_a(a, i), get_b(b, i), get_c(c, i))

    return store
