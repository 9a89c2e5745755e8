"""`Region`: one capture of the driver: of a graph, or of a body of control flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbrt._internal.callsite import CallSite
from nbrt.backends.cuda.events import CudaEvent
from nbrt.backends.cuda.graphs.host_calls import HostCall
from nbrt.backends.cuda.queues import DEFAULT_HANDLE
from nbrt.backends.queue import EventOptions
from nbrt.errors import CaptureError, NbrtError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt.backends.cuda.graphs.state import CaptureState
    from nbrt.backends.cuda.queues import CudaQueue
    from nbrt.backends.driver_capture import CaptureErrorMode

__all__ = ["Region"]


class _Member:
    """A queue of a region.

    Attributes
    ----------
    queue : CudaQueue
        The queue.
    before : CudaEvent
        Recorded behind the work that the queue had before the capture.
    site : CallSite
        The call that made it part of the capture.
    """

    __slots__ = ("before", "queue", "site")

    def __init__(self, queue: CudaQueue, before: CudaEvent, site: CallSite) -> None:
        self.queue = queue
        self.before = before
        self.site = site


class Region:
    """A capture of a queue by the driver, and of the queues that wait for it.

    Parameters
    ----------
    state : CaptureState
        What all regions of a graph share.
    queue : CudaQueue
        The queue to capture.
    mode : str
        CUDA's mode of the capture.
    is_body : bool
        Whether its graph becomes the body of a conditional node.

    Attributes
    ----------
    queue : CudaQueue
        The first queue, on which the capture ends.
    """

    def __init__(
        self,
        state: CaptureState,
        queue: CudaQueue,
        mode: CaptureErrorMode,
        *,
        is_body: bool = False,
    ) -> None:
        self.state = state
        self.queue = queue
        self.is_body = is_body
        self._members: dict[int, _Member] = {}
        self._seen: set[int] = set()
        self._dropped: list[int] = []
        self._check_free(queue)
        with state.driver.on_device(queue.index):
            before = self._point(queue)
            state.calls.begin(queue.handle, mode)
        state.driver.captures.add(self, queue.index)
        self._add(queue, before)

    def began(self, queue: CudaQueue) -> CudaEvent:
        """Return an event behind the work that a queue had before the capture."""
        return self._members[queue.handle].before

    # -- nodes -----------------------------------------------------------------------------------

    def tails(self, queue: CudaQueue) -> tuple[int, ...]:
        """Return the nodes that the next work of a queue depends on."""
        found = self.state.calls.capture_of(queue.handle)
        if found is None:
            raise CaptureError(
                f"expected {queue.name} to be captured, got one whose capture was ended by other "
                f"code; end it where it began"
            )
        return tuple(found[1])

    def graph(self) -> int:
        """Return the graph, into which nodes may be added."""
        found = self.state.calls.capture_of(self.queue.handle)
        assert found is not None
        return found[0]

    def nodes_since(self, queue: CudaQueue) -> tuple[int, ...]:
        """Return the nodes that the queue got since the last call, in their order."""
        calls = self.state.calls
        new: list[int] = []
        stack = [(node, False) for node in reversed(self.tails(queue))]
        while stack:
            node, is_complete = stack.pop()
            if is_complete:
                new.append(node)
            elif node not in self._seen:
                self._seen.add(node)
                stack.append((node, True))
                stack += [(other, False) for other in reversed(calls.dependencies(node))]
        for node in new:
            self.state.indices[node] = queue.index
            if calls.type_of(node) in (calls.allocation, calls.free):
                raise CaptureError(
                    "expected memory from the pool of the graph, got an allocation by the driver "
                    "in stream order; use a pool of another kind than 'async', and no "
                    "cupy.cuda.MemoryAsyncPool"
                )
        return tuple(new)

    def drop(self, queue: CudaQueue, tails: Sequence[int]) -> None:
        """Leave out the nodes that a queue got behind others."""
        calls = self.state.calls
        stack, kept = list(self.tails(queue)), set(tails)
        calls.set_tails(queue.handle, tails)
        while stack:
            node = stack.pop()
            if node not in kept:
                kept.add(node)
                self._dropped.append(node)
                stack += calls.dependencies(node)

    def add_empty(self, queue: CudaQueue) -> int:
        """Add a node that does nothing behind the work of a queue; return it."""
        node = self.state.calls.add(self.graph(), self.state.calls.empty, None, self.tails(queue))
        self.state.calls.set_tails(queue.handle, [node])
        return node

    def add_call(
        self,
        queue: CudaQueue,
        function: Callable[..., object],
        args: tuple[Any, ...],
        site: CallSite,
    ) -> None:
        """Capture a host call, which the graph keeps."""
        if self.is_body:
            raise CaptureError(
                "expected launches, copies and fills in a branch or loop of a graph, got a host "
                "call, which CUDA does not run there; call the host outside of it"
            )
        call = HostCall(self.state.replays, function, args, site)
        with self.state.driver.on_device(queue.index):
            self.state.calls.launch_host(queue.handle, call.address)
        self.state.host_calls[self.tails(queue)[0]] = call

    def add_layout(self, queue: CudaQueue, shapes: Any) -> None:
        """Note the layout of the arguments of the launch that the queue got last."""
        self.state.layouts[self.tails(queue)[0]] = shapes

    def keep(self, resource: object) -> None:
        """Keep an object as long as the graph."""
        self.state.kept.append(resource)

    def side_queue(self, index: int) -> CudaQueue:
        """Return a queue of a device for parts of a copy: other captures must not use it."""
        return self.state.side_queue(index)

    # -- dependencies ----------------------------------------------------------------------------

    def join(self, queue: CudaQueue, other: CudaQueue) -> None:
        """Make later work of a queue depend on the captured work of another one so far."""
        if other.capture is not self:
            raise CaptureError(
                f"expected {queue.name} to wait for work of its capture, got a wait for "
                f"{other.name}, which is not part of it; let that stream wait for an event of the "
                f"capture first, or wait before the capture"
            )
        self.wait(queue, self.tails(other))

    def wait(self, queue: CudaQueue, tails: Sequence[int]) -> None:
        """Let the next work of a queue depend on nodes too; a new queue joins."""
        if queue.capture is self:
            self.state.calls.set_tails(queue.handle, tails, add=True)
        else:
            self._check_free(queue)
            before = self._point(queue)
            self._fork(queue, tails)
            self._add(queue, before)
            self._seen.update(tails)

    def _fork(self, queue: CudaQueue, tails: Sequence[int]) -> None:
        """Make a queue part of the capture, by an event behind the nodes."""
        driver, calls, origin = self.state.driver, self.state.calls, self.queue
        event = driver.new_event(origin.index, timing=False, blocking=False, interprocess=False)
        kept = self.tails(origin)
        try:
            calls.set_tails(origin.handle, tails)
            with driver.on_device(origin.index):
                driver.record_event(event, origin.handle)
            with driver.on_device(queue.index):
                driver.wait_event(queue.handle, event)
        finally:
            calls.set_tails(origin.handle, kept)
            driver.destroy_event(event)

    def _check_free(self, queue: CudaQueue) -> None:
        queue.check_open()
        if queue.handle == DEFAULT_HANDLE:
            raise CaptureError(
                f"expected a stream that CUDA captures, got the default stream of "
                f"cuda:{queue.index}; capture with nbrt.graph(nbrt.Stream()) and work on that "
                f"stream"
            )
        if queue.is_capturing():
            raise CaptureError(
                f"expected a stream that no capture uses, got {queue.name}, which is being "
                f"captured; end that capture first, or use another stream"
            )

    def _point(self, queue: CudaQueue) -> CudaEvent:
        event = CudaEvent.create(self.state.driver, queue.index, EventOptions())
        event.record(queue)
        return event

    def _add(self, queue: CudaQueue, before: CudaEvent) -> None:
        self._members[queue.handle] = _Member(queue, before, CallSite.here(depth=2))
        queue.capture = self

    # -- the end ---------------------------------------------------------------------------------

    def end(self) -> int:
        """End the capture; return the graph.

        Raises
        ------
        CaptureError
            If it is invalid, or the work of a queue does not lead to the end of the first one.
        """
        try:
            self._check_joined()
            graph = self.state.calls.end(self.queue.handle)
            for node in self._dropped:
                self.state.calls.destroy_node(node)
        except BaseException:
            self.abort()
            raise
        self._leave()
        return graph

    def abort(self) -> None:
        """End the capture without a graph; idempotent.

        Raises
        ------
        CaptureError
            If the driver does not end it, because another thread began it.
        """
        if self.queue.capture is not self:
            return
        calls = self.state.calls
        try:
            calls.destroy(calls.end(self.queue.handle))
        except NbrtError as error:
            # An invalid capture is over now, too.
            if self.queue.is_capturing():
                raise CaptureError(
                    f"expected the end of the capture of {self.queue.name} in the thread that "
                    f"began it, got one in another thread; end it there, or capture with "
                    f"error_mode='relaxed'"
                ) from error
        self._leave()

    def _check_joined(self) -> None:
        if len(self._members) == 1:
            return
        reached: set[int] = set()
        stack = list(self.tails(self.queue))
        while stack:
            node = stack.pop()
            if node not in reached:
                reached.add(node)
                stack += self.state.calls.dependencies(node)
        for member in self._members.values():
            if not reached.issuperset(self.tails(member.queue)):
                raise CaptureError(
                    f"expected the work of all streams of the capture to lead to the end of "
                    f"{self.queue.name}, got work of {member.queue.name} that it does not wait "
                    f"for; let it wait with wait_stream(). The stream became part of the capture "
                    f"here:\n{member.site.format()}"
                )

    def _leave(self) -> None:
        for member in self._members.values():
            member.queue.capture = None
        self.state.driver.captures.remove(self)
