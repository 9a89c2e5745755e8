"""How the commands of a capture are recorded: by a queue that runs nothing, or by the driver."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from nbrt.backends.graphs import RecordingQueue
from nbrt.backends.programs import CheckingPlan
from nbrt.graphs.buffers import address_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nbrt.backends.driver_capture import DriverCapture, DriverControl, DriverGraph
    from nbrt.backends.graphs import NodeKind, ReplayValues, StateAdvance
    from nbrt.runtime.commands import CommandKind
    from nbrt.runtime.stream import Stream

__all__ = ["Control", "DriverRecorder", "QueueRecorder", "Recorded", "Recorder", "recorder_for"]

Recorded: TypeAlias = tuple[list[tuple[Any, tuple[Any, ...]]], tuple[int, ...], Any]
"""What a command puts into its queue, the nodes of the driver, and what the command returns."""


class Control(Protocol):
    """A node of control flow whose bodies are being captured."""

    def body(self) -> Any:
        """Return a context manager for the capture of the next body."""
        ...

    def end_body(self, advances: Sequence[StateAdvance], states: dict[int, Any]) -> None:
        """Note what a body draws, at the end of its block."""
        ...

    def end(self) -> tuple[int, ...]:
        """Return the nodes of the driver."""
        ...

    def drop(self) -> None:
        """Leave the node out; the capture goes on."""
        ...


class Recorder(Protocol):
    """Records the commands of captured streams.

    Attributes
    ----------
    sees_other_work : bool
        Whether `other_work` returns anything.
    plans : dict of callable to CheckingPlan
        Launches whose commands need no `run`.
    """

    sees_other_work: bool
    plans: dict[Callable[..., Any], CheckingPlan]

    def join(self, stream: Stream, handles: Sequence[int]) -> None:
        """Capture a stream from here on, behind nodes of the driver."""
        ...

    def leave(self, stream: Stream) -> None:
        """Record a stream no longer."""
        ...

    def run(
        self, stream: Stream, kind: CommandKind, function: Callable[..., Any], args: tuple[Any, ...]
    ) -> Recorded:
        """Record a command; raise as the command does, and leave no trace of it then."""
        ...

    def other_work(self, stream: Stream) -> list[tuple[int, NodeKind, str]]:
        """Return the nodes of other libraries since the last command: handle, kind and label."""
        ...

    def tails(self, stream: Stream) -> tuple[int, ...]:
        """Return the nodes of the driver that the stream has reached."""
        ...

    def depend(self, stream: Stream, handles: Sequence[int]) -> None:
        """Let the next work of a stream follow these nodes of the driver only."""
        ...

    def control(self, stream: Stream, kind: Any, flag: Any, limit: int) -> Control:
        """Begin a node of control flow."""
        ...

    def replay(
        self,
        stream: Stream,
        program: Any,
        values: ReplayValues,
        states: Sequence[tuple[Any, Any, int, bool]],
    ) -> tuple[int, ...]:
        """Record the replay of another graph.

        `states` are the arrays of its generators, those of this graph, the words between, and
        whether its control flow moves them.
        """
        ...

    def end(self) -> DriverGraph | None:
        """Complete the capture; return the driver's graph."""
        ...

    def abort(self) -> None:
        """End the capture without a graph; idempotent."""
        ...


def recorder_for(stream: Stream, mode: Any) -> Recorder:
    """Begin to record a stream."""
    driver = stream.interface.begin_capture(stream.queue, mode)
    return QueueRecorder() if driver is None else DriverRecorder(driver)


class QueueRecorder:
    """Calls the functions of commands with a `RecordingQueue`."""

    sees_other_work = False

    def __init__(self) -> None:
        self._queues: dict[Stream, RecordingQueue] = {}
        self.plans: dict[Callable[..., Any], CheckingPlan] = {}

    def join(self, stream: Stream, handles: Sequence[int]) -> None:  # noqa: ARG002
        """Record a stream."""
        self._queues.setdefault(stream, RecordingQueue(stream.queue))

    def leave(self, stream: Stream) -> None:
        """Record a stream no longer."""
        self._queues.pop(stream, None)

    def run(
        self, stream: Stream, kind: CommandKind, function: Callable[..., Any], args: tuple[Any, ...]
    ) -> Recorded:
        """Keep what the command puts into its queue."""
        if kind == "launch":
            owner = getattr(function, "__self__", None)
            if isinstance(owner, CheckingPlan):
                self.plans[function] = owner
                return [(owner, owner.checked_args(args))], (), None
        queue = self._queues[stream]
        try:
            result = function(queue, *args)
        except BaseException:
            queue.take()
            raise
        return queue.take(), (), result

    def other_work(self, stream: Stream) -> list[tuple[int, NodeKind, str]]:  # noqa: ARG002
        """Return nothing: only commands are seen."""
        return []

    def tails(self, stream: Stream) -> tuple[int, ...]:  # noqa: ARG002
        """Return nothing: there is no driver."""
        return ()

    def depend(self, stream: Stream, handles: Sequence[int]) -> None:
        """Do nothing: there is no driver."""

    def control(self, stream: Stream, kind: Any, flag: Any, limit: int) -> Control:  # noqa: ARG002
        """Return a node whose bodies need no preparation."""
        return _QueueControl()

    def replay(
        self,
        stream: Stream,  # noqa: ARG002
        program: Any,  # noqa: ARG002
        values: ReplayValues,  # noqa: ARG002
        states: Sequence[tuple[Any, Any, int, bool]],  # noqa: ARG002
    ) -> tuple[int, ...]:
        """Do nothing: the nodes are copied."""
        return ()

    def end(self) -> DriverGraph | None:
        """Return None: there is no driver."""
        return None

    def abort(self) -> None:
        """Forget the streams."""
        self._queues.clear()
        self.plans.clear()


