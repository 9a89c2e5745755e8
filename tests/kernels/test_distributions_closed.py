"""Distributions in closed form: each word's exact value, statistics, dtypes, parameters.

ALPHA is the probability that one right distribution fails one test of statistics; the words are
those of a fixed seed, so every test has one outcome.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from scipy import stats

from helpers.kernels import launch, memory_dtype
from nbrt_kernels._dialect import cuda
from nbrt_kernels.random.distributions import spec_of
from nbrt_kernels.random.fills import fill, fill_threads
from nbrt_kernels.random.parameters import each_integer_parameters, uniform_parameters
from nbrt_kernels.random.reference import bits_reference

ALPHA = 1e-4
SEED = 20260921
STREAM = 200_000
WIDE = np.longdouble
PI = WIDE(np.pi) + WIDE(1.2246467991473532e-16)
needs_extended = pytest.mark.skipif(
    np.finfo(WIDE).nmant < 63, reason="long double has no more bits than float64 here"
)
PARAMETERS = {
    "uniform": (-1.0, 2.0),
    "normal": (0.5, 2.0),
    "log_normal": (-0.25, 0.5),
    "exponential": (2.0,),
    "rayleigh": (0.5,),
    "cauchy": (0.0, 1.0),
    "laplace": (0.0, 1.0),
    "logistic": (0.0, 1.0),
    "gumbel": (0.0, 1.0),
    "weibull": (1.75,),
    "pareto": (2.5,),
    "power": (3.0,),
    "triangular": (-1.0, 0.25, 2.0),
    "truncated_normal": (0.5, 2.0, 1.0, 4.0),
    "geometric": (0.125,),
    "bernoulli": (0.25,),
    "bits": (),
}


def draw(distribution, dtype, n, parameters=None, offset=0):
    """Draw with a fill kernel, as a backend does."""
    made = spec_of(distribution, dtype)
    given = PARAMETERS[distribution] if parameters is None else parameters
    abc = made.parameters(given, dtype)
    arrays = sum(np.ndim(value) > 0 for value in abc)
    kernel = fill(made.standard, made.finish, pairs=made.pairs, wide=made.wide, arrays=arrays)
    out = np.zeros(n, memory_dtype(dtype))
    state = np.uint64(SEED), np.uint64(offset)
    threads = fill_threads(n, wide=made.wide)
    launch(kernel, (threads,), out, state, np.uint64(0), *abc, block=(1,))
    return out.view(ml_dtypes.bfloat16) if dtype == "bfloat16" else out


def of_words(distribution, dtype, words):
    """Return what each word becomes."""
    made = spec_of(distribution, dtype)
    standard, finish = made.standard, made.finish

    def kernel(out, words, a, b, c):
        i = cuda.grid(1)
        if i < out.shape[0]:
            x = words[i] if standard is None else standard(words[i])
            out[i] = finish(x, a, b, c)

    out = np.zeros(words.size, dtype)
    launch(kernel, (words.size,), out, words, *made.parameters(PARAMETERS[distribution], dtype))
    return out


# -- exact values ----------------------------------------------------------------------------------


def sample_words(bits):
    """Words of every magnitude from both ends and from the middle, and a stream's."""
    word = f"uint{bits}"
    shifts = np.arange(20_000, dtype=word) % bits
    small = bits_reference(20_000, SEED, 0, word) >> shifts.astype(word)
    edges = np.array([0, 1, 2**bits - 1, 2 ** (bits - 1) - 1, 2 ** (bits - 1)], word)
    edges = np.concatenate([edges, edges[-1:] >> 1, (edges[-1:] >> 1) - edges.dtype.type(1)])
    middle = small >> edges.dtype.type(1)
    half = edges.dtype.type(2 ** (bits - 1))
    stream = bits_reference(STREAM, SEED, 400_000, word)
    return np.concatenate([edges, small, ~small, half + middle, half - middle, stream])


def exact_exponential(words, bits):
    rest = (~words).astype(WIDE) / WIDE(2) ** bits
    u = (words.astype(WIDE) + 1) / WIDE(2) ** bits
    return np.where(rest < 0.5, -np.log1p(-rest), -np.log(u))


def folded(words, bits):
    """Return which words are in the lower half, and how many are between them and the end."""
    below = words < 2 ** (bits - 1)
    return below, np.where(below, words, ~words)


