"""`GraphDescription`, and `CodeScope`: the names and expressions of the code of a graph."""

from __future__ import annotations

import builtins
import keyword
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from nbrt.backends.graphs import ArrayView, host_array
from nbrt.graphs import operations
from nbrt.graphs.node_text import views_of, walk
from nbrt.graphs.view_text import base_view, expression, nbytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from nbrt.backends.graphs import GraphBuffer, GraphNode
    from nbrt.random.stream_position import StreamPosition

__all__ = ["CodeScope", "GraphDescription", "GraphGenerator", "drawn_view", "origin_of"]

_MAX_EXPRESSION = 60
_NAMES = {"nbrt", "np", "prim_to_local", *operations.__all__, *keyword.kwlist, *dir(builtins)}
"""Names that objects of the namespace do not get."""


class GraphGenerator(Protocol):
    """A generator that a graph draws from."""

    @property
    def position(self) -> StreamPosition:
        """Return the state of the generator."""
        ...

    @property
    def buffer(self) -> int:
        """Return the number of the buffer with seed and offset."""
        ...

    @property
    def words(self) -> int:
        """Return the words that the graph draws outside of control flow."""
        ...


@dataclass(slots=True)
class GraphDescription:
    """A graph with what its nodes do not say.

    Attributes
    ----------
    nodes, buffers : sequence of GraphNode, sequence of GraphBuffer
        The graph.
    names : mapping of str to ArrayView
        Names of arrays of the user.
    generators : sequence of GraphGenerator
        The generators that it draws from.
    origin : int or None
        The id of the stream that the capture began with; that of the first node by default.
    array_of : callable
        Returns an array of the user's memory, from a view and its buffer.
    """

    nodes: Sequence[GraphNode]
    buffers: Sequence[GraphBuffer]
    names: Mapping[str, ArrayView] = field(default_factory=dict)
    generators: Sequence[GraphGenerator] = ()
    origin: int | None = None
    array_of: Callable[[ArrayView, GraphBuffer], Any] | None = None

    def array(self, view: ArrayView) -> Any:
        """Return an array of the user over a view."""
        buffer = self.buffers[view.buffer]
        if self.array_of is not None:
            return self.array_of(view, buffer)
        return host_array(view, buffer, buffer.address, buffer.owner)


