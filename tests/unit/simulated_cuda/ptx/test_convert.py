"""cvt between all types, with every rounding and saturation, against rational numbers."""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from unit.simulated_cuda.ptx.executor import DTYPES, Operation, apply
from unit.simulated_cuda.ptx.references import FORMATS, Format, round_to, samples, value_of
from unit.simulated_cuda.ptx.test_integers import bits_of, clamp, wrap

if TYPE_CHECKING:
    from collections.abc import Callable

INTEGERS = tuple(f"{sign}{width}" for sign in "us" for width in (8, 16, 32, 64))
FLOATS = ("f16", "bf16", "f32", "f64")
STORAGE = {"f16": "b16", "bf16": "b16", "f32": "b32", "f64": "b64", "tf32": "b32"}
WHOLE: dict[str, Callable[[Fraction], int]] = {
    "rzi": math.trunc,
    "rmi": math.floor,
    "rpi": math.ceil,
    "rni": round,
}
CANONICAL = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "tf32": 0x7FFFE000}
Case = tuple[str, str, str]


def storage(kind: str) -> str:
    return STORAGE.get(kind, kind)


def operation(text: str, target: str, source: str) -> Operation:
    return Operation(f"cvt.{text}.{target}.{source} %d, %a;".replace("..", "."),
                     storage(target), (storage(source),))  # fmt: skip


def float_bits(kind: str) -> np.ndarray:
    if kind in ("f32", "f64"):
        return np.concatenate([samples(kind, 60, seed=5), near_integers(kind)])
    return np.random.default_rng(6).integers(0, 1 << 16, 250, np.uint16)


def near_integers(kind: str) -> np.ndarray:
    """Numbers with halves, and numbers around the limits of the integer types."""
    numbers = [n / 2 for n in range(-20, 21)]
    for width in (7, 8, 15, 16, 31, 32, 63, 64):
        numbers += [s * (2.0**width + d) for d in (-1, -0.5, 0, 0.5, 1) for s in (1, -1)]
    dtype = np.dtype(np.float32 if kind == "f32" else np.float64)
    return np.array(numbers, dtype).view(f"uint{dtype.itemsize * 8}")


