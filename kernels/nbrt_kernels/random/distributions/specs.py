"""Specifications of the distributions that use a fixed number of words, for every dtype."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from nbrt_kernels.random import parameters as p
from nbrt_kernels.random.distributions import output_transforms, variates
from nbrt_kernels.random.distributions._precision import DOUBLE, SINGLE, Precision
from nbrt_kernels.random.distributions.output_casts import cast, cast_flag, cast_integer
from nbrt_kernels.random.fills import identity
from nbrt_kernels.random.transforms import scale_integer_32, scale_integer_64, scale_uniform

if TYPE_CHECKING:
    from nbrt_kernels.random._floats import DeviceFunction

__all__ = ["DISTRIBUTIONS", "DistributionSpec", "Parameters", "integer_spec", "spec_of"]

#: Takes the parameters and the dtype name of a draw; returns a, b and c of the kernel.
Parameters = Callable[[tuple[Any, ...], str], tuple[Any, Any, Any]]

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


class DistributionSpec(NamedTuple):
    """A distribution with a fixed number of words, as `nbrt_kernels.random.fills.fill` takes it.

    Attributes
    ----------
    standard : device function or None
        Takes a word and returns a variate; None: the word is the variate.
    finish : device function
        Takes a variate and the parameters a, b, c; returns the element to store.
    pairs : type or None
        Where `standard` takes two neighbouring words and returns two variates: their NumPy type.
    wide : bool
        Whether an element takes 64 bits of its block, not 32.
    parameters : callable
        Takes the draw's parameters and the name of its dtype; returns a, b and c, checked and of
        the types that the kernel takes, zeros where it needs fewer.  If any of the draw's is an
        array, all that are needed are contiguous arrays of its length.  Raises ValueError or
        TypeError.
    """

    standard: DeviceFunction | None
    finish: DeviceFunction
    pairs: Any
    wide: bool
    parameters: Parameters


class _Family(NamedTuple):
    """Factories of the variates and the output transform of a distribution of floats."""

    standard: Callable[[Precision], DeviceFunction | None]
    finish: Callable[[Precision], DeviceFunction]
    in_pairs: bool = False


def _exponential(precision: Precision) -> DeviceFunction:
    return precision.exponential


def _normal_pair(precision: Precision) -> DeviceFunction:
    return precision.normal_pair


def _radius(precision: Precision) -> DeviceFunction:
    return precision.radius


def _words(_: Precision) -> None:
    return None


def _affine(_: Precision) -> DeviceFunction:
    return output_transforms.affine


def _scaled(_: Precision) -> DeviceFunction:
    return output_transforms.scaled


_FAMILIES = {
    "normal": _Family(_normal_pair, _affine, in_pairs=True),
    "log_normal": _Family(_normal_pair, output_transforms.exponential_of, in_pairs=True),
    "exponential": _Family(_exponential, _scaled),
    "rayleigh": _Family(_radius, _scaled),
    "cauchy": _Family(variates.cauchy, _affine),
    "laplace": _Family(variates.laplace, _affine),
    "logistic": _Family(variates.logistic, _affine),
    "gumbel": _Family(variates.gumbel, _affine),
    "weibull": _Family(_exponential, output_transforms.weibull),
    "pareto": _Family(_exponential, output_transforms.pareto),
    "power": _Family(_exponential, output_transforms.power),
    "triangular": _Family(_words, output_transforms.triangular),
    "truncated_normal": _Family(_words, output_transforms.truncated_normal),
}

#: The distributions that have a specification.
DISTRIBUTIONS = ("uniform", *_FAMILIES, "geometric", "bernoulli", "bits")


@cache
def spec_of(distribution: str, dtype: str) -> DistributionSpec:
    """Return the specification of a distribution; equal requests return the same functions.

    An element takes 32 bits where its dtype has at most as many, and 64 for float64 and, if they
    are geometric, int64 and uint64; `bernoulli` takes 32 for every dtype.  Float16 and bfloat16 are
    float32 results rounded to nearest, so that a float16 can be infinite beyond 65504; only their
    uniforms are made of 11 and 8 bits, which keeps them below the upper bound.

    Parameters
    ----------
    distribution : str
        One of `DISTRIBUTIONS`.
    dtype : str
        Name of the elements' dtype.  The kernel stores bfloat16 as uint16 and bool as uint8.

    Returns
    -------
    DistributionSpec
        Device functions, and the check of the parameters.

    Raises
    ------
    ValueError
        If the distribution is unknown.
    TypeError
        If the distribution does not support the dtype.
    """
    if distribution not in DISTRIBUTIONS:
        message = f"expected one of {', '.join(DISTRIBUTIONS)}, got {distribution!r}"
        raise ValueError(message)
    precision = DOUBLE if dtype in ("float64", "int64", "uint64") else SINGLE
    wide = precision is DOUBLE
    if distribution == "bits":
        _check(distribution, dtype, ("uint32", "uint64"))
        return DistributionSpec(None, identity, None, wide, p.no_parameters)
    if distribution == "bernoulli":
        _check(distribution, dtype, ("bool", *_INTEGERS, *_FLOATS))
        finish = cast_flag(output_transforms.keep, dtype)
        return DistributionSpec(None, finish, None, False, p.bernoulli_parameters)
    if distribution == "geometric":
        _check(distribution, dtype, (*_INTEGERS, *_FLOATS))
        store = cast if dtype in _FLOATS else cast_integer
        finish = store(output_transforms.geometric(precision), dtype)
        checks = p.real_parameters(distribution)
        return DistributionSpec(precision.exponential, finish, None, wide, checks)
    _check(distribution, dtype, _FLOATS)
    if distribution == "uniform":
        standard = _uniform(precision, dtype)
        finish = cast(scale_uniform, dtype)
        return DistributionSpec(standard, finish, None, wide, _uniform_parameters)
    family = _FAMILIES[distribution]
    pairs = precision.real if family.in_pairs else None
    finish = cast(family.finish(precision), dtype)
    checks = p.real_parameters(distribution)
    return DistributionSpec(family.standard(precision), finish, pairs, wide, checks)


def integer_spec(dtype: str, low: int, high: int) -> DistributionSpec:
    """Return the specification of a draw in [low, high), whose kernel rejects biased words.

    Parameters
    ----------
    dtype : str
        Name of the elements' dtype.
    low, high : int
        Bounds.

    Raises
    ------
    TypeError
        If `dtype` is not an integer dtype.
    ValueError
        If the range is empty or does not fit the dtype.
    """
    return _integer_spec(p.integer_parameters(low, high, dtype)[0] == "integers_wide")


@cache
def _integer_spec(wide: bool) -> DistributionSpec:
    return DistributionSpec(
        None, scale_integer_64 if wide else scale_integer_32, None, wide, _integer_parameters
    )


def _integer_parameters(parameters: tuple[Any, ...], dtype: str) -> tuple[Any, Any, Any]:
    low, high = parameters
    return p.integer_parameters(low, high, dtype)[1]


def _uniform(precision: Precision, dtype: str) -> DeviceFunction:
    bits = {"float16": 11, "bfloat16": 8}.get(dtype)
    return precision.uniform if bits is None else variates.top_bits(precision, bits)


def _uniform_parameters(parameters: tuple[Any, ...], dtype: str) -> tuple[Any, Any, Any]:
    low, high = parameters
    return p.uniform_parameters(low, high, dtype)


def _check(distribution: str, dtype: str, allowed: tuple[str, ...]) -> None:
    if dtype not in allowed:
        message = f"{distribution}: expected a dtype of {', '.join(allowed)}, got {dtype}"
        raise TypeError(message)
