"""`Graph`: captured work of streams, replayed as one."""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

from nbrt._internal.checks import as_int
from nbrt.backends.driver_capture import DriverProgram
from nbrt.backends.graphs import MeasuringProgram, ReplayValues
from nbrt.backends.synchronous import SynchronousQueue
from nbrt.errors import (
    ArgumentError,
    ArgumentTypeError,
    CaptureError,
    GraphError,
    NotSupportedError,
)
from nbrt.graphs.building import GraphBuilder, NodeRef
from nbrt.graphs.code import write_code
from nbrt.graphs.code_scope import GraphDescription
from nbrt.graphs.collectives import collectives_of
from nbrt.graphs.comparison import first_difference
from nbrt.graphs.dot import dot_text, edge_data, node_data
from nbrt.graphs.generators import end_with, reserve, unreserve
from nbrt.graphs.hooks import call_hooks, run_checks
from nbrt.graphs.node_times import NodeTimes
from nbrt.graphs.operations import array_at
from nbrt.graphs.parameters import Parameters
from nbrt.graphs.picture import graph_html
from nbrt.graphs.placement import place_buffers
from nbrt.graphs.replayed import replayed_commands
from nbrt.graphs.saving import save_graph
from nbrt.graphs.table import nodes_table, summary
from nbrt.graphs.updating import Closing, take_over
from nbrt.runtime import commands
from nbrt.runtime.device import interface_of
from nbrt.runtime.stream import Stream, checked_stream, current_stream

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Mapping

    from nbrt._internal.device import Device
    from nbrt.backends.graphs import (
        ArrayView,
        CallerChecked,
        GraphBuffer,
        GraphNode,
        GraphProgram,
    )
    from nbrt.backends.queue import Queue
    from nbrt.graphs.capture import StreamCapture
    from nbrt.graphs.comparison import Difference
    from nbrt.graphs.generators import GeneratorUse
    from nbrt.graphs.memory_plan import MemoryPlan
    from nbrt.runtime.memory.pool import MemoryPool

__all__ = ["Graph"]


