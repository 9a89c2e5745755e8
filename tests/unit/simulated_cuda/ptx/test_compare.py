"""Comparisons, selections and tests of floats."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from unit.simulated_cuda.ptx.executor import DTYPES, Operation, apply

if TYPE_CHECKING:
    from collections.abc import Callable

ORDERS: dict[str, Callable[..., bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
UNSIGNED_NAMES = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
VALUES = [0.0, -0.0, 1.0, -1.5, 2.0**-149, math.inf, -math.inf, math.nan, 3.0]


def floats(kind: str) -> list[np.ndarray]:
    grid = np.meshgrid(VALUES, VALUES)
    return [column.ravel().astype(DTYPES[kind]) for column in grid]


def integers(kind: str) -> list[np.ndarray]:
    limits = np.iinfo(DTYPES[kind])
    grid = np.meshgrid(*[np.array([0, 1, limits.max, limits.min, 7], DTYPES[kind])] * 2)
    return [column.ravel() for column in grid]


def columns(operation: Operation) -> list[np.ndarray]:
    kind = operation.operands[0]
    first = floats(kind) if kind[0] == "f" else integers(kind)
    generator = np.random.default_rng(1)
    extra = [
        generator.integers(0, 2, first[0].size).astype(np.uint32) for _ in operation.operands[2:]
    ]
    return [*first, *extra]


def float_result(name: str, a: float, b: float) -> bool:
    unordered = math.isnan(a) or math.isnan(b)
    if name in ("num", "nan"):
        return unordered == (name == "nan")
    if name in ORDERS:
        return not unordered and ORDERS[name](a, b)
    return unordered or ORDERS[name[:-1]](a, b)


def test_comparisons_of_floats() -> None:
    names = [*ORDERS, *(f"{name}u" for name in ORDERS), "num", "nan"]
    cases = {
        Operation(f"setp.{name}.{kind} %d, %a, %b;", "pred", (kind, kind)): name
        for kind in ("f32", "f64")
        for name in names
    }
    for operation, (a, b), out in apply(list(cases), columns):
        expected = [
            float_result(cases[operation], float(x), float(y)) for x, y in zip(a, b, strict=True)
        ]
        assert out.tolist() == expected, operation.text


def test_comparisons_of_integers() -> None:
    cases = {}
    for kind in ("u16", "s16", "u32", "s32", "u64", "s64"):
        names = dict(zip(ORDERS, ORDERS, strict=True)) | (UNSIGNED_NAMES if kind[0] == "u" else {})
        for name, order in names.items():
            text = f"setp.{name}.{kind} %d, %a, %b;"
            cases[Operation(text, "pred", (kind, kind))] = ORDERS[order]
    for operation, (a, b), out in apply(list(cases), columns):
        expected = [cases[operation](int(x), int(y)) for x, y in zip(a, b, strict=True)]
        assert out.tolist() == expected, operation.text


@pytest.mark.parametrize("negated", ["", "!"])
def test_a_second_destination_and_a_third_predicate(negated: str) -> None:
    functions = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
    cases = {}
    for name, function in functions.items():
        for result in ("%d|%q", "%q|%d"):
            text = f"{{ .reg .pred %q; setp.lt.{name}.s32 {result}, %a, %b, {negated}%c; }}"
            cases[Operation(text, "pred", ("s32", "s32", "pred"))] = (function, result[:2] == "%d")
    for operation, (a, b, c), out in apply(list(cases), columns):
        function, is_first = cases[operation]
        for index in range(out.size):
            less = bool(a[index] < b[index]) == is_first
            expected = function(less, bool(c[index]) != bool(negated))
            assert bool(out[index]) == expected, operation.text


def test_set_gives_all_bits_or_one() -> None:
    operations = [
        Operation("set.lt.u32.s32 %d, %a, %b;", "u32", ("s32", "s32")),
        Operation("set.gtu.f32.f32 %d, %a, %b;", "f32", ("f32", "f32")),
        Operation("set.eq.and.u32.f64 %d, %a, %b, %c;", "u32", ("f64", "f64", "pred")),
    ]
    results = apply(operations, columns)
    a, b = results[0][1]
    assert results[0][2].tolist() == [0xFFFFFFFF if x < y else 0 for x, y in zip(a, b, strict=True)]
    a, b = results[1][1]
    expected = [float(not x <= y) for x, y in zip(a, b, strict=True)]
    assert results[1][2].tolist() == expected
    a, b, c = results[2][1]
    expected = [0xFFFFFFFF if x == y and p else 0 for x, y, p in zip(a, b, c, strict=True)]
    assert results[2][2].tolist() == expected


def test_selections() -> None:
    operations = [
        Operation("selp.b32 %d, %a, %b, %c;", "u32", ("u32", "u32", "pred")),
        Operation("slct.u32.s32 %d, %a, %b, %c;", "u32", ("u32", "u32", "s32")),
        Operation("slct.u32.f32 %d, %a, %b, %c;", "u32", ("u32", "u32", "f32")),
    ]
    third = {
        "pred": np.array([0, 1, 1], np.uint32),
        "s32": np.array([-1, 0, 5], np.int32),
        "f32": np.array([-0.5, -0.0, np.nan], np.float32),
    }
    a, b = np.array([1, 2, 3], np.uint32), np.array([4, 5, 6], np.uint32)
    results = apply(operations, lambda operation: [a, b, third[operation.operands[2]]])
    assert [out.tolist() for _, _, out in results] == [[4, 2, 3], [4, 2, 3], [4, 2, 6]]


def test_classes_of_floats() -> None:
    values = np.array([0.0, -0.0, 1.0, 2.0**-149, np.inf, -np.inf, np.nan], np.float32)
    expected = {
        "finite": [1, 1, 1, 1, 0, 0, 0],
        "infinite": [0, 0, 0, 0, 1, 1, 0],
        "number": [1, 1, 1, 1, 1, 1, 0],
        "notanumber": [0, 0, 0, 0, 0, 0, 1],
        "normal": [0, 0, 1, 0, 0, 0, 0],
        "subnormal": [0, 0, 0, 1, 0, 0, 0],
    }
    operations = [Operation(f"testp.{name}.f32 %d, %a;", "pred", ("f32",)) for name in expected]
    results = apply(operations, lambda _operation: [values])
    assert [out.tolist() for _, _, out in results] == list(expected.values())


def test_packed_halves_compare_to_two_predicates() -> None:
    text = "{ .reg .pred %q; setp.lt.f16x2 %q|%d, %a, %b; }"
    low = text.replace("%q|%d", "%d|%q")
    halves = np.array([1.0, 5.0, 2.0, 0.5], np.float16).view(np.uint32)
    other = np.array([2.0, 4.0, 1.0, 0.75], np.float16).view(np.uint32)
    operations = [Operation(t, "pred", ("b32", "b32")) for t in (low, text)]
    results = apply(operations, lambda _operation: [halves, other])
    assert [out.tolist() for _, _, out in results] == [[1, 0], [0, 1]]
