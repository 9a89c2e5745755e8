"""Bitwise instructions against their definitions in the PTX ISA."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from unit.simulated_cuda.ptx.executor import DTYPES, Operation, apply
from unit.simulated_cuda.ptx.test_integers import bits_of, wrap

if TYPE_CHECKING:
    from collections.abc import Callable

FULL = 0xFFFFFFFF


def extract(a: int, b: int, c: int, kind: str) -> int:
    msb, position, length = bits_of(kind) - 1, b & 0xFF, c & 0xFF
    sign = 0
    if kind[0] == "s" and length:
        sign = a >> min(position + length - 1, msb) & 1
    result = 0
    for i in range(msb + 1):
        bit = a >> position + i & 1 if i < length and position + i <= msb else sign
        result |= bit << i
    return result


def insert(a: int, b: int, c: int, d: int, kind: str) -> int:
    msb, position, length = bits_of(kind) - 1, c & 0xFF, d & 0xFF
    result = b
    for i in range(length):
        if position + i <= msb:
            result = result & ~(1 << position + i) | (a >> i & 1) << position + i
    return result


def find_bit(a: int, kind: str, *, shift: bool = False) -> int:
    width = bits_of(kind)
    if a < 0:
        a = ~a
    if a == 0:
        return FULL
    position = a.bit_length() - 1
    return width - 1 - position if shift else position


def permute(a: int, b: int, c: int) -> int:
    data = [(a | b << 32) >> 8 * k & 0xFF for k in range(8)]
    result = 0
    for k in range(4):
        selector = c >> 4 * k & 15
        byte = data[selector & 7]
        if selector & 8:
            byte = 0xFF if byte >> 7 else 0
        result |= byte << 8 * k
    return result


MODES = {
    "f4e": lambda k: [k, k + 1, k + 2, k + 3],
    "b4e": lambda k: [k, (k - 1) % 8, (k - 2) % 8, (k - 3) % 8],
    "rc8": lambda k: [k] * 4,
    "ecl": lambda k: [max(k, i) for i in range(4)],
    "ecr": lambda k: [min(k, i) for i in range(4)],
    "rc16": lambda k: [2 * (k & 1), 2 * (k & 1) + 1] * 2,
}


def permute_by_mode(a: int, b: int, c: int, mode: str) -> int:
    data = [(a | b << 32) >> 8 * k & 0xFF for k in range(8)]
    return sum(data[index] << 8 * i for i, index in enumerate(MODES[mode](c & 3)))


def funnel(low: int, high: int, count: int, *, left: bool, wrapped: bool) -> int:
    count = count & 31 if wrapped else min(count, 32)
    wide = low | high << 32
    return (wide << count >> 32 if left else wide >> count) & FULL


def mask(a: int, b: int, *, clamped: bool) -> int:
    start, size = (a, b) if clamped else (a & 31, b & 31)
    return sum(1 << i for i in range(32) if start <= i < start + size)


def extend(a: int, b: int, kind: str, *, clamped: bool) -> int:
    size = min(b, 32) if clamped else b & 31
    low = a & ((1 << size) - 1)
    if kind == "s32" and size and low >> (size - 1) & 1:
        low -= 1 << size
    return low


def nth_set(a: int, base: int, offset: int) -> int:
    offset = wrap(offset, "s32")
    if offset == 0:
        return base if a >> base & 1 else FULL
    count, step = abs(offset), 1 if offset > 0 else -1
    while 0 <= base < 32:
        count -= a >> base & 1
        if count == 0:
            return base
        base += step
    return FULL


def look_up(a: int, b: int, c: int, table: int) -> int:
    return sum(
        (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i
        for i in range(32)
    )


def shift_right(a: int, count: int, kind: str) -> int:
    return a >> min(count, 200)


def cases() -> dict[Operation, Callable[..., int]]:
    found: dict[Operation, Callable[..., int]] = {}
    for kind in ("b16", "b32", "b64"):
        for name, function in {
            "and": lambda a, b: a & b,
            "or": lambda a, b: a | b,
            "xor": lambda a, b: a ^ b,
        }.items():
            found[Operation(f"{name}.{kind} %d, %a, %b;", kind, (kind, kind))] = function
        found[Operation(f"not.{kind} %d, %a;", kind, (kind,))] = lambda a: ~a
        found[Operation(f"cnot.{kind} %d, %a;", kind, (kind,))] = lambda a: int(a == 0)
        text = f"shl.{kind} %d, %a, %b;"
        found[Operation(text, kind, (kind, "u32"))] = lambda a, b: a << min(b, 200)
        for sign in "us":
            typed = f"{sign}{kind[1:]}"
            operation = Operation(f"shr.{typed} %d, %a, %b;", typed, (typed, "u32"))
            found[operation] = lambda a, b, k=typed: shift_right(a, b, k)
            for count in (0, 5, 16, 31, 40, 64, 100):
                operation = Operation(f"shr.{typed} %d, %a, {count};", typed, (typed,))
                found[operation] = lambda a, c=count, k=typed: shift_right(a, c, k)
    for kind in ("b32", "b64"):
        width = bits_of(kind)
        found[Operation(f"popc.{kind} %d, %a;", "u32", (kind,))] = int.bit_count
        found[Operation(f"clz.{kind} %d, %a;", "u32", (kind,))] = lambda a, w=width: (
            w - a.bit_length()
        )
        found[Operation(f"brev.{kind} %d, %a;", kind, (kind,))] = lambda a, w=width: int(
            f"{a:0{w}b}"[::-1], 2
        )
        text = f"bfi.{kind} %d, %a, %b, %c, %e;"
        found[Operation(text, kind, (kind, kind, "u32", "u32"))] = lambda a, b, c, d, k=kind: (
            insert(a, b, c, d, k)
        )
        for sign in "us":
            typed = f"{sign}{width}"
            text = f"bfe.{typed} %d, %a, %b, %c;"
            found[Operation(text, typed, (typed, "u32", "u32"))] = lambda a, b, c, k=typed: extract(
                a, b, c, k
            )
            text = f"bfind.{typed} %d, %a;"
            found[Operation(text, "u32", (typed,))] = lambda a, k=typed: find_bit(a, k)
            text = f"bfind.shiftamt.{typed} %d, %a;"
            found[Operation(text, "u32", (typed,))] = lambda a, k=typed: find_bit(a, k, shift=True)
    found.update(permutations())
    found.update(masks())
    return found


def permutations() -> dict[Operation, Callable[..., int]]:
    three = ("b32", "b32", "b32")
    found: dict[Operation, Callable[..., int]] = {
        Operation("prmt.b32 %d, %a, %b, %c;", "b32", three): permute,
    }
    for control in (0x3210, 0x7654, 0x5410, 0x9ABC, 0x0F08):
        text = f"prmt.b32 %d, %a, %b, {control};"
        found[Operation(text, "b32", three[:2])] = lambda a, b, c=control: permute(a, b, c)
    for mode in MODES:
        text = f"prmt.b32.{mode} %d, %a, %b, %c;"
        found[Operation(text, "b32", three)] = lambda a, b, c, m=mode: permute_by_mode(a, b, c, m)
    for direction in "lr":
        for mode in ("clamp", "wrap"):
            text = f"shf.{direction}.{mode}.b32 %d, %a, %b, %c;"
            found[Operation(text, "b32", three)] = (
                lambda a, b, c, left=direction == "l", wrapped=mode == "wrap": funnel(
                    a, b, c, left=left, wrapped=wrapped
                )
            )
    for table in (0, 0x80, 0xFE, 0x96, 0xCA, 0xFF, 0x1B):
        text = f"lop3.b32 %d, %a, %b, %c, {table};"
        found[Operation(text, "b32", three)] = lambda a, b, c, t=table: look_up(a, b, c, t)
    return found


def masks() -> dict[Operation, Callable[..., int]]:
    found: dict[Operation, Callable[..., int]] = {}
    for mode in ("clamp", "wrap"):
        text = f"bmsk.{mode}.b32 %d, %a, %b;"
        found[Operation(text, "b32", ("u32", "u32"))] = lambda a, b, c=mode == "clamp": mask(
            a, b, clamped=c
        )
        for kind in ("u32", "s32"):
            text = f"szext.{mode}.{kind} %d, %a, %b;"
            found[Operation(text, kind, (kind, "u32"))] = lambda a, b, k=kind, c=mode == "clamp": (
                extend(a, b, k, clamped=c)
            )
    text = "{ .reg .u32 %m; and.b32 %m, %b, 31; fns.b32 %d, %a, %m, %c; }"
    found[Operation(text, "b32", ("b32", "u32", "u32"))] = lambda a, b, c: nth_set(a, b & 31, c)
    return found


def operands(operation: Operation) -> list[np.ndarray]:
    generator = np.random.default_rng(4)
    columns = []
    for index, kind in enumerate(operation.operands):
        dtype = DTYPES[kind]
        limits = np.iinfo(dtype)
        wild = generator.integers(limits.min, limits.max, 240, dtype=dtype, endpoint=True)
        wild[:40] = generator.integers(0, 4, 40)
        if index:
            wild[40:200] = generator.integers(0, 70, 160)
        wild[200:204] = [limits.max, limits.min, 0, 1]
        columns.append(wild)
    return columns


def test_bit_instructions() -> None:
    table = cases()
    for operation, inputs, out in apply(list(table), operands):
        for index in range(out.size):
            values = [int(array[index]) for array in inputs]
            expected = wrap(table[operation](*values), operation.result)
            assert int(out[index]) == expected, (operation.text, values)
