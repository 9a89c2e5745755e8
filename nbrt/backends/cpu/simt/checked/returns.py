"""Return statements of a kernel, distinguished from the end of its source.

``if i >= n: return`` ends a thread; running to the end of the source is different for the rules of
barriers, though bytecode has a return instruction for both. Source positions distinguish them: a
return at the end has the position of the instruction before it.
"""

from __future__ import annotations

import ast
import dis
import inspect
import itertools
import textwrap
from enum import Enum
from typing import TYPE_CHECKING, Any

from numba.core import ir
from numba.core.compiler_machinery import FunctionPass, register_pass

from nbrt.backends.cpu.simt.checked.probes import returned_in_loop, runtime_probes

if TYPE_CHECKING:
    from types import CodeType

__all__ = ["Ending", "MarkReturnsPass", "ending_of", "endings"]

_RETURNS = ("RETURN_VALUE", "RETURN_CONST")
_BEFORE_RETURNS = (*_RETURNS, "POP_TOP", "POP_ITER", "END_FOR", "SWAP")
"""A return in a loop takes the iterator from the stack first."""


class Ending(Enum):
    """The origin of a return instruction."""

    END = "the source ends"
    RETURN = "a return statement"
    RETURN_IN_LOOP = "a return statement in a loop"


_PROBES = {
    Ending.RETURN: runtime_probes["returned"],
    Ending.RETURN_IN_LOOP: returned_in_loop,
}


def endings(code: CodeType) -> list[Ending]:
    """Return the origin of each return instruction.

    Without source, or if the file has changed since, the bytecode alone decides; it does not show
    whether a return is in a loop. The result is in the order of the bytecode.
    """
    instructions = list(dis.get_instructions(code))
    places = [item.positions for item in instructions if item.opname in _RETURNS]
    starts = [(at.lineno, at.col_offset) if at is not None else None for at in places]
    statements = _statements(code)
    if statements and statements.keys() <= set(starts):
        return [statements.get(start, Ending.END) for start in starts]
    if statements is not None and not statements:
        return [Ending.END for _ in starts]
    elsewhere = {
        instruction.positions
        for instruction, following in itertools.pairwise(instructions)
        if instruction.opname not in _BEFORE_RETURNS
        and not (instruction.opname == "LOAD_CONST" and following.opname in _RETURNS)
    }
    return [Ending.END if position in elsewhere else Ending.RETURN for position in places]


def _statements(code: CodeType) -> dict[Any, Ending] | None:
    """Return a function's return statements by line and column; None without source."""
    try:
        lines, first = inspect.getsourcelines(code)
        (function,) = ast.parse(textwrap.dedent("".join(lines))).body
    except (OSError, TypeError, ValueError, SyntaxError):
        return None
    if not isinstance(function, ast.FunctionDef):
        return None
    column = len(lines[0]) - len(lines[0].lstrip())
    statements: dict[Any, Ending] = {}
    pending: list[tuple[ast.AST, Ending]] = [(child, Ending.RETURN) for child in function.body]
    while pending:
        node, ending = pending.pop()
        if isinstance(node, ast.Return):
            statements[first + node.lineno - 1, column + node.col_offset] = ending
        if isinstance(node, ast.For | ast.While):
            ending = Ending.RETURN_IN_LOOP
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            pending += [(child, ending) for child in ast.iter_child_nodes(node)]
    return statements


@register_pass(mutates_CFG=False, analysis_only=False)
class MarkReturnsPass(FunctionPass):
    """Insert a probe before each return statement of a kernel."""

    _name = "nbrt_simt_mark_returns"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        """Rewrite the function's IR in place, while the labels of its blocks are offsets."""
        offsets = [item.offset for item in state.bc if item.opname in _RETURNS]
        origins = dict(zip(offsets, endings(state.func_id.code), strict=True))
        for label, block in state.func_ir.blocks.items():
            if isinstance(block.terminator, ir.Return):
                ending = origins[min(offset for offset in offsets if offset >= label)]
                if ending in _PROBES:
                    _mark(block, _PROBES[ending])
        return True


def _mark(block: Any, probe: Any) -> None:
    loc = block.terminator.loc
    callee, result = (block.scope.redefine(f"$return_{name}", loc) for name in ("probe", "marked"))
    block.insert_before_terminator(ir.Assign(ir.Global("returned", probe, loc), callee, loc))
    call = ir.Expr.call(callee, [], (), loc)
    block.insert_before_terminator(ir.Assign(call, result, loc))


def ending_of(block: Any) -> Ending:
    """Return the origin of the return that ends a block of a kernel."""
    assigned = [statement.value for statement in block.find_insts(ir.Assign)]
    called = [value.value for value in assigned if isinstance(value, ir.Global)]
    return next((ending for ending, probe in _PROBES.items() if probe in called), Ending.END)
