"""Grid-stride loops: the turns of ``for i in range(cuda.grid(1), n, cuda.gridsize(1))``.

One thread's turns are far apart in memory, so running them one after the other is slow on a CPU,
and no two of them are neighbours that could share a vector. Where such a loop is all that a kernel
does, the loop is taken out: what is left of the kernel does one turn, its position comes from the
hidden argument, and the launch goes through the turns, with the threads inside each turn (see
`entry`). Each thread still makes its turns in its own order, so what it writes in one and reads in
a later one is as before. Nothing but memory may carry from turn to turn.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

from numba.core import ir
from numba.core.analysis import compute_cfg_from_blocks, compute_live_map, compute_use_defs
from numba.core.ir_utils import build_definitions

from nbrt.backends.cpu.simt.frontend.bounds_checks import MIRRORED, NEGATED, leads_to_end
from nbrt.backends.cpu.simt.frontend.dialect import AXES
from nbrt.backends.cpu.simt.frontend.thread_index_analysis import Position, Positions, Uniform
from nbrt.backends.cpu.simt.thread_context import ARGUMENT

__all__ = ["interchange_grid_strides"]

_ARITHMETIC = frozenset(
    getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift"),
        *("and_", "or_", "xor", "lt", "le", "gt", "ge", "eq", "ne"),
        *("neg", "pos", "invert", "not_"),
    )
)
"""Operators that look at their operands only, not at memory behind them as ``in`` does."""


def interchange_grid_strides(func_ir: Any) -> list[int]:
    """Take the grid-stride loops out of a kernel; a guard stays in place of each.

    Parameters
    ----------
    func_ir : numba.core.ir.FunctionIR
        The kernel, its dialect resolved; changed in place.

    Returns
    -------
    list of int
        The axes along which the launch must make the turns, outermost loop first.
    """
    _drop_empty_latches(func_ir)
    axes: list[int] = []
    while (loop := _find_loop(func_ir, axes)) is not None:
        _rewrite(func_ir, loop)
        axes.append(loop.start.axis)
    return axes


def _drop_empty_latches(func_ir: Any) -> None:
    """Let loops go back straight from where they decide to, past blocks that only jump.

    CPython 3.12 and later put such a block behind the test at the end of a ``while`` body.
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
class _Loop:
    """A loop that can be taken out."""

    start: Position
    header: int
    body: set[int]
    latches: list[int]
    test: int
    """The block that decides, for a first turn, whether there is one."""
    variable: Any
    """What holds the position at the beginning of a turn."""
    compare: Any
    """Function that compares the position with the limit, in this order."""
    limit: Any
    after: int
    """Where the loop leads when it is over."""
    dropped: list[Any] = field(default_factory=list)
    """Assignments that only served the counting of a ``for`` loop."""
    advance: Any = None
    """Assignment of the sum that a ``while`` loop counts on with."""


def _find_loop(func_ir: Any, taken: list[int]) -> _Loop | None:
    """Walk from the entry to the first loop, past guards and what every turn may compute anew."""
    blocks, positions = func_ir.blocks, Positions(func_ir)
    cfg = compute_cfg_from_blocks(blocks)
    path: list[int] = []
    label = min(blocks)
    while label not in cfg.loops():
        if label in path or not _is_repeatable(positions, blocks[label]):
            return None
        path.append(label)
        end = blocks[label].terminator
        if isinstance(end, ir.Jump):
            label = end.target
        elif isinstance(end, ir.Branch):
            ends = [leads_to_end(positions, blocks, side) for side in (end.truebr, end.falsebr)]
            if ends[0] == ends[1]:
                return None
            label = end.falsebr if ends[0] else end.truebr
        else:
            return None
    loop = _Matcher(blocks, positions, cfg, path, label).match() if path else None
    return loop if loop is not None and loop.start.axis not in taken else None


def _is_repeatable(positions: Positions, block: Any) -> bool:
    """Tell whether a block may run again for each turn: it depends on nothing a turn can change."""
    return all(_is_stable(positions, statement) for statement in block.body[:-1])


def _is_stable(positions: Positions, statement: Any) -> bool:
    if not isinstance(statement, ir.Assign):
        return isinstance(statement, ir.Del)
    value = statement.value
    if not isinstance(value, ir.Expr):
        return isinstance(value, (ir.Arg, ir.Const, ir.Global, ir.FreeVar, ir.Var))
    if value.op in ("binop", "unary"):
        return value.fn in _ARITHMETIC
    if value.op == "call":
        return positions.is_pure_call(value) and not positions.is_reduction(value)
    if value.op in ("getattr", "getitem", "static_getitem"):
        return positions.classify_value(value) is not None
    return value.op in ("cast", "build_tuple", "exhaust_iter", "getiter")


