"""Choices, permutations, torch's functions and in-place forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

import nbrt
from nbrt.errors import ArgumentError, ArgumentTypeError, DeviceMismatchError

ALPHA = 1e-4
"""Significance of the statistical tests here; seeds are fixed."""


@pytest.fixture
def generator(device: nbrt.Device) -> nbrt.Generator:
    if device.kind == "sample":
        pytest.skip("the sample backend has no draws")
    return nbrt.Generator(7, device)


def host(array: Any) -> np.ndarray:
    return nbrt.to_host(array)


def test_permutations(generator: nbrt.Generator) -> None:
    order = host(generator.permutation(1000))
    assert np.array_equal(np.sort(order), np.arange(1000))
    assert not np.array_equal(order, np.arange(1000))
    table = np.arange(24).reshape(4, 6)
    rows = host(generator.permutation(nbrt.asarray(table, device=generator.device)))
    assert sorted(map(tuple, rows)) == sorted(map(tuple, table))
    columns = host(generator.permutation(table, axis=1))
    assert sorted(map(tuple, columns.T)) == sorted(map(tuple, table.T))
    assert host(generator.permutation(0)).shape == (0,)


def test_every_permutation_is_as_likely(generator: nbrt.Generator) -> None:
    orders = generator.permuted(np.tile(np.arange(4), (24_000, 1)), axis=1)
    _, counts = np.unique(host(orders), axis=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > ALPHA


def test_shuffles(generator: nbrt.Generator) -> None:
    x = nbrt.asarray(np.arange(60).reshape(6, 10), device=generator.device)
    before = host(x).copy()
    generator.shuffle(x, axis=1)
    assert not np.array_equal(host(x), before)
    assert np.array_equal(np.sort(host(x), axis=1), before)
    cards = list("abcdefgh")
    generator.shuffle(cards)
    assert cards != list("abcdefgh")
    assert sorted(cards) == list("abcdefgh")
    with pytest.raises(ArgumentError, match="axis"):
        generator.shuffle(cards, axis=1)
    with pytest.raises(ArgumentTypeError, match="a list or an array"):
        generator.shuffle((1, 2, 3))


def test_permuted_into_out(generator: nbrt.Generator) -> None:
    x = nbrt.asarray(np.arange(60.0).reshape(6, 10), device=generator.device)
    before = host(x).copy()
    whole = host(generator.permuted(x))
    assert whole.shape == (6, 10)
    assert np.array_equal(np.sort(whole, axis=None), before.reshape(-1))
    assert generator.permuted(x, axis=0, out=x) is x
    assert np.array_equal(np.sort(host(x), axis=0), before)


def test_choices(generator: nbrt.Generator) -> None:
    picked = host(generator.choice(10, 10_000))
    assert stats.chisquare(np.bincount(picked, minlength=10)).pvalue > ALPHA
    words = np.array([5, 7, 11])
    assert set(host(generator.choice(words, (3, 4))).reshape(-1).tolist()) <= {5, 7, 11}
    assert int(generator.choice(5)) in range(5)
    assert sorted(host(generator.choice(10, 10, replace=False)).tolist()) == list(range(10))
    table = np.arange(12).reshape(3, 4)
    assert host(generator.choice(table, 2, axis=1)).shape == (3, 2)
    chances = [0.1, 0.2, 0.7]
    picked = host(generator.choice(3, 30_000, p=chances))
    expected = 30_000 * np.array(chances)
    assert stats.chisquare(np.bincount(picked, minlength=3), expected).pvalue > ALPHA
    assert sorted(host(generator.choice(3, 2, False, [0.5, 0.5, 0.0])).tolist()) == [0, 1]


def test_choices_without_replacement_have_numpys_chances(generator: nbrt.Generator) -> None:
    """The first of two picked is i with chance p[i]; the second then with p[j] / (1 - p[i])."""
    chances = np.array([0.5, 0.3, 0.2])
    pairs = [tuple(host(generator.choice(3, 2, False, chances))) for _ in range(3000)]
    counts, expected = [], []
    for first in range(3):
        for second in {0, 1, 2} - {first}:
            counts.append(pairs.count((first, second)))
            expected.append(3000 * chances[first] * chances[second] / (1 - chances[first]))
    assert stats.chisquare(counts, expected).pvalue > ALPHA


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"a": 0, "size": 1}, "something to pick from"),
        ({"a": 3, "size": 4, "replace": False}, "at most 3 elements"),
        ({"a": 3, "size": 3, "replace": False, "p": [0.5, 0.5, 0]}, "at most 2 elements"),
        ({"a": 3, "p": [0.5, 0.5]}, "3 chances, got 2"),
        ({"a": 2, "p": [0.5, 0.6]}, "add up to 1"),
        ({"a": 2, "p": [1.5, -0.5]}, "p >= 0"),
        ({"a": 1.5}, "an integer to pick from"),
        ({"a": [1, 2], "axis": 3}, "axis"),
    ],
)
def test_wrong_choices(generator: nbrt.Generator, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        generator.choice(**arguments)
    assert generator.state.offset == 0


def test_multinomial_as_torch_has_it(generator: nbrt.Generator) -> None:
    weights = np.array([[1.0, 2.0, 0.0, 5.0], [4.0, 0.0, 4.0, 0.0]])
    picked = host(nbrt.random.multinomial(weights, 20_000, True, generator=generator))
    assert picked.shape == (2, 20_000)
    counts = np.bincount(picked[0], minlength=4)
    assert counts[2] == 0
    expected = 20_000 * np.array([1, 2, 5]) / 8
    assert stats.chisquare(counts[[0, 1, 3]], expected).pvalue > ALPHA
    rows = host(nbrt.random.multinomial(weights, 2, generator=generator))
    assert sorted(rows[1].tolist()) == [0, 2]
    for wrong, count in (([0.0, 0.0], 1), ([1.0, -1.0], 1), ([1.0, np.nan], 1), ([1.0], 0)):
        with pytest.raises(ArgumentError, match="expected"):
            nbrt.random.multinomial(wrong, count, True, generator=generator)
    with pytest.raises(ArgumentError, match="at most 2 samples"):
        nbrt.random.multinomial(weights, 3, generator=generator)


def test_torchs_functions(generator: nbrt.Generator) -> None:
    device = generator.device
    with nbrt.random.fork_rng([device]):
        nbrt.random.manual_seed(7, device)
        for made, expected in (
            (nbrt.random.rand(2, 3, device=device), generator.random((2, 3), "float32")),
            (nbrt.random.randn((4,), device=device), generator.standard_normal(4, "float32")),
            (nbrt.random.randint(9, (5,), device=device), generator.integers(0, 9, 5)),
            (nbrt.random.randint(2, 9, (5,), device=device), generator.integers(2, 9, 5)),
            (nbrt.random.randperm(6, device=device), generator.permutation(6)),
        ):
            assert made.dtype == expected.dtype
            assert np.array_equal(host(made), host(expected))
        x = nbrt.zeros((2, 2), "float64", device=device)
        assert nbrt.random.rand_like(x).dtype == np.float64
        assert nbrt.random.randn_like(x, dtype="float32").dtype == np.float32
        assert nbrt.random.randint_like(x, 5, dtype="int8").shape == (2, 2)
        assert nbrt.random.bernoulli(x).dtype == np.float64
        assert nbrt.device_of(nbrt.random.normal(x, 1.0, generator=generator)) == device
    with pytest.raises(ArgumentError, match="sizes as ints or as one tuple"):
        nbrt.random.rand(2, (3,), device=device)


def test_a_generator_of_another_device(
    generator: nbrt.Generator, other_device: nbrt.Device
) -> None:
    with pytest.raises(DeviceMismatchError, match="leave device out"):
        nbrt.random.rand(2, device=other_device, generator=generator)


IN_PLACE: dict[str, tuple[tuple[Any, ...], str, dict[str, Any]]] = {
    "uniform_": ((-1.0, 1.0), "uniform", {"low": -1.0, "high": 1.0}),
    "normal_": ((1.0, 2.0), "normal", {"loc": 1.0, "scale": 2.0}),
    "log_normal_": ((), "lognormal", {"mean": 1.0, "sigma": 2.0}),
    "exponential_": ((2.0,), "exponential", {"scale": 0.5}),
    "cauchy_": ((), "cauchy", {}),
    "trunc_normal_": ((), "truncated_normal", {}),
    "geometric_": ((0.25,), "geometric", {"p": 0.25}),
    "bernoulli_": ((0.25,), "bernoulli", {"p": 0.25}),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place(generator: nbrt.Generator, name: str) -> None:
    arguments, method, parameters = IN_PLACE[name]
    x = nbrt.zeros((3, 5), "float32", device=generator.device)
    filled = getattr(nbrt.random, name)(x, *arguments, generator=generator.clone())
    assert filled is x
    expected = getattr(generator, method)(size=(3, 5), dtype="float32", **parameters)
    assert np.array_equal(host(x), host(expected))


def test_random_fills_the_range_of_the_dtype(generator: nbrt.Generator) -> None:
    limits = {"uint8": 256, "int8": 128, "int16": 2**15, "bool": 2, "float16": 2049}
    for dtype, most in limits.items():
        x = nbrt.zeros(20_000, dtype, device=generator.device)
        values = host(nbrt.random.random_(x, generator=generator)).astype(np.int64)
        assert values.min() >= 0
        assert most * 0.99 < values.max() + 1 <= most
    x = nbrt.zeros(2000, "float32", device=generator.device)
    assert set(host(nbrt.random.random_(x, -2, 2, generator=generator)).tolist()) == {-2, -1, 0, 1}
    with pytest.raises(ArgumentError, match="low as well as high"):
        nbrt.random.random_(x, high=3, generator=generator)


def test_normal_vectors(generator: nbrt.Generator) -> None:
    cov = np.array([[2.0, 0.6], [0.6, 1.0]])
    for method in ("svd", "eigh", "cholesky"):
        x = host(generator.multivariate_normal([1.0, -2.0], cov, 20_000, method=method))
        assert x.shape == (20_000, 2)
        # Six standard errors of means and covariances of 20,000 (fixed seed).
        assert np.allclose(x.mean(axis=0), [1.0, -2.0], atol=6 * np.sqrt(2 / 20_000))
        assert np.allclose(np.cov(x.T), cov, atol=6 * 2 * np.sqrt(2 / 20_000))
    wrong = [[1.0, 2.0], [2.0, 1.0]]
    with pytest.warns(RuntimeWarning, match="positive semidefinite"):
        generator.multivariate_normal([0.0, 0.0], wrong)
    with pytest.raises(ArgumentError, match="positive semidefinite"):
        generator.multivariate_normal([0.0, 0.0], wrong, check_valid="raise")
    with pytest.raises(ArgumentError, match="positive definite"):
        generator.multivariate_normal([0.0, 0.0], wrong, method="cholesky")
    with pytest.raises(ArgumentError, match=r"shape \(2, 2\)"):
        generator.multivariate_normal([0.0, 0.0], np.eye(3))
