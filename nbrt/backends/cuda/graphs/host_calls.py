"""`HostCall`: a Python function in a graph, which every replay calls."""

from __future__ import annotations

import ctypes
from collections import deque
from typing import TYPE_CHECKING, Any

from nbrt.backends.cuda.queues import HostTask

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt._internal.callsite import CallSite
    from nbrt.backends.cuda.graphs.calls import GraphCalls
    from nbrt.backends.cuda.queues import CudaQueue

__all__ = ["HostCall", "Replays"]

_HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Replays:
    """The replays of a graph under way, each with its queue, in their order.

    Replays of a graph do not overlap, so the first is the one that runs.
    """

    def __init__(self) -> None:
        self._running: deque[tuple[CudaQueue, int]] = deque()
        self._end = _HostFunction(self._ended)

    def begin(self, queue: CudaQueue) -> None:
        """Add a replay, before its launch."""
        self._running.append((queue, queue.next_position()))

    def cancel(self) -> None:
        """Remove the replay added last, whose launch failed."""
        self._running.pop()

    def end(self, calls: GraphCalls, queue: CudaQueue) -> None:
        """Remove the replay when the queue gets there."""
        calls.launch_host(queue.handle, _address(self._end))

    def current(self) -> tuple[CudaQueue, int]:
        """Return the queue of the replay that runs, and its position there."""
        return self._running[0]

    def _ended(self, _: object) -> None:
        self._running.popleft()


class HostCall:
    """A Python function as a node of a graph.

    Its failure is that of the stream of the replay. CuPy's host functions release their arguments
    after the first call, so a graph cannot use them.

    Parameters
    ----------
    replays : Replays
        Those of the graph.
    function, args
        The call.
    site : CallSite
        The captured call.
    """

    def __init__(
        self,
        replays: Replays,
        function: Callable[..., object],
        args: tuple[Any, ...],
        site: CallSite,
    ) -> None:
        self._replays = replays
        self.function = function
        self.args = args
        self.site = site
        self._pointer = _HostFunction(self._run)

    @property
    def address(self) -> int:
        """The address of the C function; this object keeps it."""
        return _address(self._pointer)

    def of(self, replays: Replays) -> HostCall:
        """Return the same call for another graph."""
        return HostCall(replays, self.function, self.args, self.site)

    def _run(self, _: object) -> None:
        """Call the function, in a thread of the driver."""
        queue, position = self._replays.current()
        queue.execute(HostTask(self.function, self.args, position, self.site))


def _address(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)
