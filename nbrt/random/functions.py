"""Functions in torch's vocabulary over the default generators; float32 by default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.errors import ArgumentError, ArgumentTypeError, DeviceMismatchError
from nbrt.random.arguments import (
    checked_array,
    integer,
    is_array,
    most_integer,
    number_dtype,
    real,
)
from nbrt.random.array_filler import call_on_stream
from nbrt.random.defaults import checked_generator, default_generator
from nbrt.random.protocol import dispatchable
from nbrt.random.sampling import multinomial_indices
from nbrt.runtime.array import asarray, device_of

if TYPE_CHECKING:
    from nbrt.random.generator import Generator
    from nbrt.typing import Array, ArrayLike, DeviceLike, DTypeLike, Shape

__all__ = [
    "bernoulli",
    "bernoulli_",
    "cauchy_",
    "dropout",
    "exponential_",
    "geometric_",
    "log_normal_",
    "multinomial",
    "normal",
    "normal_",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "random_",
    "randperm",
    "trunc_normal_",
    "uniform_",
]


@dispatchable
def rand(
    *size: Any,
    dtype: DTypeLike = np.float32,
    device: DeviceLike = None,
    generator: Generator | None = None,
    out: Array | None = None,
) -> Array:
    """Return uniform floats in [0, 1).

    Parameters
    ----------
    *size : int, or one tuple of int
        Shape of the result.
    dtype : dtype
        A float type.
    device : Device, str, int or None
        The device; by default that of the generator.
    generator : Generator, optional
        The default one of the device by default.
    out : array, optional
        An array of that dtype to fill and return.

    Examples
    --------
    >>> import nbrt
    >>> nbrt.random.rand(2, 3).shape
    (2, 3)
    """
    chosen = generator_for(generator, device)
    return chosen.random(_shape(size, out), dtype, out)


@dispatchable
def randn(
    *size: Any,
    dtype: DTypeLike = np.float32,
    device: DeviceLike = None,
    generator: Generator | None = None,
    out: Array | None = None,
) -> Array:
    """Return normal floats of mean 0 and standard deviation 1; see `rand`."""
    chosen = generator_for(generator, device)
    return chosen.standard_normal(_shape(size, out), dtype, out)


@dispatchable
def randint(
    low: int,
    high: int | Shape | None = None,
    size: Shape | None = None,
    *,
    dtype: DTypeLike = np.int64,
    device: DeviceLike = None,
    generator: Generator | None = None,
    out: Array | None = None,
) -> Array:
    """Return integers in [low, high): ``randint(high, size)`` or ``randint(low, high, size)``.

    Parameters
    ----------
    low, high : int
        Bounds.
    size : int or tuple of int
        Shape of the result.
    dtype, device, generator, out
        As in `rand`.
    """
    if size is None and out is None:
        low, high, size = 0, low, high
    if isinstance(high, (tuple, list)):
        raise ArgumentTypeError(f"expected high as an integer, got {high!r}")
    chosen = generator_for(generator, device)
    return chosen.integers(low, high, size=size, dtype=dtype, out=out)


def randperm(
    n: int,
    *,
    dtype: DTypeLike = np.int64,
    device: DeviceLike = None,
    generator: Generator | None = None,
) -> Array:
    """Return a random permutation of the integers below `n`."""
    element_dtype, count = number_dtype(dtype), integer("n", n)
    if is_array(count) or count < 0:
        raise ArgumentError(f"expected n >= 0 as one integer, got {n!r}")
    if count - 1 > most_integer(element_dtype):
        raise ArgumentError(
            f"expected a dtype that holds every integer below {count}, got {element_dtype}"
        )
    chosen = generator_for(generator, device)
    order = chosen.permutation(count)
    if order.dtype == element_dtype:
        return order
    return call_on_stream(chosen.device, order.astype, element_dtype)


@dispatchable
def rand_like(
    array: Array, *, dtype: DTypeLike | None = None, generator: Generator | None = None
) -> Array:
    """Return uniform floats in [0, 1), in the shape, dtype and on the device of an array."""
    chosen = _for_array(generator, array)
    return rand(array.shape, dtype=array.dtype if dtype is None else dtype, generator=chosen)


@dispatchable
def randn_like(
    array: Array, *, dtype: DTypeLike | None = None, generator: Generator | None = None
) -> Array:
    """Return normal floats in the shape, dtype and on the device of an array."""
    chosen = _for_array(generator, array)
    return randn(array.shape, dtype=array.dtype if dtype is None else dtype, generator=chosen)


@dispatchable
def randint_like(
    array: Array,
    low: int,
    high: int | None = None,
    *,
    dtype: DTypeLike | None = None,
    generator: Generator | None = None,
) -> Array:
    """Return integers in [low, high), in the shape, dtype and on the device of an array."""
    first, last = (0, low) if high is None else (low, high)
    chosen = _for_array(generator, array)
    element_dtype = array.dtype if dtype is None else dtype
    return chosen.integers(first, last, size=array.shape, dtype=element_dtype)


@dispatchable
def normal(
    mean: ArrayLike,
    std: ArrayLike = 1.0,
    size: Shape | None = None,
    *,
    dtype: DTypeLike = np.float32,
    device: DeviceLike = None,
    generator: Generator | None = None,
    out: Array | None = None,
) -> Array:
    """Return normal floats; mean and standard deviation may be arrays, one for each element."""
    return generator_for(generator, device).normal(mean, std, size, dtype, out)


@dispatchable
def bernoulli(p: Array, *, generator: Generator | None = None, out: Array | None = None) -> Array:
    """Return 1 with the probability in each element of `p`, else 0; in the dtype of `p`.

    Parameters
    ----------
    p : array of floats
        Probabilities, in [0, 1].
    generator : Generator, optional
        The default one of the device of `p` by default.
    out : array, optional
        Of the dtype and shape of `p`, to fill and return.
    """
    return _for_array(generator, p).bernoulli(p, dtype=p.dtype, out=out)


@dispatchable
def dropout(
    x: Array, p: float = 0.5, training: bool = True, *, generator: Generator | None = None
) -> tuple[Array, Array]:
    """Zero elements with probability `p` and scale the rest; see `nbrt.Generator.dropout`."""
    return _for_array(generator, x).dropout(x, p, training)


@dispatchable
def multinomial(
    weights: ArrayLike,
    num_samples: int,
    replacement: bool = False,
    *,
    device: DeviceLike = None,
    generator: Generator | None = None,
) -> Array:
    """Return indices drawn with chances in proportion to weights, as torch.multinomial does.

    Parameters
    ----------
    weights : array_like, shape (k,) or (rows, k)
        Weights of the indices, at least 0, not all 0.
    num_samples : int
        Indices of each row.
    replacement : bool
        Whether an index may come more than once.
    device, generator
        As in `rand`.

    Returns
    -------
    indices : array of int64, shape (num_samples,) or (rows, num_samples)
        On the generator's device.

    Examples
    --------
    >>> import nbrt
    >>> nbrt.random.multinomial([0.0, 1.0, 0.0], 2, replacement=True).tolist()
    [1, 1]
    """
    chosen = generator_for(generator, device)
    return multinomial_indices(
        chosen, asarray(weights, device=chosen.device, copy=None), num_samples, replacement
    )


# -- in place: each fills an array and returns it --------------------------------------------------


@dispatchable
def uniform_(
    array: Array, low: float = 0.0, high: float = 1.0, *, generator: Generator | None = None
) -> Array:
    """Fill with uniform floats in [low, high).

    Parameters
    ----------
    array : array of floats
        The array, of any strides.
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
    return _for_array(generator, array).uniform(low, high, dtype=array.dtype, out=array)


