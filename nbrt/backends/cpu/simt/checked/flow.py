"""Analyses of a whole function: operations that lead to indices, points of reconvergence."""

from __future__ import annotations

import operator
from collections import defaultdict
from typing import Any

from numba.core import ir, types
from numba.core.controlflow import CFGraph

from nbrt.backends.cpu.simt.checked.returns import Ending, ending_of

__all__ = ["reconvergence_points", "sums_in_indices"]

_OPERATIONS = {
    operator.add: "add",
    operator.iadd: "add",
    operator.sub: "sub",
    operator.isub: "sub",
    operator.mul: "mul",
    operator.imul: "mul",
}


def sums_in_indices(func_ir: Any, typemap: Any, calltypes: Any) -> dict[int, str]:
    """Return the operations on signed integers that lead to an index.

    The result maps the identity of an expression to ``add``, ``sub``, ``mul`` or, for a cast,
    ``narrow``. Operands of ``%``, ``&`` and ``>>`` are left out: a hash wraps on purpose.
    """
    definitions: dict[str, list[Any]] = defaultdict(list)
    pending: list[str] = []
    for block in func_ir.blocks.values():
        for statement in block.body:
            if isinstance(statement, ir.Assign):
                definitions[statement.target.name].append(statement.value)
            pending += _indices(statement, typemap)
    operations: dict[int, str] = {}
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        for value in definitions[name]:
            pending += _operands(value, typemap, calltypes, operations)
    return operations


def _indices(statement: Any, typemap: Any) -> list[str]:
    """Return the names of variables that a statement uses as an index."""
    value = statement.value if isinstance(statement, ir.Assign) else statement
    if isinstance(value, ir.SetItem):
        return [value.index.name]
    if isinstance(value, ir.Expr) and value.op == "getitem":
        return [value.index.name]
    if not (isinstance(value, ir.Expr) and value.op == "call" and len(value.args) > 1):
        return []
    # An atomic operation, or a device function that may use its argument as an index.
    has_array = isinstance(typemap[value.args[0].name], types.Array)
    return [value.args[1].name] if has_array else []


def _operands(value: Any, typemap: Any, calltypes: Any, operations: dict[int, str]) -> list[str]:
    """Return the names of the operands of a value; add it to `operations` if it can overflow."""
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
        operations[id(value)] = _OPERATIONS[value.fn]
        return [value.lhs.name, value.rhs.name]
    if value.op == "binop" and value.fn is operator.floordiv:
        return [value.lhs.name]
    if value.op == "call" and len(value.args) == 1:
        target, source = typemap[value.func.name], typemap[value.args[0].name]
        if isinstance(target, types.NumberClass) and _is_signed(target.instance_type):
            if _is_signed(source) and source.bitwidth > target.instance_type.bitwidth:
                operations[id(value)] = "narrow"
            return [value.args[0].name]
    return []


_IN_LOOP = -(2**40)
"""Added to the node of an exit that is a ``return`` in a loop."""


def _is_signed(typ: Any) -> bool:
    return isinstance(typ, types.Integer) and bool(typ.signed)


def reconvergence_points(
    func_ir: Any, labels: set[int], *, is_kernel: bool
) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Return where threads that went around a barrier meet the others again.

    The point of reconvergence is the nearest post-dominator of the barrier outside of its loops: a
    block, or an exit. A kernel has one exit for each ``return`` in its source and one for the end
    of the source; for a barrier in a loop, a ``return`` in the loop is no exit, because it ends
    threads that are done before others. A device function has one exit, because its caller
    continues. Paths that end in an exception are ignored.

    `labels` are those of the blocks with a barrier. The two results map the label of a block to the
    labels of those whose barriers reconverge at its beginning, and at the return that ends it.
    """
    beginnings: dict[int, list[int]] = defaultdict(list)
    exits: dict[int, list[int]] = defaultdict(list)
    if not labels:
        return beginnings, exits
    graph, ends = _graph_with_ends(func_ir.blocks, is_kernel=is_kernel)
    dominators = graph.post_dominators()
    regular = _leading_to(graph, {end for end in ends.values() if end > _IN_LOOP})
    loops = graph.loops().values()
    for label in sorted(labels & dominators.keys()):
        around = set[int]().union(*(loop.body for loop in loops if label in loop.body))
        candidates = dominators[label] - around - {label}
        if around:
            candidates &= regular
        if not candidates:
            continue
        # All other post-dominators post-dominate the nearest.
        nearest = max(candidates, key=lambda node: len(dominators[node]))
        if nearest in func_ir.blocks:
            beginnings[nearest].append(label)
        for block, end in ends.items():
            if end == nearest:
                exits[block].append(label)
    return beginnings, exits


def _leading_to(graph: CFGraph, ends: set[int]) -> set[int]:
    """Return the nodes that lead to some exits, and these."""
    nodes: set[int] = set()
    pending = list(ends)
    while pending:
        node = pending.pop()
        if node not in nodes:
            nodes.add(node)
            pending += [before for before, _ in graph.predecessors(node)]
    return nodes


def _graph_with_ends(blocks: Any, *, is_kernel: bool) -> tuple[CFGraph, dict[int, int]]:
    """Return the control-flow graph, with negative nodes for exits, and the exits of blocks."""
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
