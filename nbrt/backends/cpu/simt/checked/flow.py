"""What the pass wants to know about a function as a whole.

What indices are made of, and where the ways around a barrier come together again.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from typing import Any

from numba.core import ir, types
from numba.core.analysis import compute_cfg_from_blocks

__all__ = ["far_sides", "sums_in_indices"]

_OPERATIONS = {
    operator.add: "add",
    operator.iadd: "add",
    operator.sub: "sub",
    operator.isub: "sub",
    operator.mul: "mul",
    operator.imul: "mul",
}


def sums_in_indices(func_ir: Any, typemap: Any, calltypes: Any) -> dict[int, str]:
    """Find the operations on signed integers that lead to an index.

    Those behind a ``%``, ``&`` or ``>>`` do not count: a hash wraps on purpose.

    Parameters
    ----------
    func_ir, typemap, calltypes
        A typed function.

    Returns
    -------
    dict
        Identity of an expression -> ``add``, ``sub``, ``mul`` or, for a cast, ``narrow``.
    """
    definitions: dict[str, list[Any]] = defaultdict(list)
    pending: list[str] = []
    for block in func_ir.blocks.values():
        for statement in block.body:
            if isinstance(statement, ir.Assign):
                definitions[statement.target.name].append(statement.value)
            pending += _indices(statement, typemap)
    found: dict[int, str] = {}
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        for value in definitions[name]:
            pending += _operands(value, typemap, calltypes, found)
    return found


def _indices(statement: Any, typemap: Any) -> list[str]:
    """Name the variables that a statement uses as an index."""
    value = statement.value if isinstance(statement, ir.Assign) else statement
    if isinstance(value, ir.SetItem):
        return [value.index.name]
    if isinstance(value, ir.Expr) and value.op == "getitem":
        return [value.index.name]
    if not (isinstance(value, ir.Expr) and value.op == "call" and len(value.args) > 1):
        return []
    # An atomic operation, or a device function that may index with what it is given.
    has_array = isinstance(typemap[value.args[0].name], types.Array)
    return [value.args[1].name] if has_array else []


def _operands(value: Any, typemap: Any, calltypes: Any, found: dict[int, str]) -> list[str]:
    """Name what a value is made of, and note down what can overflow on the way."""
    if isinstance(value, ir.Var):
        return [value.name]
    if not isinstance(value, ir.Expr):
        return []
    if value.op in ("cast", "unary"):
        return [value.value.name]
    if value.op == "build_tuple":
        return [item.name for item in value.items]
    is_sum = value.op in ("binop", "inplace_binop") and value.fn in _OPERATIONS
    if is_sum and _is_signed(calltypes[value].return_type):
        found[id(value)] = _OPERATIONS[value.fn]
        return [value.lhs.name, value.rhs.name]
    if value.op == "binop" and value.fn is operator.floordiv:
        return [value.lhs.name]
    if value.op == "call" and len(value.args) == 1:
        target, source = typemap[value.func.name], typemap[value.args[0].name]
        if isinstance(target, types.NumberClass) and _is_signed(target.instance_type):
            if _is_signed(source) and source.bitwidth > target.instance_type.bitwidth:
                found[id(value)] = "narrow"
            return [value.args[0].name]
    return []


def _is_signed(typ: Any) -> bool:
    return isinstance(typ, types.Integer) and bool(typ.signed)


def far_sides(func_ir: Any, homes: set[int], *, is_kernel: bool) -> dict[int, list[int]]:
    """Find, for blocks with a barrier, where threads that went around them meet the others again.

    A thread that has returned is no trouble to those that wait; one that goes on behind the barrier
    without having come to it is. The place looked for is the first block that every way on from the
    barrier passes, outside of the loops around the barrier. Where there is none, the ways meet
    behind the returns: in the caller of a device function, and nowhere for a kernel.

    Parameters
    ----------
    func_ir : numba.core.ir.FunctionIR
        The function.
    homes : set of int
        Labels of blocks with a barrier.
    is_kernel : bool
        Whether there is no caller.

    Returns
    -------
    dict
        Label of a block with a barrier -> labels of the blocks where threads are behind it.
    """
    if not homes:
        return {}
    graph = compute_cfg_from_blocks(func_ir.blocks)
    behind = graph.post_dominators()
    loops = graph.loops().values()
    ends = [] if is_kernel else sorted(graph.exit_points())
    found: dict[int, list[int]] = {}
    for home in homes:
        around = set[int]().union({home}, *(loop.body for loop in loops if home in loop.body))
        meeting = [label for label in behind[home] - around if label in func_ir.blocks]
        # The nearest is the one that all others come behind.
        nearest = [max(meeting, key=lambda label: len(behind[label]))] if meeting else ends
        found[home] = [label for label in nearest if label != home]
    return found
