"""`StreamCapture`: records the work of streams as nodes of a graph."""

from __future__ import annotations

import contextlib
import operator
import threading
from typing import TYPE_CHECKING, Any

from nbrt._internal.callsite import CallSite
from nbrt._internal.gc_control import gc_disabled
from nbrt.backends.graphs import (
    Branch,
    GraphNode,
    NodeSource,
    StateAdvance,
    Work,
)
from nbrt.errors import CaptureError
from nbrt.graphs.buffers import BufferTable
from nbrt.graphs.child import ChildGraph
from nbrt.graphs.draw_capture import DrawCapture, Level, buffers_of_node, union
from nbrt.graphs.generators import new_state
from nbrt.graphs.recorders import QueueRecorder, recorder_for
from nbrt.runtime import commands
from nbrt.runtime.capturing import CapturedRecord, open_captures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nbrt.backends.driver_capture import CaptureErrorMode, DriverGraph
    from nbrt.backends.graphs import ReplayValues
    from nbrt.graphs.recorders import Control, Recorder
    from nbrt.runtime.commands import Command
    from nbrt.runtime.memory.pool import MemoryPool
    from nbrt.runtime.stream import Stream

__all__ = ["StreamCapture"]

_new = tuple.__new__

_MAX_NESTED = 32
"""The deepest control flow: a replay and the views of a graph recurse."""

_STACK = 8
"""Frames of a call site."""

_FRAMES = 6
_INNER_FRAMES = 2
"""The same for commands, and the frames `Stream.enqueue` and `record`, which are left out."""

_INNER_FRAMES_OF_LAUNCH = _INNER_FRAMES + 1
"""The same with that of `ConfiguredKernel.__call__`."""

_DEEP_FRAMES = 20
"""The same as `_FRAMES` for draws and collectives, which pass through more functions of nbrt."""

_DEEP_KINDS = frozenset(["draw", "collective"])