class CodeScope:
    """The names of the code: which exist, which are used, and the lines that define them.

    Parameters
    ----------
    description : GraphDescription
        The graph.

    Attributes
    ----------
    namespace : dict of str to object
        What the code uses and does not define.
    setup : list of str
        Lines that must come before the next operation.
    """

    def __init__(self, description: GraphDescription) -> None:
        self.description = description
        self.namespace: dict[str, Any] = {}
        self.setup: list[str] = []
        self.functions: set[str] = set()
        self.uses_numpy = False
        self._taken = set(_NAMES)
        self._objects: dict[int, tuple[str, Any]] = {}
        self._streams: dict[int, str] = {}
        self._named: dict[int, list[tuple[str, ArrayView]]] = {}
        self._arrays: dict[ArrayView, str] = {}
        self._private = self._private_views()
        self._states: dict[int, str] = {}
        for name, view in description.names.items():
            self._named.setdefault(view.buffer, []).append((self.unique(name), view))

    def _private_views(self) -> dict[int, list[ArrayView]]:
        """Return the views of each private buffer."""
        found: dict[int, dict[ArrayView, None]] = {}
        for view in _all_views(self.description.nodes):
            if self.description.buffers[view.buffer].is_private:
                found.setdefault(view.buffer, {})[view] = None
        return {number: list(views) for number, views in found.items()}

    def unique(self, wanted: str) -> str:
        """Return a name that is free, and take it."""
        base = wanted if wanted.isidentifier() else "value"
        name, number = base, 1
        while name in self._taken:
            name, number = f"{base}_{number}", number + 1
        self._taken.add(name)
        return name

    def bind(self, value: Any, wanted: str) -> str:
        """Return the name of an object of the namespace."""
        known = self._objects.get(id(value))
        if known is not None:
            return known[0]
        name = self.unique(wanted)
        self._objects[id(value)] = name, value  # keeps the id valid
        self.namespace[name] = value
        return name

    def function(self, name: str) -> str:
        """Return the name of a function of `nbrt.graphs.operations`, which is imported."""
        self.functions.add(name)
        return name

    def stream(self, number: int) -> str:
        """Return the name of the stream with an id."""
        name = self._streams.get(number)
        if name is None:
            name = self._streams[number] = self.unique(f"stream_{number}")
        return name

    def state(self, buffer: int) -> str | None:
        """Return the name of the state of a generator; None if the buffer has none."""
        name = self._states.get(buffer)
        if name is None:
            uses = [use for use in self.description.generators if use.buffer == buffer]
            if not uses:
                return None
            name = self._states[buffer] = self.unique(f"state_{len(self._states)}")
        return name

    def define_state(self, buffer: int) -> str:
        """Return a name for the state of a generator in a graph inside of this one."""
        name = self._states[buffer] = self.unique(f"state_{len(self._states)}")
        return name

    def array(self, view: ArrayView, stream: int) -> str:
        """Return an expression for an array; private memory is made on a stream when first used."""
        state = self.state(view.buffer)
        if state is not None:
            return f"{state}.array"
        known = self._arrays.get(view)
        if known is None:
            known = self._arrays[view] = self._array(view, stream)
        return known

    def _array(self, view: ArrayView, stream: int) -> str:
        number = view.buffer
        is_private = self.description.buffers[number].is_private
        if number in self._private:
            self._named[number] = [self._allocate(number, stream)]
        named = self._named.setdefault(number, [])
        texts = [(expression(name, base, view), name, base) for name, base in named]
        text, name, base = min(texts, key=lambda each: len(each[0]), default=("", "", view))
        is_call = text.startswith("view(")
        if not text or (not is_private and (is_call or len(text) > _MAX_EXPRESSION)):
            text = name = self.unique(f"array_{number}")
            named.append((name, view))
            base = view
        elif is_call:
            self.function("view")
        if not is_private and name not in self.namespace:
            self.namespace[name] = self.description.array(base)
        return text

    def _allocate(self, number: int, stream: int) -> tuple[str, ArrayView]:
        """Write the allocation of private memory; return its name and its view."""
        views, buffer = self._private.pop(number), self.description.buffers[number]
        base = base_view(views)
        if base is None:
            base = views[0]._replace(
                offset=0, shape=(buffer.nbytes,), strides=(1,), dtype=np.dtype(np.uint8)
            )
        name = self.unique(f"private_{number}")
        dtype = base.dtype.name if base.dtype.kind in "biufc" else base.dtype.str
        kind = repr(dtype)
        if base.dtype.names:
            kind = self.bind(base.dtype, f"dtype_{number}")
        self.setup.append(
            f"{name} = nbrt.empty({base.shape}, {kind}, stream={self.stream(stream)})"
        )
        return name, base

    def value(self, value: Any, stream: int, wanted: str = "value") -> str:
        """Return an expression for an argument."""
        if isinstance(value, np.generic):
            text = _scalar_text(value)
            if text is not None:
                self.uses_numpy = True
                return text
        elif value is None or type(value) in (bool, int, str, bytes):
            return repr(value)
        elif type(value) is float and not np.isnan(value):
            return repr(value) if np.isfinite(value) else f"float({str(value)!r})"
        elif type(value) is tuple:
            inner = ", ".join(self.value(each, stream) for each in value)
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        elif type(value) is ArrayView:
            return self.array(value, stream)
        return self.bind(value, wanted)

    def header(self) -> list[str]:
        """Return the lines that define streams and states."""
        lines = ["import numpy as np", ""] if self.uses_numpy else []
        lines.append("import nbrt")
        if self.description.generators:
            self.function("reserve")
        origin = self.stream(origin_of(self.description))
        states = []
        for number, use in enumerate(self.description.generators):
            name = self.bind(use.position, f"generator_{number}")
            state = self.state(use.buffer)
            states.append(f"{state} = reserve({name}, {use.words}, stream={origin})")
        if self.functions:
            names = ", ".join(sorted(self.functions))
            lines.append(f"from nbrt.graphs.operations import {names}")
        streams = [
            f"{name} = nbrt.Stream.from_id({number})" for number, name in self._streams.items()
        ]
        return [*lines, "", *streams, *states, ""]


def origin_of(description: GraphDescription) -> int:
    """Return the id of the stream that the capture began with."""
    return description.nodes[0].stream if description.origin is None else description.origin


def drawn_view(node: GraphNode) -> ArrayView:
    """Return the array that a draw fills, in its own shape; the kernel gets it flat."""
    view, request = node.source.args if node.source is not None else node.work[0].args
    try:
        dtype = np.dtype(request.dtype)
    except TypeError:  # bfloat16, which NumPy does not know by itself
        return view  # type: ignore[no-any-return]
    shape = request.shape
    if prod(shape) * dtype.itemsize != nbytes_of(view):
        return view  # type: ignore[no-any-return]
    strides = [dtype.itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return view._replace(shape=shape, strides=tuple(strides), dtype=dtype)  # type: ignore[no-any-return]


def _all_views(nodes: Sequence[GraphNode]) -> Iterator[ArrayView]:
    for placed in walk(nodes):
        node = placed.node
        if node.kind == "draw":
            yield drawn_view(node)
        if node.source is not None:
            args = node.source.args[1:] if node.kind == "draw" else node.source.args
            yield from views_of((args, node.source.result))
        else:
            for work in node.work:
                yield from views_of(work.args)
        if node.flag is not None:
            yield node.flag


def _scalar_text(value: np.generic) -> str | None:
    """Return the call that makes a NumPy scalar; None if its text would not give all bits."""
    if value.dtype.kind not in "biuf" or value.dtype.itemsize > 8:
        return None
    if value.dtype.kind == "f" and not np.isfinite(value):
        return None
    item = value.item()
    kind = value.dtype.name if value.dtype.kind != "b" else "bool_"
    if value.dtype.type(item).tobytes() != value.tobytes():
        return None
    text = str(value) if value.dtype.kind == "f" else repr(item)
    if value.dtype.kind == "f" and value.dtype.type(float(text)).tobytes() != value.tobytes():
        text = repr(item)
    return f"np.{kind}({text})"
