"""`write_code`: a graph as Python, one line an operation, that gives the bits of a replay.

The text defines streams by id, private memory, and the functions of control flow. Kernels, arrays,
generators and functions of the user come from a namespace. A collective is a call of
``prim_from_local(...)`` or ``prim_redistribute(...)``, into which mesh and placements are folded,
so that its only argument is an array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt.graphs.code_nodes import NodeWriter
from nbrt.graphs.code_scope import CodeScope, origin_of

if TYPE_CHECKING:
    from nbrt.graphs.code_scope import GraphDescription

__all__ = ["write_code"]


def write_code(description: GraphDescription) -> tuple[str, dict[str, Any]]:
    """Return a graph as Python, and the namespace that it runs in.

    Parameters
    ----------
    description : GraphDescription
        The graph.

    Returns
    -------
    text : str
        One line an operation. Executed, it gives the bits of a replay, and moves the generators in
        the same way. Streams are found by id: if one is gone, the text raises ArgumentError.
    namespace : dict of str to object
        Kernels, arrays of the user, generators, functions, and values that have no text.
    """
    scope = CodeScope(description)
    if not description.nodes:
        return "", {}
    writer = NodeWriter(scope)
    body = writer.lines(description.nodes, "", origin_of(description))
    return "\n".join([*scope.header(), *body]) + "\n", scope.namespace