def exact_cauchy(words, bits):
    below, m = folded(words, bits)
    whole = WIDE(2) ** bits
    near = (m.astype(WIDE) + 0.5) / whole
    far = ((2 ** (bits - 1) - 1 - m).astype(WIDE) + 0.5) / whole
    magnitude = np.where(near < 0.25, 1 / np.tan(PI * near), np.tan(PI * far))
    return np.where(below, -magnitude, magnitude)


def exact_laplace(words, bits):
    below, _ = folded(words, bits)
    e = exact_exponential((words << words.dtype.type(1)) | words.dtype.type(1), bits)
    return np.where(below, -e, e)


def exact_logistic(words, bits):
    below, m = folded(words, bits)
    excess = (~(m << m.dtype.type(1))).astype(WIDE)
    magnitude = np.log1p(excess / (m.astype(WIDE) + 1))
    return np.where(below, -magnitude, magnitude)


def exact_gumbel(words, bits):
    e = exact_exponential(words, bits)
    return -np.log(np.where(e == 0, WIDE(2) ** -(bits + 1), e))


def exact_triangular(words, bits):
    left, mode, right = map(WIDE, PARAMETERS["triangular"])
    u, above = ((w.astype(WIDE) + 0.5) / WIDE(2) ** bits for w in (words, ~words))
    rise = (mode - left) / (right - left)
    up = left + (right - left) * np.sqrt(u * rise)
    return np.where(u <= rise, up, right - (right - left) * np.sqrt(above * (1 - rise)))


EXACT = {
    "exponential": lambda w, bits: 2 * exact_exponential(w, bits),
    "rayleigh": lambda w, bits: np.sqrt(2 * exact_exponential(w, bits)) / 2,
    "cauchy": exact_cauchy,
    "laplace": exact_laplace,
    "logistic": exact_logistic,
    "gumbel": exact_gumbel,
    "weibull": lambda w, bits: exact_exponential(w, bits) ** (1 / WIDE(1.75)),
    "pareto": lambda w, bits: np.expm1(exact_exponential(w, bits) / WIDE(2.5)),
    "power": lambda w, bits: np.exp(-exact_exponential(w, bits) / 3),
    "triangular": exact_triangular,
}
# Largest distance from the correctly rounded value, in ulps. The parameter of the last three acts
# on the logarithm, where a rounding counts as often as the logarithm is large.
ULPS = {
    "float32": {"weibull": 8, "pareto": 12, "power": 12},
    "float64": {"weibull": 16, "pareto": 24, "power": 24},
}
SCIPY = {
    "uniform": stats.uniform(-1, 3),
    "log_normal": stats.lognorm(0.5, scale=np.exp(-0.25)),
    "exponential": stats.expon(scale=2),
    "rayleigh": stats.rayleigh(scale=0.5),
    "cauchy": stats.cauchy,
    "laplace": stats.laplace,
    "logistic": stats.logistic,
    "gumbel": stats.gumbel_r,
    "weibull": stats.weibull_min(1.75),
    "pareto": stats.lomax(2.5),
    "power": stats.powerlaw(3),
    "triangular": stats.triang(1.25 / 3, loc=-1, scale=3),
    "truncated_normal": stats.truncnorm(0.25, 1.75, loc=0.5, scale=2),
}
FLOATS = pytest.mark.parametrize("dtype", ["float32", "float64"])


@needs_extended
@FLOATS
@pytest.mark.parametrize("distribution", EXACT)
def test_every_word_becomes_its_quantile(distribution, dtype):
    bits = 8 * np.dtype(dtype).itemsize
    words = sample_words(bits)
    values = of_words(distribution, dtype, words)
    assert np.isfinite(values).all()
    exact = EXACT[distribution](words, bits).astype(dtype)
    unit = np.spacing(np.abs(exact))
    if distribution == "gumbel":
        # At its zero, where the exponential is 1, the ulp that counts is that one's.
        unit = np.maximum(unit, np.finfo(dtype).eps)
    if distribution == "triangular":
        unit = np.maximum(unit, np.spacing(np.dtype(dtype).type(2)))
    assert np.max(np.abs(values - exact) / unit) <= ULPS[dtype].get(distribution, 2)
    # The formulas above are the library's own; this is not.
    stream = values[-STREAM:].astype(np.float64)
    assert stats.kstest(stream, SCIPY[distribution].cdf).pvalue > ALPHA


# -- statistics ------------------------------------------------------------------------------------


