"""In-place draws with torch's names: each fills an array and returns it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.errors import ArgumentError
from nbrt.random.arguments import checked_array, integer, is_array, real
from nbrt.random.defaults import checked_generator, default_generator
from nbrt.random.protocol import dispatchable
from nbrt.runtime.array import device_of

if TYPE_CHECKING:
    from nbrt.random.generator import Generator
    from nbrt.typing import Array, ArrayLike

__all__ = [
    "bernoulli_",
    "cauchy_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "normal_",
    "random_",
    "trunc_normal_",
    "uniform_",
]


@dispatchable
def uniform_(
    array: Array, low: float = 0.0, high: float = 1.0, *, generator: Generator | None = None
) -> Array:
    """Fill with uniform floats in [low, high).

    Parameters
    ----------
    array : array of floats
        What to fill; any strides.
    low, high : float
        Bounds.
    generator : Generator, optional
        The default one of the array's device by default.

    Examples
    --------
    >>> import nbrt
    >>> x = nbrt.zeros(4)
    >>> nbrt.random.uniform_(x, 2, 3) is x
    True
    """
    return _generator(generator, array).uniform(low, high, dtype=array.dtype, out=array)


@dispatchable
def normal_(
    array: Array, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
) -> Array:
    """Fill with normal floats; see `uniform_`."""
    return _generator(generator, array).normal(mean, std, dtype=array.dtype, out=array)


@dispatchable
def trunc_normal_(
    array: Array,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    *,
    generator: Generator | None = None,
) -> Array:
    """Fill with normal floats of [a, b] only, as torch.nn.init.trunc_normal_ does."""
    chosen = _generator(generator, array)
    return chosen.truncated_normal(mean, std, a, b, dtype=array.dtype, out=array)


@dispatchable
def log_normal_(
    array: Array, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None
) -> Array:
    """Fill with floats whose logarithm is normal of that mean and standard deviation."""
    return _generator(generator, array).lognormal(mean, std, dtype=array.dtype, out=array)


@dispatchable
def exponential_(array: Array, lambd: float = 1.0, *, generator: Generator | None = None) -> Array:
    """Fill with exponential floats of rate `lambd`."""
    rate = real("lambd", lambd)
    if is_array(rate) or not rate > 0:
        raise ArgumentError(f"expected lambd > 0 as one number, got {lambd}")
    return _generator(generator, array).exponential(1.0 / rate, dtype=array.dtype, out=array)


@dispatchable
def cauchy_(
    array: Array, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None
) -> Array:
    """Fill with Cauchy floats."""
    return _generator(generator, array).cauchy(median, sigma, dtype=array.dtype, out=array)


@dispatchable
def geometric_(array: Array, p: float, *, generator: Generator | None = None) -> Array:
    """Fill with the number of trials up to the first success."""
    return _generator(generator, array).geometric(p, dtype=array.dtype, out=array)


@dispatchable
def bernoulli_(array: Array, p: ArrayLike = 0.5, *, generator: Generator | None = None) -> Array:
    """Fill with 1 with probability `p`, a number or an array of them, and else 0."""
    return _generator(generator, array).bernoulli(p, dtype=array.dtype, out=array)


@dispatchable
def random_(
    array: Array,
    low: int | None = None,
    high: int | None = None,
    *,
    generator: Generator | None = None,
) -> Array:
    """Fill with integers: of [low, high), of [0, low), or of the range of the dtype, as torch does.

    Without bounds: [0, 2**(bits - 1)) of signed integers, [0, 2**bits) of unsigned ones, both
    values of bool, and [0, 2**p] of floats with p bits of precision.
    """
    chosen = _generator(generator, array)
    if low is None:
        if high is not None:
            raise ArgumentError(f"expected low as well as high, got high={high} alone")
        return chosen.fill_integers(array)
    first, last = (0, low) if high is None else (low, high)
    if is_array(integer("low", first)) or is_array(integer("high", last)):
        raise ArgumentError(f"expected low and high as one integer each, got {low} and {high}")
    return chosen.fill_integers(array, first, last)


def _generator(generator: Generator | None, array: Array) -> Generator:
    checked_array("the argument", array)
    return (
        default_generator(device_of(array)) if generator is None else checked_generator(generator)
    )
