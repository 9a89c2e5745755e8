"""Normal vectors of any covariance."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.random.arguments import CovarianceError, vector
from nbrt.random.array_filler import call_on_stream
from nbrt.runtime.array import asarray

if TYPE_CHECKING:
    from nbrt.random.distributions import Distributions
    from nbrt.typing import ArrayLike, Shape

__all__ = ["mean_and_factor", "multivariate_normal"]


def multivariate_normal(
    generator: Distributions,
    mean: ArrayLike,
    cov: ArrayLike,
    size: Shape | None,
    check_valid: str,
    tol: float,
    method: str,
) -> Any:
    """Return normal vectors; see `nbrt.Generator.multivariate_normal`."""
    centre, factor = mean_and_factor(mean, cov, check_valid, tol, method)
    z = generator.standard_normal((*generator._leading(size), centre.size))
    device = generator.device
    moved = (asarray(array, device=device, copy=None) for array in (factor, centre))
    return call_on_stream(device, _transformed, z, *moved)


def mean_and_factor(
    mean: ArrayLike, cov: ArrayLike, check_valid: str, tol: float, method: str
) -> tuple[Any, Any]:
    """Return the mean and the factor of the covariance, in host memory."""
    centre = vector("mean", mean).astype(np.float64)
    if np.iscomplexobj(cov):
        raise ArgumentTypeError(
            "expected cov as a matrix of real numbers, got complex ones; it must not be complex"
        )
    try:
        matrix, tolerance = np.asarray(cov, np.float64), float(tol)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentTypeError(
            f"expected cov as a matrix of real numbers, and tol as one: {error}"
        ) from None
    if matrix.shape != (centre.size, centre.size) or not np.isfinite(matrix).all():
        raise ArgumentError(
            f"expected a finite covariance of shape {(centre.size, centre.size)}, got shape "
            f"{matrix.shape}"
        )
    return centre, _factor(matrix, method, check_valid, tolerance)


def _transformed(z: Any, factor: Any, centre: Any) -> Any:
    """Return ``z @ factor + centre``, each row with the bits that it has in any company.

    BLAS gives a row other last bits when it comes with more rows, so a shard's would differ.
    """
    if isinstance(z, np.ndarray):
        return np.einsum("...k,kj->...j", z, factor) + centre
    total = z[..., :1] * factor[:1, :].reshape(-1)
    for at in range(1, factor.shape[0]):
        total += z[..., at : at + 1] * factor[at]
    return total + centre


def _factor(matrix: Any, method: str, check_valid: str, tol: float) -> Any:
    if method not in ("svd", "eigh", "cholesky"):
        raise ArgumentError(f"expected method 'svd', 'eigh' or 'cholesky', got {method!r}")
    if check_valid not in ("warn", "raise", "ignore"):
        raise ArgumentError(
            f"expected check_valid 'warn', 'raise' or 'ignore', got {check_valid!r}"
        )
    if method == "cholesky":
        try:
            return np.linalg.cholesky(matrix).T
        except np.linalg.LinAlgError:
            raise CovarianceError(
                "expected a positive definite covariance for method 'cholesky'; use 'svd'"
            ) from None
    if method == "eigh":
        values, vectors = np.linalg.eigh(matrix)
        is_valid = bool((values >= -tol).all())
    else:
        _, values, vectors = np.linalg.svd(matrix)
        is_valid = np.allclose(vectors.T * values @ vectors, matrix, rtol=tol, atol=tol)
        vectors = vectors.T
    if not is_valid and check_valid != "ignore":
        message = "expected a symmetric positive semidefinite covariance, got one that is not"
        if check_valid == "raise":
            raise ArgumentError(message)
        warnings.warn(message, RuntimeWarning, stacklevel=5)
    return (vectors * np.sqrt(np.abs(values))).T