def integers(kind: str) -> np.ndarray:
    dtype = DTYPES[kind]
    limits = np.iinfo(dtype)
    generator = np.random.default_rng(7)
    wild = generator.integers(limits.min, limits.max, 60, dtype=dtype, endpoint=True)
    small = (wild[:30].astype(object) >> (bits_of(kind) // 2)).astype(dtype)
    ties = []
    for shift in (11, 24, 29, 40):
        if bits_of(kind) > shift + 2:
            ties += [((1 << shift) + k) << 1 for k in range(-3, 4)]
            ties += [(1 << bits_of(kind) - 2) + k * (1 << shift) for k in range(-3, 4)]
    edges = [
        limits.min,
        limits.max,
        0,
        1,
        *(tie for tie in ties if limits.min <= tie <= limits.max),
    ]
    return np.concatenate([np.array(edges, dtype), wild, small])


def inputs(item: Operation, source: str) -> np.ndarray:
    return integers(source) if source in INTEGERS else float_bits(source)


def run(table: dict[Operation, tuple[str, Callable[[int], int | None]]]) -> None:
    """Compare results with references; a reference of None accepts any NaN of .f64."""
    for item, columns, out in apply(list(table), lambda o: [inputs(o, table[o][0])]):
        reference = table[item][1]
        for index in range(out.size):
            source = int(columns[0][index])
            expected = reference(source)
            if expected is None:
                continue
            found = int(out[index])
            wanted = wrap(expected, item.result)
            assert found == wanted, (item.text, hex(source), hex(found), hex(wanted))


def test_integers_to_integers() -> None:
    table = {}
    for source in INTEGERS:
        for target in INTEGERS:
            if source != target:
                table[operation("", target, source)] = source, lambda a: a
                table[operation("sat", target, source)] = source, lambda a, t=target: clamp(a, t)
    run(table)


def test_integers_to_floats() -> None:
    table = {}
    for source in INTEGERS:
        for target in FLOATS:
            for mode in ("rn", "rz", "rm", "rp"):
                table[operation(mode, target, source)] = (
                    source,
                    lambda a, t=target, m=mode: round_to(Fraction(a), FORMATS[t], m),
                )
    run(table)


def test_floats_to_integers() -> None:
    def reference(bits: int, source: str, target: str, mode: str) -> int:
        value = value_of(bits, FORMATS[source])
        if isinstance(value, float):
            if math.isnan(value):
                wide = source == "f64" or bits_of(target) == 64
                return 1 << (bits_of(target) - 1) if wide else 0
            return clamp(1 << 100 if value > 0 else -(1 << 100), target)
        return clamp(WHOLE[mode](value), target)

    table = {}
    for source in FLOATS:
        for target in INTEGERS:
            for mode in WHOLE:
                table[operation(mode, target, source)] = (
                    source,
                    lambda a, s=source, t=target, m=mode: reference(a, s, t, m),
                )
    run(table)


def converted(bits: int, source: str, target: str, mode: str) -> int | None:
    value = value_of(bits, FORMATS[source])
    form = FORMATS[target]
    negative = bool(bits & FORMATS[source].sign)
    if not isinstance(value, float):
        result = round_to(value, form, mode, negative_zero=negative)
    elif math.isnan(value):
        return CANONICAL.get(target)
    else:
        result = form.infinity | (form.sign if negative else 0)
    return result << 13 if target == "tf32" else result


def test_floats_to_floats() -> None:
    table = {}
    for source in FLOATS:
        for target in (*FLOATS, "tf32"):
            modes = ("rn", "rz", "rm", "rp")
            if source == target or (target == "tf32" and source != "f32"):
                continue
            if bits_of_float(source) < bits_of_float(target) and target != "tf32":
                modes = ("",)
            if target == "tf32":
                modes = ("rna", "rn", "rz")
            for mode in modes:
                table[operation(mode, target, source)] = (
                    source,
                    lambda a, s=source, t=target, m=mode: converted(a, s, t, m or "rn"),
                )
    run(table)


def bits_of_float(kind: str) -> int:
    form = FORMATS[kind]
    return 1 + form.exponent_bits + form.mantissa_bits


def test_rounding_to_whole_numbers_of_floats() -> None:
    def reference(bits: int, kind: str, mode: str) -> int | None:
        form = FORMATS[kind]
        value = value_of(bits, form)
        if isinstance(value, float):
            return CANONICAL.get(kind) if math.isnan(value) else bits
        return round_to(
            Fraction(WHOLE[mode](value)), form, "rn", negative_zero=bool(bits & form.sign)
        )

    table = {}
    for kind in FLOATS:
        for mode in WHOLE:
            table[operation(mode, kind, kind)] = (
                kind,
                lambda a, k=kind, m=mode: reference(a, k, m),
            )
    run(table)


def test_saturation_and_flushing() -> None:
    single = FORMATS["f32"]

    def saturated(bits: int, source: str, target: str) -> int:
        value = value_of(bits, FORMATS[source])
        if isinstance(value, float):
            value = Fraction(1) if value == math.inf else Fraction(0)
        return round_to(min(max(value, Fraction(0)), Fraction(1)), FORMATS[target], "rn")

    def flushed(bits: int) -> int:
        small = bits & 0x7FFFFFFF < 1 << single.mantissa_bits
        return bits & single.sign if small else bits

    def double_of(bits: int) -> int | None:
        return converted(flushed(bits), "f32", "f64", "rn")

    def from_double(bits: int) -> int:
        return flushed(converted(bits, "f64", "f32", "rn") or 0)

    table = {
        operation("sat", "f32", "f32"): ("f32", lambda a: saturated(a, "f32", "f32")),
        operation("rn.sat", "f32", "f64"): ("f64", lambda a: saturated(a, "f64", "f32")),
        operation("rn.sat", "f16", "f32"): ("f32", lambda a: saturated(a, "f32", "f16")),
        operation("ftz", "f64", "f32"): ("f32", double_of),
        operation("rn.ftz", "f32", "f64"): ("f64", from_double),
    }
    run(table)


def test_pairs_of_narrow_floats() -> None:
    columns = [samples("f32", 60, seed=8), np.roll(samples("f32", 60, seed=8), 7)]
    for kind in ("f16", "bf16"):
        text = f"cvt.rn.{kind}x2.f32 %d, %a, %b;"
        relu = f"cvt.rn.relu.{kind}x2.f32 %d, %a, %b;"
        operations = [Operation(t, "b32", ("b32", "b32")) for t in (text, relu)]
        for item, (high, low), out in apply(operations, lambda o: columns):
            for index in range(out.size):
                halves = [converted(int(x[index]), "f32", kind, "rn") or 0 for x in (high, low)]
                if "relu" in item.text:
                    halves = [0 if half >= 0x8000 else half for half in halves]
                assert int(out[index]) == halves[0] << 16 | halves[1], item.text


BYTES = {"e4m3": Format(4, 3), "e5m2": Format(5, 2)}


def byte_value(bits: int, kind: str) -> Fraction | float:
    if kind == "e4m3":
        if bits & 0x7F == 0x7F:
            return math.nan
        # The numbers with the highest exponent are numbers, as in a format with one more bit.
        value = value_of(bits & 0x7F, Format(5, 3)) * Fraction(2) ** 8
        return -value if bits & 0x80 else value
    return value_of(bits, BYTES[kind])


@cache
def byte_values(kind: str) -> list[float]:
    """Return the positive numbers of a format, which are the floats of the bits 0, 1, ..."""
    values = [float(byte_value(bits, kind)) for bits in range(0x80)]
    return [value for value in values if math.isfinite(value)]


def to_byte(bits: int, kind: str) -> int:
    value = value_of(bits, FORMATS["f32"])
    sign = 0x80 if bits >> 31 else 0
    if isinstance(value, float) and math.isnan(value):
        return 0x7F
    numbers, size = byte_values(kind), abs(value)
    above = bisect_left(numbers, size)
    if above == len(numbers):
        return above - 1 | sign
    # The nearest number, and of two the even one.
    candidates = range(max(above - 1, 0), above + 1)
    return min(candidates, key=lambda n: (abs(Fraction(numbers[n]) - size), n & 1)) | sign


@pytest.mark.parametrize("kind", list(BYTES))
def test_floats_of_eight_bits(kind: str) -> None:
    generator = np.random.default_rng(11)
    spread = (generator.normal(size=200) * 2.0 ** generator.integers(-20, 17, 200)).astype("f4")
    exact = byte_values(kind)
    assert exact[-1] == {"e4m3": 448, "e5m2": 57344}[kind]
    ties = [(a + b) / 2 for a, b in pairwise(exact)]
    first = np.concatenate([samples("f32", 20, seed=8), spread.view("u4")])
    second = np.resize(np.array(exact + ties, "f4").view("u4"), first.size)
    down = Operation(f"cvt.rn.satfinite.{kind}x2.f32 %d, %a, %b;", "b16", ("b32", "b32"))
    [(_, _, out)] = apply([down], lambda _operation: [first, second])
    for index in range(out.size):
        high, low = (to_byte(int(column[index]), kind) for column in (first, second))
        assert int(out[index]) == high << 8 | low
    up = Operation(f"cvt.rn.f16x2.{kind}x2 %d, %a;", "b32", ("b16",))
    words = np.arange(0, 1 << 16, 257, dtype=np.uint16)
    [(_, _, out)] = apply([up], lambda _operation: [words])
    halves = out.view(np.float16).astype(float).reshape(-1, 2)
    expected = [float(byte_value(int(word) & 0xFF, kind)) for word in words]
    np.testing.assert_array_equal(halves[:, 0], expected)
    np.testing.assert_array_equal(halves[:, 1], expected)
