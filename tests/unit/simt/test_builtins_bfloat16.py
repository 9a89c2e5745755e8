"""bfloat16 on the CPU: against ml_dtypes and exact arithmetic, bit for bit."""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, float64, types
from numba.cuda import bf16
from numba.cuda._internal import cuda_bf16
from numba.cuda.descriptor import cuda_target

import nbrt
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.cpu.simt.builtins import REPLACEMENTS
from nbrt.backends.cpu.simt.target import simt_target
from nbrt.backends.dialect import dialect_name
from nbrt.errors import UnsupportedConstructError

if TYPE_CHECKING:
    from collections.abc import Iterator

BFLOAT16: Any = ml_dtypes.bfloat16
ALL = np.arange(2**16, dtype=np.uint16).view(BFLOAT16)
RANDOM = np.random.default_rng(5)
SOME = np.concatenate([
    RANDOM.choice(ALL, 6_000),
    np.array([0, -0.0, np.inf, -np.inf, np.nan, 3.39e38, -3.39e38, 1e-40, 1, -1], BFLOAT16),
])  # fmt: skip
OTHER = np.roll(SOME, 1321)
THIRD = np.roll(SOME, 234)
MODES = ("rn", "rz", "rd", "ru")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Let NumPy compute with infinities and NaNs."""
    with np.errstate(all="ignore"):
        yield


def rows(expressions: list[str], *inputs: Any, result: Any = BFLOAT16) -> Any:
    """Compute expressions of ``a``, ``b``, ... for every element of the inputs, in one kernel."""
    names = "abcdefgh"[: len(inputs)]
    source = "\n".join([
        f"def kernel(out, {', '.join(f'{name}_' for name in names)}):",
        "    i = cuda.grid(1)",
        "    if i < out.shape[0]:",
        *(f"        {name} = {name}_[i]" for name in names),
        *(f"        out[i, {row}] = {code}" for row, code in enumerate(expressions)),
    ])  # fmt: skip
    raw = {f"raw{name}": value for name, value in vars(cuda_bf16).items() if name[0] == "_"}
    scope = {"cuda": cuda, "bf16": bf16, "math": math, "float32": float32, "types": types, **raw}
    exec(source, scope)
    out = np.zeros((len(inputs[0]), len(expressions)), result)
    blocks = -(-len(out) // 128)
    CpuProgram(scope["kernel"], cache=False).plan(0, (blocks, 1, 1), (128, 1, 1))(out, *inputs)
    return np.ascontiguousarray(out.T)


def over(expression: str, *inputs: Any, result: Any = BFLOAT16) -> Any:
    return rows([expression], *inputs, result=result)[0]


def assert_same(got: Any, expected: Any) -> None:
    """Compare bits; one NaN is as good as another."""
    expected = np.asarray(expected, got.dtype)
    nans = np.isnan(got.astype(np.float64))
    np.testing.assert_array_equal(nans, np.isnan(expected.astype(np.float64)))
    kept = ~nans
    np.testing.assert_array_equal(got[kept].view(np.uint16), expected[kept].view(np.uint16))


def rounded(value: Fraction | float, mode: str = "rn") -> Any:
    """Round an exact number to a bfloat16 by searching its neighbours."""
    if not isinstance(value, Fraction) and (value == 0 or not math.isfinite(value)):
        return BFLOAT16(value)
    exact = Fraction(value)
    bits = int(np.array(abs(float(exact)), np.float32).view(np.uint32)) >> 16
    sign, size = (-1 if exact < 0 else 1), abs(exact)
    if bits == 0x7F80 or Fraction(float(ALL[bits])) > size:
        bits -= 1
    low, high = float(ALL[bits]), float(ALL[bits + 1])
    if size == Fraction(low):
        return BFLOAT16(sign * low)
    if mode == "rn":
        step = Fraction(high) if math.isfinite(high) else Fraction(2) ** 128
        middle = (Fraction(low) + step) / 2
        up = size > middle or (size == middle and bits % 2 == 1)
    else:
        up = mode == ("ru" if sign > 0 else "rd")
    return BFLOAT16(sign * (high if up else low))


# -- arithmetic ----------------------------------------------------------------------------------


def test_operators_round_once() -> None:
    with np.errstate(all="ignore"):
        expected = [SOME + OTHER, SOME - OTHER, SOME * OTHER, SOME / OTHER, -SOME, SOME]
    got = rows(["a + b", "a - b", "a * b", "a / b", "-a", "+a"], SOME, OTHER)
    for one, other in zip(got, expected, strict=True):
        assert_same(one, other)


def test_functions_of_the_operators() -> None:
    names = ("hadd", "hsub", "hmul", "hdiv", "hadd_rn", "hsub_rn", "hmul_rn")
    got = rows([f"bf16.{name}(a, b)" for name in names], SOME, OTHER)
    with np.errstate(all="ignore"):
        results = [SOME + OTHER, SOME - OTHER, SOME * OTHER, SOME / OTHER]
    for one, other in zip(got, [*results, *results[:3]], strict=True):
        assert_same(one, other)
    assert_same(over("bf16.hneg(a)", SOME), -SOME)
    assert_same(over("bf16.habs(a)", SOME), np.abs(SOME))


def test_fma_rounds_once() -> None:
    finite = ALL[np.isfinite(ALL.astype(np.float32))]
    a, b = RANDOM.choice(finite, (2, 3_000))
    # Products near the middle between two values, and a third number that decides.
    close = RANDOM.choice(finite, 3_000)
    a[:1000] = (1 + RANDOM.integers(0, 128, 1000) / 128).astype(BFLOAT16)
    b[:1000] = (1 + RANDOM.integers(0, 128, 1000) / 128).astype(BFLOAT16)
    close[:1000] = (np.float32(2.0) ** RANDOM.integers(-120, 0, 1000)).astype(BFLOAT16)
    close[500:1000] *= BFLOAT16(-1)
    expected = np.array(
        [
            rounded(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
            for x, y, z in zip(a, b, close, strict=True)
        ],
        BFLOAT16,
    )
    got = over("bf16.hfma(a, b, c)", a, b, close)
    kept = expected != 0  # a Fraction has no negative zero
    assert_same(got[kept], expected[kept])
    assert (got[~kept] == 0).all()


def test_saturation_and_rectification() -> None:
    a, b, c = (each[:3000] for each in (SOME, OTHER, THIRD))
    for name, operation in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply)):
        with np.errstate(all="ignore"):
            plain = operation(a, b).astype(np.float32)
        expected = np.where(np.isnan(plain), 0, np.clip(plain, 0, 1))
        np.testing.assert_array_equal(
            over(f"bf16.h{name}_sat(a, b)", a, b).astype(np.float32), expected
        )
    fused = over("bf16.hfma(a, b, c)", a, b, c).astype(np.float32)
    limited, positive = rows(["bf16.hfma_sat(a, b, c)", "bf16.hfma_relu(a, b, c)"], a, b, c)
    np.testing.assert_array_equal(
        limited.astype(np.float32), np.where(np.isnan(fused), 0, np.clip(fused, 0, 1))
    )
    np.testing.assert_array_equal(positive.astype(np.float32), np.where(fused <= 0, 0, fused))


def test_extremes_and_zeros_and_nans() -> None:
    got = rows([f"bf16.{n}(a, b)" for n in ("hmax", "hmin", "hmax_nan", "hmin_nan")], SOME, OTHER)
    a, b = SOME.astype(np.float32), OTHER.astype(np.float32)
    expected = [np.fmax(a, b), np.fmin(a, b), np.maximum(a, b), np.minimum(a, b)]
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one.astype(np.float32), other)
    zeros = np.array([0.0, -0.0], BFLOAT16)
    high, low = rows(["bf16.hmax(a, b)", "bf16.hmin(a, b)"], zeros, zeros[::-1].copy())
    assert not np.signbit(high.astype(np.float32)).any()
    assert np.signbit(low.astype(np.float32)).all()


def test_comparisons() -> None:
    names = ("eq", "ne", "lt", "le", "gt", "ge")
    a, b = SOME.astype(np.float32), OTHER.astype(np.float32)
    b[:100], a_equal = a[:100], SOME.copy()
    other = b.astype(BFLOAT16)
    either = np.isnan(a) | np.isnan(b)
    signs = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
    for name in names:
        wanted = getattr(operator, name)(a, b)
        ordered, unordered, direct = rows(
            [f"bf16.h{name}(a, b)", f"bf16.h{name}u(a, b)", f"a {signs[name]} b"],
            *(a_equal, other),
            result=np.bool_,
        )
        np.testing.assert_array_equal(ordered, wanted & ~either)
        np.testing.assert_array_equal(unordered, wanted | either)
        np.testing.assert_array_equal(direct, wanted)
    nan, infinite = rows(["bf16.hisnan(a)", "bf16.hisinf(a)"], ALL, result=np.int32)
    wide = ALL.astype(np.float32)
    np.testing.assert_array_equal(nan, np.isnan(wide))
    np.testing.assert_array_equal(infinite, np.isposinf(wide) * 1 - np.isneginf(wide) * 1)


# -- conversions ---------------------------------------------------------------------------------


def reals() -> Any:
    values = RANDOM.standard_normal(3_000) * 2.0 ** RANDOM.integers(-145, 127, 3_000)
    middles = (ALL[:0x7F00].astype(np.float64) + ALL[1:0x7F01].astype(np.float64)) / 2
    close = RANDOM.choice(middles, 600)
    tiny = np.array([5e-324, -5e-324, 0.0, -0.0, 1e-46])
    return np.concatenate([values, close, -close, np.nextafter(close, 0), tiny])


def test_from_float64_and_float32() -> None:
    values = reals()
    expected = np.array([rounded(value) for value in values], BFLOAT16)
    assert_same(over("bf16.bfloat16(a)", values), expected)
    assert_same(over("bf16.float64_to_bfloat16(a)", values), expected)
    assert_same(over("a", values), expected)  # stored
    single = values.astype(np.float32)
    for mode in MODES:
        wanted = np.array([rounded(float(value), mode) for value in single], BFLOAT16)
        assert_same(over(f"bf16.float32_to_bfloat16_{mode}(a)", single), wanted)
    assert_same(over("bf16.float32_to_bfloat16(a)", single), single.astype(BFLOAT16))


@pytest.mark.parametrize("name", ["int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_from_integers(name: str) -> None:
    info = np.iinfo(name)
    size = RANDOM.integers(0, np.dtype(name).itemsize * 8, 500)
    values = RANDOM.integers(info.min, info.max, 500, dtype=name) >> size.astype(name)
    middle = [257, 513, 2**12 + 2**4, 2**12 + 2**4 + 1, 3 * 2**7 + 1]
    values = np.concatenate([values, [info.min, info.max, 0, 1], middle]).astype(name)
    got = rows([f"bf16.{name}_to_bfloat16_{mode}(a)" for mode in MODES], values)
    for mode, result in zip(MODES, got, strict=True):
        expected = [rounded(Fraction(int(value)), mode) for value in values]
        assert_same(result, np.array(expected, BFLOAT16))
    assert_same(over("bf16.bfloat16(a)", values), got[0])


@pytest.mark.parametrize(
    "name", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
)
def test_to_integers(name: str) -> None:
    info = np.iinfo(name)
    functions: dict[str, Any] = {"rn": round, "rz": math.trunc, "rd": math.floor, "ru": math.ceil}
    modes = ["rz"] if info.bits == 8 else list(functions)
    codes = [f"bf16.bfloat16_to_{name}_{mode}(a)" for mode in modes]
    got = rows([*codes, f"types.{name}(a)"], SOME, result=name)
    for mode, result in zip([*modes, "rz"], got, strict=True):
        expected = []
        for value in SOME.astype(np.float64):
            if math.isinf(value):
                expected.append(info.max if value > 0 else info.min)
            else:
                whole = 0 if math.isnan(value) else functions[mode](Fraction(value))
                expected.append(min(max(whole, info.min), info.max))
        np.testing.assert_array_equal(result, np.array(expected, name))


def test_to_floats_and_bits() -> None:
    wide = ALL.astype(np.float32)
    np.testing.assert_array_equal(over("bf16.bfloat16_to_float32(a)", ALL, result="f4"), wide)
    np.testing.assert_array_equal(over("float32(a)", ALL, result="f8"), wide)
    np.testing.assert_array_equal(over("a", ALL, result="f8"), wide)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(over("a", ALL, result="f2"), wide.astype(np.float16))
    bits = ALL.view(np.uint16)
    np.testing.assert_array_equal(over("bf16.bfloat16_as_uint16(a)", ALL, result="u2"), bits)
    signed = bits.view(np.int16)
    np.testing.assert_array_equal(over("bf16.bfloat16_as_int16(a)", ALL, result="i2"), signed)
    assert over("bf16.uint16_as_bfloat16(a)", bits).tobytes() == ALL.tobytes()
    assert over("bf16.int16_as_bfloat16(a)", signed).tobytes() == ALL.tobytes()
    np.testing.assert_array_equal(over("bool(a)", ALL, result=np.bool_), wide != 0)


# -- functions -----------------------------------------------------------------------------------


def test_functions_that_are_exact_or_rounded_once() -> None:
    with np.errstate(all="ignore"):
        single = ALL.astype(np.float32)
        double = ALL.astype(np.float64)
        expected = {
            "hceil": np.ceil(single),
            "hfloor": np.floor(single),
            "hrint": np.rint(single),
            "htrunc": np.trunc(single),
            "hsqrt": np.sqrt(single),
            "hrcp": np.float32(1) / single,
            "hrsqrt": 1 / np.sqrt(double),
        }
        got = rows([f"bf16.{name}(a)" for name in expected], ALL)
        for values, result in zip(expected.values(), got, strict=True):
            assert_same(result, values.astype(np.float32).astype(BFLOAT16))


def test_transcendental_functions_are_the_nearest_value() -> None:
    functions: dict[str, Any] = {
        "hexp": np.exp, "hexp2": np.exp2, "hlog": np.log, "hlog2": np.log2, "hlog10": np.log10,
        "hsin": np.sin, "hcos": np.cos, "htanh": np.tanh, "htanh_approx": np.tanh,
        "hexp10": lambda x: np.power(10.0, x),
    }  # fmt: skip
    values = (RANDOM.standard_normal(2000) * 8).astype(BFLOAT16)
    values[:1000] = np.abs(values[:1000])
    got = rows([f"bf16.{name}(a)" for name in functions], values)
    wide = values.astype(np.float64)
    with np.errstate(all="ignore"):
        for function, result in zip(functions.values(), got, strict=True):
            assert_same(result, function(wide).astype(np.float32).astype(BFLOAT16))


def test_math_returns_float32() -> None:
    values = np.abs(SOME[:2000])
    got = rows(["math.sqrt(a)", "math.floor(a)", "abs(a)"], values, result=np.float32)
    single = values.astype(np.float32)
    with np.errstate(all="ignore"):
        for result, expected in zip(got, (np.sqrt(single), np.floor(single), single), strict=True):
            np.testing.assert_array_equal(result, expected)


OTHERS = (
    types.bfloat16 if hasattr(types, "bfloat16") else bf16.bfloat16,
    *(types.float16, types.float32, types.float64, types.boolean, types.int8, types.uint8),
    *(types.int16, types.uint16, types.int32, types.uint32, types.int64, types.uint64),
)


@pytest.mark.parametrize(
    "function",
    [
        *(operator.add, operator.isub, operator.mul, operator.truediv, operator.floordiv),
        *(operator.mod, operator.pow, operator.eq, operator.lt),
    ],
)
def test_operators_are_typed_as_by_numba_cuda(function: Any) -> None:
    cuda_target.typing_context.refresh()
    assert REPLACEMENTS["bfloat16"] is bf16.bfloat16  # loads the CPU's
    for other in OTHERS:
        for pair in ((bf16.bfloat16, other), (other, bf16.bfloat16)):
            results = []
            for context in (cuda_target.typing_context, simt_target.typing_context):
                typ = context.resolve_value_type(function)
                results.append(context.resolve_function_type(typ, pair, {}).return_type)
            assert results[0] == results[1], (function, pair)


# -- pairs, memory -------------------------------------------------------------------------------


def test_arrays_in_all_kinds_of_memory() -> None:
    @nbrt.kernel
    def kernel(x: Any, out: Any) -> None:
        shared = cuda.shared.array(32, bf16.bfloat16)
        own = cuda.local.array(2, dtype=bf16.bfloat16)
        i = cuda.threadIdx.x
        shared[i] = x[i]
        own[0] = 3
        own[1] = 0.5
        cuda.syncthreads()
        if isinstance(shared[i], bf16.bfloat16):
            out[i] = shared[31 - i] * own[0] + own[1]

    x, out = np.arange(32).astype(BFLOAT16), np.zeros(32, BFLOAT16)
    with nbrt.device("cpu:0"):
        kernel[1, 32](x, out)
    assert_same(out, x[::-1] * BFLOAT16(3) + BFLOAT16(0.5))


def test_pairs_are_two_values() -> None:
    pair = "raw__halves2bfloat162(a, b)"
    a, b = SOME[:2000], OTHER[:2000]
    with np.errstate(all="ignore"):
        expected = {
            f"raw__hadd2({pair}, {pair}).y": b + b,
            f"raw__hmul2({pair}, raw__lowhigh2highlow({pair})).x": a * b,
            f"raw__h2div({pair}, raw__low2bfloat162({pair})).y": b / a,
            f"raw__high2bfloat16({pair})": b,
            "raw__bfloat162bfloat162(b).x": b,
            f"raw__highs2bfloat162({pair}, {pair}).x": b,
            f"raw__hneg2({pair}).x": -a,
        }
    got = rows(list(expected), a, b)
    for (code, values), result in zip(expected.items(), got, strict=True):
        assert_same(result, values)
        assert code
    wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)
    masks, both, low = rows(
        [
            f"raw__hlt2_mask({pair}, raw__lowhigh2highlow({pair}))",
            f"raw__hbne2({pair}, raw__lowhigh2highlow({pair}))",
            f"raw__low2float(raw__hge2({pair}, raw__lowhigh2highlow({pair})))",
        ],
        *(a, b),
        result=np.uint32,
    )
    expected_masks = np.where(wide_a < wide_b, 0xFFFF, 0) | np.where(wide_b < wide_a, 0xFFFF0000, 0)
    np.testing.assert_array_equal(masks, expected_masks)
    number = ~(np.isnan(wide_a) | np.isnan(wide_b))  # ordered: false with a NaN
    np.testing.assert_array_equal(both, (wide_a != wide_b) & number)
    np.testing.assert_array_equal(low, wide_a >= wide_b)


def test_atomic_addition_behind_a_pointer() -> None:
    atomic_add = cuda_bf16.atomicAdd

    def count(total: Any, half: Any) -> None:
        atomic_add(total, bf16.bfloat16(1))
        atomic_add_half(half, types.float16(1))

    dispatcher = cuda.jit(count)
    pointers = types.CPointer(bf16.bfloat16), types.CPointer(types.float16)
    dispatcher.declared_signatures = [pointers]
    dispatcher._can_compile = False
    dispatcher._specialized = True
    total, half = np.zeros(1, BFLOAT16), np.zeros(1, np.float16)
    with nbrt.device("cpu:0"):
        nbrt.kernel(dispatcher)[8, 16](total.ctypes.data, half.ctypes.data)
    assert (float(total[0]), float(half[0])) == (128, 128)


atomic_add_half = __import__("numba.cuda.fp16", fromlist=["atomicAdd"]).atomicAdd


def test_the_header_is_complete_but_for_shuffles() -> None:
    functions = {getattr(cuda_bf16, name) for name in cuda_bf16._FUNCTION_SYMBOLS}
    missing = {each.__name__ for each in functions if dialect_name(each) not in REPLACEMENTS}
    shuffles = {"__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync"}
    assert missing == shuffles

    shuffle = vars(cuda_bf16)["__shfl_sync"]

    def kernel(x: Any) -> None:
        x[0] = shuffle(0xFFFFFFFF, x[0], 1, 32)

    with nbrt.device("cpu:0"), pytest.raises(UnsupportedConstructError, match="shfl_sync"):
        nbrt.kernel(kernel)[1, 32](np.zeros(1, BFLOAT16))


def test_literals_are_converted_by_their_values() -> None:
    x = np.zeros(3, BFLOAT16)

    def kernel(x: Any) -> None:
        x[0] = 3
        x[1] = bf16.bfloat16(1000003)
        x[2] = float64(2.5)

    CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (1, 1, 1))(x)
    assert_same(x, np.array([3, 1000003, 2.5]).astype(BFLOAT16))