@dispatchable
def normal_(
    array: Array, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
) -> Array:
    """Fill with normal floats; see `uniform_`."""
    return _for_array(generator, array).normal(mean, std, dtype=array.dtype, out=array)


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
    chosen = _for_array(generator, array)
    return chosen.truncated_normal(mean, std, a, b, dtype=array.dtype, out=array)


@dispatchable
def log_normal_(
    array: Array, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None
) -> Array:
    """Fill with floats whose logarithm is normal of that mean and standard deviation."""
    return _for_array(generator, array).lognormal(mean, std, dtype=array.dtype, out=array)


@dispatchable
def exponential_(array: Array, lambd: float = 1.0, *, generator: Generator | None = None) -> Array:
    """Fill with exponential floats of rate `lambd`."""
    rate = real("lambd", lambd)
    if is_array(rate) or not rate > 0:
        raise ArgumentError(f"expected lambd > 0 as one number, got {lambd}")
    return _for_array(generator, array).exponential(1.0 / rate, dtype=array.dtype, out=array)


@dispatchable
def cauchy_(
    array: Array, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None
) -> Array:
    """Fill with Cauchy floats."""
    return _for_array(generator, array).cauchy(median, sigma, dtype=array.dtype, out=array)


@dispatchable
def geometric_(array: Array, p: float, *, generator: Generator | None = None) -> Array:
    """Fill with the number of trials up to the first success."""
    return _for_array(generator, array).geometric(p, dtype=array.dtype, out=array)


@dispatchable
def bernoulli_(array: Array, p: ArrayLike = 0.5, *, generator: Generator | None = None) -> Array:
    """Fill with 1 with probability `p`, a number or an array of them, and else 0."""
    return _for_array(generator, array).bernoulli(p, dtype=array.dtype, out=array)


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
    chosen = _for_array(generator, array)
    if low is None:
        if high is not None:
            raise ArgumentError(f"expected low as well as high, got high={high} alone")
        return chosen.fill_integers(array)
    first, last = (0, low) if high is None else (low, high)
    if is_array(integer("low", first)) or is_array(integer("high", last)):
        raise ArgumentError(f"expected low and high as one integer each, got {low} and {high}")
    return chosen.fill_integers(array, first, last)


def generator_for(generator: Generator | None, device: DeviceLike) -> Generator:
    """Return a generator, or else the default one of a device."""
    if generator is None:
        return default_generator(device)
    checked_generator(generator)
    if device is not None and default_generator(device).device != generator.device:
        raise DeviceMismatchError(
            f"expected a generator of {device}, got one of {generator.device}; leave device out"
        )
    return generator


def _for_array(generator: Generator | None, array: Array) -> Generator:
    checked_array("the argument", array)
    return (
        default_generator(device_of(array)) if generator is None else checked_generator(generator)
    )


def _shape(size: tuple[Any, ...], out: Array | None) -> Shape | None:
    if len(size) == 1 and isinstance(size[0], (tuple, list)):
        return tuple(size[0])
    if not size and out is not None:
        return None
    if any(isinstance(one, (tuple, list)) for one in size):
        raise ArgumentError(f"expected sizes as ints or as one tuple, got {size!r}")
    return size
