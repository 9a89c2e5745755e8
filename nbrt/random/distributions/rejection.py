"""`RejectionSampled`: floats drawn by rejection, with NumPy's names, signatures and defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.random.arguments import float_dtype, non_negative, non_negative_or_nan, real, vector
from nbrt.random.distributions.base import BaseGenerator

if TYPE_CHECKING:
    from nbrt.typing import Array, ArrayLike, DTypeLike, Shape

__all__ = ["RejectionSampled"]


class RejectionSampled(BaseGenerator):
    """Draws of floats by rejection: each element has its own Philox blocks."""

    def standard_gamma(
        self,
        shape: ArrayLike,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return gamma floats of scale 1; see `gamma`."""
        return self._draw(
            "gamma", (non_negative("shape", shape), 1.0), size, float_dtype(dtype), out
        )

    def gamma(
        self,
        shape: ArrayLike,
        scale: ArrayLike = 1.0,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return gamma floats (G. Marsaglia, W. W. Tsang, ACM TOMS 26(3), 2000).

        Parameters
        ----------
        shape, scale : float or array_like
            Shape and scale, at least 0; 0 gives zeros. The mean is ``shape * scale``.
        size, dtype, out
            As in `random`.
        """
        parameters = (non_negative("shape", shape), non_negative("scale", scale))
        return self._draw("gamma", parameters, size, float_dtype(dtype), out)

    def beta(
        self,
        a: ArrayLike,
        b: ArrayLike,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return beta floats in [0, 1]: ``x / (x + y)`` of two gammas.

        Parameters
        ----------
        a, b : float or array_like
            Above 0.
        size, dtype, out
            As in `random`.
        """
        return self._draw("beta", (real("a", a), real("b", b)), size, float_dtype(dtype), out)

    def chisquare(
        self,
        df: ArrayLike,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return chi-square floats: twice a gamma of ``df / 2``.

        Parameters
        ----------
        df : float or array_like
            Degrees of freedom, above 0.
        size, dtype, out
            As in `random`.
        """
        return self._draw("chisquare", (real("df", df),), size, float_dtype(dtype), out)

    def noncentral_chisquare(
        self,
        df: ArrayLike,
        nonc: ArrayLike,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return noncentral chi-square floats.

        Parameters
        ----------
        df : float or array_like
            Degrees of freedom, above 0.
        nonc : float or array_like
            Non-centrality, at least 0; NaN gives NaN.
        size, dtype, out
            As in `random`.
        """
        parameters = (real("df", df), non_negative_or_nan("nonc", nonc))
        return self._draw("noncentral_chisquare", parameters, size, float_dtype(dtype), out)

    def f(
        self,
        dfnum: ArrayLike,
        dfden: ArrayLike,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return floats of Fisher's F: a ratio of two chi-squares over their degrees.

        Parameters
        ----------
        dfnum, dfden : float or array_like
            Degrees of freedom of the numerator and of the denominator, above 0.
        size, dtype, out
            As in `random`.
        """
        parameters = (real("dfnum", dfnum), real("dfden", dfden))
        return self._draw("f", parameters, size, float_dtype(dtype), out)

    def noncentral_f(
        self,
        dfnum: ArrayLike,
        dfden: ArrayLike,
        nonc: ArrayLike,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return floats of the noncentral F distribution.

        Parameters
        ----------
        dfnum, dfden : float or array_like
            Degrees of freedom of the numerator and of the denominator, above 0.
        nonc : float or array_like
            Non-centrality, at least 0; NaN gives NaN.
        size, dtype, out
            As in `random`.
        """
        parameters = (real("dfnum", dfnum), real("dfden", dfden), non_negative_or_nan("nonc", nonc))
        return self._draw("noncentral_f", parameters, size, float_dtype(dtype), out)

    def standard_t(
        self,
        df: ArrayLike,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return floats of Student's t: a normal over the root of a chi-square.

        Parameters
        ----------
        df : float or array_like
            Degrees of freedom, above 0.
        size, dtype, out
            As in `random`.
        """
        return self._draw("standard_t", (real("df", df),), size, float_dtype(dtype), out)

    def vonmises(
        self,
        mu: ArrayLike,
        kappa: ArrayLike,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return angles in [-pi, pi] of von Mises (D. J. Best, N. I. Fisher, 1979).

        Parameters
        ----------
        mu : float or array_like
            Mode, an angle in radians.
        kappa : float or array_like
            Concentration, at least 0; NaN gives NaN.
        size, dtype, out
            As in `random`.
        """
        parameters = (real("mu", mu), non_negative_or_nan("kappa", kappa))
        return self._draw("vonmises", parameters, size, float_dtype(dtype), out)

    def wald(
        self,
        mean: ArrayLike,
        scale: ArrayLike,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return inverse Gaussian floats (J. R. Michael, W. R. Schucany, R. W. Haas, 1976).

        Parameters
        ----------
        mean, scale : float or array_like
            Mean and scale, above 0.
        size, dtype, out
            As in `random`.
        """
        parameters = (real("mean", mean), real("scale", scale))
        return self._draw("wald", parameters, size, float_dtype(dtype), out)

    def dirichlet(
        self,
        alpha: ArrayLike,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return vectors of sum 1 of the Dirichlet distribution: gammas over their sum.

        Parameters
        ----------
        alpha : array_like, shape (k,)
            Concentrations, at least 0; those of 0 have no share.
        size : int or tuple of int, optional
            Shape of the result without its last axis, which has length k.
        dtype, out
            As in `random`.
        """
        weights = vector("alpha", alpha, may_be_empty=True)
        shape = (*self._leading(size), weights.size)
        if not weights.size:
            return self._draw("uniform", (0.0, 1.0), shape, float_dtype(dtype), out)
        return self._draw("dirichlet", (weights, weights.size), shape, float_dtype(dtype), out)
