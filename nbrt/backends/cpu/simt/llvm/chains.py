"""Chains of fused multiply-adds in vector loops, written in turns.

A polynomial is one chain: each step waits four cycles for the one before. A processor overlaps it
with the chains of other elements only if they are among the instructions that it holds at a time.
LLVM writes a loop body that evaluates several polynomials as one chain after the other.
`with_chains_in_turns` sorts the instructions by the cycle in which their operands are ready, so
that the chains go on side by side and share the loads of their coefficients. LLVM's machine
scheduler would undo it, to save registers.

Legality: instructions stay in their block, each behind those that define its operands. Those that
read or write memory, call anything but the functions of `_PURE`, or divide integers, which may
trap, keep their order. So every value is computed from the same operands, and nothing is executed
that was not.
"""

from __future__ import annotations

import re

__all__ = ["may_have_chains", "with_chains_in_turns"]

_MIN_LENGTH = 4
"""Steps of the shortest chain that counts."""

_MIN_LINES = 100
"""Of shorter loops, a processor that holds 200 instructions overlaps whole iterations."""

_MAX_CHAINS = 8
"""More chains, as in a product of matrices, keep a processor busy, and need all registers."""

_MAX_LIVE_VALUES = 80
"""Values that are live at one place: those that find no register are stored and loaded again."""

_STEP = "@llvm.fma.v"
_LABEL = re.compile(r'^("[^"]*"|[-\w$.]+):')
_BRANCH = re.compile(r'^  br i1 [^,]+, label %("[^"]*"|[-\w$.]+), label %("[^"]*"|[-\w$.]+)')
_DEFINITION = re.compile(r'^  (%(?:"[^"]*"|[-\w$.]+)) = (?:(?:tail|notail) )?([a-z]+)\b(.*)$')
_EFFECT = re.compile(r"^  (?:store|(?:tail |notail )?call void)\b")
_NAME = re.compile(r'%(?:"[^"]*"|[-\w$.]+)')
_PURE = re.compile(
    r"@llvm\.(?:abs|bswap|copysign|ctlz|ctpop|fabs|fma|fsh[lr]|maxnum|minnum|[su]max|[su]min|sqrt)\."
)
_ORDERED = frozenset({"alloca", "atomicrmw", "cmpxchg", "load", "sdiv", "srem", "udiv", "urem"})
_CYCLES = {"call": 4, "fadd": 3, "fdiv": 13, "fmul": 3, "fsub": 3, "load": 5, "mul": 3}
"""Latencies where they are not 1, about those of Zen 3 and Skylake."""
_FREE = frozenset({"bitcast", "freeze", "getelementptr"})


def may_have_chains(text: str) -> bool:
    """Return whether a module has as many fused multiply-adds of vectors as a chain."""
    return text.count(_STEP) > _MIN_LENGTH


def with_chains_in_turns(text: str) -> str | None:
    """Return a module with the chains of its loops in turns; None if it has none.

    Parameters
    ----------
    text : str
        The module, optimised, in which all values have names, not numbers: LLVM expects numbers in
        the order of the instructions.
    """
    lines = text.split("\n")
    has_changed, begin = False, 0
    for end, line in enumerate(lines):
        found = _BRANCH.match(line)
        if found is None:
            if _LABEL.match(line):
                begin = end
            continue
        label = _LABEL.match(lines[begin])
        if label is not None and label[1] in found.groups():
            body = _in_turns(lines[begin + 1 : end])
            if body is not None:
                lines[begin + 1 : end] = body
                has_changed = True
    return "\n".join(lines) if has_changed else None


def _in_turns(body: list[str]) -> list[str] | None:
    """Return the lines of a loop of one block in turns; None to leave them as they are."""
    if len(body) < _MIN_LINES or sum(_STEP in line for line in body) <= _MIN_LENGTH:
        return None
    first = next((i for i, line in enumerate(body) if " = phi " not in line), len(body))
    rest = body[first:]
    ready, steps = [0] * len(rest), [0] * len(rest)
    operands: list[set[int]] = []
    cycles: list[int] = []
    places: dict[str, int] = {}
    latest = None  # of those that keep their order
    for place, line in enumerate(rest):
        found = _DEFINITION.match(line)
        if found is None and not _EFFECT.match(line):
            return None
        code = "store" if found is None else found[2]
        before = {places[name] for name in _NAME.findall(line) if name in places}
        operands.append(before)
        ready[place] = max((ready[each] + cycles[each] for each in before), default=0)
        steps[place] = max((steps[each] for each in before), default=0) + (_STEP in line)
        if found is None or code in _ORDERED or (code == "call" and not _PURE.search(line)):
            if latest is not None:
                ready[place] = max(ready[place], ready[latest])
            latest = place
        cycles.append(0 if code in _FREE else _CYCLES.get(code, 1))
        if found is not None:
            places[found[1]] = place
    length = max(steps)
    if length < _MIN_LENGTH or sum(_STEP in line for line in rest) > _MAX_CHAINS * length:
        return None
    # The sort is stable: instructions that are ready together keep their order.
    order = sorted(range(len(rest)), key=ready.__getitem__)
    if _max_live_values(order, operands) > _MAX_LIVE_VALUES:
        return None
    return [*body[:first], *(rest[place] for place in order)]


def _max_live_values(order: list[int], operands: list[set[int]]) -> int:
    """Return the maximum number of values that are live at one place of an order of instructions.

    A value is live from its definition to its last use.
    """
    last = {operand: time for time, place in enumerate(order) for operand in operands[place]}
    ends = [0] * len(order)
    for time in last.values():
        ends[time] += 1
    live = most = 0
    for time, place in enumerate(order):
        live += (place in last) - ends[time]
        most = max(most, live)
    return most
