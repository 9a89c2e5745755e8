"""`load`: makes a graph from a file, by capturing its operations again."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt._internal.device import Device
from nbrt.backends.graphs import ArrayView
from nbrt.errors import ArgumentError, ArgumentTypeError, GraphError
from nbrt.graphs.capturing import graph
from nbrt.graphs.control_flow import cond, switch, while_
from nbrt.graphs.graph_file import checked_path, decode, read_graph, reading
from nbrt.graphs.operations import DrawRule, GraphState, draw, fill, kernel_of, view
from nbrt.graphs.saving import digest_of
from nbrt.index_sets import RunTable
from nbrt.random.state import PhiloxState
from nbrt.random.stream_position import StreamPosition
from nbrt.runtime.array import asarray, copy
from nbrt.runtime.creation import empty
from nbrt.runtime.guard import StreamGuard
from nbrt.runtime.kernel import Kernel
from nbrt.runtime.stream import Stream, checked_stream

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from nbrt.backends.graphs import GraphNode
    from nbrt.graphs.graph import Graph


__all__ = ["GraphLoader", "load"]


def load(path: str | os.PathLike[str], stream: Stream | None = None, **arrays: Any) -> Graph:
    """Make a graph from a file of `Graph.save`: its work is captured again, and nothing runs.

    The modules of its kernels are imported. The state of its generators is that of the time of the
    save; it moves with the replays of this graph only.

    Parameters
    ----------
    path : str or path
        The file.
    stream : Stream, optional
        The stream to capture; a new one by default.
    **arrays
        Arrays to use instead of those of the capture, by name. One whose values were not saved must
        be given; they are parameters of the graph as before.

    Raises
    ------
    GraphError
        If the file cannot be read or has another version, or if a kernel is missing or has changed.
    ArgumentError
        If an array is missing or unknown, or has another shape or dtype.
    """
    if stream is not None:
        checked_stream(stream)
    with reading(checked_path(path)):
        loader = GraphLoader(path, stream, arrays)
        made = graph(loader.origin).capture(loader.run, loader.arrays)
        for number in loader.disabled:
            made[number].enable(False)
    return made


class GraphLoader:
    """A graph in a file, with the arrays of this process.

    Parameters
    ----------
    path : str or path
        The file.
    stream : Stream, optional
        The stream that the capture begins with; a new one by default.
    arrays : mapping of str to array
        The arrays that replace those of the capture, by name. An array whose values were saved is
        made if it is not given.

    Attributes
    ----------
    arrays : dict of str to array
        The named arrays of the graph.
    origin : Stream
        The stream to capture.
    disabled : list of int
        The nodes that were disabled, by their numbers in the capture of `run`.

    Raises
    ------
    GraphError
        If the file is none of this version, or a kernel is not found or has changed.
    ArgumentError
        If an array is missing, unknown, or of another shape or dtype.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        stream: Stream | None = None,
        arrays: Mapping[str, Any] | None = None,
    ) -> None:
        self._content, self._store = read_graph(path)
        self._kernels = [_kernel(entry) for entry in self._content["kernels"]]
        self._first_device: int | None
        self._streams = self._make_streams(stream)
        self.arrays: dict[str, Any] = {}
        self._buffers: dict[int, Any] = {}
        self._lows: dict[int, int] = {}
        self._views: dict[int, ArrayView] = {}
        self._private: dict[int, dict[str, Any]] = {}
        self._states: dict[int, GraphState] = {}
        self._positions = [
            StreamPosition(PhiloxState(entry["seed"], entry["offset"]))
            for entry in self._content["generators"]
        ]
        self.disabled: list[int] = []
        self._adopt_arrays(dict(arrays or {}))

    def _make_streams(self, stream: Stream | None) -> dict[int, Stream]:
        kind, origin = self._content["device"], self._content["origin"]
        if stream is not None and stream.device.kind != kind:
            raise ArgumentError(f"expected a stream of {kind} for this graph, got {stream!r}")
        entries = {entry["number"]: entry for entry in self._content["streams"]}
        self._first_device = entries[origin]["device"] if origin in entries else None
        if stream is None and origin in entries:
            first = entries[origin]
            stream = Stream(f"{kind}:{first['device']}", first["priority"])
        self.origin = stream or Stream(kind)
        return {
            number: self.origin
            if number == origin
            else Stream(self._device_of(entry["device"]), entry["priority"])
            for number, entry in entries.items()
        }

    def _device_of(self, number: int | None) -> Device:
        """Return the device in the place of one of the file: that of the origin for its own."""
        first = self.origin.device
        return first if number in (None, self._first_device) else Device(first.kind, number)

    def _adopt_arrays(self, given: dict[str, Any]) -> None:
        missing = []
        for entry in self._content["buffers"]:
            number = entry["number"]
            if entry["is_private"]:
                self._private[number] = entry
                continue
            name, wanted = entry["name"], decode(entry["view"], self._store)
            if name in given:
                array = _checked(name, given.pop(name), wanted)
            elif "values" in entry:
                device = self._device_of(entry["device"])
                array = asarray(self._store.arrays[entry["values"]], device=device, copy=True)
            else:
                missing.append(name)
                continue
            self._buffers[number], self._views[number] = array, wanted
            if name is not None:
                self.arrays[name] = array
        if missing or given:
            problem = (
                f"no array for {', '.join(missing)}"
                if missing
                else (f"arrays for {', '.join(given)}, which the graph does not have")
            )
            names = [each["name"] for each in self._content["buffers"] if each.get("name")]
            raise ArgumentError(
                f"expected arrays of the graph by name ({', '.join(names) or 'none'}), got "
                f"{problem}"
            )

    # -- operations --------------------------------------------------------------------------------

    def run(self) -> None:
        """Repeat the operations on the streams, which are captured."""
        for position, entry in zip(self._positions, self._content["generators"], strict=True):
            self._states[entry["buffer"]] = GraphState(position, entry["words"], self.origin)
        self.disabled.clear()
        self._run_nodes(self._content["nodes"], self.origin)

    def _run_nodes(
        self, nodes: list[dict[str, Any]], origin: Stream, roots: tuple[int, ...] = ()
    ) -> None:
        """Run a list of nodes, each behind its dependencies; the first ones behind `roots`."""
        capture: Any = origin.capture
        streams = {node["stream"]: self._streams[node["stream"]] for node in nodes}
        others = [stream for stream in streams.values() if stream is not origin]
        for stream in others:
            stream.wait_stream(origin)  # so that it joins the capture, or the body
        ends: dict[int, tuple[int, ...]] = {}
        for node in nodes:
            stream = streams[node["stream"]]
            before = {number for each in node["after"] for number in ends[each]}
            after = tuple(sorted(before)) if node["after"] else roots
            made = capture.add_after(
                stream, after, functools.partial(self._run, node, stream, after)
            )
            followed = {number for each in made for number in each.dependencies}
            ends[node["index"]] = (
                tuple(each.index for each in made if each.index not in followed) or after
            )
            if not node["is_enabled"]:
                self._disable(capture, made[-1])
        for stream in others:
            origin.wait_stream(stream)

    def _disable(self, capture: Any, node: GraphNode) -> None:
        if capture.nodes[-1] is node:
            self.disabled.append(node.index)
        else:
            node.is_enabled = False

    def _run(self, node: dict[str, Any], stream: Stream, after: tuple[int, ...]) -> None:
        kind = node["kind"]
        if kind in ("if", "while", "switch"):
            self._run_control_flow(node, stream)
        elif kind == "graph":
            self._run_nodes(node["branches"][0]["nodes"], stream, after)
        else:
            args = [self._value(each, stream) for each in node["args"]]
            operation: Callable[..., None] = getattr(self, f"_run_{kind}", self._refuse)
            operation(node, stream, *args)

    def _refuse(self, node: dict[str, Any], stream: Stream, *args: Any) -> None:  # noqa: ARG002
        raise GraphError(f"expected a kind of node that a file can hold, got {node['kind']!r}")

    def _run_launch(self, node: dict[str, Any], stream: Stream, *args: Any) -> None:
        kernel = self._kernels[node["kernel"]]
        kernel[tuple(node["grid"]), tuple(node["block"]), stream, node["shared"]](*args)

    def _run_copy(
        self,
        node: dict[str, Any],  # noqa: ARG002
        stream: Stream,
        into: Any,
        source: Any,
    ) -> None:
        copy(into, source, stream=stream)

    def _run_fill(
        self,
        node: dict[str, Any],  # noqa: ARG002
        stream: Stream,
        array: Any,
        value: Any,
    ) -> None:
        fill(array, value, stream=stream)

    def _run_draw(
        self, node: dict[str, Any], stream: Stream, array: Any, parameters: tuple[Any, ...]
    ) -> None:
        entry = node["draw"]
        region = decode(entry["region"], self._store)
        if isinstance(region, RunTable):
            tables = (asarray(each, stream=stream) for each in (region.starts, region.begins))
            starts, begins = tables
            region = RunTable(starts, begins, region.size, region.unit, region.count, region.step)
        constants = tuple(entry["constants"])
        rule = DrawRule(entry["n"], entry["dtype"], entry["layout"], constants, None, region)
        state = self._states[entry["state"]]
        distribution, offset = entry["distribution"], entry["offset"]
        draw(array, distribution, parameters, state, offset, stream=stream, rule=rule)

    def _run_control_flow(self, node: dict[str, Any], stream: Stream) -> None:
        flag = self._value(node["flag"], stream)
        for branch in node["branches"]:
            self._allocate(branch["nodes"])
        bodies = [self._body(branch, stream) for branch in node["branches"]]
        with StreamGuard(stream):
            if node["kind"] == "while":
                while_(flag, bodies[0], limit=node["limit"])
            elif node["kind"] == "if":
                cond(flag, *bodies)
            else:
                switch(flag, bodies)

    def _body(self, branch: dict[str, Any], stream: Stream) -> Callable[[], None]:
        def body() -> None:
            self._run_nodes(branch["nodes"], stream)
            for buffer, words in branch["advances"]:
                self._states[buffer].advance(words)

        return body

    # -- arguments ---------------------------------------------------------------------------------

    def _allocate(self, nodes: list[dict[str, Any]]) -> None:
        """Make the private memory of a branch before it: it has one memory for all its turns."""
        for node in nodes:
            stream = self._streams[node["stream"]]
            for each in (*node.get("args", ()), node.get("flag")):
                self._value(each, stream)
            for branch in node.get("branches", ()):
                self._allocate(branch["nodes"])

    def _value(self, encoded: Any, stream: Stream) -> Any:
        value = decode(encoded, self._store)
        return self._with_arrays(value, stream)

    def _with_arrays(self, value: Any, stream: Stream) -> Any:
        if type(value) is ArrayView:
            return self._array(value, stream)
        if type(value) is tuple:
            return tuple(self._with_arrays(each, stream) for each in value)
        return value

    def _array(self, wanted: ArrayView, stream: Stream) -> Any:
        number = wanted.buffer
        if number in self._states:
            return self._states[number].array
        if number not in self._buffers:
            entry = self._private[number]
            low, high = entry["low"], entry["high"]
            self._buffers[number] = empty(high - low, np.uint8, stream=stream)
            self._views[number] = ArrayView(number, low, (high - low,), (1,), np.dtype(np.uint8))
        base = self._views[number]
        if base == wanted:
            return self._buffers[number]
        offset = wanted.offset - base.offset
        return view(self._buffers[number], wanted.shape, wanted.dtype, offset, wanted.strides)


