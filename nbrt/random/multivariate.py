"""`Multivariate`: normal vectors of any covariance."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nbrt.errors import ArgumentError, ArgumentTypeError
from nbrt.random.arguments import vector
from nbrt.random.exceptions import CovarianceError
from nbrt.random.sampling import Sampling
from nbrt.runtime.array import asarray

if TYPE_CHECKING:
    from nbrt.typing import ArrayLike, Shape

__all__ = ["Multivariate"]


class Multivariate(Sampling):
    """Draws of vectors that linear algebra makes of normals."""

    def multivariate_normal(
        self,
        mean: ArrayLike,
        cov: ArrayLike,
        size: Shape | None = None,
        check_valid: Literal["warn", "raise", "ignore"] = "warn",
        tol: float = 1e-8,
        *,
        method: Literal["svd", "eigh", "cholesky"] = "svd",
    ) -> Any:
        """Return normal vectors: ``mean + z @ factor`` with ``factor.T @ factor`` equal to `cov`.

        The factor is computed on the host by LAPACK, and the product by the array library, so
        unlike all other draws its last bits may differ between machines; on one, a shard has those
        of the whole.

        Parameters
        ----------
        mean : array_like, shape (k,)
            Means.
        cov : array_like, shape (k, k)
            Covariances, symmetric and positive semidefinite.
        size : int or tuple of int, optional
            Shape of the result without its last axis, which has length k.
        check_valid : {"warn", "raise", "ignore"}
            What to do about a matrix that is no covariance.
        tol : float
            How far the singular values may be from the eigenvalues in that check.
        method : {"svd", "eigh", "cholesky"}
            How the factor is found.
        """
        centre, factor = self._centre_and_factor(mean, cov, check_valid, tol, method)
        z = self.standard_normal((*self._leading(size), centre.size))
        moved = (asarray(array, device=self.device, copy=None) for array in (factor, centre))
        return self._on_arrays(_transformed, z, *moved)

    def _centre_and_factor(
        self, mean: ArrayLike, cov: ArrayLike, check_valid: str, tol: float, method: str
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
