"""Host-side parameters of the draws: checked, rounded and typed as the kernels expect them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["integer_parameters", "normal_parameters", "uniform_parameters"]

_FLOATS = ("float32", "float64")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def uniform_parameters(
    low: float = 0.0, high: float = 1.0, dtype: npt.DTypeLike = np.float32
) -> tuple[Any, Any, Any]:
    """Return ``(low, span, top)`` of a uniform draw in [low, high).

    Parameters
    ----------
    low, high : float
        Bounds, rounded to `dtype` first.  Equal bounds give that value.
    dtype : dtype_like
        float32 or float64.

    Returns
    -------
    low, span, top : scalars of `dtype`
        Lower bound, rounded ``high - low``, largest value that may be returned.

    Raises
    ------
    TypeError
        If `dtype` is neither float32 nor float64.
    ValueError
        If a bound or the span is not finite, or ``high < low``.
    """
    kind = _checked(dtype, _FLOATS, "uniform")
    with np.errstate(over="ignore"):
        first, last = kind.type(low), kind.type(high)
        span = kind.type(last - first)
    if not (np.isfinite(first) and np.isfinite(last) and np.isfinite(span)) or span < 0:
        message = (
            f"uniform: expected finite low <= high with a finite high - low in {kind}, "
            f"got low={low!r} and high={high!r}"
        )
        raise ValueError(message)
    below = np.nextafter(last, kind.type(-math.inf))
    return first, span, max(first, below)


def normal_parameters(
    loc: float = 0.0, scale: float = 1.0, dtype: npt.DTypeLike = np.float32
) -> tuple[Any, Any]:
    """Return ``(loc, scale)`` of a normal draw, rounded to `dtype`.

    Parameters
    ----------
    loc, scale : float
        Mean and standard deviation.
    dtype : dtype_like
        float32 or float64.

    Returns
    -------
    loc, scale : scalars of `dtype`
        The arguments of the kernel.

    Raises
    ------
    TypeError
        If `dtype` is neither float32 nor float64.
    ValueError
        If `scale` is negative, or either is not finite in `dtype`.
    """
    kind = _checked(dtype, _FLOATS, "normal")
    with np.errstate(over="ignore"):
        mean, deviation = kind.type(loc), kind.type(scale)
    if not (np.isfinite(mean) and np.isfinite(deviation)) or deviation < 0:
        message = (
            f"normal: expected finite loc and scale >= 0 in {kind}, got loc={loc!r} and "
            f"scale={scale!r}"
        )
        raise ValueError(message)
    return mean, deviation


def integer_parameters(
    low: int, high: int, dtype: npt.DTypeLike = np.int64
) -> tuple[str, tuple[np.uint64, np.uint64, np.uint64]]:
    """Return the distribution name and ``(low, span, threshold)`` of a draw in [low, high).

    Parameters
    ----------
    low, high : int
        Bounds; ``high`` is excluded and may be one more than the largest value of `dtype`.
    dtype : dtype_like
        Any integer dtype of 8 to 64 bits.

    Returns
    -------
    distribution : str
        "integers", or "integers_wide" for ranges above 2**32: with the name of `dtype` the key
        of the draw in `DRAWS`.
    parameters : tuple of uint64
        Lower bound modulo 2**64, span (0 for 2**64), ``2**bits mod span``.

    Raises
    ------
    TypeError
        If `dtype` is not an integer dtype.
    ValueError
        If the interval is empty or does not fit `dtype`.
    """
    kind = _checked(dtype, _INTEGERS, "integers")
    limits = np.iinfo(kind)
    if not int(limits.min) <= low < high <= int(limits.max) + 1:
        message = (
            f"integers: expected {limits.min} <= low < high <= {int(limits.max) + 1} for {kind}, "
            f"got low={low!r} and high={high!r}"
        )
        raise ValueError(message)
    span = int(high) - int(low)
    wide = span > 2**32
    threshold = (2**64 if wide else 2**32) % span
    numbers = (int(low) % 2**64, span % 2**64, threshold)
    name = "integers_wide" if wide else "integers"
    return name, (np.uint64(numbers[0]), np.uint64(numbers[1]), np.uint64(numbers[2]))


def _checked(dtype: npt.DTypeLike, allowed: tuple[str, ...], what: str) -> np.dtype[Any]:
    kind: np.dtype[Any] = np.dtype(dtype)
    if kind.name not in allowed:
        message = f"{what}: expected a dtype of {', '.join(allowed)}, got {kind.name}"
        raise TypeError(message)
    return kind
