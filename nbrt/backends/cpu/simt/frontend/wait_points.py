"""The points of a kernel where a thread may wait: loops that may spin, and barriers."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from numba.core import ir
from numba.core.analysis import compute_cfg_from_blocks

from nbrt.backends.captures import is_device_function
from nbrt.backends.cpu.simt.builtins import MARKER_NAMES, barriers, marker_kind, warp
from nbrt.backends.cpu.simt.builtins.places import mark_place, number_of
from nbrt.backends.dialect import dialect_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["mark_places", "mentions_markers", "mentions_thread"]

_READS = ("getitem", "static_getitem", "call")
_WAITS = frozenset(
    id(function)
    for name, function in {**barriers.REPLACEMENTS, **warp.REPLACEMENTS}.items()
    if marker_kind(name) is not None
)


def mark_places(func_ir: Any) -> bool:
    """Insert markers before barriers and warp operations, and into loops that may spin.

    A loop over a range or an array ends by itself. Any other loop may spin if it reads an array or
    calls a function, or if nothing leads out of it.

    Parameters
    ----------
    func_ir : numba.core.ir.FunctionIR
        A function whose names of the dialect are resolved; changed in place.

    Returns
    -------
    bool
        Whether there is a loop that may spin.
    """
    marker = _Marker(func_ir)
    marker.mark_waits()
    return marker.mark_loops()


class _Marker:
    def __init__(self, func_ir: Any) -> None:
        self._ir = func_ir
        self._file = func_ir.loc.filename
        self._fresh = 0

    def mark_waits(self) -> None:
        """Mark barriers and warp operations."""
        for block in self._ir.blocks.values():
            body: list[Any] = []
            for statement in block.body:
                if isinstance(statement, ir.Assign) and self._waits_at(statement.value):
                    body += self._mark(block, statement.loc.line, statement.loc)
                body.append(statement)
            block.body = body

    def mark_loops(self) -> bool:
        """Mark the loops that may spin, at their heads."""
        marked = False
        for loop in compute_cfg_from_blocks(self._ir.blocks).loops().values():
            head = self._ir.blocks[loop.header]
            if self._may_spin(loop):
                head.body[:0] = self._mark(head, self._line(loop), head.loc)
                marked = True
        return marked

    def _waits_at(self, value: Any) -> bool:
        if not (isinstance(value, ir.Expr) and value.op == "call"):
            return False
        callees = self._ir._definitions.get(value.func.name, [])
        if any(isinstance(callee, ir.Global) and id(callee.value) in _WAITS for callee in callees):
            return True
        # The barrier of the grid is a method.
        return any(
            isinstance(callee, ir.Expr) and callee.op == "getattr" and callee.attr == "sync"
            for callee in callees
        )

    def _expressions(self, label: int) -> list[Any]:
        assigns = self._ir.blocks[label].find_insts(ir.Assign)
        return [assign.value for assign in assigns if isinstance(assign.value, ir.Expr)]

    def _may_spin(self, loop: Any) -> bool:
        if any(value.op == "iternext" for value in self._expressions(loop.header)):
            return False
        reads = any(value.op in _READS for label in loop.body for value in self._expressions(label))
        return reads or not loop.exits

    def _line(self, loop: Any) -> int:
        """Return the line of the ``while``: the first of its body, as the test is part of it."""
        lines = [
            statement.loc.line
            for label in loop.body
            for statement in self._ir.blocks[label].body
            if statement.loc.filename == self._file and not isinstance(statement, ir.Del)
        ]
        first: int = min(lines, default=self._ir.blocks[loop.header].loc.line)
        return first

    def _mark(self, block: Any, line: int, loc: Any) -> list[Any]:
        callee = self._assigned(block, ir.Global("mark_place", mark_place, loc), loc)
        place = self._assigned(block, ir.Global("place", number_of(self._file, line), loc), loc)
        call = ir.Expr.call(callee.target, [place.target], (), loc)
        return [callee, place, self._assigned(block, call, loc)]

    def _assigned(self, block: Any, value: Any, loc: Any) -> Any:
        self._fresh += 1
        variable = block.scope.redefine(f"$place_{self._fresh}", loc=loc)
        self._ir._definitions[variable.name] = [value]
        return ir.Assign(value, variable, loc)


def mentions_markers(function: types.FunctionType) -> bool:
    """Return whether a function, or one that it names, names an operation of several threads.

    Only names are compared before compiling, so True may be wrong. False is wrong only if a
    registered overload has such an operation.

    Parameters
    ----------
    function : function
        The kernel.
    """
    return _mentions(function, MARKER_NAMES, lambda name: marker_kind(name) is not None)


_OF_THREAD = frozenset(
    {
        *("threadIdx", "blockIdx", "blockDim", "gridDim", "grid", "gridsize"),
        *("laneid", "lanemask_lt", "warpsize"),
    }
)


def mentions_thread(function: types.FunctionType) -> bool:
    """Return whether a function, or one that it may call, names the index of its thread.

    Only names are compared before compiling, so True may be wrong; False is not.

    Parameters
    ----------
    function : function
        A device function.
    """
    return _mentions(function, _OF_THREAD, _OF_THREAD.__contains__)


def _mentions(
    function: types.FunctionType,
    attributes: frozenset[str],
    is_wanted: Callable[[str], bool],
) -> bool:
    """Return whether a function, or one that it names, has one of some attributes or names."""
    pending, seen = [function], set[int]()
    while pending:
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        names = {name for code in _codes(current.__code__) for name in _names(code)}
        if names & attributes:
            return True
        for value in _values(current, names):
            kind = dialect_name(value)
            if kind is not None and is_wanted(kind):
                return True
            if is_device_function(value):
                pending.append(getattr(value, "py_func"))  # noqa: B009 - no type has it
    return False


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _names(code: types.CodeType) -> tuple[str, ...]:
    return (*code.co_names, *code.co_freevars)


def _values(function: types.FunctionType, names: set[str]) -> Iterator[object]:
    """Yield the values that the names of a function may have, attributes of modules included."""
    values = [function.__globals__[name] for name in names if name in function.__globals__]
    for cell in function.__closure__ or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    seen = set[int]()
    while values:
        value = values.pop()
        yield value
        if isinstance(value, types.ModuleType) and id(value) not in seen:
            seen.add(id(value))
            members = vars(value)  # not what a module computes, such as names that are deprecated
            values += [members[name] for name in names if name in members]