@FLOATS
@pytest.mark.parametrize("distribution", ["uniform", "log_normal", "truncated_normal"])
def test_draw_has_the_distribution(distribution, dtype):
    values = draw(distribution, dtype, STREAM)
    assert stats.kstest(values.astype(np.float64), SCIPY[distribution].cdf).pvalue > ALPHA
    assert np.array_equal(values[:1001], draw(distribution, dtype, 1001))


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        ("float32", -9.0, 9.0),
        ("float32", 5.0, 7.0),
        ("float32", -20.0, -11.0),
        ("float64", 36.0, 40.0),
        ("float64", -0.5, 1e-3),
    ],
)
def test_truncated_normal_keeps_its_shape_in_the_tails(dtype, low, high):
    values = draw("truncated_normal", dtype, STREAM, (0.0, 1.0, low, high)).astype(np.float64)
    assert ((values >= low) & (values <= high)).all()
    cdf = stats.truncnorm(low, high).cdf
    assert stats.kstest(values, cdf).pvalue > ALPHA


def test_geometric_has_the_distribution():
    values = draw("geometric", "int32", STREAM)
    counts = np.bincount(np.minimum(values, 60), minlength=61)[1:]
    chances = stats.geom.pmf(np.arange(1, 61), 0.125)
    chances[-1] = stats.geom.sf(59, 0.125)
    assert stats.chisquare(counts, STREAM * chances).pvalue > ALPHA


def test_geometric_has_no_failures_when_it_is_certain_and_saturates_when_it_is_not():
    assert (draw("geometric", "int32", 1000, (1.0,)) == 1).all()
    values = draw("geometric", "int32", 1000, (1e-10,))
    assert values.min() > 1
    assert values.max() == 2**31 - 128  # the largest float32 that an int32 holds
    narrow = draw("geometric", "uint8", 1000, (1e-3,))
    wide = draw("geometric", "int32", 1000, (1e-3,))
    assert np.array_equal(narrow, np.minimum(wide, 255))


@needs_extended
def test_geometric_of_64_bits_counts_exactly():
    p = 1e-6
    words = bits_reference(100_000, SEED, 0, np.uint64)
    exact = exact_exponential(words, 64) / -np.log1p(-WIDE(p))
    # Where the quotient is not next to an integer, which rounding may cross.
    clear = np.abs(exact - np.rint(exact)) > 1e-6
    values = draw("geometric", "int64", words.size, (p,))
    assert np.array_equal(values[clear], np.ceil(exact[clear]))
    assert np.array_equal(values, draw("geometric", "float64", words.size, (p,)))


@pytest.mark.parametrize("dtype", ["bool", "int64", "float32", "bfloat16"])
def test_bernoulli_keeps_the_words_below_p(dtype):
    words = bits_reference(1003, SEED, 8)
    for p in (0.0, 2.0**-32, 0.25, 0.7, 1.0):
        kept = draw("bernoulli", dtype, words.size, (p,), offset=8)
        assert np.array_equal(kept, words < np.rint(p * 2.0**32))


def test_bits_are_the_words():
    assert np.array_equal(draw("bits", "uint32", 1003), bits_reference(1003, SEED, 0))


# -- dtypes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats_are_rounded_from_float32(dtype):
    narrow = np.dtype(getattr(ml_dtypes, dtype, dtype))
    values = draw("normal", dtype, 100_000)
    assert np.array_equal(values, draw("normal", "float32", 100_000).astype(narrow))
    # Infinities and subnormals are rounded as well.
    wide = draw("normal", "float32", 1000, (0.0, 1e5))
    with np.errstate(over="ignore"):
        assert np.array_equal(draw("normal", dtype, 1000, (0.0, 1e5)), wide.astype(narrow))


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_short_uniforms_keep_out_of_the_upper_bound(dtype, bits):
    top = bits_reference(100_000, SEED, 0) >> np.uint32(32 - bits)
    values = draw("uniform", dtype, top.size, (0.0, 1.0)).astype(np.float64)
    assert np.array_equal(values, top * 2.0**-bits)
    # Rounding gives the upper bound most of the time, and sometimes zero.
    for low, high in ((1.0, 1.0 + 2.0 ** (2 - bits)), (-(2.0**-14), 0.0)):
        some = draw("uniform", dtype, 1000, (low, high)).astype(np.float64)
        assert some.min() >= low
        assert some.max() < high
    assert (draw("uniform", dtype, 100, (3.0, 3.0)) == 3).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("low", "high"), [(-1.0, 0.1), (-1.0, 0.0), (-3.0, -2.0), (0.0, 1e-4)])
def test_the_largest_uniform_is_next_to_the_upper_bound(dtype, low, high):
    narrow = np.dtype(getattr(ml_dtypes, dtype, dtype)).type
    _, _, top = uniform_parameters(low, high, dtype)
    assert type(top) is (np.float64 if dtype == "float64" else np.float32)
    assert narrow(top) == top
    assert narrow(top) == np.nextafter(narrow(high), narrow(-np.inf))


