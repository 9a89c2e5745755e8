"""`save_graph`: writes a graph into a file, or names what lives in this process only."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.captures import Captures
from nbrt.errors import ArgumentError, ArgumentTypeError, GraphError
from nbrt.graphs.code_scope import drawn_view, origin_of
from nbrt.graphs.graph_file import ArrayStore, checked_path, encode, write_graph
from nbrt.graphs.node_text import captures_of, line_of, plan_of, views_of, walk
from nbrt.graphs.view_text import is_contiguous, span_of
from nbrt.runtime.array import to_host
from nbrt.runtime.kernel import Kernel
from nbrt.runtime.stream import Stream

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from nbrt.backends.draw import Draw
    from nbrt.backends.graphs import ArrayView, GraphBuffer, GraphNode
    from nbrt.graphs.code_scope import GraphDescription
    from nbrt.graphs.node_text import PlacedNode

__all__ = ["digest_of", "save_graph"]

_KNOWN_MEMORY = frozenset({"builtins", "mmap", "numpy", "nbrt", "ctypes"})
"""The modules of objects whose memory a process can make again."""


def save_graph(
    description: GraphDescription,
    path: str | os.PathLike[str],
    *,
    values: bool | Collection[str] = True,
) -> None:
    """Write a graph into a file.

    Parameters
    ----------
    description : GraphDescription
        The graph.
    path : str or path
        The file, which is replaced.
    values : bool or collection of str
        Whether the arrays of the user are saved with their values, or the names of those that are.
        The loader must bind the others. Arrays without a name are saved in any case.

    Raises
    ------
    GraphError
        If the graph has something that lives in this process only; the message names the node and
        the object: host functions, collectives, borrowed streams, memory of other libraries,
        kernels that no module has.
    ArgumentError
        If `values` names an array that the graph does not have.
    """
    _Saver(description, values).save(checked_path(path))


class _Saver:
    """Collects the content of a file."""

    def __init__(self, description: GraphDescription, values: bool | Collection[str]) -> None:
        self._graph = description
        self._store = ArrayStore()
        self._kernels: dict[int, int] = {}
        self._kernel_entries: list[dict[str, Any]] = []
        named = description.names
        if not isinstance(values, bool):
            if isinstance(values, str) or not isinstance(values, Collection):
                raise ArgumentTypeError(
                    f"expected True, False or a collection of names as values, got {values!r}"
                )
            unknown = sorted(map(str, set(values) - set(named)))
            if unknown:
                raise ArgumentError(
                    f"expected names of arrays of the graph ({', '.join(named) or 'none'}), got "
                    f"{', '.join(unknown)}"
                )
            self._with_values = set(values)
        else:
            self._with_values = set(named) if values else set()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, once everything has been checked."""
        graph = self._graph
        placed = list(walk(graph.nodes))
        for each in placed:
            self._check(each)
        states = {use.buffer for use in graph.generators}
        used = sorted({view.buffer for view in _views(placed)} - states)
        content = {
            "device": self._kind(),
            "origin": origin_of(graph) if graph.nodes else None,
            "streams": [self._stream(each) for each in self._streams(placed)],
            "generators": [
                {
                    "buffer": use.buffer,
                    "words": use.words,
                    "seed": use.position.state.seed,
                    "offset": use.position.state.offset,
                }
                for use in graph.generators
            ],
            "buffers": [self._buffer(graph.buffers[number], placed) for number in used],
            "private_bytes": sum(each.nbytes for each in graph.buffers if each.is_private),
            "nodes": [self._node(node) for node in graph.nodes],
            "kernels": self._kernel_entries,
        }
        write_graph(path, content, self._store)

    # -- what is refused ---------------------------------------------------------------------------

    def _check(self, placed: PlacedNode) -> None:
        node = placed.node
        if node.kind == "call" and node.source is None:
            raise self._refused(
                placed, "a graph inside that draws", "capture its calls instead of its replay"
            )
        if node.kind == "call":
            function = node.label or "a function"
            raise self._refused(placed, f"the host function {function}", "launch a kernel instead")
        if node.kind == "collective":
            raise self._refused(
                placed, f"the collective {node.label}", "save the graph of one rank's own work"
            )
        stream = _stream_of(node.stream)
        if stream is not None and stream.owner is not None:
            raise self._refused(
                placed,
                f"{stream!r}, which is borrowed from {type(stream.owner).__name__}",
                "capture on a stream of nbrt",
            )

    def _refused(self, placed: PlacedNode, what: str, remedy: str) -> GraphError:
        line = line_of(placed.node.site)
        where = f" (captured at {line})" if line else ""
        return GraphError(
            f"expected a graph without anything of this process only, got {what} in node "
            f"{placed.path}{where}; {remedy}"
        )

    # -- parts -------------------------------------------------------------------------------------

    def _kind(self) -> str | None:
        for node in self._graph.nodes:
            stream = _stream_of(node.stream)
            if stream is not None:
                return stream.device.kind
        return None

    def _streams(self, placed: Sequence[PlacedNode]) -> list[tuple[int, int]]:
        found = {each.node.stream: each.node.device for each in placed}
        return sorted(found.items())

    def _stream(self, numbered: tuple[int, int]) -> dict[str, int]:
        number, device = numbered
        stream = _stream_of(number)
        priority = 0 if stream is None else stream.priority
        return {"number": number, "device": device, "priority": priority}

    def _buffer(self, buffer: GraphBuffer, placed: Sequence[PlacedNode]) -> dict[str, Any]:
        views = [view for view in _views(placed) if view.buffer == buffer.number]
        entry: dict[str, Any] = {"number": buffer.number, "is_private": buffer.is_private}
        low = min(span_of(view)[0] for view in views)
        high = max(span_of(view)[1] for view in views)
        device = getattr(buffer, "device", None)
        entry |= {"low": low, "high": high, "device": device}
        if buffer.is_private:
            return entry
        name, base = self._named_base(buffer.number, low, high)
        entry |= {"name": name, "view": encode(base, self._store)}
        if name is None or name in self._with_values:
            self._check_memory(buffer, name)
            entry["values"] = self._store.add(to_host(self._graph.array(base)))
        return entry

    def _named_base(self, number: int, low: int, high: int) -> tuple[str | None, ArrayView]:
        """Return the named array that covers all that nodes use of a buffer, or its bytes."""
        for name, view in self._graph.names.items():
            if view.buffer == number and is_contiguous(view):
                first, last = span_of(view)
                if first <= low and high <= last:
                    return name, view
        view = next(iter(_views(list(walk(self._graph.nodes)))))
        return None, view._replace(
            buffer=number, offset=low, shape=(high - low,), strides=(1,), dtype=np.dtype(np.uint8)
        )

    def _check_memory(self, buffer: GraphBuffer, name: str | None) -> None:
        owner: Any = buffer.owner
        while getattr(owner, "base", None) is not None:
            owner = owner.base
        module = str(getattr(type(owner), "__module__", "")).partition(".")[0]
        is_other = type(owner).__name__ == "PyCapsule" or module not in _KNOWN_MEMORY
        if owner is not None and is_other and not hasattr(owner, "__cuda_array_interface__"):
            what = f"the array {name}" if name else "an array"
            raise GraphError(
                f"expected arrays of nbrt or NumPy, got {what} in memory of another library "
                f"({module}.{type(owner).__name__}); copy it with nbrt.asarray before the capture"
            )

    def _node(self, node: GraphNode) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "index": node.index,
            "kind": node.kind,
            "label": node.label,
            "stream": node.stream,
            "after": list(node.dependencies),
            "is_enabled": node.is_enabled,
        }
        args = (
            node.source.args if node.source is not None else node.work[0].args if node.work else ()
        )
        if node.kind == "launch":
            plan = plan_of(node)
            entry |= {
                "kernel": self._kernel(node, plan),
                "grid": list(plan.grid),
                "block": list(plan.block),
                "shared": plan.shared,
            }
        elif node.kind == "draw":
            request: Draw = args[1]
            entry["draw"] = self._draw(node, request)
            args = (drawn_view(node), request.parameters)
        if not node.branches:
            entry["args"] = [self._encoded(node, each) for each in args]
        else:
            entry["flag"] = encode(node.flag, self._store)
            entry["limit"] = node.limit
            entry["branches"] = [
                {
                    "nodes": [self._node(inner) for inner in branch.nodes],
                    "advances": [list(each) for each in branch.advances],
                }
                for branch in node.branches
            ]
        return entry

    def _encoded(self, node: GraphNode, value: Any) -> Any:
        try:
            return encode(value, self._store)
        except TypeError as error:
            raise GraphError(
                f"expected arguments that a file can hold, got {value!r} in node {node.index}: "
                f"{error}; pass numbers and arrays"
            ) from error

    def _draw(self, node: GraphNode, request: Draw) -> dict[str, Any]:
        if request.index_to_counter is not None:
            raise GraphError(
                f"expected a layout that nbrt has, got the rule {request.index_to_counter!r} of "
                f"node {node.index}, which no file can hold"
            )
        return {
            "distribution": request.distribution,
            "dtype": request.dtype,
            "n": request.n,
            "layout": request.layout,
            "constants": list(request.constants),
            "region": self._encoded(node, request.region),
            "offset": request.offset,
            "state": request.device_state.buffer,
        }

    def _kernel(self, node: GraphNode, plan: Any) -> int:
        """Return the number of a kernel that a module has, with the values of the capture."""
        function, captures = plan.function, captures_of(plan)
        key = id(captures or function)
        known = self._kernels.get(key)
        if known is not None:
            return known
        module, name = function.__module__, function.__qualname__
        where = f"{module}.{name}"
        if _found(module, name) is not _source(function):
            raise GraphError(
                f"expected kernels that a module has, got {where} in node {node.index}, which "
                f"another process cannot import; move it into a module"
            )
        digest = digest_of(function) if captures is None else captures.digest()
        if digest is None:
            raise GraphError(
                f"expected kernels that capture plain values, arrays and modules, got {where} in "
                f"node {node.index}; pass other values as arguments"
            )
        self._kernel_entries.append({"module": module, "name": name, "digest": digest})
        number = self._kernels[key] = len(self._kernels)
        return number


def digest_of(function: Any) -> str | None:
    """Return the hash of a kernel and of the values that it captures; None if it has none."""
    return Captures(_source(function)).digest()


def _source(function: Any) -> Any:
    """Return the Python function of a kernel or a dispatcher."""
    return getattr(function, "py_func", function)


def _found(module: str, name: str) -> Any:
    """Return the function that another process would import; None if there is none."""
    found: Any = None if module == "__main__" else sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found.py_func if isinstance(found, Kernel) else _source(found)


def _stream_of(number: int) -> Stream | None:
    try:
        return Stream.from_id(number)
    except ArgumentError:
        return None


def _views(placed: Sequence[PlacedNode]) -> list[ArrayView]:
    found: dict[ArrayView, None] = {}
    for each in placed:
        node = each.node
        args: Any = [work.args for work in node.work] if node.source is None else node.source.args
        found.update(dict.fromkeys(views_of(tuple(args))))
        if node.flag is not None:
            found[node.flag] = None
    return list(found)
