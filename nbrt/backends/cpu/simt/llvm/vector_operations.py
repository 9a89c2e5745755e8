"""Vector operations for which LLVM selects more instructions than necessary, in fewer ones.

With AVX2, LLVM counts leading zeros by tables of half bytes, rotates 64-bit lanes by half of them
in three instructions, and interleaves two vectors of 64-bit lanes in permutations that Zen splits.
With AVX-512, it takes the upper halves of 64-bit lanes by shifts and conversions, which Zen splits,
instead of one permutation of two vectors. Loops are vectors only after LLVM has optimised them, so
the text of the optimised module is changed.

Legality, for all values of the lanes:

- Leading zeros of 32 bits. Let t be the number of the highest bit of x > 0, and
  ``v = x & ~(x >> 1)``: it has bit t, but not bit t - 1, so ``2**t <= v < 1.5 * 2**t``. The float32
  next to v is at most ``1.5 * 2**t``, so its exponent is t. For t = 31 the int32 v is negative:
  with the sign, the upper nine bits are 256 or more, and ``158 - them`` is below 0. For x = 0 they
  are 0, and 158 is cut to 32.
- Leading zeros of 64 bits. Let w be the high half of x, or if that is 0, the low one. The float64
  of bits ``0x4330000000000000 | w`` is ``2**52 + w``, and the difference to ``2**52`` is w exactly,
  whose exponent bits are 1023 and the number of its highest bit, or 0 for 0. So ``1054 - bits``,
  and 32 more if the high half is 0, is the count, and for x = 0 above 64, to which it is cut.
- A rotation by half of a lane exchanges its halves.
- An interleaved vector is two permutations of whole 128-bit halves of the interleaved halves.
- The upper half of a 64-bit lane is the odd one of its two 32-bit lanes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["has_only_avx2", "with_fewer_instructions"]

_BITS_2_52 = "0x4330000000000000"
"""The bits of 2**52, which is also how LLVM writes the number."""

_VALUE = r"(%[-\w.$]+)"
_COUNT = re.compile(
    rf"^  {_VALUE} = (?:tail )?call (?:range\([^)]*\) )?<(\d+) x i(32|64)> "
    rf"@llvm\.ctlz\.v\d+i\d+\(<\d+ x i\d+> {_VALUE}, i1 (?:false|true)\)$"
)
_ROTATION = re.compile(
    rf"^  {_VALUE} = (?:tail )?call <(\d+) x i64> @llvm\.fsh[lr]\.v\d+i64\("
    rf"<\d+ x i64> {_VALUE}, <\d+ x i64> {_VALUE}, <\d+ x i64> splat \(i64 32\)\)$"
)
_INTERLEAVED = re.compile(
    rf"^  {_VALUE} = shufflevector <4 x (i64|double)> {_VALUE}, <4 x (?:i64|double)> {_VALUE}, "
    r"<8 x i32> <i32 0, i32 4, i32 1, i32 5, i32 2, i32 6, i32 3, i32 7>$"
)
_UPPER = re.compile(rf"^  {_VALUE} = lshr (?:exact )?<\d+ x i64> {_VALUE}, splat \(i64 32\)$")
_NARROWED = re.compile(rf"^  {_VALUE} = trunc (?:nuw |nsw )*<(\d+) x i64> {_VALUE} to <\d+ x i32>$")
_MIN_LANES = 16
"""Lanes of 64 bits in two vectors of AVX-512."""


def has_only_avx2(features: str) -> bool:
    """Return whether a processor has AVX2 and no AVX-512, by its features as LLVM has them."""
    known = set(features.split(","))
    return "+avx2" in known and "+avx512vl" not in known


def with_fewer_instructions(text: str, features: str) -> str:
    """Return a module with such operations replaced, as far as the processor needs it.

    Parameters
    ----------
    text : str
        The module, optimised.
    features : str
        The processor's features, as LLVM has them.
    """
    if "+avx512vl" in features.split(","):
        return _with_upper_halves(text)
    if not has_only_avx2(features):
        return text
    rewrites: tuple[tuple[re.Pattern[str], Callable[..., list[str]]], ...] = (
        (_COUNT, _count),
        (_ROTATION, _rotation),
        (_INTERLEAVED, _interleaved),
    )
    lines = []
    for line in text.splitlines():
        for pattern, rewrite in rewrites:
            found = pattern.match(line)
            if found is not None:
                lines += [f"  {new}" for new in rewrite(*found.groups())] or [line]
                break
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def _with_upper_halves(text: str) -> str:
    """Return a module in which upper halves of lanes are permuted, not shifted and narrowed."""
    lines: list[str] = []
    shifted: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("define "):
            shifted = {}  # names are those of a function
        elif found := _UPPER.match(line):
            shifted[found[1]] = found[2]
        elif (found := _NARROWED.match(line)) and found[3] in shifted:
            new = _upper_halves(found[1], int(found[2]), shifted[found[3]])
            lines += [f"  {step}" for step in new] or [line]
            continue
        lines.append(line)
    return "\n".join(lines) + "\n"


def _upper_halves(result: str, lanes: int, x: str) -> list[str]:
    if lanes < _MIN_LANES:
        return []
    name, halves = _names(result), f"<{2 * lanes} x i32>"
    order = ", ".join(f"i32 {2 * lane + 1}" for lane in range(lanes))
    return [
        f"{name('halves')} = bitcast <{lanes} x i64> {x} to {halves}",
        f"{result} = shufflevector {halves} {name('halves')}, {halves} poison, "
        f"<{lanes} x i32> <{order}>",
    ]


def _names(result: str) -> Callable[[str], str]:
    """Return a function that names the steps of a result: names with letters are never numbers."""
    stem = f"%nbrt.{result[1:]}"
    return lambda step: f"{stem}.{step}"


def _count(result: str, lanes: str, bits: str, x: str) -> list[str]:
    return (_count_32 if bits == "32" else _count_64)(result, lanes, x)


def _count_32(result: str, lanes: str, x: str) -> list[str]:
    name, ints, floats = _names(result), f"<{lanes} x i32>", f"<{lanes} x float>"
    return [
        f"{name('half')} = lshr {ints} {x}, splat (i32 1)",
        f"{name('not')} = xor {ints} {name('half')}, splat (i32 -1)",
        f"{name('v')} = and {ints} {x}, {name('not')}",
        f"{name('float')} = sitofp {ints} {name('v')} to {floats}",
        f"{name('bits')} = bitcast {floats} {name('float')} to {ints}",
        f"{name('exponent')} = lshr {ints} {name('bits')}, splat (i32 23)",
        f"{name('count')} = sub {ints} splat (i32 158), {name('exponent')}",
        f"{name('low')} = icmp sgt {ints} {name('count')}, zeroinitializer",
        f"{name('least')} = select <{lanes} x i1> {name('low')}, {ints} {name('count')}, "
        f"{ints} zeroinitializer",
        f"{name('high')} = icmp slt {ints} {name('least')}, splat (i32 32)",
        f"{result} = select <{lanes} x i1> {name('high')}, {ints} {name('least')}, "
        f"{ints} splat (i32 32)",
    ]


def _count_64(result: str, lanes: str, x: str) -> list[str]:
    name, ints, doubles = _names(result), f"<{lanes} x i64>", f"<{lanes} x double>"
    halves, flags = f"<{2 * int(lanes)} x i32>", f"<{lanes} x i1>"
    return [
        f"{name('high')} = lshr {ints} {x}, splat (i64 32)",
        f"{name('none')} = icmp eq {ints} {name('high')}, zeroinitializer",
        f"{name('w')} = select {flags} {name('none')}, {ints} {x}, {ints} {name('high')}",
        f"{name('joined')} = or {ints} {name('w')}, splat (i64 {int(_BITS_2_52, 16)})",
        f"{name('double')} = bitcast {ints} {name('joined')} to {doubles}",
        f"{name('exact')} = fsub {doubles} {name('double')}, splat (double {_BITS_2_52})",
        f"{name('bits')} = bitcast {doubles} {name('exact')} to {ints}",
        f"{name('exponent')} = lshr {ints} {name('bits')}, splat (i64 52)",
        f"{name('from')} = select {flags} {name('none')}, {ints} splat (i64 1086), "
        f"{ints} splat (i64 1054)",
        f"{name('count')} = sub {ints} {name('from')}, {name('exponent')}",
        # The upper halves are 0: AVX2 compares 32 bits.
        f"{name('halves')} = bitcast {ints} {name('count')} to {halves}",
        f"{name('is')} = icmp ult {halves} {name('halves')}, splat (i32 64)",
        f"{name('cut')} = select <{2 * int(lanes)} x i1> {name('is')}, {halves} {name('halves')}, "
        f"{halves} splat (i32 64)",
        f"{result} = bitcast {halves} {name('cut')} to {ints}",
    ]


def _rotation(result: str, lanes: str, x: str, other: str) -> list[str]:
    if x != other:
        return []
    name, ints, halves = _names(result), f"<{lanes} x i64>", f"<{2 * int(lanes)} x i32>"
    order = ", ".join(f"i32 {lane ^ 1}" for lane in range(2 * int(lanes)))
    return [
        f"{name('halves')} = bitcast {ints} {x} to {halves}",
        f"{name('exchanged')} = shufflevector {halves} {name('halves')}, {halves} poison, "
        f"<{2 * int(lanes)} x i32> <{order}>",
        f"{result} = bitcast {halves} {name('exchanged')} to {ints}",
    ]


def _interleaved(result: str, kind: str, x: str, y: str) -> list[str]:
    name, four = _names(result), f"<4 x {kind}>"

    def shuffled(step: str, a: str, b: str, *order: int) -> str:
        lanes = ", ".join(f"i32 {lane}" for lane in order)
        return f"{step} = shufflevector {four} {a}, {four} {b}, <{len(order)} x i32> <{lanes}>"

    even, odd, low, high = map(name, ("even", "odd", "low", "high"))
    return [
        shuffled(even, x, y, 0, 4, 2, 6),
        shuffled(odd, x, y, 1, 5, 3, 7),
        shuffled(low, even, odd, 0, 1, 4, 5),
        shuffled(high, even, odd, 2, 3, 6, 7),
        shuffled(result, low, high, *range(8)),
    ]
