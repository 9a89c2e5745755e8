"""``cuda.libdevice`` on the CPU: real functions against SciPy, bits against Python's integers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.special as sp
from numba import cuda
from numba.cuda import libdevice

from nbrt.backends.cpu.launch import CpuProgram

RNG = np.random.default_rng(8)
WIDE = np.concatenate([RNG.standard_normal(200) * 10, [0.0, -0.0, 0.5, 1.0, -2.0, 30.0]])
UNIT = np.concatenate([RNG.uniform(-1, 1, 200), [0.0, 1.0, -1.0, 1e-10, 1 - 1e-12]])
POSITIVE = np.concatenate([RNG.uniform(0, 30, 200), [1e-300, 1.0, 1e300]])
ABOVE_ONE = 1 + POSITIVE

REAL = {
    "acos": (np.arccos, UNIT), "acosh": (np.arccosh, ABOVE_ONE), "asin": (np.arcsin, UNIT),
    "asinh": (np.arcsinh, WIDE), "atan": (np.arctan, WIDE), "atanh": (np.arctanh, UNIT * 0.99),
    "cbrt": (np.cbrt, WIDE), "ceil": (np.ceil, WIDE), "cos": (np.cos, WIDE),
    "cosh": (np.cosh, WIDE), "erf": (sp.erf, WIDE), "erfc": (sp.erfc, WIDE[WIDE < 5]),
    "erfcinv": (sp.erfcinv, UNIT + 1), "erfcx": (sp.erfcx, np.abs(WIDE)),
    "erfinv": (sp.erfinv, UNIT), "exp": (np.exp, WIDE), "exp10": (sp.exp10, WIDE),
    "exp2": (np.exp2, WIDE), "expm1": (np.expm1, WIDE), "fabs": (np.abs, WIDE),
    "floor": (np.floor, WIDE), "j0": (sp.j0, POSITIVE[:200]), "j1": (sp.j1, POSITIVE[:200]),
    "lgamma": (sp.gammaln, POSITIVE[:201]), "log": (np.log, POSITIVE),
    "log10": (np.log10, POSITIVE), "log1p": (np.log1p, POSITIVE), "log2": (np.log2, POSITIVE),
    "nearbyint": (np.rint, WIDE), "normcdf": (sp.ndtr, WIDE[WIDE > -5]),
    "normcdfinv": (sp.ndtri, (UNIT + 1) / 2), "rcbrt": (lambda x: 1 / np.cbrt(x), POSITIVE),
    "rint": (np.rint, WIDE), "round": (lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5), WIDE),
    "rsqrt": (lambda x: 1 / np.sqrt(x), POSITIVE), "sin": (np.sin, WIDE),
    "sinh": (np.sinh, WIDE), "sqrt": (np.sqrt, POSITIVE), "tan": (np.tan, WIDE),
    "tanh": (np.tanh, WIDE), "tgamma": (sp.gamma, POSITIVE[:200]), "trunc": (np.trunc, WIDE),
    "y0": (sp.y0, POSITIVE[:200]), "y1": (sp.y1, POSITIVE[:200]),
    "logb": (lambda x: np.floor(np.log2(np.abs(x))), POSITIVE),
}  # fmt: skip
PAIRS = {
    "atan2": np.arctan2, "copysign": np.copysign, "fdim": lambda x, y: np.maximum(x - y, 0),
    "fmax": np.fmax, "fmin": np.fmin, "fmod": np.fmod, "hypot": np.hypot,
    "nextafter": np.nextafter, "remainder": np.vectorize(math.remainder),
    "pow": lambda x, y: np.power(np.abs(x), y),
}  # fmt: skip


def over(expressions: list[str], result: Any, **inputs: Any) -> Any:
    """Compute several expressions of the inputs' elements in one kernel; give one row for each."""
    names = list(inputs)
    lines = [f"        {name} = {name}_[i]" for name in names]
    lines += [f"        out[{row}, i] = {code}" for row, code in enumerate(expressions)]
    parameters = ", ".join(f"{name}_" for name in names)
    head = f"def kernel(out, {parameters}):\n    i = cuda.grid(1)\n    if i < out.shape[1]:\n"
    scope: dict[str, Any] = {"cuda": cuda, "libdevice": libdevice, "np": np}
    exec(head + "\n".join(lines), scope)
    count = len(inputs[names[0]])
    out = np.zeros((len(expressions), count), result)
    grid = (-(-count // 64), 1, 1)
    CpuProgram(scope["kernel"], cache=False).plan(0, grid, (64, 1, 1))(out, *inputs.values())
    return out


@pytest.mark.parametrize(("suffix", "dtype"), [("", np.float64), ("f", np.float32)])
def test_functions_of_one_real(suffix: str, dtype: Any) -> None:
    inputs = [np.resize(x[np.abs(x) < 1e30], 210).astype(dtype) for _, x in REAL.values()]
    calls = [f"libdevice.{name}{suffix}(x[{row}])" for row, name in enumerate(REAL)]
    got = over(calls, dtype, x=np.stack(inputs, axis=1))
    for row, x, (name, (function, _)) in zip(got, inputs, REAL.items(), strict=True):
        with np.errstate(all="ignore"):
            expected = function(x.astype(np.float64)).astype(dtype)
        # Near 1 a probability in float64 says little about its far quantile.
        close = 3e-9 if name in ("erfcinv", "normcdfinv") else 3e-13
        relative, absolute = (5e-6, 2e-6) if suffix else (close, 1e-13)
        np.testing.assert_allclose(row, expected, rtol=relative, atol=absolute, err_msg=name)


@pytest.mark.parametrize(("suffix", "dtype"), [("", np.float64), ("f", np.float32)])
def test_functions_of_two_reals(suffix: str, dtype: Any) -> None:
    x, y = WIDE[:200].astype(dtype), RNG.permutation(WIDE[:200]).astype(dtype)
    given = {"pow": "libdevice.fabs{0}(x), y"}
    calls = [
        f"libdevice.{name}{suffix}({given.get(name, 'x, y').format(suffix)})" for name in PAIRS
    ]
    got = over(calls, dtype, x=x, y=y)
    for row, (name, function) in zip(got, PAIRS.items(), strict=True):
        np.testing.assert_allclose(row, function(x, y), rtol=1e-5 if suffix else 1e-13,
                                   atol=1e-6 if suffix else 1e-14, err_msg=name)  # fmt: skip


def test_the_tails_of_the_inverse_error_functions() -> None:
    y = 10.0 ** -np.arange(1, 300, 7)
    got = over(["libdevice.erfcinv(y)", "libdevice.normcdfinv(y)"], np.float64, y=y)
    np.testing.assert_allclose(got[0], sp.erfcinv(y), rtol=1e-12)
    np.testing.assert_allclose(got[1], sp.ndtri(y), rtol=1e-12)
    edges = np.array([0.0, 1.0, 2.0, -1.0, 3.0, np.nan])
    got = over(["libdevice.erfcinv(y)", "libdevice.erfinv(y - 1)"], np.float64, y=edges)
    np.testing.assert_array_equal(got[0], [np.inf, 0, -np.inf, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(got[1], [-np.inf, 0, np.inf, np.nan, np.nan, np.nan])


def test_multiples_of_pi_are_exact_at_halves() -> None:
    x = np.arange(-8, 9) / 2
    got = over(
        ["libdevice.sinpi(x)", "libdevice.cospi(x)", "libdevice.sincospi(x)[1]"], np.float64, x=x
    )
    np.testing.assert_array_equal(np.abs(got[0]), [0, 1] * 8 + [0])
    np.testing.assert_array_equal(np.abs(got[1]), [1, 0] * 8 + [1])
    np.testing.assert_array_equal(got[2], got[1])
    x = RNG.uniform(-5, 5, 100)
    got = over(["libdevice.sinpi(x)", "libdevice.cospif(x)"], np.float64, x=x)
    np.testing.assert_allclose(got[0], np.sin(np.pi * x), atol=1e-14)
    np.testing.assert_allclose(got[1], np.cos(np.pi * x.astype(np.float32)), atol=3e-6)


def test_results_of_several_parts() -> None:
    x = np.array([3.75, -3.75, 0.1, -0.0, 1e18, np.inf])
    calls = ["frexp(x)[0]", "frexp(x)[1]", "modf(x)[0]", "modf(x)[1]", "sincos(x)[0]",
             "remquo(x, 0.7)[0]", "ldexp(x, 3)", "scalbn(x, -3)", "powi(x, 3)"]  # fmt: skip
    got = over([f"libdevice.{call}" for call in calls], np.float64, x=x)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(got[0][:5], np.frexp(x)[0][:5])
        np.testing.assert_array_equal(got[1][:5], np.frexp(x)[1][:5])
        np.testing.assert_array_equal(got[2], np.modf(x)[0])
        np.testing.assert_array_equal(got[3], np.modf(x)[1])
        np.testing.assert_allclose(got[4][:4], np.sin(x)[:4], rtol=1e-14)
        np.testing.assert_array_equal(got[5][:5], [math.remainder(v, 0.7) for v in x[:5]])
        np.testing.assert_array_equal(got[6], x * 8)
        np.testing.assert_array_equal(got[7], x / 8)
        np.testing.assert_allclose(got[8], x**3, rtol=1e-14)


def test_kinds_of_numbers() -> None:
    x = np.array([1.0, -1.0, 0.0, -0.0, np.inf, -np.inf, np.nan])
    names = ["isfinited", "isinfd", "isnand", "signbitd", "finitef", "isinff", "isnanf"]
    got = over([f"libdevice.{name}(x)" for name in names], np.int32, x=x)
    tests = [np.isfinite, np.isinf, np.isnan, np.signbit]
    for row, function in zip(got, [*tests, *tests[:3]], strict=True):
        np.testing.assert_array_equal(row, function(x))
    got = over(["libdevice.ilogb(x)", "libdevice.logb(x)"], np.float64, x=x)
    low, high = -(2**31), 2**31 - 1
    np.testing.assert_array_equal(got[0], [0, 0, low, low, high, high, low])
    np.testing.assert_array_equal(got[1], [0, 0, -np.inf, -np.inf, np.inf, np.inf, np.nan])


def test_fast_forms_and_saturation() -> None:
    x = POSITIVE[:200].astype(np.float32)
    got = over(["libdevice.fast_sinf(x)", "libdevice.sinf(x)", "libdevice.fast_fdividef(x, 3)",
                "libdevice.saturatef(x - 1)"], np.float32, x=x)  # fmt: skip
    np.testing.assert_array_equal(got[0], got[1])
    np.testing.assert_array_equal(got[2], x / np.float32(3))
    np.testing.assert_array_equal(got[3], np.clip(x - np.float32(1), 0, 1))
    nan = np.array([np.nan], np.float32)
    assert over(["libdevice.saturatef(x)"], np.float32, x=nan)[0, 0] == 0


# -- integers --------------------------------------------------------------------------------


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def integer_cases(bits: int) -> Any:
    info = np.iinfo(f"int{bits}")
    edges = np.array([0, 1, -1, 2, 255, info.min, info.max, info.min + 1], f"int{bits}")
    return np.concatenate([edges, RNG.integers(info.min, info.max, 40, f"int{bits}")])


def python_integers(bits: int) -> dict[str, Any]:
    mask = (1 << bits) - 1
    high, wide = ("", "") if bits == 32 else ("64", "ll")
    both = {
        f"mul{high}hi": lambda a, b: (a * b) >> bits,
        f"umul{high}hi": lambda a, b: ((a & mask) * (b & mask)) >> bits,
        f"{wide}max": max,
        f"{wide}min": min,
        f"u{wide}max": lambda a, b: max(a & mask, b & mask),
        f"u{wide}min": lambda a, b: min(a & mask, b & mask),
    }
    if bits == 32:
        both |= {
            "hadd": lambda a, b: (a + b) >> 1,
            "rhadd": lambda a, b: (a + b + 1) >> 1,
            "uhadd": lambda a, b: ((a & mask) + (b & mask)) >> 1,
            "urhadd": lambda a, b: ((a & mask) + (b & mask) + 1) >> 1,
            "mul24": lambda a, b: signed(a, 24) * signed(b, 24),
            "umul24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
        }
    return both


@pytest.mark.parametrize("bits", [32, 64])
def test_integers(bits: int) -> None:
    dtype = f"int{bits}"
    a = integer_cases(bits)
    b = RNG.permutation(a)
    both = python_integers(bits)
    got = over([f"libdevice.{name}(a, b)" for name in both], dtype, a=a, b=b)
    for row, (name, function) in zip(got, both.items(), strict=True):
        pairs = zip(a.tolist(), b.tolist(), strict=True)
        assert row.tolist() == [signed(function(x, y), bits) for x, y in pairs], name

    mask, suffix = (1 << bits) - 1, "" if bits == 32 else "ll"
    one = {
        f"{suffix}abs": abs,
        f"brev{suffix}": lambda x: int(f"{x & mask:0{bits}b}"[::-1], 2),
        f"clz{suffix}": lambda x: bits - (x & mask).bit_length(),
        f"popc{suffix}": lambda x: (x & mask).bit_count(),
        f"ffs{suffix}": lambda x: (x & -x).bit_length(),
    }
    got = over([f"libdevice.{name}(a)" for name in one], dtype, a=a)
    for row, (name, function) in zip(got, one.items(), strict=True):
        assert row.tolist() == [signed(function(x), bits) for x in a.tolist()], name


def test_bytes_and_sums_of_differences() -> None:
    a = integer_cases(32)
    b, c = RNG.permutation(a), RNG.permutation(a)
    names = ["byte_perm", "sad", "usad"]
    got = over([f"libdevice.{name}(a, b, c)" for name in names], np.int32, a=a, b=b, c=c)
    mask = 0xFFFFFFFF
    for k, (x, y, z) in enumerate(zip(a.tolist(), b.tolist(), c.tolist(), strict=True)):
        pool = (x & mask).to_bytes(4, "little") + (y & mask).to_bytes(4, "little")
        picked = bytes(pool[((z & mask) >> (4 * place)) & 7] for place in range(4))
        assert got[0, k] == int.from_bytes(picked, "little", signed=True)
        assert got[1, k] == signed(z + abs(x - y), 32)
        assert got[2, k] == signed(z + abs((x & mask) - (y & mask)), 32)


ROUNDINGS = {"rn": np.rint, "rd": np.floor, "ru": np.ceil, "rz": np.trunc}


@pytest.mark.parametrize("rounding", list(ROUNDINGS))
def test_conversions_to_integers_stop_at_the_ends(rounding: str) -> None:
    x = np.array([0.5, 1.5, -0.5, -1.5, 2.5, 1e4, -7.7, 1e30, -1e30, np.inf, np.nan])
    for name, kind, result in (("int", "int32", np.int32), ("uint", "uint32", np.int32),
                               ("ll", "int64", np.int64), ("ull", "uint64", np.int64)):  # fmt: skip
        info = np.iinfo(kind)
        calls = [f"libdevice.{real}2{name}_{rounding}(x)" for real in ("double", "float")]
        for row in over(calls, result, x=x):
            rounded = ROUNDINGS[rounding](x)
            expected = [
                0 if math.isnan(v) else max(info.min, min(info.max, int(np.clip(v, -1e29, 1e29))))
                for v in rounded
            ]
            assert row.view(kind).tolist() == expected


def test_bits_of_reals() -> None:
    x = np.concatenate([WIDE, [np.inf, 1e-310]])
    bits = x.view(np.int64)
    got = over(["libdevice.double2hiint(x)", "libdevice.double2loint(x)",
                "libdevice.double_as_longlong(x)"], np.int64, x=x)  # fmt: skip
    np.testing.assert_array_equal(got[0], bits >> 32)
    np.testing.assert_array_equal(got[1], bits.astype(np.int32))
    np.testing.assert_array_equal(got[2], bits)
    call = "libdevice.hiloint2double(libdevice.double2hiint(x), libdevice.double2loint(x))"
    np.testing.assert_array_equal(over([call], np.float64, x=x)[0], x)
    single = WIDE.astype(np.float32)
    got = over(["libdevice.float_as_int(x)", "libdevice.float2half_rn(x)"], np.int32, x=single)
    np.testing.assert_array_equal(got[0], single.view(np.int32))
    np.testing.assert_array_equal(got[1], single.astype(np.float16).view(np.int16))
    got = over(["libdevice.half2float(x)"], np.float32, x=single.astype(np.float16).view(np.int16))
    np.testing.assert_array_equal(got[0], single.astype(np.float16).astype(np.float32))
