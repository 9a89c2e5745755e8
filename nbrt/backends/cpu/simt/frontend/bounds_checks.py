"""Guards: ``if i < n`` in front of a kernel becomes the bounds of the loop over its threads.

Nearly every kernel begins by sending home the threads beyond the end of the data. Left in the loop
body, that test makes every vector store a masked one (five times slower on some CPUs). Where the
tests come first, compare the thread's position along one axis with a value that is the same for
the whole launch, and lead straight to the end of the kernel, nothing is lost by not running those
threads at all. The position may be tested from below (``i > 0``), above, or both, on any axis.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from numba.core import ir
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.ir_utils import build_definitions

from nbrt.backends.cpu.simt.frontend.hints import assume, limit
from nbrt.backends.cpu.simt.frontend.thread_index_analysis import Position, Positions, Uniform

__all__ = ["MIRRORED", "NEGATED", "Bound", "absorb_guards", "keep_limits", "leads_to_end"]

MIRRORED = {
    operator.lt: operator.gt,
    operator.le: operator.ge,
    operator.gt: operator.lt,
    operator.ge: operator.le,
    operator.eq: operator.eq,
}
NEGATED = {
    operator.lt: operator.ge,
    operator.le: operator.gt,
    operator.gt: operator.le,
    operator.ge: operator.lt,
}


@dataclass(frozen=True)
class Bound:
    """One limit on the positions that run, in the order in which the limits function gives them."""

    kind: str
    """Which position, as in `Position`: ``"grid"``, ``"thread"`` or ``"turn"``."""

    axis: int

    upper: bool
    """Whether positions below the limit run; else those at or above it."""

    shift: int
    """Constant that the kernel adds to the position before it compares."""


@dataclass
class _Guard:
    block: Any
    condition: Any
    position: Position
    compare: Any
    uniform: Any
    negated: bool
    continuation: int


def absorb_guards(func_ir: Any) -> list[Bound]:
    """Take the guards out of a kernel's body; what they said stays as an assumption for LLVM.

    Parameters
    ----------
    func_ir : numba.core.ir.FunctionIR
        The kernel, its dialect resolved; changed in place.

    Returns
    -------
    list of Bound
        What the thread loop must hold to instead.
    """
    guards = _find_guards(func_ir)
    scope = func_ir.blocks[min(func_ir.blocks)].scope
    for index, guard in enumerate(guards):
        loc = guard.block.terminator.loc
        body = guard.block.body[:-1]
        function = scope.redefine(f"$simt_assume_{index}", loc)
        ignored = scope.redefine(f"$simt_assumed_{index}", loc)
        flag = scope.redefine(f"$simt_negated_{index}", loc)
        body.append(ir.Assign(ir.Global("assume", assume, loc), function, loc))
        body.append(ir.Assign(ir.Const(int(guard.negated), loc), flag, loc))
        call = ir.Expr.call(function, [guard.condition, flag], (), loc)
        body.append(ir.Assign(call, ignored, loc))
        body.append(ir.Jump(guard.continuation, loc))
        guard.block.body = body
    for label in compute_cfg_from_blocks(func_ir.blocks).dead_nodes():
        del func_ir.blocks[label]
    func_ir._definitions = build_definitions(func_ir.blocks)
    return _bounds(guards)


def keep_limits(func_ir: Any) -> list[Bound]:
    """Turn a kernel into the function that computes its limits, one integer for each `Bound`.

    Parameters
    ----------
    func_ir : numba.core.ir.FunctionIR
        The kernel, its dialect resolved; changed in place.

    Returns
    -------
    list of Bound
        What the function's results mean; the same that `absorb_guards` gives.
    """
    guards = _find_guards(func_ir)
    first = min(func_ir.blocks)
    block = func_ir.blocks[first]
    loc, scope = block.loc, block.scope
    needed = {guard.uniform.name for guard in guards}
    body = _slice(func_ir, guards, needed)
    results = []
    for guard, bound in zip(_repeated(guards), _bounds(guards), strict=True):
        inclusive = int(
            _compare(guard) in (operator.le, operator.gt) or _is_upper_equal(guard, bound)
        )
        # All comparisons with NaN are false: no thread passes a test, every thread fails it.
        low_if_nan = int(bound.upper != guard.negated)
        numbers = (ir.Const(inclusive, loc), ir.Const(low_if_nan, loc))
        values = (ir.Global("limit", limit, loc), *numbers)
        call = [scope.redefine("$simt_limit", loc) for _ in values]
        body += [ir.Assign(v, var, loc) for v, var in zip(values, call, strict=True)]
        results.append(scope.redefine("$simt_limit", loc))
        arguments = [guard.uniform, call[1], call[2]]
        body.append(ir.Assign(ir.Expr.call(call[0], arguments, (), loc), results[-1], loc))
    packed = scope.redefine("$simt_limits", loc)
    body.append(ir.Assign(ir.Expr.build_tuple(results, loc), packed, loc))
    body.append(ir.Return(packed, loc))
    block.body = body
    func_ir.blocks = {first: block}
    func_ir._definitions = build_definitions(func_ir.blocks)
    return _bounds(guards)


def _compare(guard: _Guard) -> Any:
    return NEGATED[guard.compare] if guard.negated else guard.compare


def _is_upper_equal(guard: _Guard, bound: Bound) -> bool:
    return guard.compare is operator.eq and bound.upper


def _repeated(guards: list[_Guard]) -> list[_Guard]:
    """List each guard once for each of its bounds: an equality bounds from both sides."""
    return [g for g in guards for _ in range(2 if g.compare is operator.eq else 1)]


def _bounds(guards: list[_Guard]) -> list[Bound]:
    bounds = []
    for guard in guards:
        place, compare = guard.position, _compare(guard)
        sides = [False, True] if compare is operator.eq else [compare in (operator.lt, operator.le)]
        bounds += [Bound(place.kind, place.axis, upper, place.shift) for upper in sides]
    return bounds


def _slice(func_ir: Any, guards: list[_Guard], needed: set[str]) -> list[Any]:
    """Keep the statements that the needed variables depend on; all of them are assigned once."""
    statements = [
        statement
        for label in sorted(func_ir.blocks)
        for statement in func_ir.blocks[label].body
        if isinstance(statement, ir.Assign)
    ]
    pending = list(needed)
    defined = {statement.target.name: statement for statement in statements}
    while pending:
        value = defined[pending.pop()].value
        used = [value] if isinstance(value, ir.Var) else []
        used += value.list_vars() if isinstance(value, ir.Expr) else []
        new = {variable.name for variable in used} - needed
        needed |= new
        pending += new
    arguments = [s for s in statements if isinstance(s.value, ir.Arg)]
    others = [s for s in statements if s.target.name in needed and s not in arguments]
    return arguments + _in_order(others)


def _in_order(statements: list[Any]) -> list[Any]:
    """Order assignments so that each comes after those it uses (labels need not be in order)."""
    names = {statement.target.name for statement in statements}
    done: set[str] = set()
    ordered: list[Any] = []
    while len(ordered) < len(statements):
        for statement in statements:
            used = {v.name for v in statement.list_vars()} - {statement.target.name}
            if statement.target.name not in done and not (used & names) - done:
                done.add(statement.target.name)
                ordered.append(statement)
    return ordered


def _find_guards(func_ir: Any) -> list[_Guard]:
    """Walk from the entry as long as nothing happens but tests that lead to the end."""
    blocks, positions = func_ir.blocks, Positions(func_ir)
    guards: list[_Guard] = []
    label, seen = min(blocks), set()
    while label not in seen and positions.is_pure(blocks[label]):
        seen.add(label)
        block = blocks[label]
        end = block.terminator
        if isinstance(end, ir.Jump):
            label = end.target
        elif isinstance(end, ir.Branch):
            guard = _guard(positions, blocks, block)
            if guard is None:
                break
            guards.append(guard)
            label = guard.continuation
        else:
            break
    return guards


def _guard(positions: Positions, blocks: dict[int, Any], block: Any) -> _Guard | None:
    end = block.terminator
    ends = [leads_to_end(positions, blocks, target) for target in (end.truebr, end.falsebr)]
    if ends[0] == ends[1]:
        return None
    leaves_if_true = ends[0]
    compare, flipped = positions.comparison(end.cond)
    if compare is None:
        return None
    negated = leaves_if_true != flipped
    function = compare.fn
    left, right = positions.classify(compare.lhs), positions.classify(compare.rhs)
    uniform = compare.rhs
    if isinstance(right, Position) and isinstance(left, Uniform) and function in MIRRORED:
        left, right, uniform, function = right, left, compare.lhs, MIRRORED[function]
    if not (isinstance(left, Position) and isinstance(right, Uniform)):
        return None
    if function not in (NEGATED if negated else MIRRORED):
        return None
    continuation = end.falsebr if leaves_if_true else end.truebr
    return _Guard(block, end.cond, left, function, uniform, negated, continuation)


def leads_to_end(positions: Positions, blocks: dict[int, Any], label: int) -> bool:
    """Tell whether from a block on nothing happens any more."""
    seen: set[int] = set()
    while label not in seen and positions.is_pure(blocks[label]):
        seen.add(label)
        end = blocks[label].terminator
        if isinstance(end, ir.Return):
            return True
        if not isinstance(end, ir.Jump):
            return False
        label = end.target
    return False
