"""Errors of draws that are errors of NumPy too.

They are apart from `nbrt.errors`, which is imported without NumPy.
"""

from __future__ import annotations

import numpy as np

from nbrt.errors import ArgumentError

__all__ = ["ArgumentAxisError", "CovarianceError"]


class ArgumentAxisError(ArgumentError, np.exceptions.AxisError):
    """An axis is not one of an array, or there is no array with axes."""


class CovarianceError(ArgumentError, np.linalg.LinAlgError):
    """A matrix has no Cholesky factor, as it is not positive definite."""
