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
from dataclasses import dataclass
from typing import Any

from numba.core import ir
from numba.core.analysis import compute_cfg_from_blocks, compute_live_map, compute_use_defs
from numba.core.ir_utils import build_definitions

from nbrt.backends.cpu.simt.context import ARGUMENT
from nbrt.backends.cpu.simt.dialect import AXES
from nbrt.backends.cpu.simt.guards import MIRRORED, NEGATED, leads_to_end
from nbrt.backends.cpu.simt.positions import Position, Positions, Uniform

__all__ = ["straighten_strides"]

_ARITHMETIC = frozenset(
    getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift"),
        *("and_", "or_", "xor", "lt", "le", "gt", "ge", "eq", "ne"),
        *("neg", "pos", "invert", "not_"),
    )
)
"""Operators that look at their operands only, not at memory behind them as ``in`` does."""


def straighten_strides(func_ir: Any) -> list[int]:
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
    axes: list[int] = []
    while (loop := _find_loop(func_ir, axes)) is not None:
        _rewrite(func_ir, loop)
        axes.append(loop.start.axis)
    return axes


@dataclass
class _Loop:
    """A loop that can be taken out."""

    start: Position
    header: int
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
    dropped: list[Any]
    """Assignments that only served the counting."""


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
        return positions.is_pure_call(value)
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
        dropped = [*chain, *head.values()]
        return _Loop(
            *(start, self._header, self._latches, self._header, head["pair_first"].target),
            *(operator.lt, stop, after, dropped),
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
        variable = next(iter(carried)) if len(carried) == 1 else None
        if variable is None:
            return None
        start, advance = self._start(variable), self._advance(variable)
        first, again = self._condition(test, variable), self._condition(at, variable)
        if start is None or advance is None or first is None or again is None:
            return None
        block, statement = advance
        if at == self._header and at not in self._latches:
            if block == at or not self._positions.is_pure(self._blocks[at]):
                return None
        elif block == at:
            body = self._blocks[at].body
            if body.index(statement) > body.index(again[2]):
                return None
        if first[0] is not again[0] or not _is_same(self._positions, first[1], again[1]):
            return None
        if not self._is_grid_size(advance[1].value, start.axis):
            return None
        return None

    def _start(self, variable: str) -> Position | None:
        return None

    def _advance(self, variable: str) -> tuple[int, Any] | None:
        return None

    def _condition(self, label: int, variable: str) -> tuple[Any, Any, Any] | None:
        return None
