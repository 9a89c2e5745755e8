"""The 8-bit formats on the CPU, against ml_dtypes and CUDA's documented saturation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from cuda.bindings.runtime import cudaRoundMode
from numba import cuda, float32, types
from numba.cuda import bf16
from numba.cuda._internal import cuda_fp8
from numba.cuda._internal.cuda_fp8 import fp8_interpretation_t, saturation_t

from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.cpu.simt.builtins import REPLACEMENTS
from nbrt.backends.dialect import dialect_name

if TYPE_CHECKING:
    from collections.abc import Iterator

RANDOM = np.random.default_rng(11)
CODES = np.arange(256, dtype=np.uint8)
FORMATS: dict[str, Any] = {
    "e4m3": (ml_dtypes.float8_e4m3fn, 448.0, 0x7E, 0x7F),
    "e5m2": (ml_dtypes.float8_e5m2, 57344.0, 0x7B, 0x7C),
}
"""Format -> dtype, largest value, its bits, the bits of what is larger."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def over(expression: str, a: Any, result: Any) -> Any:
    """Compute an expression of ``a`` for every element."""
    source = (
        "def kernel(out, x):\n    i = cuda.grid(1)\n    if i < x.shape[0]:\n"
        f"        a = x[i]\n        out[i] = {expression}\n"
    )
    scope = {
        "cuda": cuda, "float32": float32, "types": types, "bf16": bf16, "fp8": cuda_fp8,
        "saturation_t": saturation_t, "form": fp8_interpretation_t, "mode": cudaRoundMode,
    }  # fmt: skip
    exec(source, scope)
    out = np.zeros(len(a), result)
    blocks = -(-len(a) // 128)
    CpuProgram(scope["kernel"], cache=False).plan(0, (blocks, 1, 1), (128, 1, 1))(out, a)
    return out


def reals() -> Any:
    values = RANDOM.standard_normal(20_000) * 2.0 ** RANDOM.integers(-22, 18, 20_000)
    steps = RANDOM.integers(-4000, 4000, 4_000) * 2.0**-18  # exact, subnormal and halfway values
    whole = RANDOM.integers(-70_000, 70_000, 4_000).astype(np.float64)
    edges = [np.nan, np.inf, -np.inf, 0, -0.0, 464, 464.1, -464, 61440, 61439.9, 1e300, -1e-300]
    return np.concatenate([values, steps, whole, edges])


@pytest.mark.parametrize("kind", FORMATS)
def test_conversion_to_the_nearest_value(kind: str) -> None:
    dtype, _, _, overflow = FORMATS[kind]
    values = reals()
    code = f"fp8.cvt_double_to_fp8(a, saturation_t.NOSAT, form.{kind.upper()})"
    got, expected = over(code, values, np.uint8), values.astype(dtype).view(np.uint8)
    nan = np.isnan(values)
    assert (got[nan] == 0x7F).all()
    is_large = np.isnan(values.astype(dtype).astype(np.float64)) & ~nan
    np.testing.assert_array_equal(got[~nan & ~is_large], expected[~nan & ~is_large])
    assert (got[is_large] & 0x7F == overflow).all()
    single = values.astype(np.float32)
    got = over(code.replace("double", "float"), single, np.uint8)
    kept = ~np.isnan(single.astype(dtype).astype(np.float64))
    np.testing.assert_array_equal(got[kept], single.astype(dtype).view(np.uint8)[kept])


@pytest.mark.parametrize("kind", FORMATS)
def test_constructors_saturate(kind: str) -> None:
    dtype, largest, code, _ = FORMATS[kind]
    values = reals()
    expected = np.clip(values, -largest, largest).astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(over(f"float32(fp8.fp8_{kind}(a))", values, "f4"), expected)
    half = values.astype(np.float16)
    expected = np.clip(half, -largest, largest).astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(over(f"float32(fp8.fp8_{kind}(a))", half, "f4"), expected)
    brief = values.astype(ml_dtypes.bfloat16)
    expected = np.clip(brief.astype("f4"), -largest, largest).astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(over(f"float32(fp8.fp8_{kind}(a))", brief, "f4"), expected)
    for name in ("int8", "uint16", "int32", "uint64", "int64"):
        info = np.iinfo(name)
        whole = RANDOM.integers(max(info.min, -80_000), min(info.max, 80_000), 500, dtype=name)
        whole[:2] = info.min, info.max
        expected = np.clip(whole.astype("f8"), -largest, largest).astype(dtype).astype("f4")
        np.testing.assert_array_equal(over(f"float32(fp8.fp8_{kind}(a))", whole, "f4"), expected)
    limited = f"fp8.cvt_double_to_fp8(a, saturation_t.SATFINITE, form.{kind.upper()})"
    assert list(over(limited, np.array([1e9, -np.inf]), np.uint8)) == [code, code | 0x80]


@pytest.mark.parametrize("kind", FORMATS)
def test_casts_to_all_numbers(kind: str) -> None:
    exact = CODES.view(FORMATS[kind][0]).astype(np.float64)
    finite = np.isfinite(exact)
    value = f"fp8.fp8_{kind}(a)"
    numbers = exact[finite]
    for name in ("float16", "float32", "float64"):
        np.testing.assert_array_equal(over(f"types.{name}({value})", numbers, np.float64), numbers)
    np.testing.assert_array_equal(
        over(f"float32(bf16.bfloat16({value}))", numbers, np.float64), numbers
    )
    for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        info = np.iinfo(name)
        expected = np.clip(np.trunc(numbers), float(info.min), float(info.max)).astype(name)
        np.testing.assert_array_equal(over(f"types.{name}({value})", numbers, name), expected)
    np.testing.assert_array_equal(over(f"bool({value})", numbers, np.bool_), numbers != 0)
    assert over(f"types.int32({value})", np.array([np.nan]), np.int32)[0] == 0


def powers(values: Any, saturates: bool, mode: str) -> Any:
    """Return e8m0 by its definition: an exponent, from 2**-127 to 2**127, or NaN."""
    mantissa, exponent = np.frexp(np.abs(values))
    exponent = exponent - ((mantissa == 0.5) | (mode == "cudaRoundZero"))
    exponent = np.where(np.isinf(values), 999, np.where(values == 0, -999, exponent))
    codes = np.clip(exponent + 127, 0, 254 if saturates else 255)
    return np.where(np.isnan(values), 255, codes).astype(np.uint8)


@pytest.mark.parametrize("mode", ["cudaRoundPosInf", "cudaRoundZero"])
@pytest.mark.parametrize("saturates", [True, False])
def test_scale_factors(mode: str, saturates: bool) -> None:
    values = RANDOM.standard_normal(3_000) * 2.0 ** RANDOM.integers(-140, 126, 3_000)
    exact = 2.0 ** np.arange(-130, 128)
    around = np.concatenate([exact, np.nextafter(exact, 0), np.nextafter(exact, 2 * exact)])
    values = np.concatenate([values, around, -around, [np.nan, 0.0, np.inf, -np.inf]])
    flag = "SATFINITE" if saturates else "NOSAT"
    code = f"fp8.cvt_double_to_e8m0(a, saturation_t.{flag}, mode.{mode})"
    expected = powers(values, saturates, mode)
    np.testing.assert_array_equal(over(code, values, np.uint8), expected)


def test_scale_factors_as_numbers() -> None:
    values = np.concatenate([2.0 ** np.arange(-127, 128), [3.0, 5.5, -7.0]])
    expected = 2.0 ** np.ceil(np.log2(np.abs(values)))
    np.testing.assert_array_equal(over("types.float64(fp8.fp8_e8m0(a))", values, "f8"), expected)
    whole = np.array([1, 2, 3, -5, 1 << 40, (1 << 40) + 1, -(2**63)], np.int64)
    got = over("float32(fp8.fp8_e8m0(a))", whole, "f8")
    np.testing.assert_array_equal(got, [1, 2, 4, 8, 2.0**40, 2.0**41, 2.0**63])
    assert over("bool(fp8.fp8_e8m0(a))", np.zeros(1), np.bool_)[0]
    raw = over("fp8.cvt_e8m0_to_bf16raw(a).x", CODES, np.uint16).view(ml_dtypes.bfloat16)
    numbers = raw.astype(np.float64)
    np.testing.assert_array_equal(numbers[:255], 2.0 ** (np.arange(255) - 127))
    assert np.isnan(numbers[255])
    again = "fp8.cvt_bfloat16raw_to_e8m0(fp8.cvt_e8m0_to_bf16raw(a), saturation_t.NOSAT, "
    np.testing.assert_array_equal(over(f"{again}mode.cudaRoundZero)", CODES, np.uint8), CODES)


def test_several_values_in_one_integer() -> None:
    values = np.array([1.0, -2.5, 1e9], np.float32)
    pair = "cuda.float32x2(a, float32(0.5))"
    got = over(f"fp8.cvt_float2_to_fp8x2({pair}, saturation_t.SATFINITE, form.E4M3)", values, "u2")
    one = np.clip(values, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    half = int(np.float32(0.5).astype(ml_dtypes.float8_e4m3fn).view(np.uint8))
    np.testing.assert_array_equal(got, one.astype(np.uint16) | half << 8)


def test_the_header_is_complete() -> None:
    names = (*cuda_fp8._FUNCTION_SYMBOLS, *cuda_fp8._RECORD_SYMBOLS)
    missing = [n for n in names if dialect_name(getattr(cuda_fp8, n)) not in REPLACEMENTS]
    assert missing == []
