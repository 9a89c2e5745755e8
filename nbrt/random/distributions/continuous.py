"""`ContinuousDistributions`: draws of floats, with NumPy's names, signatures and defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nbrt.errors import ArgumentError, ArgumentOverflowError
from nbrt.random.arguments import float_dtype, non_negative, real
from nbrt.random.distributions.base import BaseGenerator

if TYPE_CHECKING:
    from nbrt.typing import Array, ArrayLike, DTypeLike, Shape

__all__ = ["ContinuousDistributions"]


class ContinuousDistributions(BaseGenerator):
    """Draws of floats. A parameter may be an array with a value for each element."""

    def random(
        self, size: Shape | None = None, dtype: DTypeLike = np.float64, out: Array | None = None
    ) -> Any:
        """Return uniform floats in [0, 1), all multiples of one power of two.

        Parameters
        ----------
        size : int or tuple of int, optional
            Shape of the result; a scalar if None.
        dtype : dtype
            float64 (multiples of 2**-53), float32 (2**-24), float16 (2**-11) or bfloat16 (2**-8).
        out : array, optional
            An array of that dtype on the generator's device to fill and return.

        Returns
        -------
        array or scalar
            Of the generator's device; a scalar where the host can read its memory.
        """
        return self._draw("uniform", (0.0, 1.0), size, float_dtype(dtype), out)

    def standard_normal(
        self, size: Shape | None = None, dtype: DTypeLike = np.float64, out: Array | None = None
    ) -> Any:
        """Return normal floats of mean 0 and standard deviation 1; see `normal`."""
        return self._draw("normal", (0.0, 1.0), size, float_dtype(dtype), out)

    def standard_exponential(
        self,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        method: Literal["zig", "inv"] = "zig",
        out: Array | None = None,
    ) -> Any:
        """Return exponential floats of mean 1.

        Parameters
        ----------
        size, dtype, out
            As in `random`.
        method : {"zig", "inv"}
            Accepted as NumPy's generators do; always by inversion.
        """
        if method not in ("zig", "inv"):
            raise ArgumentError(f"expected method 'zig' or 'inv', got {method!r}")
        return self._draw("exponential", (1.0,), size, float_dtype(dtype), out)

    def standard_cauchy(
        self, size: Shape | None = None, dtype: DTypeLike = np.float64, out: Array | None = None
    ) -> Any:
        """Return Cauchy floats of median 0 and scale 1; see `cauchy`."""
        return self._draw("cauchy", (0.0, 1.0), size, float_dtype(dtype), out)

    def uniform(
        self,
        low: ArrayLike = 0.0,
        high: ArrayLike = 1.0,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return uniform floats in [low, high).

        Parameters
        ----------
        low, high : float or array_like
            Bounds, low <= high; `high` is returned only if it equals `low`.
        size, dtype, out
            As in `random`.
        """
        bounds = (
            real("low", low, ArgumentOverflowError),
            real("high", high, ArgumentOverflowError),
        )
        return self._draw("uniform", bounds, size, float_dtype(dtype), out)

    def normal(
        self,
        loc: ArrayLike = 0.0,
        scale: ArrayLike = 1.0,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return normal floats, by the Box-Muller transform.

        Parameters
        ----------
        loc, scale : float or array_like
            Mean, and standard deviation, at least 0.
        size, dtype, out
            As in `random`.
        """
        parameters = (real("loc", loc), non_negative("scale", scale))
        return self._draw("normal", parameters, size, float_dtype(dtype), out)

    def lognormal(
        self,
        mean: ArrayLike = 0.0,
        sigma: ArrayLike = 1.0,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return floats whose logarithm is normal.

        Parameters
        ----------
        mean, sigma : float or array_like
            Mean and standard deviation of the logarithm; `sigma` is at least 0.
        size, dtype, out
            As in `random`.
        """
        parameters = (real("mean", mean), non_negative("sigma", sigma))
        return self._draw("log_normal", parameters, size, float_dtype(dtype), out)

    def exponential(
        self,
        scale: ArrayLike = 1.0,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return exponential floats, by inversion.

        Parameters
        ----------
        scale : float or array_like
            Mean, at least 0.
        size, dtype, out
            As in `random`.
        """
        parameters = (non_negative("scale", scale),)
        return self._draw("exponential", parameters, size, float_dtype(dtype), out)

    def cauchy(
        self,
        median: ArrayLike = 0.0,
        sigma: ArrayLike = 1.0,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return Cauchy floats, by inversion.

        Parameters
        ----------
        median, sigma : float or array_like
            Median, and half width at half maximum, at least 0.
        size, dtype, out
            As in `random`.
        """
        parameters = (real("median", median), non_negative("sigma", sigma))
        return self._draw("cauchy", parameters, size, float_dtype(dtype), out)

    def laplace(
        self,
        loc: ArrayLike = 0.0,
        scale: ArrayLike = 1.0,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return Laplace (double exponential) floats.

        Parameters
        ----------
        loc, scale : float or array_like
            Mean, and exponential decay, at least 0.
        size, dtype, out
            As in `random`.
        """
        parameters = (real("loc", loc), non_negative("scale", scale))
        return self._draw("laplace", parameters, size, float_dtype(dtype), out)

    def logistic(
        self,
        loc: ArrayLike = 0.0,
        scale: ArrayLike = 1.0,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return logistic floats.

        Parameters
        ----------
        loc, scale : float or array_like
            Mean, and scale, at least 0.
        size, dtype, out
            As in `random`.
        """
        parameters = (real("loc", loc), non_negative("scale", scale))
        return self._draw("logistic", parameters, size, float_dtype(dtype), out)

    def gumbel(
        self,
        loc: ArrayLike = 0.0,
        scale: ArrayLike = 1.0,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return Gumbel floats: the distribution of maxima.

        Parameters
        ----------
        loc, scale : float or array_like
            Mode, and scale, at least 0.
        size, dtype, out
            As in `random`.
        """
        parameters = (real("loc", loc), non_negative("scale", scale))
        return self._draw("gumbel", parameters, size, float_dtype(dtype), out)

    def weibull(
        self,
        a: ArrayLike,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return Weibull floats of scale 1: ``(-log u)**(1 / a)``.

        Parameters
        ----------
        a : float or array_like
            Shape, at least 0; 0 gives zeros.
        size, dtype, out
            As in `random`.
        """
        return self._draw("weibull", (non_negative("a", a),), size, float_dtype(dtype), out)

    def pareto(
        self,
        a: ArrayLike,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return floats of the Pareto II (Lomax) distribution.

        Parameters
        ----------
        a : float or array_like
            Shape, above 0.
        size, dtype, out
            As in `random`.
        """
        return self._draw("pareto", (real("a", a),), size, float_dtype(dtype), out)

    def power(
        self,
        a: ArrayLike,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return floats in [0, 1] of density ``a * x**(a - 1)``.

        Parameters
        ----------
        a : float or array_like
            Exponent, above 0.
        size, dtype, out
            As in `random`.
        """
        return self._draw("power", (real("a", a),), size, float_dtype(dtype), out)

    def rayleigh(
        self,
        scale: ArrayLike = 1.0,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return Rayleigh floats: the length of a normal vector in the plane.

        Parameters
        ----------
        scale : float or array_like
            Mode, at least 0.
        size, dtype, out
            As in `random`.
        """
        parameters = (non_negative("scale", scale),)
        return self._draw("rayleigh", parameters, size, float_dtype(dtype), out)

    def triangular(
        self,
        left: ArrayLike,
        mode: ArrayLike,
        right: ArrayLike,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return floats of a triangular density.

        Parameters
        ----------
        left, mode, right : float or array_like
            Lower bound, mode and upper bound: left <= mode <= right, left < right.
        size, dtype, out
            As in `random`.
        """
        parameters = (real("left", left), real("mode", mode), real("right", right))
        return self._draw("triangular", parameters, size, float_dtype(dtype), out)

    def truncated_normal(
        self,
        loc: ArrayLike = 0.0,
        scale: ArrayLike = 1.0,
        low: ArrayLike = -2.0,
        high: ArrayLike = 2.0,
        size: Shape | None = None,
        dtype: DTypeLike = np.float64,
        out: Array | None = None,
    ) -> Any:
        """Return normal floats of [low, high] only, by inversion; torch's ``trunc_normal_``.

        Parameters
        ----------
        loc, scale : float or array_like
            Mean and standard deviation before truncation; `scale` is above 0.
        low, high : float or array_like
            Bounds, low < high.
        size, dtype, out
            As in `random`.
        """
        parameters = (real("loc", loc), real("scale", scale), real("low", low), real("high", high))
        return self._draw("truncated_normal", parameters, size, float_dtype(dtype), out)
