"""What the pass wants to know about a function as a whole.

What indices are made of, and where the ways around a barrier come together again.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from numba.core import ir, types
from numba.core.controlflow import CFGraph

from nbrt.backends.cpu.simt.checked.returns import Ending, ending_of

__all__ = ["FarSides", "far_sides", "sums_in_indices"]

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


_IN_LOOP = -(2**40)
"""Added to the node of an end that is a ``return`` in a loop."""


def _is_signed(typ: Any) -> bool:
    return isinstance(typ, types.Integer) and bool(typ.signed)


@dataclass(frozen=True, slots=True)
class FarSides:
    """Where threads are behind a barrier, by the label of a block.

    Attributes
    ----------
    beginnings, ends : dict
        Label of a block -> blocks of the barriers that a thread has behind it at the block's
        beginning, and at the return that ends it.
    """

    beginnings: dict[int, list[int]]
    ends: dict[int, list[int]]


def far_sides(func_ir: Any, homes: set[int], *, is_kernel: bool) -> FarSides:
    """Find, for blocks with a barrier, where threads that went around them meet the others again.

    The place looked for is the first that every way on from the barrier passes, outside of the
    loops around the barrier: a block, or the end. A kernel has an end for each ``return`` in its
    source and one for all threads that run to the end of the source; for a barrier in a loop, a
    ``return`` in the loop is none, as it is there for threads that are done before others. All ends
    of a device function are one, because its caller goes on. Ways that end in an exception do not
    count.

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
    FarSides
        The places.
    """
    found = FarSides(defaultdict(list), defaultdict(list))
    if not homes:
        return found
    graph, ends = _graph_with_ends(func_ir.blocks, is_kernel=is_kernel)
    behind = graph.post_dominators()
    usual = _leading_to(graph, {end for end in ends.values() if end > _IN_LOOP})
    loops = graph.loops().values()
    for home in sorted(homes & behind.keys()):
        around = set[int]().union(*(loop.body for loop in loops if home in loop.body))
        meeting = behind[home] - around - {home}
        if around:
            meeting &= usual
        if not meeting:
            continue
        # The nearest is the one that all others come behind.
        nearest = max(meeting, key=lambda label: len(behind[label]))
        if nearest in func_ir.blocks:
            found.beginnings[nearest].append(home)
        for label, end in ends.items():
            if end == nearest:
                found.ends[label].append(home)
    return found


def _leading_to(graph: CFGraph, ends: set[int]) -> set[int]:
    """Find the nodes that lead to some ends, and these."""
    found: set[int] = set()
    pending = list(ends)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += [before for before, _ in graph.predecessors(node)]
    return found


def _graph_with_ends(blocks: Any, *, is_kernel: bool) -> tuple[CFGraph, dict[int, int]]:
    """Make the control-flow graph with a node below zero for each end; give the ends of blocks."""
    graph = CFGraph()
    ends: dict[int, int] = {}
    for label, block in blocks.items():
        graph.add_node(label)
        if isinstance(block.terminator, ir.Return):
            ending = ending_of(block) if is_kernel else Ending.END
            line = block.terminator.loc.line if ending is not Ending.END else 0
            ends[label] = -1 - line + (_IN_LOOP if ending is Ending.RETURN_IN_LOOP else 0)
    for end in set(ends.values()):
        graph.add_node(end)
    for label, block in blocks.items():
        targets = [ends[label]] if label in ends else block.terminator.get_targets()
        for target in targets:
            if target < 0 or not isinstance(blocks[target].terminator, ir.Raise | ir.StaticRaise):
                graph.add_edge(label, target)
    graph.set_entry_point(min(blocks))
    graph.process()
    return graph, ends
