"""Samplers: the right distributions, element by element a function of seed, offset and index.

ALPHA is the probability that one right sampler fails one test; with the seeds fixed every test
always passes or always fails, and none of the seeds was chosen for its result.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from helpers.kernels import launch, memory_dtype
from nbrt.index_sets import Region
from nbrt_kernels.random.distributions.samplers import sampler_fills

ALPHA = 1e-4
GAMMA_SHAPES = (0.01, 0.5, 0.999, 1.0, 1.5, 2.5, 40.0, 1e6, 1e12)
SEED = 0x0123456789ABCDEF
N = 50_000


def draw(distribution, dtype, parameters, n, *, seed=SEED, offset=0, region=None, skip_blocks=0):
    out = np.zeros(n, memory_dtype(dtype))
    state = (np.uint64(seed), np.uint64(offset))
    for fill in sampler_fills(distribution, dtype, parameters, n, region):
        part = out if fill.part is None else out[fill.part]
        arguments = part, state, np.uint64(skip_blocks), *fill.arguments
        launch(fill.kernel, (fill.threads,), *arguments, block=(fill.block,))
    return out


# -- distributions -----------------------------------------------------------------------------

CONTINUOUS = [
    ("gamma", (0.05, 2.0), stats.gamma(0.05, scale=2)),
    ("gamma", (1.0, 1.0), stats.gamma(1)),
    ("gamma", (2.5, 1.0), stats.gamma(2.5)),
    ("gamma", (1e8, 1.0), stats.gamma(1e8)),
    ("beta", (0.1, 0.5), stats.beta(0.1, 0.5)),
    ("beta", (300.0, 2.0), stats.beta(300, 2)),
    ("chisquare", (1.0,), stats.chi2(1)),
    ("chisquare", (5.0,), stats.chi2(5)),
    ("noncentral_chisquare", (0.5, 3.0), stats.ncx2(0.5, 3)),
    ("noncentral_chisquare", (4.0, 50.0), stats.ncx2(4, 50)),
    ("f", (0.5, 3.0), stats.f(0.5, 3)),
    ("noncentral_f", (4.0, 9.0, 0.0), stats.f(4, 9)),
    ("standard_t", (0.5,), stats.t(0.5)),
    ("standard_t", (200.0,), stats.t(200)),
    ("vonmises", (0.0, 0.0), stats.uniform(-math.pi, 2 * math.pi)),
    ("vonmises", (0.0, 3.0), stats.vonmises(3)),
    ("vonmises", (0.0, 1e6), stats.norm(scale=1e-3)),
    ("wald", (1.0, 1.0), stats.invgauss(1)),
    ("wald", (2.0, 0.1), stats.invgauss(20, scale=0.1)),
]


@pytest.mark.statistical
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "parameters", "law"), CONTINUOUS)
def test_continuous(name, parameters, law, dtype):
    sample = draw(name, dtype, parameters, N).astype(np.float64)
    assert np.isfinite(sample).all()
    if dtype == "float32" and law.std() < 1e-3 * abs(law.mean()):
        # Float32 results lie on a grid as coarse as the spread; this puts them between its points.
        sample += (np.random.default_rng(5).random(N) - 0.5) * np.spacing(np.float32(law.mean()))
    assert stats.kstest(sample, law.cdf).pvalue > ALPHA


COUNTS = [
    ("poisson", (1e-3,), stats.poisson(1e-3)),
    ("poisson", (3.0,), stats.poisson(3)),
    ("poisson", (9.99,), stats.poisson(9.99)),
    ("poisson", (10.0,), stats.poisson(10)),
    ("poisson", (1e4,), stats.poisson(1e4)),
    ("poisson", (1e15,), stats.norm(1e15, math.sqrt(1e15))),
    ("binomial", (10, 0.3), stats.binom(10, 0.3)),
    ("binomial", (40, 0.25), stats.binom(40, 0.25)),
    ("binomial", (100, 0.7), stats.binom(100, 0.7)),
    ("binomial", (1000, 0.999), stats.binom(1000, 0.999)),
    ("binomial", (10**9, 0.123), stats.binom(10**9, 0.123)),
    ("binomial", (2**60, 1e-12), stats.poisson(2**60 * 1e-12)),
    ("binomial", (2**60, 0.5), stats.norm(2**59, 2**29)),
    ("negative_binomial", (4.5, 0.2), stats.nbinom(4.5, 0.2)),
    ("negative_binomial", (0.3, 0.5), stats.nbinom(0.3, 0.5)),
    ("hypergeometric", (10, 20, 5), stats.hypergeom(30, 10, 5)),
    ("hypergeometric", (200, 100, 290), stats.hypergeom(300, 200, 290)),
    ("hypergeometric", (50, 50, 50), stats.hypergeom(100, 50, 50)),
    ("hypergeometric", (100, 200, 250), stats.hypergeom(300, 100, 250)),
    ("hypergeometric", (5, 10**18, 5 * 10**17), stats.binom(5, 0.5)),
    ("logseries", (0.01,), stats.logser(0.01)),
    ("logseries", (0.99,), stats.logser(0.99)),
    ("zipf", (2.5,), stats.zipf(2.5)),
    ("zipf", (9.0,), stats.zipf(9.0)),
]


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "parameters", "law"), COUNTS)
def test_counts(name, parameters, law):
    sample = draw(name, "int64", parameters, N)
    if 300 < law.std() < math.inf:
        # Far wider than the steps of a discrete law, which the normal laws do not have at all.
        spread = sample + (np.random.default_rng(5).random(N) - 0.5)
        assert stats.kstest(spread, law.cdf).pvalue > ALPHA
        return
    # About twenty cells of equal chance, from quantiles of the law.
    ends = np.unique(law.ppf(np.linspace(0.05, 0.95, 19)))
    chances = np.diff(np.concatenate([[0.0], law.cdf(ends), [1.0]]))
    observed = np.bincount(np.searchsorted(ends, sample), minlength=len(chances))
    expected = chances * N
    if expected[-1] < 5:
        observed, expected = observed[:-1], expected[:-1]
    if len(expected) > 1:
        total = observed.sum() / expected.sum()
        assert stats.chisquare(observed, expected * total).pvalue > ALPHA
    # All but a part ALPHA of a right sampler's means.
    limit = stats.norm.isf(ALPHA / 2) * law.std() / math.sqrt(N)
    assert abs(sample.mean() - law.mean()) < limit or not np.isfinite(law.std())


@pytest.mark.statistical
def test_vectors():
    pvals = np.array([0.1, 0.0, 0.5, 0.4])
    counts = draw("multinomial", "int64", (100, pvals, 4), 4 * 5000).reshape(-1, 4)
    assert (counts.sum(axis=1) == 100).all()
    assert not counts[:, 1].any()
    z = (counts.mean(axis=0) - 100 * pvals) / np.sqrt(100 * pvals * (1 - pvals) / 5000 + 1e-30)
    assert (np.abs(z) < stats.norm.isf(ALPHA / 2)).all()
    colors = np.array([10, 0, 200, 90])
    taken = draw("multivariate_hypergeometric", "int64", (colors, 60, 4), 4 * 5000).reshape(-1, 4)
    assert (taken.sum(axis=1) == 60).all()
    assert ((taken >= 0) & (taken <= colors)).all()
    assert not taken[:, 1].any()
    law = stats.hypergeom(300, colors[[0, 2, 3]], 60)
    z = (taken[:, [0, 2, 3]].mean(axis=0) - law.mean()) / (law.std() / math.sqrt(5000))
    assert (np.abs(z) < stats.norm.isf(ALPHA / 2)).all()
    alpha = np.array([0.2, 3.0, 1.0])
    for dtype in ("float32", "float64"):
        rows = draw("dirichlet", dtype, (alpha, 3), 3 * 5000).reshape(-1, 3)
        assert np.abs(rows.sum(axis=1) - 1).max() < 4 * np.finfo(dtype).eps
        for k in range(3):
            law = stats.beta(alpha[k], alpha.sum() - alpha[k])
            assert stats.kstest(rows[:, k].astype(np.float64), law.cdf).pvalue > ALPHA


# -- edges -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters", "value"),
    [
        ("poisson", (0.0,), 0),
        ("binomial", (0, 0.5), 0),
        ("binomial", (2**60, 0.0), 0),
        ("binomial", (2**60, 1.0), 2**60),
        ("hypergeometric", (0, 0, 0), 0),
        ("hypergeometric", (7, 0, 5), 5),
        ("hypergeometric", (0, 7, 5), 0),
        ("hypergeometric", (2**59, 2**59, 2**60), 2**59),
        ("negative_binomial", (3.0, 1.0), 0),
        ("logseries", (0.0,), 1),
        ("zipf", (1e6,), 1),
    ],
)
def test_certain_counts(name, parameters, value):
    assert (draw(name, "int64", parameters, 300) == value).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extreme_parameters_give_numbers(dtype):
    shapes = np.array([1e-30, 1e-3, 0.999, 1.0, 1e8, 1e30] * 50, dtype)
    for name in ("gamma", "beta", "f", "wald"):
        x = draw(name, dtype, (shapes, shapes[::-1].copy()), shapes.size)
        assert not np.isnan(x).any()
        assert (x >= 0).all()
    tiny = draw("beta", dtype, (1e-3, 1e-3), 2000)
    # Nearly a coin: both ends, nothing in between.
    assert 0.4 < np.mean(tiny > 0.5) < 0.6
    rows = draw("dirichlet", dtype, (np.full(4, 1e-3), 4), 400).reshape(-1, 4)
    assert np.abs(rows.sum(axis=1) - 1).max() < 1e-6
    assert np.abs(draw("vonmises", dtype, (shapes, shapes), shapes.size)).max() < 3.1416


def test_long_tails_stay_counts():
    assert (draw("zipf", "int64", (1.0001,), 2000) >= 1).all()
    assert (draw("logseries", "int64", (1 - 2.0**-53,), 2000) >= 1).all()
    assert (draw("poisson", "int64", (9.2e18,), 2000) > 9.19e18).all()
    assert (draw("negative_binomial", "int64", (5.0, 1e-17), 2000) > 0).all()


# -- which element is which --------------------------------------------------------------------

# One of a kind of kernel: two launches, one launch, vectors.
KINDS = [
    ("gamma", "float32", (0.5, 2.0)),
    ("poisson", "int64", (20.0,)),
    ("hypergeometric", "int64", (100, 200, 60)),
    ("multinomial", "int64", (100, np.array([0.2, 0.3, 0.5]), 3)),
]
every_kind = pytest.mark.parametrize(
    ("name", "dtype", "parameters"), KINDS, ids=[kind[0] for kind in KINDS]
)


@every_kind
def test_prefix_offset_and_ahead(name, dtype, parameters):
    whole = draw(name, dtype, parameters, 999)
    assert np.array_equal(draw(name, dtype, parameters, 600), whole[:600])
    assert np.array_equal(draw(name, dtype, parameters, 300, offset=4 * 600), whole[600:900])
    assert np.array_equal(draw(name, dtype, parameters, 300, skip_blocks=600), whole[600:900])
    assert not np.array_equal(draw(name, dtype, parameters, 999, seed=SEED + 1), whole)


@every_kind
@pytest.mark.parametrize(
    "region",
    [
        Region(90, (300,), (1,)),
        Region(30, (20, 12), (30, 1)),
        Region(9, (3, 5, 6), (300, 30, 1)),
        Region(0, (2, 3, 2, 6), (480, 150, 30, 1)),
    ],
    ids=["dense", "rows", "blocks", "four"],
)
def test_region_is_a_slice(name, dtype, parameters, region):
    whole = draw(name, dtype, parameters, 999)
    places = region.start + sum(
        np.arange(n).reshape([-1 if i == axis else 1 for i in range(len(region.shape))]) * step
        for axis, (n, step) in enumerate(zip(region.shape, region.strides, strict=True))
    )
    part = draw(name, dtype, parameters, math.prod(region.shape), region=region)
    assert np.array_equal(part, whole[places.reshape(-1)])


SCALARS = [
    *(("gamma", dtype, (shape, 2.0)) for dtype in ("float32", "float64") for shape in GAMMA_SHAPES),
    ("gamma", "float64", (1e-300, 1.0)),
    ("gamma", "float64", (1e290, 1.0)),
    ("chisquare", "float32", (0.5,)),
    ("chisquare", "float64", (3.0,)),
    ("beta", "float32", (0.5, 3.0)),
    ("beta", "float64", (2.0, 0.25)),
    ("beta", "float64", (0.01, 0.02)),
    ("beta", "float64", (7.0, 30.0)),
    *(("poisson", "int64", (mean,)) for mean in (3.0, 10.0, 25.0, 1e4, 1e15)),
    ("poisson", "uint8", (100.0,)),
    ("binomial", "int64", (10, 0.3)),
    *(("binomial", "int64", (100, chance)) for chance in (0.3, 0.5, 0.7)),
    ("binomial", "int64", (2**40, 0.9)),
]


@pytest.mark.parametrize(("name", "dtype", "parameters"), SCALARS)
def test_arrays_equal_scalars(name, dtype, parameters):
    # The kernel of arrays makes every trial itself, that of scalars makes a quick one first.
    n = 2**16 + 1
    kind = np.int64 if isinstance(parameters[0], int) else np.float64
    first = np.full(n, parameters[0], kind)
    expected = draw(name, dtype, (first, *parameters[1:]), n)
    for count in (1, 255, 256, 257, n):
        assert np.array_equal(draw(name, dtype, parameters, count), expected[:count])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_shape_of_a_gamma_passes_the_quick_test_as_the_whole_one(dtype):
    rng = np.random.default_rng(0)
    shapes = 10 ** rng.uniform(-3, 12 if dtype == "float32" else 30, 40)
    for shape in shapes.astype(dtype).astype(float):
        each = draw("gamma", dtype, (np.full(5000, shape), 1.0), 5000)
        assert np.array_equal(draw("gamma", dtype, (shape, 1.0), 5000), each), shape


def test_narrow_counts_are_the_wide_ones_converted():
    counts = draw("poisson", "int64", (250.0,), 500)
    few = np.minimum(counts, 255).astype(np.uint8)
    assert np.array_equal(draw("poisson", "uint8", (250.0,), 500), few)
    few = draw("poisson", "int64", (0.7,), 500)
    assert np.array_equal(draw("poisson", "bool", (0.7,), 500), few != 0)


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype", "parameters", "message"),
    [
        ("gamma", "float32", (-1.0, 1.0), "shape >= 0"),
        ("chisquare", "float32", (1e-60,), "df > 0 and finite, got 1e-60 as float32"),
        ("gamma", "float64", (np.array([1.0, np.nan]), 1.0), "shape >= 0"),
        ("gamma", "float64", (np.array([1.0, -0.0]), 1.0), "shape >= 0"),
        ("negative_binomial", "int64", (5.0, 1e-300), "fit int64"),
        ("poisson", "int64", (-1.0,), r"lam in \[0"),
        ("binomial", "int64", (-1, 0.5), r"n in \[0"),
        ("binomial", "int64", (1, 1.5), r"p in \[0, 1\]"),
        ("hypergeometric", "int64", (3, 4, 8), "nsample <= ngood"),
        ("logseries", "int64", (1.0,), r"p in \[0, 1\)"),
        ("zipf", "int64", (1.0,), "a > 1"),
        ("multinomial", "int64", (3, np.array([0.7, 0.7, 0.1]), 3), "sum"),
        ("multivariate_hypergeometric", "int64", (np.array([3, 4]), 8, 2), "nsample <= sum"),
        ("normal", "float32", (), "one of gamma"),
    ],
)
def test_refused_values(name, dtype, parameters, message):
    with pytest.raises(ValueError, match=message):
        sampler_fills(name, dtype, parameters, 6, None)


def test_refused_dtypes_and_cut_vectors():
    with pytest.raises(TypeError, match="expected a dtype of float32"):
        sampler_fills("gamma", "int32", (1.0, 1.0), 6, None)
    with pytest.raises(TypeError, match="n to be integers"):
        sampler_fills("binomial", "int64", (np.ones(6), 0.5), 6, None)
    region = Region(0, (2, 2), (3, 1))
    with pytest.raises(ValueError, match="whole vectors of 3"):
        sampler_fills("dirichlet", "float32", (np.ones(3), 3), 4, region)