class _Matcher:
    """Checks one loop, whose header the walk has come to."""

    def __init__(
        self, blocks: dict[int, Any], positions: Positions, cfg: Any, path: list[int], header: int
    ) -> None:
        self._blocks = blocks
        self._positions = positions
        self._cfg = cfg
        self._path = path
        self._header = header
        self._body = cfg.loops()[header].body
        self._latches = sorted(b for b in self._body if header in self._successors(b))

    def _successors(self, label: int) -> set[int]:
        return {target for target, _ in self._cfg.successors(label)}

    def match(self) -> _Loop | None:
        """Give the loop if its turns can be made by the launch."""
        if self._cfg.loops()[self._header].entries != {self._path[-1]}:
            return None
        exits = [(b, to) for b in self._body for to in self._successors(b) - self._body]
        if len(exits) != 1:
            return None
        at, after = exits[0]
        if not leads_to_end(self._positions, self._blocks, after):
            return None
        if at == self._header and self._header not in self._latches:
            return self._match_range(after) or self._match_while(at, after, self._header)
        # The compiler has copied the test to the end of the body: the turn ends with it.
        if self._latches == [at]:
            return self._match_while(at, after, self._path[-1])
        return None

    def _carried(self) -> set[str]:
        """Name the variables that a turn takes over from the one before."""
        usage = compute_use_defs(self._blocks)
        live = compute_live_map(self._cfg, self._blocks, usage.usemap, usage.defmap)
        assigned = {
            statement.target.name
            for label in self._body
            for statement in self._blocks[label].find_insts(ir.Assign)
        }
        return set(live[self._header] & assigned)

    def _is_grid_size(self, variable: Any, axis: int) -> bool:
        return self._positions.classify(variable) == Uniform(extent=f"gridsize.{AXES[axis]}")

    # -- for i in range(...) -----------------------------------------------------------------

    def _match_range(self, after: int) -> _Loop | None:
        block = self._blocks[self._header]
        head = {s.value.op: s for s in block.find_insts(ir.Assign) if isinstance(s.value, ir.Expr)}
        if set(head) != {"iternext", "pair_first", "pair_second"} or self._carried():
            return None
        end, following = block.terminator, head["pair_second"].target.name
        if end.cond.name != following or end.falsebr != after:
            return None
        chain = self._iterator(head["iternext"].value.value)
        counted = self._positions.range_arguments(chain[-1].value.value) if chain else None
        if counted is None:
            return None
        start = self._positions.classify(counted[0])
        if not (isinstance(start, Position) and start.kind == "grid"):
            return None
        if not self._is_grid_size(counted[2], start.axis):
            return None
        loc = block.loc
        # As an attribute of the range, so that it is converted to an integer as the range does.
        stop = ir.Expr.getattr(chain[-1].value.value, "stop", loc)
        return _Loop(
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
        """Follow the loop's iterator to its ``getiter``, if nothing else uses it on the way."""
        statements = [s for block in self._blocks.values() for s in block.body]
        chain: list[Any] = []
        while True:
            value = self._positions.definition(variable)
            uses = [s for s in statements if variable.name in {v.name for v in s.list_vars()}]
            if value is None or len(uses) != 2:  # where it is assigned, and where it goes
                return []
            chain += [s for s in uses if isinstance(s, ir.Assign) and s.value is value]
            if isinstance(value, ir.Expr) and value.op == "getiter":
                return chain
            if not isinstance(value, ir.Var):
                return []
            variable = value

    # -- while i < n: ...; i += stride -------------------------------------------------------

    def _match_while(self, at: int, after: int, test: int) -> _Loop | None:
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
        start = self._positions.classify_value(before[0][1].value)
        first, again = self._condition(test, name), self._condition(at, name)
        if not isinstance(start, Position) or start.kind != "grid" or not (first and again):
            return None
        advance = self._advance(inside[0][1])
        step = self._step(advance.value, name) if advance is not None else None
        if step is None or not self._is_grid_size(step, start.axis):
            return None
        if not self._is_once_a_turn(*inside[0], at, again[0]):
            return None
        compare, limit = first[1:]
        if compare is not again[1] or not _is_same(self._positions, limit, again[2]):
            return None
        return _Loop(
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
        """Give the assignment of the sum, if what is assigned here is one."""
        if isinstance(statement.value, ir.Var):
            value = self._positions.definition(statement.value)
            found = [s for b in self._body for s in self._blocks[b].find_insts(ir.Assign)]
            statement = next((s for s in found if s.value is value), None)
        value = statement.value if statement is not None else None
        if not isinstance(value, ir.Expr) or value.op not in ("binop", "inplace_binop"):
            return None
        function = value.immutable_fn if value.op == "inplace_binop" else value.fn
        return statement if function is operator.add else None

    def _step(self, value: Any, name: str) -> Any:
        """Give what a sum adds to a variable."""
        sides = [value.lhs, value.rhs]
        others = [side for side in sides if side.name != name]
        return others[0] if len(others) == 1 else None

    def _is_once_a_turn(self, label: int, statement: Any, at: int, compare: Any) -> bool:
        """Tell whether every turn runs a statement once, after the test before it, if that is so.

        The test `compare` stands in the block `at`: at the beginning of each turn or at its end.
        """
        dominators = self._cfg.dominators()
        if any(label not in dominators[latch] for latch in self._latches):
            return False
        loops = self._cfg.loops().values()
        if any(label in other.body and other.body < self._body for other in loops):
            return False
        if at not in self._latches:
            return label != at and self._positions.is_pure(self._blocks[at])
        body = self._blocks[at].body
        return label != at or body.index(statement) < body.index(compare)

    def _condition(self, label: int, name: str) -> tuple[Any, Any, Any] | None:
        """Give the statement, the operator and the limit of the test that goes on with the loop."""
        block, end = self._blocks[label], self._blocks[label].terminator
        if not isinstance(end, ir.Branch):
            return None
        compare, negated = self._positions.comparison(end.cond)
        found = [s for s in block.find_insts(ir.Assign) if s.value is compare]
        if not found or (end.truebr in self._body) == (end.falsebr in self._body):
            return None
        function, left, right = compare.fn, compare.lhs, compare.rhs
        if right.name == name:
            function, left, right = MIRRORED.get(function), right, left
        if negated != (end.falsebr in self._body):
            function = NEGATED.get(function)
        if function not in (operator.lt, operator.le) or left.name != name:
            return None
        is_uniform = isinstance(self._positions.classify(right), Uniform)
        return (found[0], function, right) if is_uniform else None


def _is_same(positions: Positions, left: Any, right: Any) -> bool:
    """Tell whether two uniform operands are computed in the same way from the same things."""
    if isinstance(left, ir.Var) and isinstance(right, ir.Var):
        values = positions.definition(left), positions.definition(right)
        if left.name == right.name or None in values:
            return left.name == right.name and values[0] is not None
        return _is_same(positions, *values)
    if isinstance(left, ir.Expr) and isinstance(right, ir.Expr):
        mine, others = left._kws, right._kws
        alike = left.op == right.op and mine.keys() == others.keys()
        return alike and all(_is_same(positions, mine[key], others[key]) for key in mine)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(_is_same(positions, *pair) for pair in pairs)
    if isinstance(left, (ir.Const, ir.Global, ir.FreeVar)) and isinstance(right, type(left)):
        return left.value is right.value
    return left is right or (isinstance(left, str | int) and left == right)


def _rewrite(func_ir: Any, loop: _Loop) -> None:
    """Put one turn in the place of a loop."""
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
    # The test at the top may use the position; one in front of the loop has not got to it yet.
    body = [*move, *others] if loop.test == loop.header else [*others, *move]
    block.body = [*body, *test, ir.Branch(go_on, inside, outside, loc)]
    if loop.advance is not None:
        # An addition in place could be an array's, as far as a look at the name tells.
        value = loop.advance.value
        loop.advance.value = ir.Expr.binop(operator.add, value.lhs, value.rhs, value.loc)
    for latch in loop.latches:
        _redirect(blocks[latch], loop.header, loop.after)
    for each in blocks.values():
        each.body = [s for s in each.body if not any(s is dropped for dropped in loop.dropped)]
    for label in compute_cfg_from_blocks(blocks).dead_nodes():
        del blocks[label]
    func_ir._definitions = build_definitions(blocks)


def _redirect(block: Any, old: int, new: int) -> None:
    """Let a block lead to another one wherever it leads to `old`."""
    end = block.terminator
    if isinstance(end, ir.Jump) and end.target == old:
        block.body[-1] = ir.Jump(new, end.loc)
    elif isinstance(end, ir.Branch) and old in (end.truebr, end.falsebr):
        sides = [new if side == old else side for side in (end.truebr, end.falsebr)]
        same = sides[0] == sides[1]
        block.body[-1] = ir.Jump(new, end.loc) if same else ir.Branch(end.cond, *sides, end.loc)
