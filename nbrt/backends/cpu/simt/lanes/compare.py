"""Comparisons of values that count up with the lanes: conditions that need no vector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt.lanes.values import Lanes, Value

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.lanes.writer import Writer

__all__ = ["compare_counting"]

_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


def compare_counting(
    writer: Writer, lanes: Lanes, predicate: str, left: Value, right: Value, *, positive: bool
) -> Value | None:
    """Compare a value that counts up by one with one that all lanes share, if this is that.

    Lane ``k`` holds ``base + k``, so ``base + k < n`` is true below lane ``n - base``. The
    difference is taken with saturation: what would overflow is far beyond the lanes anyway.

    Parameters
    ----------
    writer, lanes : Writer, Lanes
        Where the code goes.
    predicate : str
        LLVM's predicate.
    left, right : Value
        What is compared.
    positive : bool
        Whether the value that counts is never negative in any lane, so that unsigned comparisons
        do not wrap between lanes.
    """
    unsigned = predicate[0] == "u"
    relation = predicate if predicate in ("eq", "ne") else predicate[1:]
    if right.kind == "step" and left.kind == "scalar":
        left, right, relation = right, left, _MIRRORED[relation]
    if left.kind != "step" or left.step != 1 or right.kind != "scalar":
        return None
    if left.type not in ("i32", "i64") or (unsigned and not positive):
        return None
    base, limit = (_wide(writer, left.type, v.text, unsigned) for v in (left, right))
    if relation in ("eq", "ne"):
        here = Value("i1", "one", writer.op(f"sub i64 {limit}, {base}"))
        return here if relation == "eq" else lanes.inverse(here)
    sign = "u" if unsigned else "s"
    far = writer.call("i64", f"llvm.{sign}sub.sat.i64", [f"i64 {limit}", f"i64 {base}"])
    if relation in ("le", "gt"):
        # base + k <= n is base + k < n + 1; taken after the difference, which cannot overflow it.
        far = _next(writer, far, limit, base, sign)
    if not unsigned:
        far = writer.call("i64", "llvm.smax.i64", [f"i64 {far}", "i64 0"])
    far = writer.call("i64", "llvm.umin.i64", [f"i64 {far}", f"i64 {lanes.width}"])
    return Value("i1", "below" if relation in ("lt", "le") else "from", far)


def _next(writer: Writer, far: str, limit: str, base: str, sign: str) -> str:
    grown = writer.call("i64", f"llvm.{sign}add.sat.i64", [f"i64 {far}", "i64 1"])
    if sign == "s":
        return grown
    # An unsigned difference that is cut off at 0 must stay there.
    reached = writer.op(f"icmp uge i64 {limit}, {base}")
    return writer.op(f"select i1 {reached}, i64 {grown}, i64 0")


def _wide(writer: Writer, kind: str, text: str, unsigned: bool) -> str:
    if kind == "i64":
        return text
    return writer.op(f"{'zext' if unsigned else 'sext'} i32 {text} to i64")
