"""Functions of libdevice that round down, up or toward zero, against exact arithmetic."""

from __future__ import annotations

import itertools
import math
import operator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda import libdevice

from nbrt.backends.cpu.launch import CpuProgram

RANDOM = np.random.default_rng(2)
MODES = ("rd", "ru", "rz")
KINDS: dict[str, Any] = {"f": np.float32, "d": np.float64}
_COUNT = 300


def run(name: str, result: Any, *inputs: Any) -> Any:
    parameters = ", ".join("abc"[: len(inputs)])
    elements = ", ".join(f"{each}[i]" for each in parameters.split(", "))
    source = (
        f"def kernel(out, {parameters}):\n    i = cuda.grid(1)\n    if i < out.size:\n"
        f"        out[i] = libdevice.{name}({elements})\n"
    )
    scope: dict[str, Any] = {"cuda": cuda, "libdevice": libdevice}
    exec(source, scope)
    out = np.ones(len(inputs[0]), result)
    plan = CpuProgram(scope["kernel"], cache=False).plan(0, (-(-len(out) // 64), 1, 1), (64, 1, 1))
    plan(out, *inputs)
    return out


def values(real: Any) -> Any:
    """Return random numbers, half of them of all exponents, subnormal ones too."""
    integer = np.uint32 if real is np.float32 else np.uint64
    bits = RANDOM.integers(0, np.iinfo(integer).max, _COUNT, dtype=integer).view(real)
    found = np.where(RANDOM.random(_COUNT) < 0.5, bits, RANDOM.standard_normal(_COUNT).astype(real))
    found[~np.isfinite(found)] = 1.5
    found[found == 0] = 1
    return found


def neighbours(exact: Fraction, real: Any) -> tuple[Any, Any]:
    """Return the largest number that is at most a fraction, and the least that is at least it."""
    infinity = real(np.inf)
    try:
        low = real(float(exact))
    except OverflowError:
        low = infinity if exact > 0 else -infinity
    while low == infinity or (np.isfinite(low) and Fraction(float(low)) > exact):
        low = np.nextafter(low, -infinity)
    while np.isfinite(above := np.nextafter(low, infinity)) and Fraction(float(above)) <= exact:
        low = above
    is_exact = np.isfinite(low) and Fraction(float(low)) == exact
    return low, low if is_exact else np.nextafter(low, infinity)


def rounded(exact: Fraction, real: Any, mode: str) -> Any:
    low, high = neighbours(exact, real)
    return low if mode == "rd" or (mode == "rz" and exact > 0) else high


@pytest.mark.parametrize(
    ("prefix", "name"),
    # libdevice has no dsub.
    [("f", "sub"), *itertools.product(KINDS, ("add", "mul", "div", "rcp", "fma"))],
)
def test_arithmetic(prefix: str, name: str) -> None:
    real = KINDS[prefix]
    functions: dict[str, tuple[int, Any]] = {
        **{each: (2, getattr(operator, each)) for each in ("add", "sub", "mul")},
        "div": (2, operator.truediv),
        "rcp": (1, lambda a: 1 / a),
        "fma": (3, lambda a, b, c: a * b + c),
    }
    count, compute = functions[name]
    full = {"f": "fmaf", "d": "fma"}[prefix] if name == "fma" else f"{prefix}{name}"
    inputs = [values(real) for _ in range(count)]
    rows = list(zip(*([Fraction(float(x)) for x in each] for each in inputs), strict=True))
    with np.errstate(all="ignore"):
        for mode in MODES:
            expected = [rounded(compute(*row), real, mode) for row in rows]
            np.testing.assert_array_equal(run(f"{full}_{mode}", real, *inputs), expected)


@pytest.mark.parametrize("prefix", KINDS)
def test_square_roots(prefix: str) -> None:
    real = KINDS[prefix]
    inputs = np.abs(values(real))
    inputs[:3] = 4, 2, 9
    for mode in MODES:
        got = run(f"{prefix}sqrt_{mode}", real, inputs)
        for x, root in zip(inputs, got, strict=True):
            exact, square = Fraction(float(x)), Fraction(float(root)) ** 2
            limit: Any = real(np.inf if mode != "ru" else 0)
            other = np.nextafter(root, limit)
            if mode == "ru":
                assert square >= exact > Fraction(float(other)) ** 2
            else:
                assert square <= exact < Fraction(float(other)) ** 2


@pytest.mark.parametrize("mode", MODES)
def test_conversions(mode: str) -> None:
    inputs = values(np.float64)
    with np.errstate(all="ignore"):
        inputs[:150] = inputs[:150].astype(np.float32) * np.float64(1 + 2.0**-30)
        exact = [Fraction(x) if math.isfinite(x) else None for x in inputs]
        kept = np.array([x is not None for x in exact])
        expected = [rounded(x, np.float32, mode) for x in exact if x is not None]
        got = run(f"double2float_{mode}", np.float32, inputs)
    np.testing.assert_array_equal(got[kept], expected)
    for name, integer in (("int", "i4"), ("uint", "u4"), ("ll", "i8"), ("ull", "u8")):
        info = np.iinfo(integer)
        whole = RANDOM.integers(info.min, info.max, _COUNT, dtype=integer)
        whole[:4] = 0, 1, info.max, info.min
        for target, real in (("float", np.float32), ("double", np.float64)):
            if info.bits == 32 and target == "double":
                continue
            # libdevice types all integers as signed.
            got = run(f"{name}2{target}_{mode}", real, whole.view(f"i{info.bits // 8}"))
            expected = [rounded(Fraction(int(x)), real, mode) for x in whole]
            np.testing.assert_array_equal(got, expected)
            assert not np.signbit(got[0])


def test_the_caller_rounds_to_the_nearest_again() -> None:
    def kernel(x: Any, out: Any) -> None:
        i = cuda.grid(1)
        out[i, 0] = x[i] + 2.0**-60
        out[i, 1] = libdevice.dadd_ru(x[i], 2.0**-60)
        out[i, 2] = x[i] + 2.0**-60

    x, out = np.ones(64), np.zeros((64, 3))
    CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (64, 1, 1))(x, out)
    np.testing.assert_array_equal(out, np.tile([1, 1 + 2.0**-52, 1], (64, 1)))