class Graph(GraphBuilder):
    """Work of one kind of device, captured once and replayed as one command.

    `graph` makes it. A replay runs every captured command again, with the arrays of the capture or
    others, and with the next random numbers of the generators.

    Attributes
    ----------
    device : Device
        The device of the stream that the capture began with.
    pool : MemoryPool
        The memory of arrays that were made during the capture.
    result : object
        What a captured function returned; None for a block.

    Examples
    --------
    >>> import nbrt
    >>> from numba import cuda
    >>> @nbrt.kernel
    ... def add(x, y):
    ...     i = cuda.grid(1)
    ...     if i < x.size:
    ...         x[i] += y[i]
    >>> with nbrt.device("cpu:0"):
    ...     x, y = nbrt.zeros(4), nbrt.full(4, 2.0, "float32")
    ...     with nbrt.graph() as g:
    ...         add.forall(4)(x, y)
    ...     g.replay()
    ...     g.replay()
    >>> x
    array([4., 4., 4., 4.], dtype=float32)
    """

    def __init__(self, device: Device, pool: MemoryPool) -> None:
        self.device = device
        self.pool = pool
        self.result: Any = None
        self._lock = threading.RLock()
        self._nodes: list[GraphNode] = []
        self._buffers: list[GraphBuffer] = []
        self._uses: list[GeneratorUse] = []
        self._origin: int | None = None
        self._parameters: Parameters | None = None
        self._program: GraphProgram | None = None
        self._collectives: list[CallerChecked] = []
        self._arena: Any = None
        self._plan: MemoryPlan | None = None
        self._is_deterministic = False
        self._is_captured = False
        # The memory that replays use: that of this graph, and of the graphs inside on CUDA. In a
        # capture, replays of graphs with a common key run one after the other.
        self._memory_keys: tuple[object, ...] = (object(),)
        self._closing: Closing | None = None

    # -- building ----------------------------------------------------------------------------------

    def _finish(
        self,
        capture: StreamCapture,
        named: Mapping[str, tuple[Any, ArrayView]],
        *,
        deterministic: bool,
    ) -> None:
        """Take over what a capture recorded, and make the program of its replays."""
        interface = capture.origin.interface
        self._nodes, self._buffers = capture.nodes, capture.table.buffers
        self._uses = capture.finished_uses()
        self._memory_keys = (*self._memory_keys, *capture.memory_keys)
        self._origin = capture.origin.id
        if capture.driver_graph is None and interface.capabilities.packs_graph_memory:
            self._plan, self._arena = place_buffers(
                capture.table, self._nodes, capture.origin, self.pool
            )
        try:
            run_checks(self)
        except BaseException:
            if capture.driver_graph is not None:
                capture.driver_graph.close()
            self._nodes, self._buffers, self._uses = [], [], []
            self._plan = self._arena = None
            raise
        known = capture.table.known_arrays
        self._parameters = Parameters(interface, self._nodes, self._buffers, named, known)
        self._is_deterministic = deterministic
        self._collectives = list(collectives_of(self._nodes))
        if capture.driver_graph is None:
            program = self._new_program(self._nodes, self._buffers)
        else:
            program = capture.driver_graph.program(
                self._nodes, self._buffers, deterministic=deterministic
            )
        self._adopt(program)
        self._is_captured = True
        call_hooks("instantiate", self)

    def _new_program(self, nodes: list[GraphNode], buffers: list[GraphBuffer]) -> GraphProgram:
        interface = interface_of(self.device)
        # All ranks come to their collectives in the same order.
        is_ordered = self._is_deterministic or any(collectives_of(nodes))
        return interface.graph_program(nodes, buffers, deterministic=is_ordered)

    def _adopt(self, program: GraphProgram) -> None:
        """Replay by a program; the one before is closed once no thread submits its replay."""
        self._program, self._closing = program, Closing(program)

    # -- replay ------------------------------------------------------------------------------------

    def replay(
        self, /, *pairs: tuple[Any, Any], stream: Stream | None = None, **replacements: Any
    ) -> None:
        """Run the captured work once, on a stream; the call does not wait.

        A graph with collective operations of ranks runs in the thread of the caller, behind the
        work of the stream, and the call waits for it.

        Parameters
        ----------
        *pairs : tuple of (array, array)
            An array of the capture, and the array to use instead in this replay.
        stream : Stream, optional
            The current stream of the graph's device by default.
        **replacements
            The same by name: arrays by the variables that held them in the capturing function, or
            by the parameters of the captured function; numbers by the parameters of the kernels.
            They hold for this replay only.

        Raises
        ------
        ArgumentError
            If a name is unknown, or shape, dtype or strides differ from the capture.
        GraphError
            If the graph was reset, or is not captured yet.
        """
        self._submit(stream, ReplayValues([], {}, {}, {}), pairs, replacements)

    def _replay_with(self, replacements: Mapping[str, Any]) -> None:
        """Replay with other arrays, whatever their names are."""
        self._submit(None, ReplayValues(), (), replacements)

    def profile(
        self, /, *pairs: tuple[Any, Any], stream: Stream | None = None, **replacements: Any
    ) -> NodeTimes:
        """Replay once, node after node, wait for the end, and return the seconds of each node.

        The parameters are those of `replay`.

        Returns
        -------
        seconds : list of float
            In the order of the nodes; it prints as a table. A node of control flow has the time of
            all its turns.

        Raises
        ------
        NotSupportedError
            If the kind of device measures no nodes; nothing has run then.

        Examples
        --------
        >>> import nbrt
        >>> with nbrt.device("cpu:0"):
        ...     with nbrt.graph() as g:
        ...         x = nbrt.zeros(4)
        ...         nbrt.current_stream().call(print, "called")
        ...     seconds = g.profile()
        called
        >>> len(seconds) == len(g.nodes)
        True
        """
        program, _ = self._usable()
        chosen = current_stream(self.device) if stream is None else checked_stream(stream)
        if chosen.capture is not None:
            raise CaptureError(
                "expected a stream that is not captured, got one that records; measure the graph "
                "after the capture"
            )
        if not isinstance(program, MeasuringProgram):
            raise NotSupportedError(
                f"expected a graph of a device that measures nodes, got one of {self.device}; "
                f"record timed events between parts of the work"
            )
        times: list[float] = []
        self._submit(chosen, ReplayValues(times=times), pairs, replacements)
        chosen.synchronize()
        return NodeTimes(self._nodes, times)

    def _submit(
        self,
        stream: Stream | None,
        values: ReplayValues,
        pairs: tuple[tuple[Any, Any], ...],
        replacements: Mapping[str, Any],
    ) -> None:
        chosen = current_stream(self.device) if stream is None else checked_stream(stream)
        if chosen.device.kind != self.device.kind:
            raise ArgumentError(
                f"expected a stream of {self.device.kind} for this graph, got {chosen!r}"
            )
        if not chosen.interface.lazy.is_ready:
            chosen.interface.lazy.ensure()
        self._lock.acquire()
        is_locked = True
        try:
            program, parameters = self._usable()
            closing, uses = self._closing, self._uses
            if pairs or replacements:
                parameters.bind(values, pairs, replacements)
            if chosen.capture is not None:
                chosen.capture.add_graph(chosen, self, values)
                return
            run = _replay
            if self._collectives:
                for each in self._collectives:
                    each.check_caller()
                run = _replay_here
            # Only then the next replay must wait for the event of this one, or an update may change
            # the program or the nodes. Otherwise no lock is held during a replay, which may call
            # functions that replay the graph on another stream.
            is_dynamic = bool(uses) and any(use.is_dynamic for use in uses)
            if not (self._plan is None or commands.hooks or is_dynamic):
                self._lock.release()
                is_locked = False
            self._run(chosen, values, uses, program, run)
        finally:
            if is_locked:
                self._lock.release()
        del closing

    def _run(
        self,
        stream: Stream,
        values: ReplayValues,
        uses: list[GeneratorUse],
        program: GraphProgram,
        run: Callable[[GraphProgram, ReplayValues, Queue], None],
    ) -> None:
        call_hooks("replay_begin", self)
        marks = reserve(uses, values)
        try:
            if commands.hooks:
                arrays = stream.interface.replayed_arrays(self._buffers, values)
                group = replayed_commands(self._nodes, values, arrays)
                commands.dispatch_group(stream, group, functools.partial(run, program, values))
            else:
                run(program, values, stream.queue)
        except BaseException:
            unreserve(marks)
            raise
        if uses:
            end_with(uses, stream, values)
        call_hooks("replay_end", self)

    def __call__(self, *arrays: Any) -> None:
        """Replay with other arrays, in the order of `parameters`."""
        _, parameters = self._usable()
        names = list(parameters.arrays)
        if len(arrays) > len(names):
            raise ArgumentError(
                f"expected at most {len(names)} arrays ({', '.join(names)}), got {len(arrays)}"
            )
        self._replay_with(dict(zip(names, arrays, strict=False)))

    def _usable(self) -> tuple[GraphProgram, Parameters]:
        program, parameters = self._program, self._parameters
        if program is None or parameters is None:
            state = "was reset" if self._is_captured else "is not captured yet"
            raise GraphError(f"expected a captured graph, got one that {state}; capture it again")
        return program, parameters

    def reset(self) -> None:
        """Release memory, kernels and arrays, after the replays in flight; idempotent."""
        with self._lock:
            program, self._program = self._program, None
            if program is None:
                return
            call_hooks("destroy", self)
            program.close()
            self._arena = self._parameters = self._plan = None
            self._nodes, self._buffers, self._uses, self._collectives = [], [], [], []

    def __del__(self) -> None:
        if (
            sys is not None
            and not sys.is_finalizing()
            and getattr(self, "_program", None) is not None
        ):
            self.reset()

    def update(self, other: Graph) -> None:
        """Take over the work of another graph of the same topology; its memory is kept alive.

        The nodes of this graph keep their references, and those that are left out stay so. The
        other graph does not change.

        Raises
        ------
        GraphError
            If kinds of nodes, dependencies or branches differ; names the first node that does.
        """
        take_over(self, other)

    def __reduce__(self) -> Any:
        raise ArgumentTypeError(
            "expected something that can be pickled, got a Graph, which lives in one process; "
            "capture it in the other process"
        )

    # -- plain data --------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """The nodes as plain data, in the order of the capture; those of branches are inside."""
        return node_data(self._nodes)

    @property
    def edges(self) -> list[tuple[str, str]]:
        """Pairs of nodes, by path: the first runs before the second."""
        return edge_data(self._nodes)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the arrays, and then of the numbers, that a replay may replace."""
        if self._parameters is None:
            return ()
        return (*self._parameters.arrays, *self._parameters.scalars)

    @property
    def memory_plan(self) -> MemoryPlan | None:
        """The places of arrays that died during the capture; None after `reset`."""
        return self._plan

    @property
    def is_deterministic(self) -> bool:
        """Whether independent nodes run in one fixed order."""
        return self._is_deterministic

    def __getitem__(self, index: int) -> NodeRef:
        """Return a node, to enable or disable it."""
        self._usable()
        number = as_int(index)
        if number is None or not 0 <= number < len(self._nodes):
            raise ArgumentError(
                f"expected the number of a node below {len(self._nodes)}, got {index!r}"
            )
        return NodeRef(self, self._nodes[number])

    def _enable(self, node: GraphNode, is_enabled: bool) -> None:
        program, _ = self._usable()
        if isinstance(program, DriverProgram):
            program.set_enabled(node, is_enabled)
        node.is_enabled = is_enabled

    def __len__(self) -> int:
        return len(self._nodes)

    # -- views -------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        if self._program is None:
            return f"Graph({str(self.device)!r}, {'reset' if self._is_captured else 'empty'})"
        head = f"Graph({str(self.device)!r}): {summary(self._nodes, self._buffers)}"
        return f"{head}\n{nodes_table(self._nodes)}" if self._nodes else head

    def _repr_html_(self) -> str:
        title = f"Graph on {self.device}: {summary(self._nodes, self._buffers)}"
        return graph_html(self._nodes, title=title)

    def to_dot(self, name: str = "graph") -> str:
        """Return the graph in the DOT language of Graphviz."""
        if not isinstance(name, str):
            raise ArgumentTypeError(f"expected a string as the name of the graph, got {name!r}")
        return dot_text(self._nodes, name=name)

    @property
    def code(self) -> str:
        """The graph as Python, one line an operation, that gives the bits of a replay.

        It runs in `namespace`: ``exec(g.code, g.namespace)``. Streams are found by id.
        """
        return write_code(self._description())[0]

    @property
    def namespace(self) -> dict[str, Any]:
        """The kernels, arrays, generators and functions that `code` refers to."""
        return write_code(self._description())[1]

    def save(self, path: str | os.PathLike[str], *, values: bool | Collection[str] = True) -> None:
        """Write the graph into a file, from which `nbrt.graphs.load` makes it in any process.

        Parameters
        ----------
        path : str or path
            The file, which is replaced.
        values : bool or collection of str
            Whether named arrays are saved with their values, or the names of those that are.

        Raises
        ------
        GraphError
            If the graph has something that lives in this process only; it is named.
        """
        save_graph(self._description(), path, values=values)

    def _description(self) -> GraphDescription:
        _, parameters = self._usable()
        arrays = {each.view: each.array for each in parameters.arrays.values()}
        interface = interface_of(self.device)

        def array_of(view: ArrayView, buffer: GraphBuffer) -> Any:
            known = arrays.get(view)
            array = None if known is None else known()
            if array is None:
                address = buffer.address + view.offset
                return array_at(interface, address, view, buffer.owner, buffer.device)
            return array

        names = {name: each.view for name, each in parameters.arrays.items()}
        return GraphDescription(
            self._nodes, self._buffers, names, self._uses, self._origin, array_of
        )

    def difference(self, other: Graph) -> Difference | None:
        """Return the first node that differs from another graph's, and why; None if none does."""
        if not isinstance(other, Graph):
            raise ArgumentTypeError(f"expected a Graph, got {other!r}")
        return first_difference(self._nodes, other._nodes)


def _replay(program: GraphProgram, values: ReplayValues, queue: Queue) -> None:
    program.replay(queue, values)


def _replay_here(program: GraphProgram, values: ReplayValues, queue: Queue) -> None:
    """Replay in this thread, behind the work of a queue, which other ranks may share."""
    queue.synchronize()
    program.replay(SynchronousQueue(queue.index), values)