class StreamCapture(DrawCapture):
    """A capture in progress; see `nbrt.runtime.capturing.Capture`.

    Parameters
    ----------
    stream : Stream
        The stream that the capture begins with.
    pool : MemoryPool
        The memory of arrays that are made during the capture.
    error_mode : str
        See `nbrt.graph`.

    Attributes
    ----------
    origin : Stream
        As given.
    table : BufferTable
        The memory that the nodes use.
    driver_graph : DriverGraph or None
        The graph that the driver has captured; None without one.
    memory_keys : dict of object to None
        The memory of the graphs that it replays, as `Graph` names it.
    """

    def __init__(
        self, stream: Stream, pool: MemoryPool, error_mode: CaptureErrorMode = "thread_local"
    ) -> None:
        super().__init__(BufferTable(stream.interface))
        self.origin = stream
        self.error_mode = error_mode
        self.driver_graph: DriverGraph | None = None
        self.memory_keys: dict[object, None] = {}
        self._pool = pool
        self._recorder: Recorder = QueueRecorder()
        self._streams: set[Stream] = set()
        self._thread = threading.get_ident()
        self._is_open = False

    @property
    def nodes(self) -> list[GraphNode]:
        """The nodes of the graph so far."""
        return self._levels[0].nodes

    # -- begin and end -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record for the length of a block; the streams run work again after it in any case."""
        stream = self.origin
        if stream.capture is not None:
            raise CaptureError(
                f"expected a stream that is not captured, got {stream!r}, which another capture "
                f"records; end that one first, or replay its graph inside this one"
            )
        if stream.deferral is not None:
            stream.deferral.wait()
        # A collection could destroy another graph, which some drivers forbid during a capture.
        with gc_disabled(), commands.install_hook(self):
            self._recorder = recorder_for(stream, self.error_mode)
            self._is_open = True
            open_captures.setdefault(self._thread, []).append(self)
            try:
                self._join(stream, (), ())
                yield
                self._add_other_work(stream)
                self._check_joined(self._levels[0], stream)
                self.driver_graph = self._recorder.end()
            finally:
                self._is_open = False
                for joined in self._streams:
                    joined.capture = None
                _close(self, self._thread)
                self._recorder.abort()

    def _join(self, stream: Stream, tails: tuple[int, ...], handles: tuple[int, ...]) -> None:
        if stream.deferral is not None:
            stream.deferral.wait()
        self._recorder.join(stream, handles)
        self._streams.add(stream)
        self._levels[-1].tails[stream] = tails
        stream.capture = self

    def _add_other_work(self, stream: Stream) -> None:
        """Add nodes for the work of other libraries on a stream."""
        for handle, kind, label in self._recorder.other_work(stream):
            self._add(stream, kind, label, handles=(handle,))

    def _check_joined(self, level: Level, stream: Stream) -> None:
        """Raise CaptureError if the work of a stream does not lead to the end of another."""
        reached: set[int] = set()
        stack = list(level.tails.get(stream, ()))
        while stack:
            number = stack.pop()
            if number not in reached:
                reached.add(number)
                stack += level.nodes[number].dependencies
        for other, tails in level.tails.items():
            if other is not stream and not reached.issuperset(tails):
                fork = level.forks[other].format(most=1) if other in level.forks else ""
                raise CaptureError(
                    f"expected every stream of the capture to be joined, got work on {other!r} "
                    f"that {stream!r} does not wait for; before the end, let the one wait for the "
                    f"other with wait_stream. It joined the capture here:\n{fork}"
                )

    # -- what streams and events call --------------------------------------------------------------

    def before(self, stream: Any, command: Command) -> None:
        """Refuse work of the capturing thread on a stream that is not captured."""
        if (
            command.kind not in ("allocate", "free")
            and self.error_mode != "relaxed"
            and self._is_open
            and (self.error_mode == "global" or threading.get_ident() == self._thread)
        ):
            raise CaptureError(
                f"expected work on a stream of the capture, got {command.kind} {command.label} on "
                f"{stream!r}, where it would run now; let that stream wait for an event of the "
                f"capture, or pass error_mode='relaxed' to run it now"
            )

    def after(self, stream: Any, command: Command, result: Any) -> None:  # noqa: ARG002
        """Note allocations and frees of the graph's pool."""
        if command.kind == "allocate" and result.pool.id == self._pool.id:
            if result.pool.device == self._pool.device:
                self.table.add_allocation(result)
        elif command.kind == "free":
            self.table.end_allocation(command.args[0])

    def record(
        self,
        stream: Any,
        kind: Any,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        label: str,
    ) -> Any:
        """Record a command instead of running it."""
        with self._lock:
            recorder = self._recorder
            plan = recorder.plans.get(function)
            if plan is None:
                if recorder.sees_other_work:
                    self._add_other_work(stream)
                work, handles, result = recorder.run(stream, kind, function, args)
                views = self.table.views_of(args)
                items = tuple([self._work_of(each, args, views) for each in work])
                returned = None if result is None else self.table.views_of((result,))[0]
                source = NodeSource(function, views, returned)
                frames = _DEEP_FRAMES if kind in _DEEP_KINDS else _FRAMES
                site = CallSite.here(depth=_INNER_FRAMES, most=frames)
            else:  # without calls of Python functions, as far as possible
                handles, result = (), None
                given = plan.checked_args(args)
                views = self.table.views_of(args)
                if given is args:
                    items = (_new(Work, (plan, views)),)
                else:
                    items = (self._work_of((plan, given), args, views),)
                source = _new(NodeSource, (function, views, None))
                site = CallSite.nearest(_INNER_FRAMES_OF_LAUNCH)
            node = self._add(stream, kind, label, items, site, source, handles)
            if self._levels[-1].dynamic and kind in ("draw", "launch"):
                self._order_draws(node)
        return result

    def _work_of(
        self, work: tuple[Any, tuple[Any, ...]], args: tuple[Any, ...], views: tuple[Any, ...]
    ) -> Work:
        """Return the work of a command with the arguments `args`, which are `views`."""
        function, given = work
        if len(given) <= len(args) and all(map(operator.is_, given, args)):
            return Work(function, views[: len(given)])
        return Work(function, self.table.views_of(given))

    def _add(
        self,
        stream: Stream,
        kind: Any,
        label: str,
        work: tuple[Work, ...] = (),
        site: CallSite | None = None,
        source: NodeSource | None = None,
        handles: tuple[int, ...] = (),
    ) -> GraphNode:
        level = self._levels[-1]
        tails = level.tails.get(stream)
        if tails is None:
            raise CaptureError(
                f"expected work on a stream of the body that is captured, got {stream!r}, which "
                f"joined outside of it; let it wait for the current stream inside of the body"
            )
        nodes, index = level.nodes, len(level.nodes)
        # By position: with keywords it takes half as long again.
        node = GraphNode(
            index, kind, label, stream.id, stream.device.index, work, tails,
            CallSite.here(depth=1, most=_STACK) if site is None else site,
            True, None, (), 0, source, handles,
        )  # fmt: skip
        nodes.append(node)
        level.tails[stream] = (index,)
        return node

    def record_event(self, stream: Any, event: Any) -> CapturedRecord:  # noqa: ARG002
        """Return the nodes that a stream has reached."""
        with self._lock:
            self._add_other_work(stream)
            tails = self._levels[-1].tails.get(stream, ())
            return CapturedRecord(self, tails, self._recorder.tails(stream))

    def wait_event(self, stream: Any, event: Any, record: CapturedRecord | None) -> None:
        """Add a dependency of the stream's next node; capture the stream if it is not."""
        if record is None:
            raise CaptureError(
                f"expected an event that was recorded in this capture, got {event!r}, which was "
                f"recorded before; synchronize it before the capture, or record it inside"
            )
        if record.capture is not self or not self._is_open:
            raise CaptureError(
                f"expected an event of work that runs, got {event!r}, which was recorded in a "
                f"capture; wait for the stream that replays the graph"
            )
        if stream.capture is not None and stream.capture is not self:
            raise CaptureError(
                f"expected a stream of the same capture, got {stream!r}, which another one records"
            )
        if stream.interface is not self.origin.interface:
            raise CaptureError(
                f"expected a stream of {self.origin.device.kind}, as the other streams of the "
                f"capture, got {stream!r}; a graph belongs to one kind of device"
            )
        with self._lock:
            level = self._levels[-1]
            if stream not in level.tails:
                level.forks[stream] = CallSite.here(depth=1, most=_STACK)
            else:
                self._add_other_work(stream)
            tails = union(level.tails.get(stream, ()), record.nodes)
            self._join(stream, tails, record.handles)

    # -- control flow ------------------------------------------------------------------------------

    def add_control_flow(
        self,
        stream: Stream,
        kind: Any,
        flag: Any,
        bodies: Sequence[Callable[[], object]],
        limit: int,
    ) -> None:
        """Capture functions as the bodies of a node that runs them by the value of a flag."""
        if len(self._levels) > _MAX_NESTED:
            raise CaptureError(
                f"expected control flow nested at most {_MAX_NESTED} deep in a graph, got a "
                f"{kind!r} deeper; capture fewer levels"
            )
        with self._lock:
            self._add_other_work(stream)
            control = self._recorder.control(stream, kind, flag, limit)
            inner: set[Any] = set()
            try:
                branches = tuple(
                    [self._capture_body(stream, control, body, inner) for body in bodies]
                )
                handles = control.end()
            except BaseException:
                control.drop()  # the caller may catch the exception and go on with the capture
                raise
            level = self._levels[-1]
            node = self._add(stream, kind, "", handles=handles)
            node.flag, node.branches, node.limit = self.table.view_of(flag), branches, limit
            for key in inner:
                node.dependencies = union(node.dependencies, level.children.get(key, ()))
                level.children[key] = (node.index,)
            # It moves the states of generators: draws before it must have read them.
            moving = {self.uses[position].buffer for position in level.dynamic}
            earlier = [
                other.index
                for other in level.nodes[: node.index]
                if moving and (other.branches or not moving.isdisjoint(buffers_of_node(other)))
            ]
            node.dependencies = union(node.dependencies, tuple(earlier))

    def _capture_body(
        self,
        stream: Stream,
        control: Control,
        body: Callable[[], object],
        children: set[Any],
    ) -> Branch:
        outer = self._levels[-1]
        level = Level()
        level.tails[stream] = ()
        self._levels.append(level)
        before = set(self._streams)
        try:
            with control.body():
                body()
                self._add_other_work(stream)
                self._check_joined(level, stream)
                advances = self._advances_of(level)
                control.end_body(advances, {use.buffer: use.array for use in self.uses.values()})
        finally:
            self._levels.pop()
            for joined in self._streams - before:
                joined.capture = None
                self._recorder.leave(joined)
            self._streams = before
        outer.dynamic |= level.dynamic
        children |= level.children.keys()
        return Branch(level.nodes, advances)

    def _advances_of(self, level: Level) -> tuple[StateAdvance, ...]:
        """Return what a run of a body draws; its generators move during replays."""
        drawn = [(position, words) for position, words in level.words.items() if words]
        level.dynamic.update(position for position, _ in drawn)
        for position in level.dynamic:
            self.uses[position].is_dynamic = True
        return tuple(StateAdvance(self.uses[position].buffer, words) for position, words in drawn)

    # -- other graphs ------------------------------------------------------------------------------

    def add_graph(self, stream: Stream, graph: Any, values: ReplayValues) -> None:
        """Add the replay of a graph as one node."""
        with self._lock:
            self._add_other_work(stream)
            level = self._levels[-1]
            for key in graph._memory_keys:
                self._add_dependencies(stream, level.children.get(key, ()))
            is_copied = graph._plan is not None  # the driver has the addresses of its graphs
            own_states = {use.buffer: new_state(stream) for use in graph._uses if is_copied}
            child = ChildGraph(graph, values, self.table, own_states)
            states = []
            for use in graph._uses:
                mine = self.reserve(stream, use.position, use.words)
                states.append((use.array, mine.array, mine.offset, use.is_dynamic))
                position = self.source_of(use.position)
                outer = self.uses[position]
                child.add_state(use.buffer, outer.buffer, mine.offset, is_dynamic=use.is_dynamic)
                if use.is_dynamic:
                    level.dynamic.add(position)
                    outer.is_dynamic = True
            handles = self._recorder.replay(stream, graph._program, values, states)
            source = NodeSource(graph.replay, ())
            node = self._add(stream, "graph", "graph", source=source, handles=handles)
            node.branches = (Branch(child.nodes(stream.id, stream.device.index)),)
            level.children |= dict.fromkeys(graph._memory_keys, (node.index,))
            if not is_copied:
                self.memory_keys.update(dict.fromkeys(graph._memory_keys))
            self._order_draws(node)

    def _add_dependencies(self, stream: Stream, nodes: tuple[int, ...]) -> None:
        """Let the next work of a stream follow nodes too."""
        level = self._levels[-1]
        if not set(nodes) <= set(level.tails[stream]):
            handles = self._recorder.tails(stream)
            self._recorder.depend(stream, (*handles, *_last_handles(level.nodes, nodes)))
            level.tails[stream] = union(level.tails[stream], nodes)

    def is_in_body(self, node: GraphNode) -> bool:
        """Return whether a node belongs to the body, or to the graph, that is being captured."""
        nodes = self._levels[-1].nodes
        return node.index < len(nodes) and nodes[node.index] is node

    # -- explicit order ----------------------------------------------------------------------------

    def add_after(
        self, stream: Stream, after: Sequence[int] | None, call: Callable[[], object]
    ) -> list[GraphNode]:
        """Record what a call submits behind certain nodes; None: behind all work of the stream.

        Later work of the stream follows it. Returns the new nodes.
        """
        with self._lock:
            self._add_other_work(stream)
            level = self._levels[-1]
            count, before = len(level.nodes), level.tails[stream]
            handles = self._recorder.tails(stream)
            if after is not None:
                level.tails[stream] = tuple(sorted(set(after)))
                self._recorder.depend(stream, _last_handles(level.nodes, after))
            try:
                call()
                self._add_other_work(stream)
            finally:
                if after is not None:
                    behind = self._recorder.tails(stream)
                    self._recorder.depend(stream, tuple(sorted({*handles, *behind})))
                    level.tails[stream] = union(before, level.tails[stream])
            return level.nodes[count:]


def _close(capture: StreamCapture, thread: int) -> None:
    """Remove a capture from those in progress; its block may end in another thread."""
    captures = open_captures[thread]
    captures.remove(capture)
    if not captures:
        del open_captures[thread]


def _last_handles(nodes: Sequence[GraphNode], numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(handle for number in numbers for handle in nodes[number].handles[-1:])
