"""Conditions whose lanes are known when the code is written.

The index of a thread along x is a constant in each lane if a row has one group, so a comparison of
it with a constant needs no instruction: it is a set of lanes, an integer with one bit for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.vectors.values import Value

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.vectors.values import Mask

__all__ = ["compared_lanes", "condition", "constant", "folded", "known_lanes"]

_RELATIONS = {
    "eq": int.__eq__,
    "ne": int.__ne__,
    "lt": int.__lt__,
    "le": int.__le__,
    "gt": int.__gt__,
    "ge": int.__ge__,
}


def constant(text: str) -> int | None:
    """Return the value of an integer constant, or None."""
    return int(text) if text.removeprefix("-").isdigit() else None


def condition(lanes: int, width: int) -> Value:
    """Return the condition that is true in a set of lanes, in its simplest form."""
    whole = (1 << width) - 1
    if lanes.bit_count() == 1:
        return Value("i1", "one", str(lanes.bit_length() - 1))
    if lanes & (lanes + 1) == 0:
        return Value("i1", "below", str(lanes.bit_length()))
    gone = whole & ~lanes
    if gone & (gone + 1) == 0:
        return Value("i1", "from", str(gone.bit_length()))
    return Value("i1", "bits", str(_signed(lanes, width)))


def known_lanes(mask: Mask, width: int) -> int | None:
    """Return the set of lanes of a condition if it is known; None means all lanes."""
    whole = (1 << width) - 1
    if mask is None:
        return whole
    number = constant(mask.text)
    if number is None or mask.kind not in ("below", "from", "one", "bits"):
        return None
    if mask.kind == "bits":
        return number & whole
    if mask.kind == "one":
        return 1 << number if 0 <= number < width else 0
    below = (1 << number) - 1
    return below if mask.kind == "below" else whole & ~below


def compared_lanes(predicate: str, kind: str, first: int, step: int, limit: int, width: int) -> int:
    """Return the lanes in which ``first + lane * step`` compares to a limit, both of one type."""
    bits = int(kind[1:])
    is_unsigned = predicate[0] == "u"
    name = predicate if predicate in ("eq", "ne") else predicate[1:]
    relation = _RELATIONS[name]

    def number(value: int) -> int:
        return value & ((1 << bits) - 1) if is_unsigned else _signed(value, bits)

    values = (number(first + lane * step) for lane in range(width))
    return sum(1 << lane for lane, v in enumerate(values) if relation(v, number(limit)))


def folded(opcode: str, source: str, target: str, texts: list[str]) -> str | None:
    """Return the result of an operation on integer constants, or None.

    Parameters
    ----------
    opcode : str
        A binary operation or a conversion; ``sext`` and ``zext`` extend as their names say.
    source, target : str
        Types of the operands and of the result.
    texts : list of str
        The operands.
    """
    numbers = [constant(text) for text in texts]
    if any(n is None for n in numbers) or source[0] != "i" or target[0] != "i":
        return None
    first, second = (*numbers, 0)[:2]
    assert first is not None
    assert second is not None
    results = {
        "add": first + second,
        "sub": first - second,
        "mul": first * second,
        "sext": first,
        "trunc": first,
        "zext": first & ((1 << int(source[1:])) - 1),
    }
    if opcode == "shl" and 0 <= second < int(target[1:]):
        results["shl"] = first << second
    found = results.get(opcode)
    return None if found is None else str(_signed(found, int(target[1:])))


def _signed(value: int, bits: int) -> int:
    """Return the number in two's complement with the last bits of a value."""
    half = 1 << (bits - 1)
    return (value + half) % (1 << bits) - half
