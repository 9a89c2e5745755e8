"""The logarithm of the gamma function, in float64 only, for acceptance tests.

From 8 on it is Stirling's formula with a fitted tail, below a polynomial around 2 and the logarithm
of a product.

Measured errors in ulps of the exact result, over 2**20 arguments of all magnitudes:
``stirling_tail_f64`` 1.4; ``lgamma_f64`` 2.0, but 4.9 between its zeros 1 and 2, where it is small:
there the absolute error is below 1.3e-16.
"""

from __future__ import annotations

import numpy as np

from nbrt_kernels._dialect import Scalar, cuda, device_function
from nbrt_kernels.random._floats import from_hex, polynomial, select
from nbrt_kernels.random.math.logarithms import log_f64

__all__ = ["lgamma_f64", "stirling_tail_f64"]

_HALF, _ONE, _TWO = np.float64(0.5), np.float64(1.0), np.float64(2.0)
_HALF_LOG_2PI = np.float64(float.fromhex("0x1.d67f1c864beb5p-1"))
_LARGE = np.float64(8.0)

# lgamma(2 + t) = t G(t) for |t| <= 1/2.
_near_two = polynomial(
    from_hex(
        np.float64,
        "0x1.b0ee6072093cep-2", "0x1.4a34cc4a60fa7p-2", "-0x1.13e001a5575bbp-4",
        "0x1.51322ac7d7c99p-6", "-0x1.e404fc21a1a22p-8", "0x1.7add6eaea1050p-9",
        "-0x1.38ac5c240d830p-10", "0x1.0b36af1d64df5p-11", "-0x1.d3fd5012a62b5p-13",
        "0x1.a127e569c5505p-14", "-0x1.78dde823c1581p-15", "0x1.5805f647f0130p-16",
        "-0x1.3cc3f3cef97ebp-17", "0x1.264e8fbd9052ep-18", "-0x1.11961a6968565p-19",
        "0x1.ed061060e35f4p-21", "-0x1.db76cc2d27949p-22", "0x1.2cf005c0e1c08p-22",
        "-0x1.0a87bf1aaee3bp-23",
    )
)  # fmt: skip
# x times the tail of Stirling's series, in 1 / (x + 1).
_stirling = polynomial(
    from_hex(
        np.float64,
        "0x1.5555555555555p-4", "0x1.b51aa7591e52ep-50", "-0x1.6c16c16c4c12ap-9",
        "-0x1.6c16c17009933p-8", "-0x1.ee1edf55165a9p-8", "-0x1.04107f1bb98e4p-7",
        "-0x1.ad0dc8b536b51p-8", "-0x1.1ef77cf3df821p-8", "-0x1.9d91289b7517cp-9",
        "-0x1.83dcd8e8aeef2p-8", "0x1.6cff663f479e5p-8", "-0x1.c5a7778dd1818p-5",
        "0x1.c61cb7d305f0ep-3", "-0x1.56570c5bf8d06p-1", "0x1.7813d5aa7a395p+0",
        "-0x1.37c4a18189c2cp+1", "0x1.7a441147a9c75p+1", "-0x1.4011641e6cc00p+1",
        "0x1.51ac82d109016p+0", "-0x1.552d66bcb282ep-2",
    )
)  # fmt: skip


@device_function
def stirling_tail_f64(x: Scalar) -> Scalar:
    """Return ``lgamma(x) - ((x - 1/2) log(x) - x + log(2 pi) / 2)`` for x >= 1.

    Of ``x = k + 1`` it is the correction of Stirling's formula for ``log(k!)``.
    """
    return _stirling(_ONE / (x + _ONE)) / x


@device_function
def lgamma_f64(x: Scalar) -> Scalar:
    """Return log(gamma(x)) for x > 0."""
    # Below 8 the argument is moved next to 2, exactly; what is left is the log of a product:
    # lgamma(x) = lgamma(x - m) + log((x - 1) ... (x - m)), or upwards - log(x (x + 1)).
    y, product = x, _ONE
    for _ in range(6):
        above = y >= np.float64(2.5)
        y = select(above, y - _ONE, y)
        product = product * select(above, y, _ONE)
    is_low, is_lowest = x < np.float64(1.5), x < _HALF
    t = select(is_lowest, x, select(is_low, x - _ONE, y - _TWO))
    product = select(is_low, x * select(is_lowest, x + _ONE, _ONE), product)
    is_large = x >= _LARGE
    log = log_f64(select(is_large, x, product))
    small = cuda.fma(t, _near_two(t), select(is_low, -log, log))
    series = stirling_tail_f64(select(is_large, x, _LARGE))
    large = cuda.fma(x - _HALF, log - _ONE, (_HALF_LOG_2PI - _HALF) + series)
    return select(is_large, large, small)
