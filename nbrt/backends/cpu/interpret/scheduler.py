"""The scheduler of interpreted threads: one runs at a time, until it waits for others or ends.

The running thread holds the *turn*. A thread of the grid that waits inside its Python frames keeps
its OS thread. An OS thread whose thread of the grid has ended begins the next one, so a kernel
without barriers needs one OS thread, and a block with barriers one for each of its threads. The
watched thread runs in the OS thread that launched the kernel, where a debugger has the terminal.
Blocks begin one after another. Further blocks begin early for a barrier of the grid, which needs
all of them, and for threads that spin, as long as no block makes progress.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.cpu.interpret.collectives import WARP, WarpRequest, complete_warp, reduce_block
from nbrt.backends.cpu.interpret.spinning import Reads, line_of, watch
from nbrt.backends.cpu.waiting import wait
from nbrt.errors import KernelDeadlockError, KernelError, LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nbrt.typing import Dim3

__all__ = ["BlockOfThreads", "Scheduler", "Thread", "indices"]

_STACK_BYTES = 512 * 1024
"""Stack of an OS thread: enough for a kernel's frames, and thousands of threads may be alive."""

_TURNS_PER_BLOCK = 8
"""Turns of spinning threads with progress before further blocks begin."""

_MAX_EARLY_THREADS = 256
"""Threads that run at most when further blocks begin for that reason: each has an OS thread."""

_BARRIERS = (
    "expected every thread to come to the barrier or warp operation that others wait at, got "
    "threads that wait for ever; make the condition around it the same for all of them, or give "
    "warp operations the mask of the lanes that take part"
)
_SPINS = (
    "expected the threads of the kernel to make progress, got threads that wait while no other "
    "thread of the launch changes memory; check that some thread writes what they wait for, and "
    "that every thread of the block comes to its barriers; to wait longer for other streams or the "
    "host, raise NBRT_DEADLOCK_TIMEOUT"
)


class _AbandonedError(BaseException):
    """Unwinds the waiting threads after another one has failed."""


def indices(extents: Dim3) -> Iterator[Dim3]:
    """Yield the indices of blocks or threads, x fastest."""
    for z, y, x in itertools.product(*map(range, reversed(extents))):
        yield x, y, z


class BlockOfThreads:
    """A block that runs: its index, shared memory, and threads (x fastest).

    `arrays` holds the static shared arrays by the place in the code that declares them, `dynamic`
    the bytes of dynamic shared memory.
    """

    def __init__(self, index: Dim3, shape: Dim3, shared: int) -> None:
        self.index = index
        self.arrays: dict[Any, Any] = {}
        self.dynamic = np.zeros(shared, np.uint8)
        self.threads = [Thread(self, place, rank) for rank, place in enumerate(indices(shape))]

    def live(self) -> list[Thread]:
        """Return the threads that have not ended."""
        return [thread for thread in self.threads if not thread.is_done]


class Thread:
    """A thread of the grid."""

    __slots__ = (
        "block", "index", "is_done", "os_thread", "place", "rank", "reads", "request", "result"
    )  # fmt: skip

    def __init__(self, block: BlockOfThreads, index: Dim3, rank: int) -> None:
        self.block = block
        self.index = index
        self.rank = rank  # its number in the block
        self.request: WarpRequest | None = None  # the operation at which it waits
        self.result: Any = None  # of its last request
        self.is_done = False
        self.place = ""  # the line of source of its last request
        self.reads: Reads
        self.os_thread: _OSThread | None = None

    @property
    def lane(self) -> int:
        """Its index in its warp."""
        return self.rank % WARP

    def __repr__(self) -> str:
        return f"block {self.block.index}, thread {self.index}"


class _OSThread:
    """An OS thread that runs threads of the grid, and the lock on which it waits for the turn."""

    def __init__(self) -> None:
        # A lock is quicker than a semaphore, and each thread passes the turn at each barrier.
        self.turn = threading.Lock()
        self.turn.acquire()
        self.task: Thread | None = None

    def wake(self) -> None:
        """Pass it the turn."""
        # Ctrl-C wakes all OS threads at once, so another one may have released the lock.
        if self.turn.locked():
            self.turn.release()


