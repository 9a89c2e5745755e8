"""Graphs made by hand, for tests of what reads nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.graphs import ArrayView, Branch, GraphNode, NodeSource, Work

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FakePlan", "branch", "copy", "fill", "launch", "loop", "node", "view"]


class FakePlan:
    """A plan that is never launched."""

    def __init__(self, function: Any, grid: Any = (1, 1, 1), block: Any = (32, 1, 1)) -> None:
        self.function, self.grid, self.block, self.shared = function, grid, block, 0

    def launch(self, queue: Any, *args: Any) -> None:
        """Fail: nothing runs."""
        raise AssertionError("a view of a graph must not launch")


def view(
    buffer: int, shape: tuple[int, ...] = (4,), dtype: str = "float32", offset: int = 0
) -> Any:
    """Return a C-contiguous view of a buffer."""
    kind = np.dtype(dtype)
    strides = np.empty(shape, kind).strides
    return ArrayView(buffer, offset, shape, strides, kind)


def node(index: int, kind: Any, *after: int, stream: int = 1, **fields: Any) -> GraphNode:
    """Return a node of a kind without arguments."""
    return GraphNode(
        index, kind, fields.pop("label", ""), stream, fields.pop("device", 0),
        dependencies=tuple(after), **fields,
    )  # fmt: skip


def launch(index: int, function: Any, args: Sequence[Any], *after: int, **fields: Any) -> GraphNode:
    """Return a launch of a Python function with fixed grid and block."""
    plan = FakePlan(function, fields.pop("grid", (1, 1, 1)), fields.pop("block", (32, 1, 1)))
    fields.setdefault("label", function.__name__)
    source = NodeSource(plan.launch, tuple(args))
    work = (Work(plan, tuple(args)),)
    return node(index, "launch", *after, work=work, source=source, **fields)


def copy(index: int, into: Any, source: Any, *after: int, **fields: Any) -> GraphNode:
    """Return a copy."""
    return _numpy(index, "copy", (into, source), after, fields)


def fill(index: int, array: Any, value: Any, *after: int, **fields: Any) -> GraphNode:
    """Return a fill."""
    return _numpy(index, "fill", (array, value), after, fields)


def _numpy(
    index: int, kind: Any, args: tuple[Any, ...], after: tuple[int, ...], fields: dict[str, Any]
) -> GraphNode:
    work, source = (Work(np.copyto, args),), NodeSource(np.copyto, args)
    return node(index, kind, *after, work=work, source=source, **fields)


def branch(*nodes: GraphNode) -> Branch:
    """Return a branch of control flow."""
    return Branch(list(nodes))


def loop(index: int, flag: Any, body: Branch, *after: int, limit: int = 100) -> GraphNode:
    """Return a loop on the device."""
    return node(index, "while", *after, flag=flag, branches=(body,), limit=limit)
