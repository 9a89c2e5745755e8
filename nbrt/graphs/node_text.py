"""Texts about nodes of a graph: paths, call sites, shapes of launches, sizes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from nbrt.backends.draw import Draw
from nbrt.backends.graphs import ArrayView

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nbrt._internal.callsite import CallSite
    from nbrt.backends.graphs import GraphNode

__all__ = [
    "PlacedNode",
    "branch_name",
    "bytes_of",
    "captures_of",
    "dims_text",
    "launch_text",
    "line_of",
    "plan_of",
    "size_text",
    "view_text",
    "views_of",
    "walk",
]


class PlacedNode(NamedTuple):
    """A node and its place in a graph.

    Attributes
    ----------
    path : str
        The number of the node; in a branch behind those of the control flow and of the branch, as
        in ``"3.then.0"``.
    depth : int
        The number of branches around it.
    node : GraphNode
        The node.
    prefix : str
        The part of the path before the node's number, which its dependencies share.
    """

    path: str
    depth: int
    node: GraphNode
    prefix: str


def walk(nodes: Iterable[GraphNode], prefix: str = "", depth: int = 0) -> Iterator[PlacedNode]:
    """Yield the nodes of a graph, each before those of its branches."""
    for node in nodes:
        path = f"{prefix}{node.index}"
        yield PlacedNode(path, depth, node, prefix)
        for number, branch in enumerate(node.branches):
            inner = f"{path}.{branch_name(node, number)}."
            yield from walk(branch.nodes, inner, depth + 1)


def branch_name(node: GraphNode, number: int) -> str:
    """Return the name of a branch of control flow in paths."""
    if node.kind == "while":
        return "body"
    if node.kind == "if":
        return ("then", "else")[number]
    if node.kind == "graph":
        return "graph"
    return f"case{number}"


def plan_of(node: GraphNode) -> Any:
    """Return the plan of a launch, with ``function``, ``grid`` and ``block``; None: no launch."""
    if node.kind != "launch":
        return None
    if node.source is not None:
        return getattr(node.source.function, "__self__", None)
    return node.work[0].function if node.work else None


def captures_of(plan: Any) -> Any:
    """Return the `Captures` that a plan is compiled with; None if its backend has none."""
    return getattr(plan, "captures", None)


def dims_text(dims: Sequence[int]) -> str:
    """Return the sizes of a grid or a block without sizes of 1 at the end.

    Examples
    --------
    >>> dims_text((256, 1, 1)), dims_text((8, 4, 1))
    ('256', '(8, 4)')
    """
    kept = tuple(dims)
    while len(kept) > 1 and kept[-1] == 1:
        kept = kept[:-1]
    return str(kept[0]) if len(kept) == 1 else str(kept)


def launch_text(node: GraphNode) -> str:
    """Return the grid and the block of a launch; empty for other nodes."""
    plan = plan_of(node)
    grid, block = getattr(plan, "grid", None), getattr(plan, "block", None)
    return "" if grid is None or block is None else f"{dims_text(grid)} x {dims_text(block)}"


def views_of(value: Any) -> Iterator[ArrayView]:
    """Yield the views in a value: itself, in tuples, or in the fields of a draw."""
    if type(value) is ArrayView:
        yield value
    elif type(value) is Draw:
        yield from views_of(value.arrays)
    elif isinstance(value, tuple):
        for member in value:
            yield from views_of(member)


def bytes_of(node: GraphNode) -> int:
    """Return the bytes of the arrays that a node uses, each array once; 0 for control flow."""
    if node.source is not None:
        args: tuple[Any, ...] = node.source.args
        if node.kind == "draw":
            args = args[:1]  # its state is no data
    else:
        args = tuple(work.args for work in node.work)
    seen = set(views_of(args))
    return sum(_count(view.shape) * view.dtype.itemsize for view in seen)


def _count(shape: Iterable[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def line_of(site: CallSite | None) -> str:
    """Return the innermost line of a call outside of nbrt as ``file.py:12``; empty if unknown."""
    frames = [] if site is None else site.frames()
    if not frames:
        return ""
    return f"{os.path.basename(frames[0]['filename'])}:{frames[0]['line']}"


def view_text(view: ArrayView) -> str:
    """Return shape and dtype of an array, as in ``(4,) float32``."""
    return f"{view.shape} {view.dtype}"


def size_text(nbytes: int) -> str:
    """Return a number of bytes with a binary unit.

    Examples
    --------
    >>> size_text(700), size_text(1536)
    ('700 B', '1.5 KiB')
    """
    if nbytes < 1024:
        return f"{nbytes} B"
    size = float(nbytes)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"
