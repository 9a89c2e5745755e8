"""Correctly rounded fused multiply-add for NumPy arrays.

NumPy has no fused multiply-add. References need one to replay a kernel bit for bit. This module
emulates it exactly, by the round-to-odd algorithms of S. Boldo and G. Melquiond, "Emulation of
FMA and correctly rounded sums: proved algorithms using rounding to odd", IEEE Transactions on
Computers 57(4), 2008.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["fma_reference"]

_SPLITTER = float(2**27 + 1)


def fma_reference(a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike) -> npt.NDArray[Any]:
    """Compute ``a * b + c`` with one rounding.

    Parameters
    ----------
    a, b, c : array_like of float32 or float64
        Operands of one dtype, broadcast together. Float64 results must neither overflow nor be
        below about 2**-960, where the error terms are not exact.

    Returns
    -------
    ndarray
        The correctly rounded result in the dtype of the operands.

    Raises
    ------
    TypeError
        If the operands are not all float32 or all float64.
    """
    x, y, z = np.asarray(a), np.asarray(b), np.asarray(c)
    dtypes = {x.dtype, y.dtype, z.dtype}
    if dtypes == {np.dtype(np.float32)}:
        # The product of two float32 values is exact in float64, and 53 >= 24 + 2 bits make the
        # final rounding of an odd-rounded sum the correct one.
        product = x.astype(np.float64) * y.astype(np.float64)
        return np.asarray(_add_to_odd(product, z.astype(np.float64)).astype(np.float32))
    if dtypes == {np.dtype(np.float64)}:
        product, product_error = _two_product(x, y)
        low, low_error = _two_sum(z, product_error)
        high, high_error = _two_sum(product, low)
        return np.asarray(high + _add_to_odd(high_error, low_error))
    expected = "expected three float32 or three float64 operands"
    dtype_names = f"{x.dtype}, {y.dtype} and {z.dtype}"
    message = f"fma_reference: {expected}, got {dtype_names}; convert them to one dtype first"
    raise TypeError(message)


def _two_sum(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
    """Return the rounded sum and its exact error (Knuth)."""
    total = a + b
    b_part = total - a
    a_part = total - b_part
    return total, (a - a_part) + (b - b_part)


def _two_product(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
    """Return the rounded product and its exact error (Dekker, Veltkamp)."""
    product = a * b
    a_high = a * _SPLITTER - (a * _SPLITTER - a)
    b_high = b * _SPLITTER - (b * _SPLITTER - b)
    a_low, b_low = a - a_high, b - b_high
    error = a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)
    return product, error


def _add_to_odd(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Add float64 arrays, rounding an inexact sum to the neighbour with an odd last bit."""
    total, error = _two_sum(a, b)
    bits = np.atleast_1d(total).copy().view(np.int64)
    inexact_even = (np.atleast_1d(error) != 0.0) & ((bits & 1) == 0)
    # One step away from zero where the error has the sign of the sum, else one step towards it.
    step = np.where(np.atleast_1d(np.signbit(error) == np.signbit(total)), 1, -1)
    bits[inexact_even] += step[inexact_even]
    return np.asarray(bits.view(np.float64).reshape(np.shape(total)))
