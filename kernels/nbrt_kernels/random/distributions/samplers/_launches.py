"""The samplers by name, and the launches that draw from them."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from nbrt_kernels.random.distributions._precision import DOUBLE, SINGLE, Precision
from nbrt_kernels.random.distributions.samplers import _parameters as p
from nbrt_kernels.random.distributions.samplers import (
    binomial,
    continuous,
    gamma_tiles,
    gammas,
    heavy_tailed,
    hypergeometric,
    poisson,
    vectors,
)
from nbrt_kernels.random.distributions.samplers._counts import SMALL_MEAN
from nbrt_kernels.random.distributions.samplers._kernels import (
    Kernel,
    all_kernel,
    marked_kernel,
    once_kernel,
    vectors_kernel,
)
from nbrt_kernels.random.distributions.samplers._tiles import tile_kernel, tile_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt_kernels.random._floats import DeviceFunction
from nbrt_kernels.random.launches import Fill, Part, Table, box_arguments, boxes, cut, is_table

__all__ = ["SAMPLED", "sampler_fills"]

_FLOATS = ("float32", "float64")
_INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_MAX_PARAMETERS = 3


class _Sampler(NamedTuple):
    """A distribution.

    Attributes
    ----------
    make : callable
        Returns the sampler, given the precision (not for counts) and the regime, if any.
    parameters : tuple of Parameter
        Its parameters, in order.
    is_count : bool
        Whether its values are int64 counts, computed in float64.
    regime : callable or None
        Takes scalar parameters; returns the arguments of `make` for which one branch-free trial
        mostly succeeds.
    tile : callable or None
        Takes the precision (not for counts); returns the function that draws tiles on a CPU, see
        `_tiles.tile_kernel`. Counts with a small mean, which need no trials, are not drawn by it.
    """

    make: Callable[..., DeviceFunction]
    parameters: tuple[p.Parameter, ...]
    is_count: bool = False
    regime: Callable[..., tuple[bool, ...]] | None = None
    tile: Callable[..., DeviceFunction] | None = None


def _poisson_regime(lam: Any, _b: Any, _c: Any) -> tuple[bool, ...]:
    return (bool(lam < SMALL_MEAN),)


def _binomial_regime(n: Any, chance: Any, _c: Any) -> tuple[bool, ...]:
    flip = bool(chance > 0.5)
    lesser = 1 - chance if flip else chance
    return bool(np.float64(n) * lesser < SMALL_MEAN), flip


_SAMPLERS = {
    "gamma": _Sampler(
        gammas.gamma,
        (p.Parameter("shape", p.AT_LEAST_ZERO), p.Parameter("scale", p.AT_LEAST_ZERO)),
        regime=lambda shape, _b, _c: (bool(shape < 1),),
        tile=gamma_tiles.gamma_tile,
    ),
    "beta": _Sampler(
        gammas.beta,
        (p.Parameter("a", p.POSITIVE), p.Parameter("b", p.POSITIVE)),
        regime=lambda a, b, _c: (bool(a < 1), bool(b < 1)),
        tile=gamma_tiles.beta_tile,
    ),
    "chisquare": _Sampler(
        gammas.chisquare,
        (p.Parameter("df", p.POSITIVE),),
        regime=lambda df, _b, _c: (bool(df < 2),),
        tile=gamma_tiles.chisquare_tile,
    ),
    "noncentral_chisquare": _Sampler(
        gammas.noncentral_chisquare,
        (p.Parameter("df", p.POSITIVE), p.Parameter("nonc", p.MEAN_OR_NAN)),
    ),
    "f": _Sampler(gammas.f, (p.Parameter("dfnum", p.POSITIVE), p.Parameter("dfden", p.POSITIVE))),
    "noncentral_f": _Sampler(
        gammas.noncentral_f,
        (
            p.Parameter("dfnum", p.POSITIVE),
            p.Parameter("dfden", p.POSITIVE),
            p.Parameter("nonc", p.MEAN_OR_NAN),
        ),
    ),
    "standard_t": _Sampler(gammas.standard_t, (p.Parameter("df", p.POSITIVE),)),
    "vonmises": _Sampler(
        continuous.vonmises,
        (p.Parameter("mu", p.FINITE), p.Parameter("kappa", p.AT_LEAST_ZERO_OR_NAN)),
    ),
    "wald": _Sampler(
        continuous.wald, (p.Parameter("mean", p.POSITIVE), p.Parameter("scale", p.POSITIVE))
    ),
    "poisson": _Sampler(
        poisson.poisson,
        (p.Parameter("lam", p.MEAN),),
        True,
        _poisson_regime,
        poisson.poisson_tile,
    ),
    "binomial": _Sampler(
        binomial.binomial,
        (p.Parameter("n", p.WHOLE), p.Parameter("p", p.CHANCE)),
        True,
        _binomial_regime,
        binomial.binomial_tile,
    ),
    "negative_binomial": _Sampler(
        heavy_tailed.negative_binomial,
        (p.Parameter("n", p.POSITIVE), p.Parameter("p", p.POSITIVE_CHANCE)),
        True,
    ),
    "hypergeometric": _Sampler(
        hypergeometric.hypergeometric,
        tuple(p.Parameter(name, p.WHOLE) for name in ("ngood", "nbad", "nsample")),
        True,
    ),
    "logseries": _Sampler(heavy_tailed.logseries, (p.Parameter("p", p.CHANCE_BELOW_ONE),), True),
    "zipf": _Sampler(heavy_tailed.zipf, (p.Parameter("a", p.ABOVE_ONE),), True),
}
_VECTORS = {
    "dirichlet": (p.Parameter("alpha", p.SHARE),),
    "multinomial": (p.Parameter("n", p.WHOLE), p.Parameter("pvals", p.CHANCE)),
    "multivariate_hypergeometric": (
        p.Parameter("colors", p.WHOLE),
        p.Parameter("nsample", p.WHOLE),
    ),
}

#: The distributions that samplers draw.
SAMPLED = (*_SAMPLERS, *_VECTORS)


def sampler_fills(
    distribution: str,
    dtype: str,
    parameters: tuple[Any, ...],
    count: int,
    region: Part | Table | None,
    *,
    gpu: bool = False,
) -> list[Fill]:
    """Return the launches that draw `count` elements.

    Parameters
    ----------
    distribution : str
        One of `SAMPLED`.
    dtype : str
        Name of the elements' dtype; bool is stored as uint8.
    parameters : tuple
        Numbers, or contiguous 1-D arrays with a value for each element to draw.  Of vectors, the
        last one is their length, and alpha, pvals and colors may also have that length.
    count : int
        Elements to draw.
    region : Part or None
        Which elements of the draw they are; None: the first ones.
    gpu : bool
        Whether the launches run on a GPU, which draws no tiles.

    Returns
    -------
    list of Fill
        The launches, in order.

    Raises
    ------
    TypeError
        If the distribution does not support the dtype, or an integer parameter is not one.
    ValueError
        If there is no such distribution, a parameter is out of range, or a region cuts vectors.
    """
    if distribution not in SAMPLED:
        message = f"expected one of {', '.join(SAMPLED)}, got {distribution!r}"
        raise ValueError(message)
    is_count = distribution.startswith("mult") or (
        distribution in _SAMPLERS and _SAMPLERS[distribution].is_count
    )
    allowed = _INTEGERS if is_count else _FLOATS
    if dtype not in allowed:
        message = f"{distribution}: expected a dtype of {', '.join(allowed)}, got {dtype}"
        raise TypeError(message)
    if distribution in _VECTORS:
        return _vector_fills(distribution, dtype, parameters, count, region)
    return _scalar_fills(distribution, dtype, parameters, count, region, gpu)


def _precision_of(dtype: str, is_count: bool) -> Precision:
    return DOUBLE if is_count or dtype == "float64" else SINGLE


@cache
def _made(distribution: str, precision: Precision, regime: tuple[bool, ...] = ()) -> DeviceFunction:
    sampler = _SAMPLERS[distribution]
    return sampler.make(*(() if sampler.is_count else (precision,)), *regime)


def _scalar_fills(
    distribution: str,
    dtype: str,
    values: tuple[Any, ...],
    count: int,
    region: Part | Table | None,
    gpu: bool,
) -> list[Fill]:
    sampler = _SAMPLERS[distribution]
    is_count = sampler.is_count
    precision = _precision_of(dtype, is_count)
    kinds = [np.int64 if q.range is p.WHOLE else precision.real for q in sampler.parameters]
    typed = [
        parameter.typed(value, kind, distribution)
        for parameter, value, kind in zip(sampler.parameters, values, kinds, strict=True)
    ]
    if distribution == "hypergeometric":
        p.check_sample(*typed)
    elif distribution == "negative_binomial":
        p.check_mean(*typed)
    unused = _MAX_PARAMETERS - len(typed)
    typed += [precision.real(0)] * unused
    kinds += [precision.real] * unused
    arrays = tuple(np.ndim(value) > 0 for value in typed)
    sample = _made(distribution, precision)
    base = _dense_start(region)
    if sampler.regime is None or any(arrays) or base is None:
        listed = is_table(region)
        kernel = all_kernel(sample, dtype, is_count, tuple(kinds), arrays, listed)
        return _region_fills(kernel, typed, count, region, 1)
    regime = sampler.regime(*typed)
    arguments = (np.uint64(base), *typed)
    if sampler.tile is not None and not (gpu or (is_count and regime[0])):
        if is_count:
            kernel = tile_kernel(sampler.tile(), dtype, True, np.int64)
        else:
            kernel = tile_kernel(sampler.tile(precision), dtype, False, precision.real)
        return [Fill(kernel, tile_threads(count), arguments, block=1)]
    once = _made(distribution, precision, regime)
    return [
        Fill(once_kernel(once, dtype, is_count, precision.real), count, arguments),
        Fill(marked_kernel(sample, dtype, is_count), count, arguments, block=1),
    ]


@cache
def _vector_maker(
    distribution: str, precision: Precision, has_trials: bool
) -> Callable[..., DeviceFunction]:
    if distribution == "dirichlet":
        return partial(vectors.dirichlet, precision)
    if distribution == "multinomial":
        return partial(vectors.multinomial, has_trials)
    return vectors.multivariate_hypergeometric


def _vector_fills(
    distribution: str, dtype: str, values: tuple[Any, ...], count: int, region: Part | Table | None
) -> list[Fill]:
    *given, width = values
    is_count = distribution != "dirichlet"
    precision = _precision_of(dtype, is_count)
    typed = [
        parameter.typed(
            value, np.int64 if parameter.range is p.WHOLE else precision.real, distribution
        )
        for parameter, value in zip(_VECTORS[distribution], given, strict=True)
    ]
    if distribution == "dirichlet":
        typed.append(precision.real(0))
    vector, sample = typed[::-1] if distribution == "multinomial" else typed
    p.check_vector(distribution, vector, sample, width)
    has_trials = distribution == "multinomial" and np.ndim(typed[0]) > 0
    maker = _vector_maker(distribution, precision, has_trials)
    kernel = vectors_kernel(maker, dtype, is_count, is_table(region))
    return _region_fills(kernel, [*typed, np.int64(width)], count, region, width)


def _dense_start(region: Part | Table | None) -> int | None:
    """Return the first element of a contiguous region, else None."""
    if region is None:
        return 0
    if is_table(region):
        return None
    region = cast("Part", region)
    rows, _ = region.rows
    return None if rows else region.start


def _region_fills(
    kernel: Kernel, typed: list[Any], count: int, region: Part | Table | None, width: int
) -> list[Fill]:
    """Return launches over subregions with at most two dimensions of runs."""
    fills = []
    for part, size, box in boxes(region, count):
        place = box or (0, count, 1, 0, 0)
        base, run, _, inner_stride, outer_stride = place
        steps: tuple[int, ...] = (base, run, inner_stride, outer_stride)
        if is_table(region):
            steps = (region.unit, region.step)
        if any(number % width for number in steps):
            message = (
                f"expected a region of whole vectors of {width} elements, got one that cuts them"
            )
            raise ValueError(message)
        arguments = (*box_arguments(place, np.uint64), *cut(tuple(typed), count, part))
        fills.append(Fill(kernel, size // width, arguments, part))
    return fills
