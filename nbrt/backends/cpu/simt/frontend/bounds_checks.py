"""Bounds checks: ``if i < n`` at the start of a kernel becomes a bound of the loop over threads.

Most kernels begin with a test that ends the threads beyond the data. A test in the loop body makes
every vector store a masked store (five times slower on some CPUs). A test that precedes everything
else, compares the thread's position along one axis with a value that is uniform in the launch, and
leads straight to the end of the kernel, can instead limit the threads that run. The position may
have a lower bound (``i > 0``), an upper bound, or both, on any axis.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from llvmlite import ir as llvm
from numba.core import errors, ir, types
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.ir_utils import build_definitions
from numba.extending import intrinsic

from nbrt.backends.cpu.simt.frontend.thread_index_analysis import (
    Position,
    ThreadIndexAnalysis,
    Uniform,
)

__all__ = ["MIRRORED", "NEGATED", "Bound", "keep_limits", "leads_to_end", "remove_bounds_checks"]

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

_MAX_LIMIT = 2**62
"""A limit beyond all positions; adding a position to it does not overflow."""


@dataclass(frozen=True)
class Bound:
    """A limit on the positions that run, in the order of the results of the limits function."""

    kind: str
    """Kind of the `Position`: ``"grid"``, ``"thread"`` or ``"turn"``."""

    axis: int

    upper: bool
    """Whether positions below the limit run; if not, positions at or above it run."""

    shift: int
    """Constant that the kernel adds to the position before the comparison."""


@dataclass
class _BoundsCheck:
    block: Any
    condition: Any
    position: Position
    compare: Any
    uniform: Any
    negated: bool
    continuation: int

    @property
    def effective(self) -> Any:
        """The comparison that holds for the threads that run."""
        return NEGATED[self.compare] if self.negated else self.compare

    @property
    def bounds(self) -> list[Bound]:
        """The bounds: an equality has two."""
        place, compare = self.position, self.effective
        sides = [False, True] if compare is operator.eq else [compare in (operator.lt, operator.le)]
        return [Bound(place.kind, place.axis, upper, place.shift) for upper in sides]


def remove_bounds_checks(func_ir: Any) -> list[Bound]:
    """Remove the bounds checks of a kernel; their conditions become assumptions for LLVM.

    Returns
    -------
    list of Bound
        The bounds for the loop over threads.
    """
    checks = _find_checks(func_ir)
    scope = func_ir.blocks[min(func_ir.blocks)].scope
    for index, check in enumerate(checks):
        loc = check.block.terminator.loc
        body = check.block.body[:-1]
        function = scope.redefine(f"$simt_assume_{index}", loc)
        ignored = scope.redefine(f"$simt_assumed_{index}", loc)
        flag = scope.redefine(f"$simt_negated_{index}", loc)
        body.append(ir.Assign(ir.Global("assume", assume, loc), function, loc))
        body.append(ir.Assign(ir.Const(int(check.negated), loc), flag, loc))
        call = ir.Expr.call(function, [check.condition, flag], (), loc)
        body.append(ir.Assign(call, ignored, loc))
        body.append(ir.Jump(check.continuation, loc))
        check.block.body = body
    for label in compute_cfg_from_blocks(func_ir.blocks).dead_nodes():
        del func_ir.blocks[label]
    func_ir._definitions = build_definitions(func_ir.blocks)
    return [bound for check in checks for bound in check.bounds]


def keep_limits(func_ir: Any) -> list[Bound]:
    """Turn a kernel into the function that computes its limits, one integer for each `Bound`.

    Returns
    -------
    list of Bound
        The meaning of the results, as from `remove_bounds_checks`.
    """
    checks = _find_checks(func_ir)
    first = min(func_ir.blocks)
    block = func_ir.blocks[first]
    loc, scope = block.loc, block.scope
    body = _slice(func_ir, {check.uniform.name for check in checks})
    results = []
    bounds = [(check, bound) for check in checks for bound in check.bounds]
    for check, bound in bounds:
        is_equal = check.compare is operator.eq and bound.upper
        inclusive = is_equal or check.effective in (operator.le, operator.gt)
        # A comparison with NaN is false: no thread passes a check, or no thread fails it.
        low_if_nan = bound.upper != check.negated
        numbers = (ir.Const(int(inclusive), loc), ir.Const(int(low_if_nan), loc))
        values = (ir.Global("limit", limit, loc), *numbers)
        call = [scope.redefine("$simt_limit", loc) for _ in values]
        body += [ir.Assign(v, var, loc) for v, var in zip(values, call, strict=True)]
        results.append(scope.redefine("$simt_limit", loc))
        arguments = [check.uniform, call[1], call[2]]
        body.append(ir.Assign(ir.Expr.call(call[0], arguments, (), loc), results[-1], loc))
    packed = scope.redefine("$simt_limits", loc)
    body.append(ir.Assign(ir.Expr.build_tuple(results, loc), packed, loc))
    body.append(ir.Return(packed, loc))
    block.body = body
    func_ir.blocks = {first: block}
    func_ir._definitions = build_definitions(func_ir.blocks)
    return [bound for _, bound in bounds]


def _slice(func_ir: Any, needed: set[str]) -> list[Any]:
    """Return the statements that some variables depend on; each variable is assigned once."""
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
    """Order assignments so that each follows those it uses; labels may be in any order."""
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


def _find_checks(func_ir: Any) -> list[_BoundsCheck]:
    """Return the bounds checks on the path from the entry to the first side effect."""
    blocks, analysis = func_ir.blocks, ThreadIndexAnalysis(func_ir)
    checks: list[_BoundsCheck] = []
    label, seen = min(blocks), set()
    while label not in seen and analysis.is_pure(blocks[label]):
        seen.add(label)
        block = blocks[label]
        end = block.terminator
        if isinstance(end, ir.Jump):
            label = end.target
        elif isinstance(end, ir.Branch):
            check = _check(analysis, blocks, block)
            if check is None:
                break
            checks.append(check)
            label = check.continuation
        else:
            break
    return checks


def _check(
    analysis: ThreadIndexAnalysis, blocks: dict[int, Any], block: Any
) -> _BoundsCheck | None:
    end = block.terminator
    ends = [leads_to_end(analysis, blocks, target) for target in (end.truebr, end.falsebr)]
    if ends[0] == ends[1]:
        return None
    leaves_if_true = ends[0]
    compare, flipped = analysis.comparison(end.cond)
    if compare is None:
        return None
    negated = leaves_if_true != flipped
    function = compare.fn
    left, right = analysis.classify(compare.lhs), analysis.classify(compare.rhs)
    uniform = compare.rhs
    if isinstance(right, Position) and isinstance(left, Uniform) and function in MIRRORED:
        left, right, uniform, function = right, left, compare.lhs, MIRRORED[function]
    if not (isinstance(left, Position) and isinstance(right, Uniform)):
        return None
    if function not in (NEGATED if negated else MIRRORED):
        return None
    continuation = end.falsebr if leaves_if_true else end.truebr
    return _BoundsCheck(block, end.cond, left, function, uniform, negated, continuation)


def leads_to_end(analysis: ThreadIndexAnalysis, blocks: dict[int, Any], label: int) -> bool:
    """Return whether a block leads to the end of the kernel without side effects."""
    seen: set[int] = set()
    while label not in seen and analysis.is_pure(blocks[label]):
        seen.add(label)
        end = blocks[label].terminator
        if isinstance(end, ir.Return):
            return True
        if not isinstance(end, ir.Jump):
            return False
        label = end.target
    return False


@intrinsic(prefer_literal=True)
def assume(_typingctx: Any, condition: Any, negated: Any) -> Any:
    """Let LLVM assume a condition, or its negation if `negated` is 1."""
    is_negated = bool(negated.literal_value)

    def codegen(context: Any, builder: llvm.IRBuilder, sig: Any, args: Any) -> llvm.Value:
        bit = context.cast(builder, args[0], sig.args[0], types.boolean)
        builder.assume(builder.not_(bit) if is_negated else bit)
        return context.get_dummy_value()

    return types.none(types.unliteral(condition), negated), codegen


@intrinsic(prefer_literal=True)
def limit(_typingctx: Any, value: Any, inclusive: Any, low_if_nan: Any) -> Any:
    """Return the integer L such that ``i < value`` (or ``i >= value``) is ``i < L`` (``i >= L``).

    With `inclusive`, for ``i <= value`` and ``i > value``. The value may be a float. For
    NaN the limit is below all positions if `low_if_nan` is 1, else above all positions.
    """
    value = types.unliteral(value)
    if not isinstance(value, types.Integer | types.Float) or value == types.float16:
        raise errors.NumbaTypeError(f"no limit can be made from {value}")
    is_inclusive, is_low = bool(inclusive.literal_value), bool(low_if_nan.literal_value)

    def codegen(context: Any, builder: llvm.IRBuilder, sig: Any, args: Any) -> llvm.Value:
        if isinstance(value, types.Integer):
            number = _clamped_integer(context, builder, args[0], sig.args[0])
            return builder.add(number, llvm.IntType(64)(int(is_inclusive)))
        wide = context.cast(builder, args[0], sig.args[0], types.float64)
        return _limit_of_float(builder, wide, is_inclusive, is_low)

    return types.int64(value, inclusive, low_if_nan), codegen


def _clamped_integer(
    context: Any, builder: llvm.IRBuilder, number: llvm.Value, typ: Any
) -> llvm.Value:
    if typ.bitwidth < 64:
        return context.cast(builder, number, typ, types.int64)
    high = llvm.IntType(64)(_MAX_LIMIT)
    if not typ.signed:
        return builder.select(builder.icmp_unsigned(">", number, high), high, number)
    low = llvm.IntType(64)(-_MAX_LIMIT)
    number = builder.select(builder.icmp_signed(">", number, high), high, number)
    return builder.select(builder.icmp_signed("<", number, low), low, number)


def _limit_of_float(
    builder: llvm.IRBuilder, number: llvm.Value, is_inclusive: bool, is_low: bool
) -> llvm.Value:
    double, i64 = llvm.DoubleType(), llvm.IntType(64)
    far = float(_MAX_LIMIT)
    is_nan = builder.fcmp_unordered("uno", number, number)
    number = builder.select(builder.fcmp_ordered(">", number, double(far)), double(far), number)
    number = builder.select(builder.fcmp_ordered("<", number, double(-far)), double(-far), number)
    name = "llvm.floor" if is_inclusive else "llvm.ceil"
    rounding = builder.module.declare_intrinsic(name, [double])
    whole = builder.call(rounding, [builder.select(is_nan, double(0.0), number)])
    result = builder.add(builder.fptosi(whole, i64), i64(int(is_inclusive)))
    return builder.select(is_nan, i64(-_MAX_LIMIT if is_low else _MAX_LIMIT), result)
