"""Integer instructions against Python's integers."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from unit.simulated_cuda.ptx.executor import DTYPES, Operation, apply

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTHS = {"16": 16, "32": 32, "64": 64}
KINDS = ("s16", "u16", "s32", "u32", "s64", "u64")
LONG = ("s32", "u32", "s64", "u64")


def bits_of(kind: str) -> int:
    return int(kind.lstrip("busf"))


def wrap(value: int, kind: str) -> int:
    """Return a number modulo 2**width, in the range of the type."""
    width = bits_of(kind)
    value &= (1 << width) - 1
    return value - (1 << width) if kind[0] == "s" and value >> (width - 1) else value


def clamp(value: int, kind: str) -> int:
    width = bits_of(kind)
    low = -(1 << (width - 1)) if kind[0] == "s" else 0
    return min(max(value, low), low + (1 << width) - 1)


def quotient(a: int, b: int, kind: str) -> int:
    if b == 0:
        return -1
    size = abs(a) // abs(b)
    return -size if (a < 0) != (b < 0) else size


def remainder(a: int, b: int, kind: str) -> int:
    if b == 0:
        return a
    return a - b * quotient(a, b, kind)


def low_24(value: int, kind: str) -> int:
    value &= 0xFFFFFF
    return value - (1 << 24) if kind[0] == "s" and value >> 23 else value


def arithmetic() -> dict[Operation, Callable[..., int]]:
    cases: dict[Operation, Callable[..., int]] = {}

    def add(text: str, kind: str, function: Callable[..., int], result: str = "") -> None:
        letters = [x for x in "abce" if f"%{x}" in text]
        cases[Operation(text, result or kind, (kind,) * len(letters))] = function

    for kind in KINDS:
        width = bits_of(kind)
        add(f"add.{kind} %d, %a, %b;", kind, lambda a, b: a + b)
        add(f"sub.{kind} %d, %a, %b;", kind, lambda a, b: a - b)
        add(f"mul.lo.{kind} %d, %a, %b;", kind, lambda a, b: a * b)
        add(f"mul.hi.{kind} %d, %a, %b;", kind, lambda a, b, w=width: a * b >> w)
        add(f"mad.lo.{kind} %d, %a, %b, %c;", kind, lambda a, b, c: a * b + c)
        add(f"mad.hi.{kind} %d, %a, %b, %c;", kind, lambda a, b, c, w=width: (a * b >> w) + c)
        add(f"div.{kind} %d, %a, %b;", kind, lambda a, b, k=kind: quotient(a, b, k))
        add(f"rem.{kind} %d, %a, %b;", kind, lambda a, b, k=kind: remainder(a, b, k))
        add(f"min.{kind} %d, %a, %b;", kind, min)
        add(f"max.{kind} %d, %a, %b;", kind, max)
        add(f"sad.{kind} %d, %a, %b, %c;", kind, lambda a, b, c: abs(a - b) + c)
        if kind[0] == "s":
            add(f"neg.{kind} %d, %a;", kind, lambda a: -a)
            add(f"abs.{kind} %d, %a;", kind, abs)
        if width < 64:
            wide = f"{kind[0]}{2 * width}"
            add(f"mul.wide.{kind} %d, %a, %b;", kind, lambda a, b: a * b, wide)
    for divisor in (3, -7, 1, 2147483647):
        add(f"div.s32 %d, %a, {divisor};", "s32", lambda a, d=divisor: quotient(a, d, "s32"))
        add(f"rem.s32 %d, %a, {divisor};", "s32", lambda a, d=divisor: remainder(a, d, "s32"))
    add("add.sat.s32 %d, %a, %b;", "s32", lambda a, b: clamp(a + b, "s32"))
    add("sub.sat.s32 %d, %a, %b;", "s32", lambda a, b: clamp(a - b, "s32"))
    add("mad.hi.sat.s32 %d, %a, %b, %c;", "s32", lambda a, b, c: clamp((a * b >> 32) + c, "s32"))
    for kind in ("s32", "u32"):

        def product(a: int, b: int, k: str = kind) -> int:
            return low_24(a, k) * low_24(b, k)

        add(f"mul24.lo.{kind} %d, %a, %b;", kind, product)
        add(f"mul24.hi.{kind} %d, %a, %b;", kind, lambda a, b, p=product: p(a, b) >> 16)
        add(f"mad24.lo.{kind} %d, %a, %b, %c;", kind, lambda a, b, c, p=product: p(a, b) + c)
        add(
            f"mad24.hi.{kind} %d, %a, %b, %c;", kind, lambda a, b, c, p=product: (p(a, b) >> 16) + c
        )
    return cases


def wide_arithmetic() -> dict[Operation, Callable[..., int]]:
    """Sums and products of two words, by the carry flag."""
    text = "mov.b64 {{%x, %y}}, %a; mov.b64 {{%z, %w}}, %b; {0} mov.b64 %d, {{%x, %y}};"
    registers = "{{ .reg .u32 %x, %y, %z, %w; {0} }}"

    def of(body: str) -> Operation:
        return Operation(registers.format(text.format(body)), "u64", ("u64", "u64"))

    return {
        of("add.cc.u32 %x, %x, %z; addc.u32 %y, %y, %w;"): lambda a, b: a + b,
        of("sub.cc.u32 %x, %x, %z; subc.u32 %y, %y, %w;"): lambda a, b: a - b,
        of("mad.lo.cc.u32 %x, %x, %z, %x; madc.hi.u32 %y, %y, %w, 0;"): _wide_product,
        of("add.cc.u32 %x, %x, %z; addc.cc.u32 %y, %y, %w; addc.u32 %x, 0, 0;"): _carry_out,
        of("sub.cc.u32 %x, %x, %z; subc.cc.u32 %y, %y, %w; subc.u32 %x, 0, 0;"): _borrow_out,
    }


def _split(value: int) -> tuple[int, int]:
    return value & 0xFFFFFFFF, value >> 32


def _wide_product(a: int, b: int) -> int:
    (x, y), (z, w) = _split(a), _split(b)
    low = (x * z & 0xFFFFFFFF) + x
    return (low & 0xFFFFFFFF) | ((((y * w) >> 32) + (low >> 32)) & 0xFFFFFFFF) << 32


def _carry_out(a: int, b: int) -> int:
    total = a + b
    return (total >> 64) | (total >> 32 & 0xFFFFFFFF) << 32


def _borrow_out(a: int, b: int) -> int:
    total = a - b
    return (0xFFFFFFFF if total < 0 else 0) | (total >> 32 & 0xFFFFFFFF) << 32


def packed() -> dict[Operation, Callable[..., int]]:
    cases: dict[Operation, Callable[..., int]] = {}
    for kind in ("u16x2", "s16x2"):
        half = kind[:3]

        def each(function: Callable[[int, int], int], k: str = half) -> Callable[[int, int], int]:
            def apply_to(a: int, b: int) -> int:
                parts = [
                    wrap(function(wrap(a >> s, k), wrap(b >> s, k)), "u16") << s for s in (0, 16)
                ]
                return parts[0] | parts[1]

            return apply_to

        functions = {"add": lambda a, b: a + b, "min": min, "max": max}
        for name, function in functions.items():
            operation = Operation(f"{name}.{kind} %d, %a, %b;", "b32", ("b32", "b32"))
            cases[operation] = each(function)
    return cases


def dots() -> dict[Operation, Callable[..., int]]:
    cases: dict[Operation, Callable[..., int]] = {}
    for x in ("u32", "s32"):
        for y in ("u32", "s32"):

            def bytes_of(value: int, kind: str, width: int = 8) -> list[int]:
                lane = f"{kind[0]}{width}"
                return [wrap(value >> s, lane) for s in range(0, 32, width)]

            def four(a: int, b: int, c: int, x: str = x, y: str = y) -> int:
                return c + sum(p * q for p, q in zip(bytes_of(a, x), bytes_of(b, y), strict=True))

            def two(a: int, b: int, c: int, first: int, x: str = x, y: str = y) -> int:
                halves, parts = bytes_of(a, x, 16), bytes_of(b, y)[first : first + 2]
                return c + sum(p * q for p, q in zip(halves, parts, strict=True))

            kinds = ("u32", "u32", "u32")
            cases[Operation(f"dp4a.{x}.{y} %d, %a, %b, %c;", "u32", kinds)] = four
            for name, first in (("lo", 0), ("hi", 2)):
                text = f"dp2a.{name}.{x}.{y} %d, %a, %b, %c;"
                cases[Operation(text, "u32", kinds)] = lambda a, b, c, f=first, two=two: two(
                    a, b, c, f
                )
    return cases


def operands(operation: Operation) -> list[np.ndarray]:
    """Every pair of edge values, and random ones."""
    generator = np.random.default_rng(3)
    columns = []
    for index, kind in enumerate(operation.operands):
        dtype = DTYPES[kind]
        limits = np.iinfo(dtype)
        edges = [0, 1, 2, 3, limits.max, limits.max - 1, limits.min, limits.min + 1]
        edges += [limits.max // 2, 1 << (bits_of(kind) // 2)] + ([-1, -2] if kind[0] == "s" else [])
        column = np.array(edges, dtype)
        column = np.repeat(column, column.size) if index == 0 else np.tile(column, column.size)
        if index == 2:
            column = generator.permutation(column)
        wild = generator.integers(limits.min, limits.max, 60, dtype=dtype, endpoint=True)
        small = generator.integers(max(limits.min, -20), 20, 60).astype(dtype)
        columns.append(np.concatenate([column, wild, small]))
    size = min(column.size for column in columns)
    return [column[:size] for column in columns]


@cache
def checked(group: Callable[[], dict[Operation, Callable[..., int]]]) -> list[tuple]:
    cases = group()
    return [(*found, cases[found[0]]) for found in apply(list(cases), operands)]


@pytest.mark.parametrize("group", [arithmetic, wide_arithmetic, packed, dots])
def test_integer_instructions(group: Callable[[], dict[Operation, Callable[..., int]]]) -> None:
    for operation, inputs, out, reference in checked(group):
        for index in range(out.size):
            values = [int(array[index]) for array in inputs]
            expected = wrap(reference(*values), operation.result)
            assert int(out[index]) == expected, (operation.text, values)
