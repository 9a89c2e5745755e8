"""Elementwise kernels: linear combinations of vectors, and maps of scalar functions.

The output is the first argument. One thread computes one element; a thread past the end does
nothing. Product-sums are explicit fused multiply-adds, so that CPU and GPU return equal bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from nbrt_kernels._costs import costs, per_element
from nbrt_kernels._dialect import Array, Scalar, cuda, device_function
from nbrt_kernels._fma import fma_reference

__all__ = [
    "axpby",
    "axpby_reference",
    "clamp",
    "clamp_reference",
    "make_map",
    "saxpy",
    "saxpy_reference",
    "square",
    "square_reference",
]

MapKernel = Callable[..., None]


@costs(per_element(2))
def saxpy(out: Array, a: Scalar, x: Array, y: Array) -> None:
    """Compute ``out = a * x + y``, each element rounded once.

    Parameters
    ----------
    out : floating, shape (n,)
        Result; may be `x` or `y`.
    a : scalar of the dtype of `x`
        Factor.
    x, y : floating, shape (n,)
        Vectors.
    """
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = cuda.fma(a, x[i], y[i])


def saxpy_reference(a: Any, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ``a * x + y`` rounded once, bit for bit as `saxpy`."""
    return fma_reference(np.asarray(a, dtype=x.dtype), x, y)


@costs(per_element(3))
def axpby(out: Array, a: Scalar, x: Array, b: Scalar, y: Array) -> None:
    """Compute ``out = fma(a, x, b * y)``.

    Parameters
    ----------
    out : floating, shape (n,)
        Result; may be `x` or `y`.
    a, b : scalars of the dtype of `x`
        Factors.
    x, y : floating, shape (n,)
        Vectors.
    """
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = cuda.fma(a, x[i], b * y[i])


def axpby_reference(a: Any, x: npt.NDArray[Any], b: Any, y: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ``fma(a, x, b * y)``, bit for bit as `axpby`."""
    return fma_reference(np.asarray(a, dtype=x.dtype), x, np.asarray(b, dtype=y.dtype) * y)


def make_map(function: Callable[..., Any], inputs: int = 1) -> MapKernel:
    """Make the kernel that applies a scalar function to every element.

    Parameters
    ----------
    function : callable
        Scalar function in the dialect: a plain function or a device function.
    inputs : int, optional
        Number of array inputs, 1 or 2.

    Returns
    -------
    callable
        ``kernel(out, x)`` or ``kernel(out, x, y)`` on arrays of shape (n,).

    Raises
    ------
    ValueError
        If `inputs` is neither 1 nor 2.
    """
    if inputs not in (1, 2):
        message = f"make_map: expected 1 or 2 inputs, got {inputs!r}; write a kernel for more"
        raise ValueError(message)
    scalar: Any = function if hasattr(function, "py_func") else device_function(function)

    def map_unary(out: Array, x: Array) -> None:
        i = cuda.grid(1)
        if i < out.shape[0]:
            out[i] = scalar(x[i])

    def map_binary(out: Array, x: Array, y: Array) -> None:
        i = cuda.grid(1)
        if i < out.shape[0]:
            out[i] = scalar(x[i], y[i])

    return map_unary if inputs == 1 else map_binary


@costs(per_element(1))
def square(out: Array, x: Array) -> None:
    """Compute ``out = x * x``.

    Parameters
    ----------
    out, x : numeric, shape (n,)
        Result and input; may be one array.
    """
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = x[i] * x[i]


def square_reference(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return ``x * x``."""
    return np.asarray(x * x)


@costs(per_element(0))
def clamp(out: Array, x: Array, low: Scalar, high: Scalar) -> None:
    """Limit every element to [low, high]; NaN becomes `low`.

    Parameters
    ----------
    out, x : numeric, shape (n,)
        Result and input; may be one array.
    low, high : scalars of the dtype of `x`
        Limits, ``low <= high``.
    """
    i = cuda.grid(1)
    if i < out.shape[0]:
        value = x[i]
        value = value if value > low else low
        out[i] = value if value < high else high


def clamp_reference(x: npt.NDArray[Any], low: Any, high: Any) -> npt.NDArray[Any]:
    """Return `x` limited to [low, high], NaN as `low`."""
    return np.asarray(np.clip(np.where(np.isnan(x), low, x), low, high), dtype=x.dtype)
