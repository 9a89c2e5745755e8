"""Floating-point arithmetic rounds exactly, as the PTX ISA says."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unit.simulated_cuda.ptx.executor import Operation, apply
from unit.simulated_cuda.ptx.references import (
    FORMATS,
    Format,
    round_to,
    samples,
    square_root,
    value_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MODES = ("rn", "rz", "rm", "rp")
UNSIGNED = {"f32": "u32", "f64": "u64"}
COUNT = 80


def operands_of(kind: str, count: int) -> list[np.ndarray]:
    """Pairs and triples of edge values and random values."""
    base = samples(kind, COUNT, seed=1)
    generator = np.random.default_rng(2)
    edges = base[[0, 1, 3, 4, 6, 9, 10, 12, 13, 14, 17, 19, 22, 23, 25]]
    left, right = np.repeat(edges, edges.size), np.tile(edges, edges.size)
    columns = [np.concatenate([left, base]), np.concatenate([right, generator.permutation(base)])]
    columns.append(generator.permutation(columns[0]))
    dtype = np.dtype(np.float32 if kind == "f32" else np.float64)
    return [column.view(dtype) for column in columns[:count]]


def is_negative(value: float) -> bool:
    return math.copysign(1, value) < 0


def expect(name: str, values: list[float], form: Format, mode: str) -> int | None:
    """Return the bits of the exact result; None for NaN."""
    with np.errstate(all="ignore"):
        special = special_result(name, values)
    if special is not None:
        if math.isnan(special):
            return None
        sign = form.sign if is_negative(special) else 0
        return sign | (form.infinity if math.isinf(special) else 0)
    parts = [Fraction(value) for value in values]
    if name == "sqrt":
        return square_root(parts[0], form, mode)
    exact = {
        "add": lambda: parts[0] + parts[1],
        "sub": lambda: parts[0] - parts[1],
        "mul": lambda: parts[0] * parts[1],
        "div": lambda: parts[0] / parts[1],
        "rcp": lambda: 1 / parts[0],
        "fma": lambda: parts[0] * parts[1] + parts[2],
    }[name]()
    return round_to(exact, form, mode, negative_zero=zero_sign(name, values, mode))


def special_result(name: str, values: list[float]) -> float | None:
    """Return NaN, an infinity or a zero that follows from the rules of IEEE 754, or None."""
    if name == "rcp":
        return special_result("div", [1.0, values[0]])
    if any(map(math.isnan, values)):
        return math.nan
    a, b = values[0], values[1] if len(values) > 1 else 0.0
    if name == "sqrt":
        if a == 0 or a == math.inf:
            return a
        return math.nan if a < 0 else None
    if name == "div":
        if b == 0 or math.isinf(b) or math.isinf(a):
            return float(np.float64(a) / np.float64(b))
        return None
    if name == "fma":
        if math.isinf(a) or math.isinf(b) or math.isinf(values[2]):
            product = (
                float(np.float64(a) * np.float64(b))
                if a == 0 or b == 0 or (math.isinf(a) or math.isinf(b))
                else 0.0
            )
            return float(np.float64(product) + np.float64(values[2]))
        return None
    if math.isinf(a) or math.isinf(b):
        return {"add": lambda: a + b, "sub": lambda: a - b, "mul": lambda: a * b}[name]()
    return None


def zero_sign(name: str, values: list[float], mode: str) -> bool:
    """Return whether an exact zero is negative."""
    if name in ("mul", "div"):
        return is_negative(values[0]) != is_negative(values[1])
    if name == "rcp":
        return is_negative(values[0])
    first = is_negative(values[0])
    second = is_negative(values[1]) != (name == "sub")
    if name == "fma":
        first, second = first != is_negative(values[1]), is_negative(values[2])
        product_is_zero = values[0] == 0 or values[1] == 0
        if not product_is_zero:
            return mode == "rm"
        if values[2] != 0:
            return False
    elif values[0] != 0:
        return mode == "rm"
    return first if first == second else mode == "rm"


ARITY = {"add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "sqrt": 1, "rcp": 1}


@cache
def results(kind: str) -> dict[tuple[str, str], tuple[list[np.ndarray], np.ndarray]]:
    letters = "abc"
    keys = [(name, mode) for name in ARITY for mode in MODES]
    operations = [
        Operation(
            f"{name}.{mode}.{kind} %d, {', '.join(f'%{x}' for x in letters[: ARITY[name]])};",
            kind,
            (kind,) * ARITY[name],
        )
        for name, mode in keys
    ]
    found = apply(operations, lambda operation: operands_of(kind, len(operation.operands)))
    return {key: (inputs, out) for key, (_, inputs, out) in zip(keys, found, strict=True)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", list(ARITY))
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_a_result_is_the_exact_one_rounded_once(kind: str, name: str, mode: str) -> None:
    inputs, out = results(kind)[name, mode]
    form = FORMATS[kind]
    bits = out.view(UNSIGNED[kind].replace("u", "uint"))
    for index in range(out.size):
        values = [float(array[index]) for array in inputs]
        expected = expect(name, values, form, mode)
        if expected is None:
            assert math.isnan(out[index]), (values, out[index])
            if kind == "f32":
                assert bits[index] == 0x7FFFFFFF
        else:
            assert bits[index] == expected, (values, hex(bits[index]), hex(expected))


def run(text: str, kinds: tuple[str, ...], result: str = "") -> tuple[list[Any], np.ndarray]:
    """Apply one instruction to edge and random values; returns operands and results as bits."""
    storage = {"f32": "b32", "f64": "b64", "f16": "b16", "bf16": "b16", "f16x2": "b32"}
    storage["bf16x2"] = "b32"
    operation = Operation(
        text, storage.get(result or kinds[0], result), tuple(storage[kind] for kind in kinds)
    )

    def columns(_operation: Operation) -> list[np.ndarray]:
        if kinds[0] in ("f32", "f64"):
            width = kinds[0].replace("f", "uint")
            return [column.view(width) for column in operands_of(kinds[0], len(kinds))]
        generator = np.random.default_rng(9)
        return [generator.integers(0, 1 << 32, 400, np.uint32) for _ in kinds]

    [(_, inputs, out)] = apply([operation], columns)
    return inputs, out


def flushed(bits: int) -> int:
    return bits & 0x80000000 if bits & 0x7FFFFFFF < 0x00800000 else bits


@pytest.mark.parametrize("name", ["add", "mul", "fma"])
def test_ftz_flushes_operands_and_results(name: str) -> None:
    count = ARITY[name]
    names = ", ".join(["%d", "%a", "%b", "%c"][: count + 1])
    inputs, out = run(f"{name}.rn.ftz.f32 {names};", ("f32",) * count)
    for index in range(out.size):
        bits = [flushed(int(array[index])) for array in inputs]
        values = [float(np.uint32(b).view(np.float32)) for b in bits]
        expected = expect(name, values, FORMATS["f32"], "rn")
        assert int(out[index]) == (0x7FFFFFFF if expected is None else flushed(expected)), values


def test_sat_clamps_to_the_unit_interval_and_takes_nan_to_zero() -> None:
    inputs, out = run("add.rn.sat.f32 %d, %a, %b;", ("f32", "f32"))
    for index in range(out.size):
        values = [float(np.uint32(array[index]).view(np.float32)) for array in inputs]
        expected = expect("add", values, FORMATS["f32"], "rn")
        if expected is None or expected & 0x80000000:
            expected = 0
        assert int(out[index]) == min(expected, 0x3F800000)


def order(bits: int) -> int:
    """Return an integer that orders floats, with -0 below +0."""
    return -(bits & 0x7FFFFFFF) - 1 if bits >> 31 else bits


def is_nan(bits: int) -> bool:
    return bits & 0x7FFFFFFF > 0x7F800000


@pytest.mark.parametrize("modifier", ["", ".NaN", ".xorsign.abs"])
@pytest.mark.parametrize("name", ["min", "max"])
def test_extremes_order_zeros_and_drop_or_keep_nan(name: str, modifier: str) -> None:
    inputs, out = run(f"{name}{modifier}.f32 %d, %a, %b;", ("f32", "f32"))
    choose = min if name == "min" else max
    for index in range(out.size):
        pair = [int(array[index]) for array in inputs]
        sign = (pair[0] ^ pair[1]) & 0x80000000 if "xorsign" in modifier else 0
        if "abs" in modifier:
            pair = [bits & 0x7FFFFFFF for bits in pair]
        numbers = [bits for bits in pair if not is_nan(bits)]
        if not numbers or (modifier == ".NaN" and len(numbers) < 2):
            assert int(out[index]) & 0x7FFFFFFF == 0x7FFFFFFF
            assert "abs" in modifier or int(out[index]) == 0x7FFFFFFF
        else:
            assert int(out[index]) == choose(numbers, key=order) | sign


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_signs_keep_the_payload_of_nan(kind: str) -> None:
    sign = FORMATS[kind].sign
    inputs, out = run(f"neg.{kind} %d, %a;", (kind,))
    assert [int(x) ^ sign for x in inputs[0]] == out.tolist()
    inputs, out = run(f"abs.{kind} %d, %a;", (kind,))
    assert [int(x) & (sign - 1) for x in inputs[0]] == out.tolist()
    inputs, out = run(f"copysign.{kind} %d, %a, %b;", (kind, kind))
    expected = [(int(b) & (sign - 1)) | (int(a) & sign) for a, b in zip(*inputs, strict=True)]
    assert out.tolist() == expected


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
def test_narrow_arithmetic_rounds_once(kind: str, name: str) -> None:
    count = ARITY[name]
    names = ", ".join(["%d", "%a", "%b", "%c"][: count + 1])
    inputs, out = run(f"{name}.rn.{kind}x2 {names};", (f"{kind}x2",) * count)
    form = FORMATS[kind]
    for index in range(out.size):
        for shift in (0, 16):
            bits = [int(array[index]) >> shift & 0xFFFF for array in inputs]
            values = [float(value_of(b, form)) for b in bits]
            values = [
                math.copysign(v, -1 if b & form.sign else 1)
                for v, b in zip(values, bits, strict=True)
            ]
            expected = expect(name, values, form, "rn")
            result = int(out[index]) >> shift & 0xFFFF
            assert result == (0x7FFF if expected is None else expected), values


APPROXIMATE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "rcp": np.reciprocal,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
}


@pytest.mark.parametrize("name", list(APPROXIMATE))
def test_approximate_functions_are_correct_to_the_last_bit_or_so(name: str) -> None:
    operation = Operation(f"{name}.approx.f32 %d, %a;", "f32", ("f32",))
    generator = np.random.default_rng(10)
    ranges = {"ex2": (-140, 127), "sin": (-100, 100), "cos": (-100, 100), "tanh": (-10, 10)}
    low, high = ranges.get(name, (1e-30, 1e6))
    values = generator.uniform(low, high, 300).astype(np.float32)
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0], np.float32)
    values = np.concatenate([values, edges])
    [(_, _, out)] = apply([operation], lambda _operation: [values])
    with np.errstate(all="ignore"):
        exact = APPROXIMATE[name](values.astype(np.float64)).astype(np.float32)
    assert np.array_equal(np.isnan(out), np.isnan(exact))
    np.testing.assert_allclose(out, exact, rtol=2e-7, atol=1e-45)


def test_division_by_a_huge_number_is_zero_in_div_approx() -> None:
    operations = [
        Operation(f"div.{k}.f32 %d, %a, %b;", "f32", ("f32",) * 2) for k in ("approx", "full")
    ]
    a = np.array([1e38, 6.0, np.inf], np.float32)
    b = np.array([2.0**127, 3.0, 2.0**127], np.float32)
    (_, _, approximate), (_, _, full) = apply(operations, lambda _operation: [a, b])
    np.testing.assert_array_equal(approximate, np.array([0, 2, np.nan], np.float32))
    np.testing.assert_array_equal(full, a / b)
