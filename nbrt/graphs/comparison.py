"""`first_difference` of two graphs, and `topology_difference`, which an update must not have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbrt.backends.draw import Draw
from nbrt.backends.graphs import ArrayView
from nbrt.graphs.node_text import branch_name, dims_text, line_of, plan_of, view_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nbrt.backends.graphs import GraphNode

__all__ = ["Difference", "first_difference", "is_same_value", "topology_difference"]

_ABOUT = {
    ("copy", 0): "copy into", ("copy", 1): "copy of", ("fill", 0): "fill of",
    ("fill", 1): "fill with",
}  # fmt: skip
"""The texts of arguments by their number; those of other nodes are counted."""


class Difference(NamedTuple):
    """The first node that differs between two graphs.

    Attributes
    ----------
    path : str
        The node, as in the table of nodes.
    reason : str
        What differs, with both values.
    here, there : str
        The lines of the two captured calls; empty if unknown.
    """

    path: str
    reason: str
    here: str = ""
    there: str = ""

    def __str__(self) -> str:
        text = f"node {self.path}: {self.reason}"
        if self.here or self.there:
            text += f" (here: {self.here or 'unknown line'}, there: {self.there or 'unknown line'})"
        return text


def first_difference(here: Sequence[GraphNode], there: Sequence[GraphNode]) -> Difference | None:
    """Return the first node that differs between two graphs, and why; None if all are equal.

    Arrays are compared by shape, dtype and strides, and by the node that uses their memory first,
    not by address: two captures of one function on other arrays are equal. Streams are compared in
    the same way.

    Parameters
    ----------
    here, there : sequence of GraphNode
        The nodes of the graphs.

    Returns
    -------
    difference : Difference or None
        Its text names the node, both values and the lines of both calls.
    """
    comparison = _Comparison()
    return _first(here, there, "", comparison.reasons)


def topology_difference(here: Sequence[GraphNode], there: Sequence[GraphNode]) -> Difference | None:
    """Return where the topologies of two graphs differ; None if one can be updated to the other.

    The topology is the kind and the device of each node, its dependencies and its branches.
    Kernels, arrays, scalars, grids and blocks may differ.
    """
    return _first(here, there, "", _topology_reasons)


def _first(
    here: Sequence[GraphNode],
    there: Sequence[GraphNode],
    prefix: str,
    reasons: Callable[[GraphNode, GraphNode, str], Iterator[str]],
) -> Difference | None:
    for mine, other in zip(here, there, strict=False):
        path = f"{prefix}{mine.index}"
        for reason in reasons(mine, other, prefix):
            return Difference(path, reason, line_of(mine.site), line_of(other.site))
        for number, (body, other_body) in enumerate(
            zip(mine.branches, other.branches, strict=True)
        ):
            inner = f"{path}.{branch_name(mine, number)}."
            found = _first(body.nodes, other_body.nodes, inner, reasons)
            if found is not None:
                return found
    common = min(len(here), len(there))
    if len(here) > common:
        node = here[common]
        return Difference(
            f"{prefix}{common}", f"{_title(node)} here, no node there", line_of(node.site)
        )
    if len(there) > common:
        node = there[common]
        return Difference(
            f"{prefix}{common}", f"no node here, {_title(node)} there", "", line_of(node.site)
        )
    return None


def _title(node: GraphNode) -> str:
    return f"{node.kind} of {node.label}" if node.label else node.kind


def _topology_reasons(mine: GraphNode, other: GraphNode, prefix: str) -> Iterator[str]:
    if mine.kind != other.kind:
        yield f"{_title(mine)} here, {_title(other)} there"
    if mine.device != other.device:
        yield f"on device {mine.device} here, on device {other.device} there"
    if set(mine.dependencies) != set(other.dependencies):
        yield f"{_after(mine, prefix)} here, {_after(other, prefix)} there"
    if len(mine.work) != len(other.work):
        yield (
            f"{_title(mine)} of {len(mine.work)} operations here, {len(other.work)} operations "
            f"there"
        )
    if len(mine.branches) != len(other.branches):
        yield (
            f"{mine.kind} with {len(mine.branches)} branches here, with {len(other.branches)} there"
        )


def _after(node: GraphNode, prefix: str) -> str:
    if not node.dependencies:
        return "after no node"
    return "after " + ", ".join(f"{prefix}{each}" for each in sorted(set(node.dependencies)))


class _Comparison:
    """Compares nodes in order, and remembers which memory and streams correspond."""

    def __init__(self) -> None:
        self._buffers = _Pairs()
        self._streams = _Pairs()

    def reasons(self, mine: GraphNode, other: GraphNode, prefix: str) -> Iterator[str]:
        """Yield what differs between two nodes of the same place."""
        yield from _topology_reasons(mine, other, prefix)
        if mine.label != other.label:
            yield f"{mine.kind} of {mine.label} here, of {other.label} there"
        yield from _launch_reasons(mine, other)
        if mine.is_enabled != other.is_enabled:
            yield (
                "enabled here, disabled there"
                if mine.is_enabled
                else ("disabled here, enabled there")
            )
        if mine.limit != other.limit:
            yield f"at most {mine.limit} turns here, {other.limit} there"
        if not self._streams.match(mine.stream, other.stream):
            yield f"on stream {mine.stream} here, on another stream, {other.stream}, there"
        yield from self._value_reasons(f"flag of {mine.kind}:", mine.flag, other.flag)
        if mine.source is not None and other.source is not None:
            first, last = mine.source.args, other.source.args
            yield from self._argument_reasons(mine, first, last)
        else:
            for work, other_work in zip(mine.work, other.work, strict=True):
                yield from self._argument_reasons(mine, work.args, other_work.args)
        for body, other_body in zip(mine.branches, other.branches, strict=True):
            words = [each.words for each in body.advances]
            other_words = [each.words for each in other_body.advances]
            if words != other_words:
                yield f"{mine.kind} with draws of {words} words here, of {other_words} there"

    def _argument_reasons(
        self, node: GraphNode, mine: tuple[Any, ...], other: tuple[Any, ...]
    ) -> Iterator[str]:
        if len(mine) != len(other):
            yield f"{_title(node)} with {len(mine)} arguments here, {len(other)} there"
            return
        for number, (first, last) in enumerate(zip(mine, other, strict=True)):
            about = _ABOUT.get((node.kind, number), f"{_title(node)}, argument {number}:")
            yield from self._value_reasons(about, first, last)

    def _value_reasons(self, about: str, mine: Any, other: Any) -> Iterator[str]:
        if type(mine) is ArrayView and type(other) is ArrayView:
            yield from self._view_reasons(about, mine, other)
        elif type(mine) is Draw and type(other) is Draw:
            yield from self._draw_reasons(mine, other)
        elif isinstance(mine, tuple) and isinstance(other, tuple) and len(mine) == len(other):
            for first, last in zip(mine, other, strict=True):
                yield from self._value_reasons(about, first, last)
        elif not is_same_value(mine, other):
            yield f"{about} {_value_text(mine)} here, {_value_text(other)} there"

    def _view_reasons(self, about: str, mine: ArrayView, other: ArrayView) -> Iterator[str]:
        if (mine.shape, mine.dtype) != (other.shape, other.dtype):
            yield f"{about} {view_text(mine)} here, {view_text(other)} there"
        elif mine.strides != other.strides:
            yield f"{about} strides {mine.strides} here, {other.strides} there"
        elif not self._buffers.match(mine.buffer, other.buffer):
            yield (
                f"{about} buffer {mine.buffer} here, buffer {other.buffer} there, which earlier "
                f"nodes do not use in the same places"
            )
        elif mine.offset != other.offset:
            yield f"{about} byte {mine.offset} of a buffer here, byte {other.offset} there"

    def _draw_reasons(self, mine: Draw, other: Draw) -> Iterator[str]:
        for name in ("distribution", "dtype", "n", "shape", "layout", "constants", "offset"):
            first, last = getattr(mine, name), getattr(other, name)
            if first != last:
                yield f"draw with {name} {first} here, {last} there"
        yield from self._value_reasons("draw with parameters", mine.parameters, other.parameters)
        if not is_same_value(mine.region, other.region):
            yield f"draw of the elements {mine.region} here, {other.region} there"
        yield from self._value_reasons("draw with state", mine.device_state, other.device_state)


def _launch_reasons(mine: GraphNode, other: GraphNode) -> Iterator[str]:
    plan, other_plan = plan_of(mine), plan_of(other)
    if plan is None or other_plan is None:
        return
    kernel = getattr(plan, "function", None)
    other_kernel = getattr(other_plan, "function", None)
    if kernel is not other_kernel:
        yield f"launch of {_kernel_text(kernel)} here, of {_kernel_text(other_kernel)} there"
    for name in ("grid", "block"):
        dims, other_dims = getattr(plan, name, ()), getattr(other_plan, name, ())
        if dims != other_dims:
            yield (
                f"launch of {mine.label} with {name} {dims_text(dims)} here, "
                f"{dims_text(other_dims)} there"
            )
    shared, other_shared = getattr(plan, "shared", 0), getattr(other_plan, "shared", 0)
    if shared != other_shared:
        yield (
            f"launch of {mine.label} with {shared} bytes of shared memory here, {other_shared} "
            f"there"
        )


def _kernel_text(kernel: Any) -> str:
    code = getattr(getattr(kernel, "py_func", kernel), "__code__", None)
    name = str(getattr(kernel, "__qualname__", kernel))
    return name if code is None else f"{name} of line {code.co_firstlineno}"


def _value_text(value: Any) -> str:
    if type(value) is ArrayView:
        return f"an array of {view_text(value)}"
    if isinstance(value, np.ndarray):
        return f"{value.shape} {value.dtype}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def is_same_value(mine: Any, other: Any) -> bool:
    """Return whether two arguments are of one type and equal; NaNs are equal."""
    if mine is other:
        return True
    if type(mine) is not type(other):
        return False
    if isinstance(mine, (float, complex, np.generic, np.ndarray)):
        first, last = np.asarray(mine), np.asarray(other)
        return (
            first.dtype == last.dtype
            and first.shape == last.shape
            and bool(first.tobytes() == last.tobytes())
        )
    try:
        return bool(mine == other)
    except (TypeError, ValueError):  # objects that do not compare, such as lists of arrays
        return False


class _Pairs:
    """Numbers of two graphs that correspond: each has one partner, fixed at the first use."""

    def __init__(self) -> None:
        self._there: dict[int, int] = {}
        self._here: dict[int, int] = {}

    def match(self, mine: int, other: int) -> bool:
        """Return whether two numbers correspond, or are both new."""
        return (
            self._there.setdefault(mine, other) == other
            and self._here.setdefault(other, mine) == mine
        )