class _QueueControl:
    @contextmanager
    def body(self) -> Iterator[None]:
        yield

    def end_body(self, advances: Sequence[StateAdvance], states: dict[int, Any]) -> None:
        pass

    def end(self) -> tuple[int, ...]:
        return ()

    def drop(self) -> None:
        pass


class DriverRecorder:
    """Runs commands on queues that the driver captures.

    Parameters
    ----------
    driver : DriverCapture
        The capture, with the first stream in it.
    """

    sees_other_work = True

    def __init__(self, driver: DriverCapture) -> None:
        self.plans: dict[Callable[..., Any], CheckingPlan] = {}
        self._driver = driver
        self._is_open = True

    def join(self, stream: Stream, handles: Sequence[int]) -> None:
        """Let a stream wait for nodes; a new stream joins the capture."""
        if handles or not self._driver.holds(stream.queue):
            self._driver.wait(stream.queue, handles)

    def leave(self, stream: Stream) -> None:
        """Do nothing: the end of the capture, or of the body, releases the stream."""

    def run(
        self, stream: Stream, kind: CommandKind, function: Callable[..., Any], args: tuple[Any, ...]
    ) -> Recorded:
        """Run the command, and ask the driver for its nodes."""
        result = function(stream.queue, *args)
        owner: Any = getattr(function, "__self__", None)
        is_plan = kind == "launch" and owner is not None
        work = [(owner if is_plan else function, args)]
        return work, self._driver.nodes_since(stream.queue), result

    def other_work(self, stream: Stream) -> list[tuple[int, NodeKind, str]]:
        """Return the nodes that the driver has got since the last command."""
        handles = self._driver.nodes_since(stream.queue)
        return [(handle, *self._driver.describe(handle)) for handle in handles]

    def tails(self, stream: Stream) -> tuple[int, ...]:
        """Return the nodes that the stream has reached."""
        return self._driver.tails(stream.queue)

    def depend(self, stream: Stream, handles: Sequence[int]) -> None:
        """Let the next work of a stream follow these nodes only."""
        self._driver.depend(stream.queue, handles)

    def control(self, stream: Stream, kind: Any, flag: Any, limit: int) -> Control:
        """Begin a node of the driver."""
        return _DriverControl(stream, self._driver.control(stream.queue, kind, flag, limit))

    def replay(
        self,
        stream: Stream,
        program: Any,
        values: ReplayValues,
        states: Sequence[tuple[Any, Any, int, bool]],
    ) -> tuple[int, ...]:
        """Set the states of the other graph's generators, and copy its nodes."""
        derive, queue = self._driver.derive_state, stream.queue
        for inner, outer, words, _ in states:
            derive(queue, address_of(inner), address_of(outer), words)
        self._driver.replay(queue, program, values)
        for inner, outer, words, is_dynamic in states:
            if is_dynamic:
                derive(queue, address_of(outer), address_of(inner), -words % 2**64)
        return self._driver.nodes_since(stream.queue)

    def end(self) -> DriverGraph | None:
        """Return the driver's graph."""
        self._is_open = False
        return self._driver.end()

    def abort(self) -> None:
        """End the capture without a graph."""
        if self._is_open:
            self._is_open = False
            self._driver.abort()


class _DriverControl:
    """Puts the queue of a body in the place of the captured one."""

    def __init__(self, stream: Stream, control: DriverControl) -> None:
        self._stream = stream
        self._control = control

    @contextmanager
    def body(self) -> Iterator[None]:
        stream = self._stream
        outer = stream.queue
        inner = self._control.begin_body()
        with ExitStack() as stack:
            undo: Callable[[], None] | None = stream.interface.enter_queue(inner)
            if undo is not None:
                stack.callback(undo)
            stream.queue = inner
            stack.callback(setattr, stream, "queue", outer)
            yield

    def end_body(self, advances: Sequence[StateAdvance], states: dict[int, Any]) -> None:
        self._control.end_body(
            [(address_of(states[advance.buffer]), advance.words) for advance in advances]
        )

    def end(self) -> tuple[int, ...]:
        return self._control.end()

    def drop(self) -> None:
        self._control.drop()