class Scheduler:
    """Runs the threads of one launch.

    `body` runs the thread that is `current`; `blocks` yields each block when it begins. Threads
    that satisfy `is_watched` run in the caller's OS thread. The scheduler calls `on_switch` with a
    thread before it begins or continues.
    """

    def __init__(
        self,
        body: Callable[[], object],
        blocks: Iterable[BlockOfThreads],
        is_watched: Callable[[Thread], bool],
        on_switch: Callable[[Thread], object],
    ) -> None:
        self._body = body
        self._blocks: Iterator[BlockOfThreads] = iter(blocks)
        self._is_watched = is_watched
        self._on_switch = on_switch
        self._caller = _OSThread()
        self._idle: list[_OSThread] = []
        self._os_threads: list[_OSThread] = []
        self._ready: deque[Thread] = deque()
        self._waiting: list[Thread] = []
        self._running: list[BlockOfThreads] = []
        self._failure: BaseException | None = None
        self._has_yielded = self._has_progress = False
        self._attempts = self._turns = 0
        self.current: Thread

    def run(self) -> None:
        """Run every block.

        Raises
        ------
        KernelError
            If threads wait for others that never come.
        Exception
            The exception of a thread, with a note of its block and thread.
        """
        try:
            self._run_tasks(self._caller, self._next(self._caller))
        except BaseException as error:
            # Such as Ctrl-C while another OS thread has the turn: that one stops at its next wait.
            self._failure = self._failure or error
            raise
        finally:
            for os_thread in self._os_threads:
                os_thread.task = None
                os_thread.wake()
        if self._failure is not None:
            raise self._failure

    def wait(self, request: WarpRequest) -> Any:
        """Stop the current thread until its request is complete; return the result."""
        thread = self.current
        os_thread = thread.os_thread
        assert os_thread is not None
        if self._failure is not None:
            raise _AbandonedError
        self._has_yielded |= request.scope == "yield"
        if self._has_yielded:
            self._has_progress |= thread.reads.made_progress()
        thread.request, thread.place = request, line_of()
        self._waiting.append(thread)
        following = self._pick(None)
        if following is not thread:
            self._pass_turn(following)
            os_thread.turn.acquire()
        if self._failure is not None:
            raise _AbandonedError
        self._enter(thread)
        return thread.result

    # -- OS threads ------------------------------------------------------------------------------

    def _run_tasks(self, os_thread: _OSThread, task: Thread | None) -> None:
        """Run threads while this OS thread has one; wait while another has the turn."""
        while True:
            while task is not None:
                self._execute(task)
                task = self._next(os_thread)
            os_thread.turn.acquire()
            task = os_thread.task
            if task is None:
                return

    def _execute(self, thread: Thread) -> None:
        thread.reads = Reads(lambda: self.wait(WarpRequest("yield", "a loop that spins")))
        self._enter(thread)
        try:
            # NumPy's scalars warn where compiled code wraps around or returns inf.
            with np.errstate(all="ignore"):
                self._body()
        except _AbandonedError:
            pass
        except BaseException as error:  # noqa: BLE001  # raised again by run
            if self._failure is None:
                error.add_note(f"in {thread}")
                self._fail(error)
        finally:
            thread.is_done = self._has_progress = True
            watch.reads = None

    def _next(self, os_thread: _OSThread) -> Thread | None:
        """Return the thread that this OS thread begins now; else pass the turn."""
        following = self._pick(os_thread)
        if following is not None and following.os_thread is os_thread:
            return following
        if os_thread is not self._caller:
            self._idle.append(os_thread)
        self._pass_turn(following)
        return None

    def _pass_turn(self, thread: Thread | None) -> None:
        """Pass the turn to the OS thread of a thread; to the caller's if all have ended."""
        os_thread = self._caller if thread is None else thread.os_thread
        assert os_thread is not None
        os_thread.task = thread
        os_thread.wake()

    def _os_thread_for(self, thread: Thread, free: _OSThread | None) -> _OSThread:
        if self._is_watched(thread):
            return self._caller
        if free is not None and free is not self._caller:
            return free
        if self._idle:
            return self._idle.pop()
        new = _OSThread()
        name = f"nbrt-interpreted-{len(self._os_threads)}"
        before = threading.stack_size(_STACK_BYTES)
        try:
            threading.Thread(target=self._serve, args=(new,), name=name, daemon=True).start()
        except RuntimeError as error:
            raise LaunchError(
                f"expected an OS thread for each of the kernel's threads that wait at a barrier, "
                f"got {error} after {len(self._os_threads)} of them; interpret a smaller launch"
            ) from error
        finally:
            threading.stack_size(before)
        self._os_threads.append(new)
        return new

    def _serve(self, os_thread: _OSThread) -> None:
        os_thread.turn.acquire()
        if os_thread.task is not None:
            self._run_tasks(os_thread, os_thread.task)

    def _enter(self, thread: Thread) -> None:
        self.current = thread
        watch.reads = thread.reads
        self._on_switch(thread)

    # -- the next thread -------------------------------------------------------------------------

    def _pick(self, free: _OSThread | None) -> Thread | None:
        """Return the thread to run next, with its OS thread (`free`, if possible)."""
        while True:
            try:
                if self._ready or self._refill():
                    thread = self._ready.popleft()
                    if thread.os_thread is None:
                        thread.os_thread = self._os_thread_for(thread, free)
                    return thread
            except KernelError as error:
                self._fail(error)
                continue
            return None

    def _refill(self) -> bool:
        """Find threads that can run; return False when all have ended."""
        if self._failure is not None:
            return False
        if self._complete() or self._continue_spins():
            return True
        if self._begin_blocks() or self._complete_grid():
            self._attempts = 0
            return True
        if not self._waiting:
            return False
        self._attempts += 1
        if not self._spinning() or not wait(self._attempts):
            raise self._deadlock()
        self._release(dict.fromkeys(self._spinning()))
        return True

    def _spinning(self) -> list[Thread]:
        return [thread for thread in self._waiting if _scope(thread) == "yield"]

    def _continue_spins(self) -> bool:
        """Let yielded threads continue if any thread has made progress since then."""
        spinning = self._spinning()
        if not (spinning and self._has_progress):
            return False
        self._has_progress, self._attempts = False, 0
        self._release(dict.fromkeys(spinning))
        self._turns += 1
        # The progress may be no more than a count of attempts, or may be much work.
        if self._turns % _TURNS_PER_BLOCK == 0 and len(self._ready) <= _MAX_EARLY_THREADS:
            self._begin_blocks()
        return True

    def _begin_blocks(self) -> bool:
        """Begin a block, or as many as run, unless threads wait for others of their block."""
        spinning = self._spinning()
        if not spinning and {_scope(thread) for thread in self._waiting} - {"grid"}:
            return False
        self._running = [block for block in self._running if block.live()]
        more = [*itertools.islice(self._blocks, max(1, len(self._running) if spinning else 1))]
        for block in more:
            self._running.append(block)
            self._ready.extend(block.threads)
        return bool(more)

    def _complete(self) -> bool:
        """Complete the requests of blocks and warps; return whether there were any."""
        for block in self._running:
            live = block.live()
            for _, group in itertools.groupby(live, lambda thread: thread.rank // WARP):
                warp = {thread.lane: thread for thread in group}
                results = complete_warp({lane: warp[lane].request for lane in warp})
                self._release({warp[lane]: result for lane, result in results.items()})
            requests = [thread.request for thread in live if thread.request is not None]
            operations = {(request.scope, request.operation) for request in requests}
            if len(requests) == len(live) and len(operations) == 1:
                scope, operation = operations.pop()
                if scope == "block":
                    result = reduce_block(operation, [request.value for request in requests])
                    self._release(dict.fromkeys(live, result))
        return bool(self._ready)

    def _complete_grid(self) -> bool:
        """Let all threads continue if all wait for the grid."""
        live = [thread for block in self._running for thread in block.live()]
        if all(_scope(thread) == "grid" for thread in live):
            self._release(dict.fromkeys(live))
        return bool(self._ready)

    def _release(self, results: dict[Thread, Any]) -> None:
        if results:
            for thread, result in results.items():
                thread.request, thread.result = None, result
            self._waiting = [thread for thread in self._waiting if thread not in results]
            self._ready.extend(results)

    # -- failures --------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """Stop the launch: threads that have begun unwind, the others do not begin."""
        self._failure = error
        begun = [thread for thread in self._ready if thread.os_thread is not None]
        self._ready = deque(begun + self._waiting)
        self._waiting = []

    def _deadlock(self) -> KernelError:
        groups: dict[str, list[Thread]] = {}
        for thread in self._waiting:
            groups.setdefault(f"{thread.request} at {thread.place}", []).append(thread)
        lines = [
            f"  {len(threads)} wait at {place}, such as {threads[0]}"
            for place, threads in groups.items()
        ]
        return KernelDeadlockError("\n".join([_SPINS if self._spinning() else _BARRIERS, *lines]))


def _scope(thread: Thread) -> str | None:
    """Return the scope of the operation at which a thread waits."""
    return None if thread.request is None else thread.request.scope
