"""Interchange of grid-stride loops: ``for i in range(cuda.grid(1), n, cuda.gridsize(1))``.

The iterations of one thread are far apart in memory, so running them in sequence is slow on a CPU,
and no two of them can share a vector. If such a loop is all that a kernel does, it is removed: the
rest of the kernel is one iteration, its position comes from the hidden argument, and `ThreadLoops`
emits the loop over iterations around the loops over threads. Each thread still runs its iterations
in order, so a value that it stores in one and loads in a later one stays the same. Only memory may
carry values between iterations.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

from numba.core import ir
from numba.core.analysis import compute_cfg_from_blocks, compute_live_map, compute_use_defs
from numba.core.ir_utils import build_definitions

from nbrt.backends.cpu.simt.frontend.bounds_checks import MIRRORED, NEGATED, leads_to_end
from nbrt.backends.cpu.simt.frontend.thread_index_analysis import (
    Position,
    ThreadIndexAnalysis,
    Uniform,
)
from nbrt.backends.cpu.simt.thread_context import ARGUMENT
from nbrt.backends.dialect import AXES

__all__ = ["interchange_grid_strides"]

_ARITHMETIC = frozenset(
    getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift"),
        *("and_", "or_", "xor", "lt", "le", "gt", "ge", "eq", "ne"),
        *("neg", "pos", "invert", "not_"),
    )
)
"""Operators that read only their operands; ``in`` also reads memory behind them."""


def interchange_grid_strides(func_ir: Any) -> list[int]:
    """Remove the grid-stride loops of a kernel; a bounds check replaces each.

    Returns
    -------
    list of int
        The axes of the loops over iterations that the launch must emit, outermost first.
    """
    _drop_empty_latches(func_ir)
    axes: list[int] = []
    while (loop := _find_loop(func_ir, axes)) is not None:
        _rewrite(func_ir, loop)
        axes.append(loop.start.axis)
    return axes


def _drop_empty_latches(func_ir: Any) -> None:
    """Remove latches that only jump to the header.

    CPython 3.12 and later emit such a block behind the test at the end of a ``while`` body.
    """
    blocks = func_ir.blocks
    for header, loop in compute_cfg_from_blocks(blocks).loops().items():
        for label in loop.body - {header}:
            if (
                isinstance(blocks[label].body[0], ir.Jump)
                and blocks[label].body[0].target == header
            ):
                for other in loop.body - {label}:
                    _redirect(blocks[other], label, header)
    for label in compute_cfg_from_blocks(blocks).dead_nodes():
        del blocks[label]
    func_ir._definitions = build_definitions(blocks)


@dataclass
class _GridStrideLoop:
    """A loop that can be removed."""

    start: Position
    header: int
    body: set[int]
    latches: list[int]
    test: int
    """The block of the test before the first iteration."""
    variable: Any
    """The variable with the position of an iteration."""
    compare: Any
    """Comparison of the position with the limit, in this order."""
    limit: Any
    after: int
    """The block behind the loop."""
    dropped: list[Any] = field(default_factory=list)
    """Assignments of the iterator of a ``for`` loop."""
    advance: Any = None
    """Assignment of the sum that advances a ``while`` loop."""


def _find_loop(func_ir: Any, removed: list[int]) -> _GridStrideLoop | None:
    """Return the first loop if only bounds checks and repeatable statements precede it."""
    blocks, analysis = func_ir.blocks, ThreadIndexAnalysis(func_ir)
    cfg = compute_cfg_from_blocks(blocks)
    path: list[int] = []
    label = min(blocks)
    while label not in cfg.loops():
        if label in path or not _is_repeatable(analysis, blocks[label]):
            return None
        path.append(label)
        end = blocks[label].terminator
        if isinstance(end, ir.Jump):
            label = end.target
        elif isinstance(end, ir.Branch):
            ends = [leads_to_end(analysis, blocks, side) for side in (end.truebr, end.falsebr)]
            if ends[0] == ends[1]:
                return None
            label = end.falsebr if ends[0] else end.truebr
        else:
            return None
    loop = _Matcher(blocks, analysis, cfg, path, label).match() if path else None
    return loop if loop is not None and loop.start.axis not in removed else None


def _is_repeatable(analysis: ThreadIndexAnalysis, block: Any) -> bool:
    """Return whether each iteration may repeat a block: no iteration can change its results."""
    return all(_is_stable(analysis, statement) for statement in block.body[:-1])


def _is_stable(analysis: ThreadIndexAnalysis, statement: Any) -> bool:
    if not isinstance(statement, ir.Assign):
        return isinstance(statement, ir.Del)
    value = statement.value
    if not isinstance(value, ir.Expr):
        return isinstance(value, (ir.Arg, ir.Const, ir.Global, ir.FreeVar, ir.Var))
    if value.op in ("binop", "unary"):
        return value.fn in _ARITHMETIC
    if value.op == "call":
        return analysis.is_pure_call(value) and not analysis.is_reduction(value)
    if value.op in ("getattr", "getitem", "static_getitem"):
        return analysis.classify_value(value) is not None
    return value.op in ("cast", "build_tuple", "exhaust_iter", "getiter")


class _Matcher:
    """Checks whether the launch can run the iterations of one loop."""

    def __init__(
        self,
        blocks: dict[int, Any],
        analysis: ThreadIndexAnalysis,
        cfg: Any,
        path: list[int],
        header: int,
    ) -> None:
        self._blocks = blocks
        self._analysis = analysis
        self._cfg = cfg
        self._path = path
        self._header = header
        self._body = cfg.loops()[header].body
        self._latches = sorted(b for b in self._body if header in self._successors(b))

    def _successors(self, label: int) -> set[int]:
        return {target for target, _ in self._cfg.successors(label)}

    def match(self) -> _GridStrideLoop | None:
        """Return the loop if the launch can run its iterations."""
        if self._cfg.loops()[self._header].entries != {self._path[-1]}:
            return None
        exits = [(b, to) for b in self._body for to in self._successors(b) - self._body]
        if len(exits) != 1:
            return None
        at, after = exits[0]
        if not leads_to_end(self._analysis, self._blocks, after):
            return None
        if at == self._header and self._header not in self._latches:
            return self._match_range(after) or self._match_while(at, after, self._header)
        # CPython has copied the test to the end of the body.
        if self._latches == [at]:
            return self._match_while(at, after, self._path[-1])
        return None

    def _carried(self) -> set[str]:
        """Return the names of variables that carry values between iterations."""
        usage = compute_use_defs(self._blocks)
        live = compute_live_map(self._cfg, self._blocks, usage.usemap, usage.defmap)
        assigned = {
            statement.target.name
            for label in self._body
            for statement in self._blocks[label].find_insts(ir.Assign)
        }
        return set(live[self._header] & assigned)

    def _is_grid_size(self, variable: Any, axis: int) -> bool:
        return self._analysis.classify(variable) == Uniform(extent=f"gridsize.{AXES[axis]}")

    # -- for i in range(...) -----------------------------------------------------------------

    def _match_range(self, after: int) -> _GridStrideLoop | None:
        block = self._blocks[self._header]
        head = {s.value.op: s for s in block.find_insts(ir.Assign) if isinstance(s.value, ir.Expr)}
        if set(head) != {"iternext", "pair_first", "pair_second"} or self._carried():
            return None
        end, following = block.terminator, head["pair_second"].target.name
        if end.cond.name != following or end.falsebr != after:
            return None
        chain = self._iterator(head["iternext"].value.value)
        counted = self._analysis.range_arguments(chain[-1].value.value) if chain else None
        if counted is None:
            return None
        start = self._analysis.classify(counted[0])
        if not (isinstance(start, Position) and start.kind == "grid"):
            return None
        if not self._is_grid_size(counted[2], start.axis):
            return None
        loc = block.loc
        # Read from the range, which converts its limit to an integer.
        stop = ir.Expr.getattr(chain[-1].value.value, "stop", loc)
        return _GridStrideLoop(
            start=start,
            header=self._header,
            body=self._body,
            latches=self._latches,
            test=self._header,
            variable=head["pair_first"].target,
            compare=operator.lt,
            limit=stop,
            after=after,
            dropped=[*chain, *head.values()],
        )

    def _iterator(self, variable: Any) -> list[Any]:
        """Return the assignments from the iterator back to ``getiter`` if nothing else uses it."""
        statements = [s for block in self._blocks.values() for s in block.body]
        chain: list[Any] = []
        while True:
            value = self._analysis.definition(variable)
            uses = [s for s in statements if variable.name in {v.name for v in s.list_vars()}]
            if value is None or len(uses) != 2:  # its assignment and one use
                return []
            chain += [s for s in uses if isinstance(s, ir.Assign) and s.value is value]
            if isinstance(value, ir.Expr) and value.op == "getiter":
                return chain
            if not isinstance(value, ir.Var):
                return []
            variable = value

    # -- while i < n: ...; i += stride -------------------------------------------------------

    def _match_while(self, at: int, after: int, test: int) -> _GridStrideLoop | None:
        carried = self._carried()
        name = carried.pop() if len(carried) == 1 else ""
        assigns = [
            (label, statement)
            for label, block in self._blocks.items()
            for statement in block.find_insts(ir.Assign)
            if statement.target.name == name
        ]
        before = [(label, s) for label, s in assigns if label in self._path]
        inside = [(label, s) for label, s in assigns if label in self._body]
        if len(assigns) != 2 or len(before) != 1 or len(inside) != 1:
            return None
        start = self._analysis.classify_value(before[0][1].value)
        first, again = self._condition(test, name), self._condition(at, name)
        if not isinstance(start, Position) or start.kind != "grid" or not (first and again):
            return None
        advance = self._advance(inside[0][1])
        step = self._step(advance.value, name) if advance is not None else None
        if step is None or not self._is_grid_size(step, start.axis):
            return None
        if not self._runs_once(*inside[0], at, again[0]):
            return None
        compare, limit = first[1:]
        if compare is not again[1] or not _is_same(self._analysis, limit, again[2]):
            return None
        return _GridStrideLoop(
            start=start,
            header=self._header,
            body=self._body,
            latches=self._latches,
            test=test,
            variable=inside[0][1].target,
            compare=compare,
            limit=limit,
            after=after,
            advance=advance,
        )

    def _advance(self, statement: Any) -> Any:
        """Return the assignment of the sum, if the assigned value is a sum."""
        if isinstance(statement.value, ir.Var):
            value = self._analysis.definition(statement.value)
            assigns = [s for b in self._body for s in self._blocks[b].find_insts(ir.Assign)]
            statement = next((s for s in assigns if s.value is value), None)
        value = statement.value if statement is not None else None
        if not isinstance(value, ir.Expr) or value.op not in ("binop", "inplace_binop"):
            return None
        function = value.immutable_fn if value.op == "inplace_binop" else value.fn
        return statement if function is operator.add else None

    def _step(self, value: Any, name: str) -> Any:
        """Return the operand that a sum adds to a variable."""
        sides = [value.lhs, value.rhs]
        others = [side for side in sides if side.name != name]
        return others[0] if len(others) == 1 else None

    def _runs_once(self, label: int, statement: Any, at: int, compare: Any) -> bool:
        """Return whether each iteration runs a statement once, between two tests of the loop.

        The test `compare` is in the block `at`, at the start or end of an iteration.
        """
        dominators = self._cfg.dominators()
        if any(label not in dominators[latch] for latch in self._latches):
            return False
        loops = self._cfg.loops().values()
        if any(label in other.body and other.body < self._body for other in loops):
            return False
        if at not in self._latches:
            return label != at and self._analysis.is_pure(self._blocks[at])
        body = self._blocks[at].body
        return label != at or body.index(statement) < body.index(compare)

    def _condition(self, label: int, name: str) -> tuple[Any, Any, Any] | None:
        """Return the statement, operator and limit of the test that continues the loop."""
        block, end = self._blocks[label], self._blocks[label].terminator
        if not isinstance(end, ir.Branch):
            return None
        compare, negated = self._analysis.comparison(end.cond)
        tests = [s for s in block.find_insts(ir.Assign) if s.value is compare]
        if not tests or (end.truebr in self._body) == (end.falsebr in self._body):
            return None
        function, left, right = compare.fn, compare.lhs, compare.rhs
        if right.name == name:
            function, left, right = MIRRORED.get(function), right, left
        if negated != (end.falsebr in self._body):
            function = NEGATED.get(function)
        if function not in (operator.lt, operator.le) or left.name != name:
            return None
        is_uniform = isinstance(self._analysis.classify(right), Uniform)
        return (tests[0], function, right) if is_uniform else None


def _is_same(analysis: ThreadIndexAnalysis, left: Any, right: Any) -> bool:
    """Return whether two uniform operands are the same expression."""
    if isinstance(left, ir.Var) and isinstance(right, ir.Var):
        values = analysis.definition(left), analysis.definition(right)
        if left.name == right.name or None in values:
            return left.name == right.name and values[0] is not None
        return _is_same(analysis, *values)
    if isinstance(left, ir.Expr) and isinstance(right, ir.Expr):
        mine, others = left._kws, right._kws
        alike = left.op == right.op and mine.keys() == others.keys()
        return alike and all(_is_same(analysis, mine[key], others[key]) for key in mine)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(_is_same(analysis, *pair) for pair in pairs)
    if isinstance(left, (ir.Const, ir.Global, ir.FreeVar)) and isinstance(right, type(left)):
        return left.value is right.value
    return left is right or (isinstance(left, str | int) and left == right)


def _rewrite(func_ir: Any, loop: _GridStrideLoop) -> None:
    """Replace a loop by one iteration."""
    blocks = func_ir.blocks
    block = blocks[loop.test]
    scope, loc, end = block.scope, block.loc, block.terminator
    position = scope.redefine("$simt_turn", loc)
    context = scope.get_exact(ARGUMENT)
    value = ir.Expr.getattr(context, f"turn.{AXES[loop.start.axis]}", loc)
    move = [ir.Assign(value, position, loc)]
    if loop.start.shift:
        shift, moved = scope.redefine("$simt_shift", loc), scope.redefine("$simt_turn", loc)
        move.append(ir.Assign(ir.Const(loop.start.shift, loc), shift, loc))
        move.append(ir.Assign(ir.Expr.binop(operator.add, position, shift, loc), moved, loc))
        position = moved
    move.append(ir.Assign(position, loop.variable, loc))
    limit, go_on = scope.redefine("$simt_stop", loc), scope.redefine("$simt_go_on", loc)
    test = [
        ir.Assign(loop.limit, limit, loc),
        ir.Assign(ir.Expr.binop(loop.compare, position, limit, loc), go_on, loc),
    ]
    inside, outside = end.truebr, end.falsebr
    if inside not in loop.body:
        inside, outside = outside, inside
    others = block.body[:-1]
    # A test in the header may use the position; a test before the loop precedes its assignment.
    body = [*move, *others] if loop.test == loop.header else [*others, *move]
    block.body = [*body, *test, ir.Branch(go_on, inside, outside, loc)]
    if loop.advance is not None:
        # Before typing, an addition in place could be one of arrays.
        value = loop.advance.value
        loop.advance.value = ir.Expr.binop(operator.add, value.lhs, value.rhs, value.loc)
    for latch in loop.latches:
        _redirect(blocks[latch], loop.header, loop.after)
    for other in blocks.values():
        other.body = [s for s in other.body if not any(s is dropped for dropped in loop.dropped)]
    for label in compute_cfg_from_blocks(blocks).dead_nodes():
        del blocks[label]
    func_ir._definitions = build_definitions(blocks)


def _redirect(block: Any, old: int, new: int) -> None:
    """Replace a target of a block."""
    end = block.terminator
    if isinstance(end, ir.Jump) and end.target == old:
        block.body[-1] = ir.Jump(new, end.loc)
    elif isinstance(end, ir.Branch) and old in (end.truebr, end.falsebr):
        sides = [new if side == old else side for side in (end.truebr, end.falsebr)]
        same = sides[0] == sides[1]
        block.body[-1] = ir.Jump(new, end.loc) if same else ir.Branch(end.cond, *sides, end.loc)
