"""Draws in custom layouts: any map from elements to words."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt_kernels._dialect import Array, Scalar, device_function
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
        Which elements these are; None: the first ones.

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
    made = spec_of(distribution, dtype)
    typed = made.parameters(parameters, dtype)
    arrays = sum(np.ndim(value) > 0 for value in typed)
    lanes = 2 if made.wide else 4
    place = box or (0, count, 1, 0, 0)
    listed = is_listed(place)
    kernel = make_located(index_to_counter, _block_of(made), _store_of(made, arrays), lanes, listed)
    rule = (*constants, 0, 0, 0)[:3]
    where = (*map(np.uint64, (*rule, 0, n)), *box_arguments(place, np.uint64))
    arguments = (*where, *typed)
    return Fill(kernel, count, arguments)


@cache
def _block_of(made: DistributionSpec) -> Callable[..., Any]:
    """Return the device function that computes the variates of a whole block."""
    standard: Any = made.standard or _same
    in_pairs = made.pairs is not None

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

    if made.wide:
        return value_pair if in_pairs else values
    return word_pairs if in_pairs else words


@cache
def _store_of(made: DistributionSpec, arrays: int) -> DeviceFunction:
    """Return the device function that stores an element; `arrays` parameters are arrays."""
    finish = made.finish
    get_a, get_b, get_c = (_element if place < arrays else _same_for_all for place in range(3))

    @device_function
    def store(out: Array, i: Scalar, x: Scalar, a: Any, b: Any, c: Any) -> None:
        out[i] = finish(x, get_a(a, i), get_b(b, i), get_c(c, i))

    return store


@device_function
def _element(parameter: Array, index: Scalar) -> Scalar:
    return parameter[index]


@device_function
def _same_for_all(parameter: Scalar, _index: Scalar) -> Scalar:
    return parameter


@device_function
def _same(word: Scalar) -> Scalar:
    return word
