"""`CpuGraphProgram`: an instantiated graph of CPU devices."""

from __future__ import annotations

import threading
from threading import get_ident
from typing import TYPE_CHECKING, Any

from nbrt.backends.cpu.graphs.changes import changes_of
from nbrt.backends.cpu.graphs.execution import Execution
from nbrt.backends.cpu.queues import Completion, WorkerQueue
from nbrt.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        self._pending: list[tuple[Completion, Queue]] = []

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
        replay = _Replay(execution, values)
        if isinstance(queue, WorkerQueue):
            self._enqueue(queue, replay)
        else:
            self._run_now(queue, replay)

    def close(self) -> None:
        """Release all memory after the replays in flight; idempotent, from any thread."""
        self._execution = None  # replays in flight have their own reference

    def _enqueue(self, queue: WorkerQueue, replay: _Replay) -> None:
        with self._lock:
            for completion, other in self._forget_done():
                if other is not queue:
                    queue.put_wait(completion)
            queue.put(replay)
            # Not dropped, neither by a failure nor by a cancellation.
            queue.put_completion(replay.completion)
            self._pending.append((replay.completion, queue))

    def _run_now(self, queue: Any, replay: _Replay) -> None:
        if replay.execution.thread == get_ident():
            raise GraphError(
                "expected a replay that does not overlap another one of the same graph, got one "
                "from a function that the graph calls; replay it on another stream"
            )
        while True:
            # No lock is held during the wait: the other replay may need this queue.
            with queue.lock:
                with self._lock:
                    others = list(self._forget_done())
                    if not others:
                        self._pending.append((replay.completion, queue))
                if not others:
                    try:
                        replay()
                    finally:
                        replay.completion.complete()
                    return
            others[0][0].wait()

    def _forget_done(self) -> list[tuple[Completion, Queue]]:
        """Return the replays in flight."""
        self._pending = [entry for entry in self._pending if not entry[0].is_done]
        return self._pending


class _Replay:
    """One run of a program, as work of a queue."""

    __slots__ = ("_changes", "_values", "completion", "execution")

    label = "the replay of a graph"

    def __init__(self, execution: Execution, values: ReplayValues) -> None:
        self.execution = execution
        self.completion = Completion()
        self._values = values
        self._changes = changes_of(execution.assembly, values)

    def __call__(self) -> None:
        """Run the program."""
        self.execution.run(self._values, self._changes)
