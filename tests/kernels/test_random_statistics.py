"""Distributions judged by samples: fixed seeds, significance level stated.

ALPHA is the probability that one right generator fails one test; with the seeds fixed every test
always passes or always fails, and none of the seeds was chosen for its result.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import nbrt
from nbrt_kernels.random import integers_reference, normal_reference, uniform_reference
from nbrt_kernels.random.philox import philox4x32_reference, words_reference

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


def test_bytes_are_uniform(seed):
    words = words_reference(np.arange(N), seed).ravel()
    counts = np.bincount(words.view(np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > ALPHA


def test_runs_of_each_bit(seed):
    bits = bits_of(words_reference(np.arange(N // 4), seed).reshape(N, 1))
    # Wald and Wolfowitz: runs in a sequence with so many ones, which are approximately normal.
    ones = bits.sum(axis=0, dtype=np.float64)
    expected = 2 * ones * (N - ones) / N
    variance = expected * (expected - 1) / (N - 1)
    changes = np.sum(bits[1:] != bits[:-1], axis=0)
    assert is_chi2(np.sum((changes - expected) ** 2 / variance), 32)


@pytest.mark.parametrize("family", ["seeds", "offsets", "subsequences"])
def test_neighbouring_streams_are_independent(family, seed):
    n = 50_000
    numbers = np.arange(n, dtype=np.uint64)
    zero = np.zeros_like(numbers)
    keys = np.uint64(seed) + (numbers if family == "seeds" else zero)
    low = numbers if family == "offsets" else zero
    high = numbers if family == "subsequences" else zero
    blocks = philox4x32_reference(words_of(low, high), words_of(keys))
    for lag in (1, 2, 16):
        difference = bits_of(blocks[lag:] ^ blocks[:-lag])
        ones = difference.sum(axis=0, dtype=np.float64)
        assert is_chi2(np.sum((ones - (n - lag) / 2) ** 2) / ((n - lag) / 4), 128)
        uniforms = (blocks + 0.5) / 2**32 - 0.5
        correlation = 12 * np.mean(uniforms[lag:] * uniforms[:-lag], axis=0)
        assert is_chi2(np.sum(correlation**2) * (n - lag), 4)


def words_of(*values):
    return np.stack([half for v in values for half in (v & np.uint64(2**32 - 1), v >> 32)], -1)


def bits_of(words):
    """Return the bits of each row of words, as columns."""
    return np.unpackbits(words.view(np.uint8), axis=1)


def is_chi2(value, degrees):
    # Both ends: numbers that are too even are not random either.
    return ALPHA / 2 < stats.chi2.sf(value, degrees) < 1 - ALPHA / 2


def test_tails_down_to_1e_8(seed):
    """Exceedances among 2**28 normals and as many exponentials, each within its Poisson range."""
    chances = 10.0 ** -np.arange(3, 9)
    count = 1 << 22
    turns = (1 << 28) // count
    out = np.empty(count, np.float32)
    for draw, bounds in (
        (nbrt.Generator(seed, "cpu:0").standard_normal, stats.norm.isf(chances / 2)),
        (nbrt.Generator(seed, "cpu:0").standard_exponential, stats.expon.isf(chances)),
    ):
        beyond = np.zeros(len(chances), np.int64)
        for _ in range(turns):
            draw(out=out, dtype="float32")
            tail = np.abs(out[np.abs(out) > bounds[0]])
            beyond += [(tail > bound).sum() for bound in bounds]
        expected = chances * count * turns
        low = stats.poisson.ppf(ALPHA / 2, expected)
        high = stats.poisson.isf(ALPHA / 2, expected)
        assert ((low <= beyond) & (beyond <= high)).all(), (beyond, expected)
