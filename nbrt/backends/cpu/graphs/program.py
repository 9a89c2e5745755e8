"""`CpuGraphProgram`: an instantiated graph of CPU devices."""

from __future__ import annotations

import threading
from threading import get_ident
from typing import TYPE_CHECKING, Any

from nbrt.backends.cpu.graphs.changes import changes_of
from nbrt.backends.cpu.graphs.execution import Execution
from nbrt.backends.cpu.queue_items import Completion
from nbrt.backends.cpu.queues import WorkerQueue
from nbrt.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbrt.backends.cpu.graphs.changes import Changes
    from nbrt.backends.graphs import GraphBuffer, GraphNode, ReplayValues
    from nbrt.backends.queue import Queue

__all__ = ["CpuGraphProgram"]


class CpuGraphProgram:
    """A graph whose replay is one call of native code: a `GraphProgram`.

    Replays on several streams run one after the other, in the order of their submission.

    Parameters
    ----------
    nodes : sequence of GraphNode
        In an order that respects the dependencies.
    buffers : sequence of GraphBuffer
        The buffers, by number.
    deterministic : bool
        Whether one thread runs all nodes in their order, and no two branches run at once.
    """

    def __init__(
        self, nodes: Sequence[GraphNode], buffers: Sequence[GraphBuffer], *, deterministic: bool
    ) -> None:
        self._execution: Execution | None = Execution(nodes, buffers, deterministic=deterministic)
        # Reentrant: a signal handler may replay the graph.
        self._lock = threading.RLock()
        self._pending: list[_Pending] = []

    @property
    def measures_nodes(self) -> bool:
        """Return True: replays fill `ReplayValues.times`."""
        return True

    def replay(self, queue: Queue, values: ReplayValues) -> None:
        """Enqueue one run of all enabled nodes: at once on the default stream.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If a scalar does not have the type of the captured one.
        GraphError
            If the program is closed, or a function of the graph replays the graph on a stream that
            runs work at once.
        """
        execution = self._execution
        if execution is None:
            raise GraphError(
                "expected a graph that holds its program, got one that was reset; capture it again"
            )
        changes = changes_of(execution.assembly, values)
        if isinstance(queue, WorkerQueue):
            self._enqueue(queue, _Replay(execution, values, changes))
        else:
            self._run_now(queue, execution, values, changes)

    def close(self) -> None:
        """Release all memory after the replays in flight; idempotent, from any thread."""
        self._execution = None  # replays in flight have their own reference

    def _enqueue(self, queue: WorkerQueue, replay: _Replay) -> None:
        with self._lock:
            self._pending = [each for each in self._pending if not each.is_done()]
            for each in self._pending:
                if each.queue is not queue:
                    queue.put_wait(each.end())
            queue.put(replay)
            # Not dropped, neither by a failure nor by a cancellation.
            completion = Completion()
            queue.put_completion(completion)
            self._pending.append(_Pending(queue, completion))

    def _run_now(
        self, queue: Any, execution: Execution, values: ReplayValues, changes: Changes
    ) -> None:
        if execution.thread == get_ident():
            raise GraphError(
                "expected a replay that does not overlap another one of the same graph, got one "
                "from a function that the graph calls; replay it on another stream"
            )
        mine = _Pending(queue)
        while True:
            # No lock is held during the wait: the other replay may need this queue.
            with queue.lock:
                with self._lock:
                    if self._pending:
                        self._pending = [each for each in self._pending if not each.is_done()]
                    other = self._pending[0].end() if self._pending else None
                    if other is None:
                        self._pending.append(mine)
                if other is None:
                    try:
                        execution.run(values, changes)
                    finally:
                        self._end(mine)
                    return
            other.wait()

    def _end(self, replay: _Pending) -> None:
        """Forget a replay that is done, and wake what waits for it."""
        with self._lock:
            self._pending.remove(replay)
            if replay.completion is not None:
                replay.completion.complete()


class _Pending:
    """A replay in flight.

    Attributes
    ----------
    queue : Queue
        The queue that runs it.
    completion : Completion or None
        Its end; None until another replay waits for one that runs in its caller.
    """

    __slots__ = ("completion", "queue")

    def __init__(self, queue: Queue, completion: Completion | None = None) -> None:
        self.queue = queue
        self.completion = completion

    def is_done(self) -> bool:
        """Return whether the replay of a queue is done; one that runs in its caller is removed."""
        return self.completion is not None and self.completion.is_done

    def end(self) -> Completion:
        """Return the end, to wait for; with the lock of the program held."""
        if self.completion is None:
            self.completion = Completion()
        return self.completion


class _Replay:
    """One run of a program, as work of the queue of a stream."""

    __slots__ = ("_changes", "_values", "execution")

    label = "the replay of a graph"

    def __init__(self, execution: Execution, values: ReplayValues, changes: Changes) -> None:
        self.execution = execution
        self._values = values
        self._changes = changes

    def __call__(self) -> None:
        """Run the program."""
        self.execution.run(self._values, self._changes)
