"""Specifications of torch's draws: standard variates, output transforms and parameters."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbrt_kernels._dialect import Array, Scalar, device_function
from nbrt_kernels.random.torch import transforms as w
from nbrt_kernels.random.torch.fills import make_store
from nbrt_kernels.random.torch.parameters import ITEMSIZE, converted, integer_span, modulus

if TYPE_CHECKING:
    from nbrt_kernels.random._floats import DeviceFunction
    from nbrt_kernels.random.torch.functions import Functions

__all__ = ["DrawSpec", "stateless_spec", "torch_spec", "vector_width"]

#: torch.func._random refuses larger ranges for 32-bit words, because of their bias.
_MAX_SPAN_32 = 2**28


class DrawSpec(NamedTuple):
    """A draw in torch's order.

    Attributes
    ----------
    lanes : int
        Elements per Philox block.
    standard, store : callable
        Device functions, see `nbrt_kernels.random.torch.fills`.
    parameters : tuple
        The last arguments of `store`.
    width : int
        Elements of a chunk, where grid threads take chunks; else 0.
    """

    lanes: int
    standard: DeviceFunction
    store: DeviceFunction
    parameters: tuple[Any, Any, Any]
    width: int = 0


def vector_width(n: int, itemsize: int) -> int:
    """Return the number of elements that a thread of torch's dropout loads at once, 1 to 8.

    For an array that is aligned to 16 bytes, as all allocations are.
    """
    width = 16 // itemsize
    while n % width:
        width //= 2
    return width


def torch_spec(
    distribution: str,
    dtype: str,
    n: int,
    parameters: tuple[Any, ...],
    wide: int,
    functions: Functions,
) -> DrawSpec:
    """Return the specification of a draw; see `torch_launches`.

    Raises
    ------
    TypeError
        If torch does not support the dtype.
    ValueError
        If a parameter is out of range.
    """
    if distribution == "dropout":
        return _dropout(dtype, n, *parameters)
    if distribution == "bernoulli" and hasattr(parameters[0], "dtype"):
        return _bernoulli_each(dtype, parameters[0])
    if distribution in ("integers", "random"):
        return _integers(distribution, dtype, parameters, wide)
    supported = distribution in _DISTRIBUTIONS and dtype in ITEMSIZE
    if not supported or (distribution not in ("bernoulli", "geometric") and "float" not in dtype):
        known = ", ".join(sorted((*_DISTRIBUTIONS, "dropout", "integers", "random")))
        message = (
            f"expected one of torch's draws ({known}) of a floating dtype, got {distribution} of "
            f"{dtype}; use the element layout"
        )
        raise TypeError(message)
    double = dtype == "float64"
    store = make_store(_finish(distribution, dtype, functions), w.NARROW.get(dtype, w.same))
    if distribution in ("normal", "log_normal"):
        standard = (w.make_normals_64 if double else w.make_normals_32)(functions)
    else:
        standard = w.uniforms_64 if double else w.uniforms_32
    return DrawSpec(2 if double else 4, standard, store, converted(distribution, dtype, parameters))


_DISTRIBUTIONS = (
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "normal", "uniform",
)  # fmt: skip


def _finish(distribution: str, dtype: str, functions: Functions) -> DeviceFunction:
    double = dtype == "float64"
    if distribution == "uniform":
        return w.make_uniform(w.ROUNDED.get(dtype, w.same))
    if distribution == "log_normal":
        return w.make_log_normal(functions.exp_64 if double else functions.exp)
    if distribution == "exponential":
        return w.make_exponential(functions.log_64 if double else functions.log)
    if distribution == "geometric":
        if double:
            return w.make_geometric(functions.log_64, w.same, w.ceil_f64)
        return w.make_geometric(functions.log, functions.log, w.ceil_f32)
    if distribution == "cauchy":
        tan, real = (functions.tan_64, np.float64) if double else (functions.tan, np.float32)
        return w.make_cauchy(tan, real)
    return w.finish_normal if distribution == "normal" else w.finish_bernoulli


def _integers(distribution: str, dtype: str, parameters: tuple[Any, ...], wide: int) -> DrawSpec:
    if distribution == "random":
        low, span = 0, modulus(dtype)
        long = dtype in ("int64", "float64")
    else:
        low, high = parameters
        span = integer_span(dtype, low, high)
        long = span >= wide
    narrow = w.INTEGER_NARROW.get(dtype, w.same)
    # For the full 64-bit range, torch returns the bits and does not add the lower bound.
    return _modulo(span, 0 if span == 2**64 else low, long, narrow)


def _modulo(span: int, low: int, long: bool, narrow: DeviceFunction) -> DrawSpec:
    """Return the specification of ``word mod span + low``, of 32-bit words or 64-bit values."""
    lanes, standard = (2, w.swapped_two) if long else (4, w.same_four)
    if span == 2 ** (64 if long else 32):
        return DrawSpec(lanes, standard, make_store(w.finish_bits, narrow), (np.uint64(0),) * 3)
    finish = w.finish_integers_64 if long else w.finish_integers_32
    inverse = np.uint64(((2**64 - 1) // span + 1) % 2**64)
    numbers = (np.uint64(span), np.uint64(low % 2**64), inverse)
    return DrawSpec(lanes, standard, make_store(finish, narrow), numbers)


@lru_cache
def _make_bernoulli_store(real: type[np.floating[Any]], narrow: DeviceFunction) -> DeviceFunction:
    @device_function
    def store(out: Array, i: Scalar, u: Scalar, p: Array, one: Scalar, zero: Scalar) -> None:
        # Not below p, as where p is one number: torch has two kernels.
        out[i] = narrow(one if u <= real(p[i]) else zero)

    return store


def _bernoulli_each(dtype: str, p: Any) -> DrawSpec:
    # torch converts the probabilities to the precision of the result.
    real = np.float64 if dtype == "float64" else np.float32
    store = _make_bernoulli_store(real, w.NARROW.get(dtype, w.same))
    return DrawSpec(4, w.uniforms_32, store, (p, np.float32(1), np.float32(0)), 4)


@lru_cache
def _make_dropout_store(
    one: np.floating[Any], widen: DeviceFunction, narrow: DeviceFunction
) -> DeviceFunction:
    zero = one - one

    @device_function
    def store(out: Array, i: Scalar, u: Scalar, x: Array, mask: Array, keep: Scalar) -> None:
        kept = u < keep
        mask[i] = np.uint8(1) if kept else np.uint8(0)
        # torch multiplies by 0 too, so an infinity that is dropped becomes NaN.
        out[i] = narrow(widen(x[i]) * (one if kept else zero) * (one / keep))

    return store


def _dropout(dtype: str, n: int, p: float, x: Any, mask: Any) -> DrawSpec:
    if dtype not in ("float16", "bfloat16", "float32", "float64"):
        message = f"dropout: expected an array of floats, got {dtype}"
        raise TypeError(message)
    if not 0 <= p < 1:
        message = f"dropout: expected p in [0, 1), got {p!r}; the rest is all zeros"
        raise ValueError(message)
    real: Any = np.float64 if dtype == "float64" else np.float32
    store = _make_dropout_store(real(1), w.WIDEN.get(dtype, w.same), w.NARROW.get(dtype, w.same))
    width = vector_width(n, ITEMSIZE[dtype])
    numbers = (x, mask, real(1.0 - p))
    if width == 2:
        # A thread takes a block for two elements and leaves two of its words.
        return DrawSpec(2, w.first_two_uniforms, store, numbers, 2)
    # Without vector loads, the loop is that of the other distributions.
    return DrawSpec(4, w.uniforms_32, store, numbers, width if width > 1 else 0)


def stateless_spec(distribution: str, dtype: str, parameters: tuple[Any, ...]) -> DrawSpec:
    """Return the specification of a draw; see `stateless_launches`.

    Raises
    ------
    TypeError
        If the distribution does not support the dtype.
    ValueError
        If a parameter is out of range.
    """
    if distribution == "uniform" and "float" in dtype:
        finish = w.finish_uniform_bits_64 if dtype == "float64" else w.finish_uniform_bits_32
        standard = w.swapped_two if dtype == "float64" else w.make_masked(w.MANTISSA[dtype])
        store = make_store(finish, w.NARROW.get(dtype, w.same))
        return DrawSpec(
            2 if dtype == "float64" else 4, standard, store, converted("uniform", dtype, parameters)
        )
    if distribution != "integers" or "int" not in dtype:
        message = (
            f"expected uniform of floats or integers, which torch.func._random has and which are "
            f"exact, got {distribution} of {dtype}; use the element layout"
        )
        raise TypeError(message)
    low, high = parameters
    limits = np.iinfo(dtype)
    if not int(limits.min) <= low < high <= int(limits.max) + 1:
        message = (
            f"integers: expected {limits.min} <= low < high <= {int(limits.max) + 1} for {dtype}, "
            f"got low={low!r} and high={high!r}"
        )
        raise ValueError(message)
    span = int(high) - int(low)
    if limits.bits < 64 and span > _MAX_SPAN_32 and 2**32 % span:
        message = (
            f"integers: expected at most 2**28 integers or a power of two of them in 32 bits, "
            f"got {span}; pass a dtype of 64 bits"
        )
        raise ValueError(message)
    # All values of a dtype are the bits themselves.
    return _modulo(span, 0 if span == 2**limits.bits else low, limits.bits == 64, w.same)