# -- parameters ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distribution", "dtype"),
    [
        ("normal", "float32"),
        ("truncated_normal", "float32"),
        ("uniform", "float16"),
        ("geometric", "int32"),
        ("bernoulli", "bool"),
    ],
)
def test_arrays_of_parameters_equal_scalars(distribution, dtype):
    n, given = 700, PARAMETERS[distribution]
    first = np.where(np.arange(n) % 2 == 0, given[0], given[0] / 2)
    values = draw(distribution, dtype, n, (first, *given[1:]))
    assert np.array_equal(values[::2], draw(distribution, dtype, n)[::2])
    other = draw(distribution, dtype, n, (given[0] / 2, *given[1:]))
    assert np.array_equal(values[1::2], other[1::2])


@pytest.mark.parametrize(
    ("distribution", "parameters", "message"),
    [
        ("uniform", (1.0, 0.0), "uniform: expected finite low <= high"),
        ("uniform", (-3e38, 3e38), "a finite high - low in float32"),
        ("normal", (0.0, -1.0), r"normal: expected finite scale >= 0, got loc=0.0 and scale=-1.0"),
        ("normal", (np.nan, 1.0), "expected finite loc"),
        ("gumbel", (0.0, np.array([1.0, -2.0])), r"got loc=0.0 and scale in \[-2.0, 1.0\]"),
        ("exponential", (1e39,), "expected finite scale"),
        ("weibull", (-1.0,), "expected finite a >= 0, got a=-1.0"),
        ("triangular", (0.0, 2.0, 1.0), "left <= mode <= right"),
        ("triangular", (1.0, 1.0, 1.0), "left < right"),
        ("truncated_normal", (0.0, 1.0, 1.0, 1.0), "low < high"),
        ("truncated_normal", (0.0, 1.0, 13.0, 14.0), "within 12.0 standard deviations of loc"),
        ("geometric", (0.0,), r"geometric: expected p in \(0, 1\]"),
        ("bernoulli", (1.5,), r"bernoulli: expected p in \[0, 1\]"),
        ("bernoulli", (np.nan,), r"expected p in \[0, 1\]"),
        ("normal", (np.zeros(3), np.ones(4)), r"one length, got shapes \(3,\), \(4,\)"),
        ("normal", (np.zeros((2, 2)), 1.0), "expected parameters as 1-D arrays"),
    ],
)
def test_impossible_parameters_are_refused(distribution, parameters, message):
    with pytest.raises(ValueError, match=message):
        spec_of(distribution, "float32").parameters(parameters, "float32")


@pytest.mark.parametrize(
    ("distribution", "dtype", "error", "message"),
    [
        ("gamma", "float32", ValueError, "expected one of uniform, .*got 'gamma'"),
        ("normal", "int32", TypeError, "normal: expected a dtype of float16, .*got int32"),
        ("geometric", "bool", TypeError, "geometric: expected a dtype of int8"),
        ("bits", "uint8", TypeError, "bits: expected a dtype of uint32, uint64, got uint8"),
    ],
)
def test_unknown_draws_are_refused(distribution, dtype, error, message):
    with pytest.raises(error, match=message):
        spec_of(distribution, dtype)


def test_equal_requests_give_the_same_functions():
    assert spec_of("cauchy", "float32") is spec_of("cauchy", "float32")
    assert spec_of("normal", "float32").finish is spec_of("gumbel", "float32").finish


@pytest.mark.parametrize(("dtype", "bits"), [("int16", 32), ("int64", 64)])
def test_each_range_of_integers_has_its_threshold(dtype, bits):
    spans = [1, 3, 1000, 2**31 + 1, 2**32] + [2**63 + 1, 2**64 - 1] * (bits == 64)
    low, span, threshold = each_integer_parameters(
        np.zeros(len(spans), np.uint64), np.array(spans, np.uint64), dtype
    )
    assert low.dtype == span.dtype == threshold.dtype == np.uint64
    assert threshold.tolist() == [2**bits % k for k in spans]


def test_a_range_of_all_64_bits_rejects_nothing():
    whole = np.zeros(1, np.uint64)
    assert each_integer_parameters(whole, whole, "uint64")[2].tolist() == [0]
    with pytest.raises(ValueError, match=r"expected spans in \[1, 2\*\*32\] for int32"):
        each_integer_parameters(whole, whole, "int32")
