"""Distributions judged by samples: fixed seeds, significance level stated.

ALPHA is the probability that one right generator fails one test; with the seeds fixed every test
always passes or always fails, and none of the seeds was chosen for its result.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from nbrt_kernels.random import integers_reference, normal_reference, uniform_reference

ALPHA = 1e-4
N = 200_000

pytestmark = [
    pytest.mark.statistical,
    pytest.mark.parametrize("seed", [1, 2**40 + 5]),
]
every_float = pytest.mark.parametrize("dtype", ["float32", "float64"])


@every_float
def test_uniform_is_uniform(dtype, seed):
    sample = uniform_reference(N, seed, 0, dtype)
    assert stats.kstest(sample, "uniform").pvalue > ALPHA


@every_float
def test_normal_is_normal(dtype, seed):
    sample = normal_reference(N, seed, 0, dtype)
    assert stats.kstest(sample, "norm").pvalue > ALPHA
    # Cosines and sines apart, and their squares: Box-Muller couples them if the words are.
    for part in (sample[0::2], sample[1::2]):
        assert stats.kstest(part, "norm").pvalue > ALPHA
    radius = sample[0::2].astype(np.float64) ** 2 + sample[1::2].astype(np.float64) ** 2
    assert stats.kstest(radius, "chi2", args=(2,)).pvalue > ALPHA
    angle = np.arctan2(sample[1::2], sample[0::2]) / (2 * np.pi) + 0.5
    assert stats.kstest(angle, "uniform").pvalue > ALPHA


@every_float
def test_normal_moments(dtype, seed):
    sample = normal_reference(N, seed, 0, dtype).astype(np.float64)
    limit = stats.norm.isf(ALPHA / 2)
    assert abs(sample.mean()) < limit / np.sqrt(N)
    assert abs(sample.var() - 1) < limit * np.sqrt(2 / N)
    assert abs(np.mean(sample**3)) < limit * np.sqrt(15 / N)
    assert abs(np.mean(sample**4) - 3) < limit * np.sqrt(96 / N)


@every_float
def test_neighbours_are_independent(dtype, seed):
    sample = normal_reference(N, seed, 0, dtype).astype(np.float64)
    limit = stats.norm.isf(ALPHA / 2) / np.sqrt(N)
    for lag in (1, 2, 3, 4, 8, 256):
        assert abs(np.mean(sample[lag:] * sample[:-lag])) < limit
        squares = sample**2 - 1
        assert abs(np.mean(squares[lag:] * squares[:-lag])) < 2 * limit


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("int8", -3, 4), ("int32", 0, 100), ("int64", 0, 3 * 2**30), ("int64", -(2**62), 2**63)],
)
def test_integers_are_uniform(dtype, low, high, seed):
    n = 20_000
    sample = integers_reference(n, low, high, seed, 0, dtype)
    cells = min(high - low, 100)
    index = [(int(v) - low) * cells // (high - low) for v in sample]
    counts = np.bincount(index, minlength=cells)
    assert stats.chisquare(counts).pvalue > ALPHA