def _checked(name: str, array: Any, wanted: ArrayView) -> Any:
    """Return an array that is given for one of the capture."""
    if not hasattr(array, "strides"):
        raise ArgumentTypeError(f"expected an array for {name!r}, got {type(array).__name__}")
    given = tuple(array.shape), array.dtype, tuple(array.strides)
    if given != (wanted.shape, wanted.dtype, wanted.strides):
        raise ArgumentError(
            f"expected shape {wanted.shape}, {wanted.dtype} and strides {wanted.strides} for "
            f"{name!r}, as captured, got {given[0]}, {given[1]} and {given[2]}"
        )
    return array


def _kernel(entry: dict[str, str]) -> Kernel:
    """Return a kernel of a module, if it is the one that was saved."""
    module, name = entry["module"], entry["name"]
    try:
        found: Any = sys.modules.get(module) or importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise GraphError(
            f"expected the kernel {name} in the module {module}, got none ({error}); make the "
            f"module importable"
        ) from error
    kernel = found if isinstance(found, Kernel) else kernel_of(found)
    if digest_of(kernel.function) != entry["digest"]:
        raise GraphError(
            f"expected the kernel {module}.{name} as it was when the graph was saved, got another "
            f"source, or another captured value; capture and save the graph again"
        )
    return kernel
