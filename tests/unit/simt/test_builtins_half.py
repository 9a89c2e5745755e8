"""float16 on the CPU: all of its values, against NumPy's, bit for bit."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import fp16

from nbrt.backends.cpu.launch import CpuProgram

ALL = np.arange(2**16, dtype=np.uint16).view(np.float16)
FINITE = ALL[np.isfinite(ALL)]
SOME = np.concatenate([
    np.random.default_rng(3).choice(ALL, 6_000),
    np.array([0, -0.0, np.inf, -np.inf, np.nan, 65504, -65504, 6e-8, -6e-8, 1, -1], np.float16),
])  # fmt: skip
OTHER = np.roll(SOME, 1321)
THIRD = np.roll(SOME, 234)


def run(kernel: Any, *arguments: Any) -> None:
    threads = 128
    blocks = -(-arguments[0].shape[0] // threads)
    CpuProgram(kernel, cache=False).plan(0, (blocks, 1, 1), (threads, 1, 1))(*arguments)


def rows(expressions: list[str], *inputs: Any, result: Any = np.float16) -> Any:
    """Compute expressions of ``a``, ``b``, ... for every element of the inputs, in one kernel."""
    names = "abcdefgh"[: len(inputs)]
    source = "\n".join([
        f"def kernel(out, {', '.join(f'{name}_' for name in names)}):",
        "    i = cuda.grid(1)",
        "    if i < out.shape[0]:",
        *(f"        {name} = {name}_[i]" for name in names),
        *(f"        out[i, {row}] = {code}" for row, code in enumerate(expressions)),
    ])  # fmt: skip
    scope: dict[str, Any] = {"cuda": cuda, "fp16": fp16, "np": np, "math": math}
    exec(source, scope)
    out = np.zeros((len(inputs[0]), len(expressions)), result)
    run(scope["kernel"], out, *inputs)
    return np.ascontiguousarray(out.T)


def over(expression: str, *inputs: Any, result: Any = np.float16) -> Any:
    """Compute one expression."""
    return rows([expression], *inputs, result=result)[0]


def padded(*inputs: Any) -> list[Any]:
    """Bring arrays to one length by repeating them."""
    length = max(map(len, inputs))
    return [np.resize(each, length) for each in inputs]


def assert_same(got: Any, expected: Any) -> None:
    """Compare bits; one NaN is as good as another."""
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    both = ~np.isnan(got)
    np.testing.assert_array_equal(got[both].view(np.uint16), expected[both].view(np.uint16))


def quiet(function: Any) -> Any:
    with np.errstate(all="ignore"):
        return function()


def test_arithmetic() -> None:
    codes = [f"a {sign} b" for sign in "+-*/"]
    for code, got in zip(codes, rows(codes, SOME, OTHER), strict=True):
        assert_same(got, quiet(lambda code=code: eval(code, {"a": SOME, "b": OTHER})))


def test_comparisons() -> None:
    codes = [f"a {sign} b" for sign in ("==", "!=", "<", "<=", ">", ">=")]
    for code, got in zip(codes, rows(codes, SOME, OTHER, result=np.bool_), strict=True):
        np.testing.assert_array_equal(got, eval(code, {"a": SOME, "b": OTHER}), err_msg=code)


def test_signs_and_truth() -> None:
    negative, positive, absolute = rows(["-a", "+a", "abs(a)"], ALL)
    assert_same(negative, -ALL)
    assert_same(positive, ALL)
    assert_same(absolute, np.abs(ALL))
    np.testing.assert_array_equal(over("1 if a else 0", ALL, result=np.int8), ALL != 0)


def test_a_type_that_fits_becomes_float16_and_others_do_not() -> None:
    small = np.arange(len(SOME)).astype(np.int8)
    total, same = rows(["a + b", "a * True"], SOME, small)
    assert_same(total, quiet(lambda: SOME + small.astype(np.float16)))
    assert_same(same, SOME)
    wide = over("a + np.float32(0.1)", FINITE, result=np.float64)
    np.testing.assert_array_equal(wide, FINITE.astype(np.float32) + np.float32(0.1))


def test_casts_to_and_from_floats() -> None:
    assert_same(over("np.float64(a)", ALL), ALL)
    rng = np.random.default_rng(5)
    doubles = np.concatenate([
        (FINITE.astype(np.float64) + np.roll(FINITE, 1)) / 2,  # ties between neighbours
        FINITE.astype(np.float64) * (1 + 2.0**-40),
        np.nextafter((FINITE.astype(np.float64) + np.roll(FINITE, 1)) / 2, 0),
        rng.standard_normal(1000) * 1e5, rng.standard_normal(1000) * 1e-7,
        [65519.99999999999, 65520.0, 1e300, -1e300, 5e-324, 2.0**-25, 2.0**-25 * (1 + 2**-50)],
        [np.inf, -np.inf, np.nan],
    ])  # fmt: skip
    singles = quiet(lambda: doubles.astype(np.float32))
    for got, given in zip(rows(["a", "b"], doubles, singles), (doubles, singles), strict=True):
        assert_same(got, quiet(lambda given=given: given.astype(np.float16)))


def test_casts_from_integers() -> None:
    inputs = []
    for dtype in (np.int8, np.uint16, np.int32, np.uint32, np.int64, np.uint64):
        info = np.iinfo(dtype)
        values = np.clip(np.arange(-70_000, 70_000, 17), info.min, info.max).astype(dtype)
        inputs.append(np.append(np.unique(values), np.array([info.min, info.max], dtype)))
    inputs = padded(*inputs)
    for got, values in zip(rows(list("abcdef"), *inputs), inputs, strict=True):
        assert_same(got, quiet(lambda values=values: values.astype(np.float16)))


def test_casts_to_integers_round_and_stop_at_the_ends() -> None:
    def kernel(i16: Any, i32: Any, i64: Any, u8: Any, u32: Any, values: Any) -> None:
        i = cuda.grid(1)
        if i < values.size:
            i16[i] = i32[i] = i64[i] = u8[i] = u32[i] = values[i]

    dtypes = (np.int16, np.int32, np.int64, np.uint8, np.uint32)
    values = np.append(FINITE, np.array([np.inf, -np.inf, np.nan], np.float16))
    outs = [np.zeros(len(values), dtype) for dtype in dtypes]
    run(kernel, *outs, values)
    for out in outs:
        info = np.iinfo(out.dtype)
        expected = np.clip(np.rint(FINITE.astype(np.float64)), info.min, info.max)
        np.testing.assert_array_equal(out[:-3], expected.astype(out.dtype))
        assert out[-3:].tolist() == [info.max, info.min, 0]


def test_scalars_tuples_and_arrays_of_the_kernel() -> None:
    def kernel(out: Any, scale: Any, pair: Any) -> None:
        i = cuda.grid(1)
        kept = cuda.local.array(2, np.float16)
        kept[0], kept[1] = scale, pair[1]
        if i < out.size:
            out[i] = kept[0] * out[i] + kept[1]

    out = np.arange(10, dtype=np.float16)
    run(kernel, out, np.float16(0.3), (1, np.float16(0.7)))
    assert_same(out, np.arange(10, dtype=np.float16) * np.float16(0.3) + np.float16(0.7))


# -- cuda.fp16 -------------------------------------------------------------------------------


def test_arithmetic_by_name() -> None:
    ufuncs = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
    forms = ("h{}", "__h{}_rn", "__h{}_sat")
    codes = [f"fp16.{form.format(name)}(a, b)" for name in ufuncs for form in forms]
    *got, quotient = rows([*codes, "fp16.hdiv(a, b)"], SOME, OTHER)
    assert_same(quotient, quiet(lambda: SOME / OTHER))
    for place, ufunc in enumerate(ufuncs.values()):
        expected = quiet(lambda ufunc=ufunc: ufunc(SOME, OTHER))
        saturated = np.where(np.isnan(expected), 0, np.clip(expected, 0, 1)).astype(np.float16)
        plain, rounded, clipped = got[3 * place : 3 * place + 3]
        assert_same(plain, expected)
        assert_same(rounded, expected)
        np.testing.assert_array_equal(clipped, saturated)


def nearest(exact: Fraction) -> np.float16:
    """Round a rational number to float16, ties to even, by looking at the neighbours."""
    near = np.float16(float(exact))
    around = [near, np.nextafter(near, np.float16(-np.inf)), np.nextafter(near, np.float16(np.inf))]
    candidates = [value for value in around if np.isfinite(value)]
    return min(
        candidates,
        key=lambda value: (abs(Fraction(float(value)) - exact), value.view(np.uint16) & 1),
    )


def test_fused_multiply_add_rounds_once() -> None:
    rng = np.random.default_rng(9)
    a, b, c = (rng.choice(FINITE, 4000) for _ in range(3))
    exact = [
        Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        for x, y, z in zip(a, b, c, strict=True)
    ]
    fits = np.array([abs(value) < 65504 for value in exact])
    a, b, c, exact = a[fits], b[fits], c[fits], [v for v in exact if abs(v) < 65504]
    expected = np.array([nearest(value) for value in exact])
    # A tie but for one bit far below: rounding twice would give the even neighbour.
    tie = (1 + 2**-10, 1 - 2**-11, 2**-24)
    given = [np.append(x, np.float16(value)) for x, value in zip((a, b, c), tie, strict=True)]
    x, y, z = map(Fraction, tie)
    expected = np.append(expected, nearest(x * y + z))
    got, relu = rows(["fp16.hfma(a, b, c)", "fp16.__hfma_relu(a, b, c)"], *given)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(relu, np.maximum(expected, 0))


def test_comparisons_by_name() -> None:
    ufuncs = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
              "gt": np.greater, "ge": np.greater_equal}  # fmt: skip
    codes = [f"fp16.h{name}(a, b)" for name in ufuncs]
    codes += [f"fp16.__h{name}u(a, b)" for name in ufuncs]
    got = rows(codes, SOME, OTHER, result=np.bool_)
    nan = np.isnan(SOME) | np.isnan(OTHER)
    for ordered, unordered, (name, ufunc) in zip(got[:6], got[6:], ufuncs.items(), strict=True):
        expected = ufunc(SOME, OTHER)
        np.testing.assert_array_equal(ordered, expected & ~nan, err_msg=name)
        np.testing.assert_array_equal(unordered, expected | nan, err_msg=name)


def test_extremes() -> None:
    differs = (SOME != 0) | (OTHER != 0)
    zeros = np.array([0.0, -0.0], np.float16)
    a, b = np.append(SOME[differs], zeros), np.append(OTHER[differs], zeros[::-1])
    names = ("hmax", "hmin", "__hmax_nan", "__hmin_nan")
    got = rows([f"fp16.{name}(a, b)" for name in names], a, b)
    ufuncs = (np.fmax, np.fmin, np.maximum, np.minimum)
    for row, ufunc, name in zip(got, ufuncs, names, strict=True):
        assert_same(row[:-2], ufunc(a, b)[:-2])
        assert_same(row[-2:], zeros[[0, 0]] if "max" in name else zeros[[1, 1]])


def test_kinds_of_numbers() -> None:
    nan, infinite = rows(["fp16.__hisnan(a)", "fp16.__hisinf(a)"], ALL, result=np.int32)
    np.testing.assert_array_equal(nan, np.isnan(ALL))
    np.testing.assert_array_equal(infinite, np.where(np.isinf(ALL), np.sign(ALL), 0))


FUNCTIONS = {
    "neg": np.negative, "abs": np.abs, "ceil": np.ceil, "floor": np.floor, "rint": np.rint,
    "trunc": np.trunc, "sqrt": np.sqrt, "exp": np.exp, "exp2": np.exp2,
    "exp10": lambda x: 10.0**x, "log": np.log, "log2": np.log2, "log10": np.log10, "sin": np.sin,
    "cos": np.cos, "tanh": np.tanh, "tanh_approx": np.tanh, "rcp": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip


def test_functions() -> None:
    wide = ALL.astype(np.float64)
    got = rows([f"fp16.h{name}(a)" for name in FUNCTIONS], ALL)
    for row, function in zip(got, FUNCTIONS.values(), strict=True):
        assert_same(row, quiet(lambda function=function: function(wide).astype(np.float16)))


def test_functions_of_math_stay_in_float16() -> None:
    names = ["ceil", "floor", "trunc", "fabs", "sqrt", "exp", "sin", "log2", "tanh"]
    positive = FINITE[FINITE > 0]
    for name, got in zip(names, rows([f"math.{name}(a)" for name in names], positive), strict=True):
        function = getattr(np, name)
        expected = quiet(lambda function=function: function(positive.astype(np.float64)))
        np.testing.assert_allclose(got, quiet(lambda e=expected: e.astype(np.float16)), rtol=1e-3)


DIRECTIONS = {"rn": np.rint, "rd": np.floor, "ru": np.ceil, "rz": np.trunc}


def test_conversions_to_integers_round_in_the_direction_named() -> None:
    for name, dtype in {"short": np.int16, "uint": np.uint32, "ll": np.int64}.items():
        info = np.iinfo(dtype)
        codes = [f"fp16.__half2{name}_{rounding}(a)" for rounding in DIRECTIONS]
        got = rows(codes, FINITE, result=dtype)
        for row, whole in zip(got, DIRECTIONS.values(), strict=True):
            expected = np.clip(whole(FINITE.astype(np.float64)), info.min, info.max)
            np.testing.assert_array_equal(row, expected.astype(dtype))


def test_conversions_to_float16_round_in_the_direction_named() -> None:
    integers = np.arange(-70_000, 70_000, 7, dtype=np.int32)
    singles = np.random.default_rng(2).standard_normal(5000).astype(np.float32) * np.float32(100)
    singles = np.append(singles, np.array([1e-9, -1e-9, 0.0, 65505, -65505, 1e9], np.float32))
    inputs = padded(integers, singles)
    for name, argument, values in (("int", "a", inputs[0]), ("float", "b", inputs[1])):
        codes = [f"fp16.__{name}2half_{rounding}({argument})" for rounding in DIRECTIONS]
        for got, rounding in zip(rows(codes, *inputs), DIRECTIONS, strict=True):
            check_direction(got, values, rounding)


def check_direction(got: Any, values: Any, rounding: str) -> None:
    """Check that a result is the neighbour of the value on the right side, and the nearest one."""
    exact, back = values.astype(np.float64), got.astype(np.float64)
    if rounding == "rn":
        assert_same(got, quiet(lambda: exact.astype(np.float16)))
        return
    towards = {"rd": -np.inf, "ru": np.inf, "rz": 0}[rounding]
    away = np.where(exact >= 0, np.inf, -np.inf) if rounding == "rz" else -np.float64(towards)
    beyond = quiet(lambda: np.nextafter(got, np.asarray(away).astype(np.float16)))
    if rounding == "rz":
        assert (np.abs(back) <= np.abs(exact)).all()
        assert (np.abs(beyond.astype(np.float64)) > np.abs(exact)).all()
    else:
        side = -1 if rounding == "rd" else 1
        assert (side * back >= side * exact).all()
        assert (side * beyond.astype(np.float64) < side * exact)[np.isfinite(got)].all()


def test_bits() -> None:
    assert_same(over("fp16.__ushort_as_half(a)", ALL.view(np.uint16)), ALL)
    got = over("fp16.__half_as_short(a)", ALL, result=np.int16)
    np.testing.assert_array_equal(got, ALL.view(np.int16))
    got = over("fp16.__half2float(a)", ALL, result=np.float32)
    np.testing.assert_array_equal(got, ALL.astype(np.float32))
