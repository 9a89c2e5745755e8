"""Our mathematical functions: compiled code equal to its source, accuracy, edges, IEEE PTX."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core import types
from scipy import special

from helpers.kernels import compile_ptx, launch
from kernels.test_ptx import assert_ieee
from nbrt_kernels._dialect import cuda
from nbrt_kernels.random import math as f
from nbrt_kernels.random._floats import polynomial

WIDE = np.longdouble
needs_extended = pytest.mark.skipif(
    np.finfo(WIDE).nmant < 63, reason="long double has no more bits than float64 here"
)
# Correctly rounded values, by mpmath 1.4.1 with 200 bits.
TABLES = {
    "ndtr_f64": {
        "-0x1.3333333333333p+5": "0x0.000000000000dp-1022",
        "-0x1.2c00000000000p+5": "0x1.08eda98086fd1p-1021",
        "-0x1.4400000000000p+4": "0x1.72807f4327171p-302",
        "-0x1.0000000000000p+3": "0x1.669d2c90d55cep-51",
        "-0x1.8cccccccccccdp+1": "0x1.fb4d81400e57cp-11",
        "-0x1.0000000000000p+0": "0x1.44ed0bb7cb20bp-3",
        "-0x1.0000000000000p-1": "0x1.3bf143b9aa712p-2",
        "-0x1.4f8b588e368f1p-17": "0x1.fffef4463cf4bp-2",
        "0x1.3333333333333p-2": "0x1.3c5ee2cc40b79p-1",
        "0x1.b333333333333p+0": "0x1.e92eb735d7870p-1",
        "0x1.6000000000000p+2": "0x1.ffffff5ce182bp-1",
    },
    "ndtri_f64": {
        "0x0.0000000000001p-1022": "-0x1.33bd3f27fcd03p+5",
        "0x1.56e1fc2f8f359p-997": "-0x1.286074064c26ep+5",
        "0x1.bff2ee48e0530p-333": "-0x1.546010d755221p+4",
        "0x1.07e1fe91b0b70p-36": "-0x1.a9616adc10a22p+2",
        "0x1.4f8b588e368f1p-17": "-0x1.10f3f8843a3d9p+2",
        "0x1.32ca57a786c22p-4": "-0x1.70b374817af52p+0",
        "0x1.339c0ebedfa44p-4": "-0x1.7056dc6686c9bp+0",
        "0x1.3333333333333p-2": "-0x1.0c7e39582c5fbp-1",
        "0x1.fffff94a03595p-2": "-0x1.0d25ac61904eep-22",
        "0x1.8000000000000p-1": "0x1.5956b87528a49p-1",
        "0x1.ff7ced916872bp-1": "0x1.8b8cbb7204470p+1",
    },
    "lgamma_f64": {
        "0x1.56e1fc2f8f359p-997": "0x1.5963447f87fb5p+9",
        "0x1.5798ee2308c3ap-27": "0x1.26bb1bb9c8a88p+4",
        "0x1.3333333333333p-2": "0x1.188637a6c4196p+0",
        "0x1.8000000000000p-1": "0x1.a051c372609eep-3",
        "0x1.000001ad7f29bp+0": "-0x1.efd30c8e518b9p-25",
        "0x1.75c28f5c28f5cp+0": "-0x1.f19a41a444903p-4",
        "0x1.fff972474538fp+0": "-0x1.62a151ce4a3dfp-15",
        "0x1.a666666666666p+1": "0x1.f964fc1bf8d41p-1",
        "0x1.ff5c28f5c28f6p+2": "0x1.10290e198803cp+3",
        "0x1.0000000000000p+3": "0x1.10ce1f32dcc30p+3",
        "0x1.9000000000000p+3": "0x1.2bbfe32d3aa7fp+4",
        "0x1.e848000000000p+19": "0x1.871921236750dp+23",
        "0x1.7e43c8800759cp+996": "0x1.017f38e7a1ab5p+1006",
    },
    "stirling_tail_f64": {
        "0x1.0000000000000p+0": "0x1.4c071bcda0a5bp-4",
        "0x1.8000000000000p+0": "0x1.c1098b28dcf33p-5",
        "0x1.0000000000000p+1": "0x1.52a9b923ea649p-5",
        "0x1.4000000000000p+2": "0x1.10b4e513fcbedp-6",
        "0x1.4000000000000p+3": "0x1.10f9d4c0743a7p-7",
        "0x1.2800000000000p+5": "0x1.2733349036687p-9",
        "0x1.f400000000000p+9": "0x1.5d867b7b562f1p-14",
    },
}
# Ulps that a table allows: figures of the module docstrings, rounded up.
TABLE_ULPS = {"ndtr_f64": 4, "ndtri_f64": 3, "lgamma_f64": 5, "stirling_tail_f64": 2}

ROWS = ("log", "log1p", "exp", "expm1", "tanpi", "acos", "ndtr", "ndtri")


def kernel_f32(out, x, y):
    i = cuda.grid(1)
    if i < x.shape[1]:
        out[0, i] = f.log_f32(x[0, i])
        out[1, i] = f.log1p_f32(x[1, i])
        out[2, i] = f.exp_f32(x[2, i])
        out[3, i] = f.expm1_f32(x[3, i])
        out[4, i] = f.tanpi_f32(x[4, i])
        out[5, i] = f.acos_f32(x[5, i])
        out[6, i] = f.ndtr_f32(x[6, i])
        out[7, i] = f.ndtri_f32(x[7, i])
        out[8, i] = f.power_f32(x[0, i], y[i])
        s, c = f.sincospi_f32(x[4, i])
        out[9, i] = s
        out[10, i] = c


def kernel_f64(out, x, y):
    i = cuda.grid(1)
    if i < x.shape[1]:
        out[0, i] = f.log_f64(x[0, i])
        out[1, i] = f.log1p_f64(x[1, i])
        out[2, i] = f.exp_f64(x[2, i])
        out[3, i] = f.expm1_f64(x[3, i])
        out[4, i] = f.tanpi_f64(x[4, i])
        out[5, i] = f.acos_f64(x[5, i])
        out[6, i] = f.ndtr_f64(x[6, i])
        out[7, i] = f.ndtri_f64(x[7, i])
        out[8, i] = f.power_f64(x[0, i], y[i])
        s, c = f.sincospi_f64(x[4, i])
        out[9, i] = s
        out[10, i] = c
        out[11, i] = f.lgamma_f64(x[0, i])
        out[12, i] = f.stirling_tail_f64(x[0, i] + np.float64(1))


KERNELS = {"f32": (kernel_f32, np.float32, 11), "f64": (kernel_f64, np.float64, 13)}
every_kind = pytest.mark.parametrize("kind", KERNELS)


def magnitudes(rng, n: int, low: float, high: float) -> np.ndarray:
    return np.exp(rng.uniform(np.log(low), np.log(high), n))


def samples(name: str, n: int) -> np.ndarray:
    """Return float64 arguments of a function: uniform ones, and all magnitudes near its ends."""
    rng = np.random.default_rng(30)
    half, signs = n // 2, rng.choice([-1.0, 1.0], n - n // 2)
    small = magnitudes(rng, n - half, 1e-30, 0.49)
    flat, ends = {
        "log": (rng.uniform(0.4, 2.5, half), magnitudes(rng, n - half, 1e-38, 1e38)),
        "log1p": (rng.uniform(-0.99, 3.0, half), small * signs),
        "exp": (rng.uniform(-87, 88, half), small * signs),
        "expm1": (rng.uniform(-20, 88, half), small * signs),
        "tanpi": (rng.uniform(-0.5, 0.5, half), small * signs),
        "sincospi": (rng.uniform(-4.0, 4.0, half), small * signs),
        "acos": (rng.uniform(-1, 1, half), np.sqrt(1 - small) * signs),
        "ndtr": (rng.uniform(-13, 6, half), small * signs),
        "ndtri": (rng.uniform(0, 1, half), small),
    }[name]
    return np.concatenate([flat, ends])


def table(kind: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    real = KERNELS[kind][1]
    y = np.random.default_rng(31).uniform(-3, 3, n).astype(real)
    return np.array([samples(name, n) for name in ROWS]).astype(real), y


@every_kind
def test_code_equals_source(kind):
    kernel, real, rows = KERNELS[kind]
    x, y = table(kind, 10_000)
    out = np.zeros((rows, x.shape[1]), real)
    launch(kernel, (x.shape[1],), out, x, y)
    names = [f"{name}_{kind}" for name in ROWS]
    for row, name in enumerate(names):
        assert np.array_equal(out[row], f.array_reference(getattr(f, name))(x[row])), name
    assert np.array_equal(out[8], f.array_reference(getattr(f, f"power_{kind}"))(x[0], y))
    pair = f.array_reference(getattr(f, f"sincospi_{kind}"))(x[4])
    assert np.array_equal(out[9:11], pair)
    if kind == "f64":
        assert np.array_equal(out[11], f.array_reference(f.lgamma_f64)(x[0]))
        assert np.array_equal(out[12], f.array_reference(f.stirling_tail_f64)(x[0] + 1))


@every_kind
def test_ptx_is_ieee(kind):
    element = types.float32 if kind == "f32" else types.float64
    matrix, vector = types.Array(element, 2, "C"), types.Array(element, 1, "C")
    ptx = compile_ptx(KERNELS[kind][0], (matrix, matrix, vector), (8, 0))
    assert f"fma.rn.{kind}" in ptx
    assert_ieee(ptx)


def exact_tanpi(x):
    a, real = np.abs(x), x.dtype.type
    pi = exact_pi(real)
    upper = a > 0.25
    tangent = np.tan(pi * np.where(upper, 0.5 - a, a))
    return np.sign(x) * np.where(upper, 1 / tangent, tangent)


def exact_sincospi(x):
    quadrant = np.rint(2 * x)
    rest = exact_pi(x.dtype.type) * (x - quadrant / 2)
    s, c = np.sin(rest), np.cos(rest)
    index = quadrant.astype(np.int64) % 4
    return np.choose(index, [s, c, -s, -c]), np.choose(index, [c, -s, -c, s])


def exact_pi(real):
    return real(np.pi) + real(1.2246467991473532e-16)


def ulps_from_correct(result: np.ndarray, exact: np.ndarray) -> float:
    """Return the largest distance from the correctly rounded result, in its ulps."""
    correct = exact.astype(result.dtype)
    return float(np.max(np.abs(result - correct) / np.spacing(np.abs(correct))))


EXACT = {
    "log": np.log,
    "log1p": np.log1p,
    "exp": np.exp,
    "expm1": np.expm1,
    "tanpi": exact_tanpi,
    "acos": np.arccos,
}


@pytest.mark.parametrize(
    ("kind", "wide"), [("f32", np.float64), pytest.param("f64", WIDE, marks=needs_extended)]
)
def test_functions_are_within_one_ulp(kind, wide):
    real = KERNELS[kind][1]
    for name, exact in EXACT.items():
        x = samples(name, 100_000).astype(real)
        result = f.array_reference(getattr(f, f"{name}_{kind}"))(x)
        assert ulps_from_correct(result, exact(x.astype(wide))) <= 1, name
    x = samples("sincospi", 100_000).astype(real)
    pair = f.array_reference(getattr(f, f"sincospi_{kind}"))(x)
    for result, exact in zip(pair, exact_sincospi(x.astype(wide)), strict=True):
        assert ulps_from_correct(result, exact) <= 1


@pytest.mark.parametrize(
    ("kind", "wide"), [("f32", np.float64), pytest.param("f64", WIDE, marks=needs_extended)]
)
def test_powers_are_within_two_ulps(kind, wide):
    real = KERNELS[kind][1]
    rng = np.random.default_rng(32)
    x = np.concatenate([samples("log", 50_000), 1 + samples("log1p", 50_000) / 4]).astype(real)
    # Results of all magnitudes, also by large powers of bases near 1.
    reach = 80.0 / np.maximum(np.abs(np.log(x.astype(np.float64))), 1e-6)
    y = (rng.uniform(-1, 1, x.size) * reach).astype(real)
    result = f.array_reference(getattr(f, f"power_{kind}"))(x, y)
    assert ulps_from_correct(result, x.astype(wide) ** y.astype(wide)) <= 2


def test_float32_normals_are_within_four_and_three_ulps():
    x = samples("ndtr", 100_000).astype(np.float32)
    exact = special.ndtr(x.astype(np.float64))
    assert ulps_from_correct(f.array_reference(f.ndtr_f32)(x), exact) <= 4
    p = samples("ndtri", 100_000).astype(np.float32)
    exact = special.ndtri(p.astype(np.float64))
    assert ulps_from_correct(f.array_reference(f.ndtri_f32)(p), exact) <= 3


@pytest.mark.parametrize("name", TABLES)
def test_float64_tables(name):
    x, exact = (
        np.array([float.fromhex(v) for v in column])
        for column in zip(*TABLES[name].items(), strict=True)
    )
    result = f.array_reference(getattr(f, name))(x)
    assert ulps_from_correct(result, exact) <= TABLE_ULPS[name]


def test_float64_against_scipy():
    x = np.concatenate([samples("ndtr", 20_000), np.linspace(-37, 8, 20_000)])
    p = np.concatenate(
        [samples("ndtri", 20_000), magnitudes(np.random.default_rng(1), 999, 1e-300, 1)]
    )
    g = np.concatenate([np.linspace(0.01, 30, 20_000), samples("log", 20_000)])
    compare = np.testing.assert_allclose
    # SciPy itself is good to about 1e-13 in the far tail of ndtr.
    compare(f.array_reference(f.ndtr_f64)(x), special.ndtr(x), rtol=3e-13)
    compare(f.array_reference(f.ndtri_f64)(p), special.ndtri(p), rtol=1e-14, atol=1e-16)
    compare(f.array_reference(f.lgamma_f64)(g), special.gammaln(g), rtol=4e-15, atol=4e-16)
    stirling = special.gammaln(g) - ((g - 0.5) * np.log(g) - g + 0.5 * np.log(2 * np.pi))
    near = (g >= 1) & (g < 30)
    compare(f.array_reference(f.stirling_tail_f64)(g[near]), stirling[near], atol=1e-13)


@every_kind
def test_ends(kind):
    real = KERNELS[kind][1]
    inf, nan = np.inf, np.nan
    largest = np.finfo(real).max
    expected = {
        "log": {0: -inf, 1: 0, inf: inf, -1: nan, nan: nan},
        "log1p": {-1: -inf, -0.0: -0.0, inf: inf, -2: nan, nan: nan},
        "exp": {-inf: 0, 0: 1, inf: inf, largest: inf, -largest: 0, nan: nan},
        "expm1": {-inf: -1, -0.0: -0.0, inf: inf, nan: nan},
        "tanpi": {-0.5: -inf, -0.0: -0.0, 0.5: inf, nan: nan},
        "ndtr": {-inf: 0, -40: 0, 10: 1, inf: 1, nan: nan},
        "ndtri": {0: -inf, 0.5: 0, 1: inf, -1: nan, 2: nan, nan: nan},
        "acos": {-1: np.pi, 0: np.pi / 2, 1: 0, nan: nan},
    }
    for name, values in expected.items():
        result = f.array_reference(getattr(f, f"{name}_{kind}"))(np.array([*values], real))
        exact = np.array([*values.values()], real)
        assert np.array_equal(result, exact, equal_nan=True), name
        numbers = ~np.isnan(exact)
        assert np.array_equal(np.signbit(result[numbers]), np.signbit(exact[numbers])), name


@every_kind
def test_powers_at_the_ends_are_those_of_numpy(kind):
    real = KERNELS[kind][1]
    tiny, large = np.finfo(real).smallest_subnormal, np.finfo(real).max
    ends = np.array([0, tiny, 0.5, 1, 2, large, np.inf, np.nan], real)
    x, y = (grid.ravel() for grid in np.meshgrid(ends, np.concatenate([ends, -ends])))
    with np.errstate(all="ignore"):
        exact = np.power(x, y)
    result = f.array_reference(getattr(f, f"power_{kind}"))(x, y)
    # Zeros, infinities and NaN are to be equal, the powers between them to two ulps.
    np.testing.assert_allclose(result, exact, rtol=2 * np.finfo(real).eps)
    assert np.isnan(f.array_reference(getattr(f, f"power_{kind}"))(real(-1), real(2)))


@every_kind
def test_exp_underflows_gradually(kind):
    real = KERNELS[kind][1]
    ends = {"f32": (-103.9, -87.0), "f64": (-745.0, -708.0)}[kind]
    x = np.linspace(*ends, 5000).astype(real)
    exact = np.exp(x.astype(WIDE))
    assert np.all(exact.astype(real) < 2 * np.finfo(real).tiny)
    assert ulps_from_correct(f.array_reference(getattr(f, f"exp_{kind}"))(x), exact) <= 1


@every_kind
def test_subnormal_arguments(kind):
    real = KERNELS[kind][1]
    x = np.finfo(real).smallest_subnormal * np.array([1, 2, 3, 1000, 12345], real)
    for name in ("log1p", "expm1"):
        assert np.array_equal(f.array_reference(getattr(f, f"{name}_{kind}"))(x), x)
    log = f.array_reference(getattr(f, f"log_{kind}"))(x)
    assert ulps_from_correct(log, np.log(x.astype(WIDE))) <= 1


@every_kind
def test_ndtri_is_odd_and_rises(kind):
    real = KERNELS[kind][1]
    ndtri = f.array_reference(getattr(f, f"ndtri_{kind}"))
    p = (np.arange(1, 2048) / 4096).astype(real)
    assert np.array_equal(ndtri(1 - p), -ndtri(p))
    # Across both joints, 0.075 and exp(-25), to within the rounding of two values.
    for joint in (0.075, np.exp(-25.0)):
        bits = real(joint).view(f"i{real().itemsize}") + np.arange(-500, 500)
        x = ndtri(bits.astype(f"i{real().itemsize}").view(real))
        assert np.all(np.diff(x) >= -3 * np.spacing(np.abs(x[1:])))


def test_polynomial_is_horner():
    for count in (2, 3, 5, 6, 9, 12):
        whole = np.arange(1, count + 1, dtype=np.float64)
        value = f.array_reference(polynomial(whole))(np.array([2.0, -1.0]))
        assert value.tolist() == np.polyval(whole[::-1], [2.0, -1.0]).tolist()
