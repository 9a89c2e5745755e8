"""Threads of a grid in plain Python: one runs at a time, until it waits for others or ends.

Whoever runs holds the *baton*. A thread of the grid that waits inside its own Python frames keeps
the OS thread (the *carrier*) that runs it; a carrier whose thread has ended takes up the next one,
so a kernel without barriers needs one carrier, and a block with barriers one for each thread. The
watched thread alone runs in the OS thread that launched the kernel, where a debugger can talk to
the terminal. Blocks are begun one after another; only a barrier of the grid begins them all, and
threads that spin, one by one, as long as none of those begun makes progress.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.cpu.interpret.collectives import WARP, Request, complete_warp, reduce_block
from nbrt.backends.cpu.interpret.spinning import Reads, line_of, watch
from nbrt.backends.cpu.waiting import wait
from nbrt.errors import KernelDeadlockError, KernelError, LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nbrt.typing import Dim3

__all__ = ["Block", "Scheduler", "Thread"]

_STACK = 512 * 1024
"""Bytes of stack for a carrier: a kernel's frames, and thousands of carriers may be alive."""


_PATIENT_TURNS = 8
"""Turns of threads that spin, though something changes, before further blocks begin."""

_MAX_IMPATIENT = 256
"""Threads that run at most where further blocks begin for that reason: each has an OS thread."""

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
    """Unwinds the threads that wait when another one has failed."""


class Block:
    """A block of the grid that is running.

    Attributes
    ----------
    index : tuple of int
        Its place in the grid.
    arrays : dict
        Static shared arrays by the place in the code that asks for one.
    dynamic : numpy.ndarray
        The bytes of dynamic shared memory.
    threads : list of Thread
        Its threads, x fastest.
    """

    def __init__(self, index: Dim3, shape: Dim3, shared: int) -> None:
        self.index = index
        self.arrays: dict[Any, Any] = {}
        self.dynamic = np.zeros(shared, np.uint8)
        places = [
            (x, y, z) for z in range(shape[2]) for y in range(shape[1]) for x in range(shape[0])
        ]
        self.threads = [Thread(self, place, rank) for rank, place in enumerate(places)]

    def live(self) -> list[Thread]:
        """Return the threads that have not ended."""
        return [thread for thread in self.threads if not thread.is_done]


class Thread:
    """A thread of the grid.

    Attributes
    ----------
    block : Block
        The block it belongs to.
    index : tuple of int
        Its place in the block.
    rank : int
        Its number in the block.
    request : Request or None
        What it waits for.
    result : object
        What it waited for gave.
    is_done : bool
        Whether it has ended.
    place : str
        Where in the source it waits, or has waited last.
    reads : Reads
        What it has read of memory that others may write.
    """

    __slots__ = (
        "block", "carrier", "index", "is_done", "place", "rank", "reads", "request", "result"
    )  # fmt: skip

    def __init__(self, block: Block, index: Dim3, rank: int) -> None:
        self.block = block
        self.index = index
        self.rank = rank
        self.request: Request | None = None
        self.result: Any = None
        self.is_done = False
        self.place = ""
        self.reads: Reads
        self.carrier: _Carrier | None = None

    @property
    def lane(self) -> int:
        """Its place in its warp."""
        return self.rank % WARP

    def __repr__(self) -> str:
        return f"block {self.block.index}, thread {self.index}"


class _Carrier:
    """An OS thread that runs threads of the grid, and the lock it sleeps on without the baton."""

    def __init__(self) -> None:
        # Whoever passes the baton on releases the lock. Quicker than a semaphore, and there is one
        # hand-over for each thread at each barrier.
        self.baton = threading.Lock()
        self.baton.acquire()
        self.task: Thread | None = None

    def wake(self) -> None:
        """Give it the baton."""
        # Ctrl-C wakes all carriers at once, so another one may have been here.
        if self.baton.locked():
            self.baton.release()


class Scheduler:
    """Runs the threads of one launch.

    Parameters
    ----------
    body : callable
        What a thread does; called without arguments while `current` is that thread.
    blocks : iterable of Block
        The blocks, made when they are begun.
    is_watched : callable
        Tells whether a thread is to run in the caller's OS thread.
    on_switch : callable
        Called with a thread before it runs or runs on.
    """

    def __init__(
        self,
        body: Callable[[], object],
        blocks: Iterable[Block],
        is_watched: Callable[[Thread], bool],
        on_switch: Callable[[Thread], object],
    ) -> None:
        self._body = body
        self._blocks: Iterator[Block] = iter(blocks)
        self._is_watched = is_watched
        self._on_switch = on_switch
        self._home = _Carrier()
        self._idle: list[_Carrier] = []
        self._carriers: list[_Carrier] = []
        self._ready: deque[Thread] = deque()
        self._waiting: list[Thread] = []
        self._running: list[Block] = []
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
            What a thread of the kernel raised, with a note of its block and thread.
        """
        try:
            task = self._next(self._home)
            self._carry(self._home, task)
        except BaseException as error:
            # Such as Ctrl-C while another carrier has the baton: it stops at its next wait.
            self._failure = self._failure or error
            raise
        finally:
            for carrier in self._carriers:
                carrier.task = None
                carrier.wake()
        if self._failure is not None:
            raise self._failure

    def wait(self, request: Request) -> Any:
        """Stop the current thread until its request is fulfilled; return what that gives."""
        thread = self.current
        carrier = thread.carrier
        assert carrier is not None
        if self._failure is not None:
            raise _AbandonedError
        self._has_yielded |= request.scope == "yield"
        if self._has_yielded:
            self._has_progress |= thread.reads.made_progress()
        thread.request, thread.place = request, line_of()
        self._waiting.append(thread)
        following = self._pick(None)
        if following is not thread:
            self._hand_to(following)
            carrier.baton.acquire()
        if self._failure is not None:
            raise _AbandonedError
        self._enter(thread)
        return thread.result

    # -- carriers --------------------------------------------------------------------------------

    def _carry(self, carrier: _Carrier, task: Thread | None) -> None:
        """Run threads while there are any for this carrier; sleep when another has the baton."""
        while True:
            while task is not None:
                self._execute(task)
                task = self._next(carrier)
            carrier.baton.acquire()
            task = carrier.task
            if task is None:
                return

    def _execute(self, thread: Thread) -> None:
        thread.reads = Reads(lambda: self.wait(Request("yield", "a loop that spins")))
        self._enter(thread)
        try:
            # NumPy's scalars warn where compiled code just wraps around or gives inf.
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

    def _next(self, carrier: _Carrier) -> Thread | None:
        """Return the thread that this carrier begins now; else pass the baton on."""
        following = self._pick(carrier)
        if following is not None and following.carrier is carrier:
            return following
        if carrier is not self._home:
            self._idle.append(carrier)
        self._hand_to(following)
        return None

    def _hand_to(self, thread: Thread | None) -> None:
        """Pass the baton to the carrier of a thread; to the caller's if all have ended."""
        carrier = self._home if thread is None else thread.carrier
        assert carrier is not None
        carrier.task = thread
        carrier.wake()

    def _carrier_for(self, thread: Thread, free: _Carrier | None) -> _Carrier:
        if self._is_watched(thread):
            return self._home
        if free is not None and free is not self._home:
            return free
        if self._idle:
            return self._idle.pop()
        carrier = _Carrier()
        name = f"nbrt-interpreted-{len(self._carriers)}"
        before = threading.stack_size(_STACK)
        try:
            threading.Thread(target=self._serve, args=(carrier,), name=name, daemon=True).start()
        except RuntimeError as error:
            raise LaunchError(
                f"expected an OS thread for each of the kernel's threads that wait at a barrier, "
                f"got {error} after {len(self._carriers)} of them; interpret a smaller launch"
            ) from error
        finally:
            threading.stack_size(before)
        self._carriers.append(carrier)
        return carrier

    def _serve(self, carrier: _Carrier) -> None:
        carrier.baton.acquire()
        if carrier.task is not None:
            self._carry(carrier, carrier.task)

    def _enter(self, thread: Thread) -> None:
        self.current = thread
        watch.reads = thread.reads
        self._on_switch(thread)

    # -- who is next -----------------------------------------------------------------------------

    def _pick(self, free: _Carrier | None) -> Thread | None:
        """Return the thread to run next, with its carrier (`free`, if it can be that one)."""
        while True:
            try:
                if self._ready or self._refill():
                    thread = self._ready.popleft()
                    if thread.carrier is None:
                        thread.carrier = self._carrier_for(thread, free)
                    return thread
            except KernelError as error:
                self._fail(error)
                continue
            return None

    def _refill(self) -> bool:
        """Find threads that can run; False when all have ended."""
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
        return [each for each in self._waiting if each.request and each.request.scope == "yield"]

    def _continue_spins(self) -> bool:
        """Let those continue that have yielded, if any thread has made progress since then."""
        spinning = self._spinning()
        if not (spinning and self._has_progress):
            return False
        self._has_progress, self._attempts = False, 0
        self._release(dict.fromkeys(spinning))
        self._turns += 1
        # What changes may be no more than a count of attempts, or may be much work.
        if self._turns % _PATIENT_TURNS == 0 and len(self._ready) <= _MAX_IMPATIENT:
            self._begin_blocks()
        return True

    def _begin_blocks(self) -> bool:
        """Begin a block, or as many as there are, if threads wait for what others may give."""
        spinning = self._spinning()
        waits = {each.request.scope for each in self._waiting if each.request is not None}
        if not spinning and waits - {"grid"}:
            return False
        self._running = [each for each in self._running if each.live()]
        more = [*itertools.islice(self._blocks, max(1, len(self._running) if spinning else 1))]
        for block in more:
            self._running.append(block)
            self._ready.extend(block.threads)
        return bool(more)

    def _complete(self) -> bool:
        """Fulfil the requests that blocks and warps can; tell whether there were any."""
        for block in self._running:
            live = block.live()
            warps: dict[int, list[Thread]] = {}
            for thread in live:
                warps.setdefault(thread.rank // WARP, []).append(thread)
            for warp in warps.values():
                answers = complete_warp({thread.lane: thread.request for thread in warp})
                self._release({each: answers[each.lane] for each in warp if each.lane in answers})
            requests = [each.request for each in live if each.request is not None]
            operations = {each.operation for each in requests}
            scopes = {each.scope for each in requests}
            if len(requests) == len(live) and scopes == {"block"} and len(operations) == 1:
                answer = reduce_block(operations.pop(), [each.value for each in requests])
                self._release(dict.fromkeys(live, answer))
        return bool(self._ready)

    def _complete_grid(self) -> bool:
        """Let all go on that wait for the grid, which are all there are."""
        live = [thread for block in self._running for thread in block.live()]
        if all(each.request is not None and each.request.scope == "grid" for each in live):
            self._release(dict.fromkeys(live))
        return bool(self._ready)

    def _release(self, answers: dict[Thread, Any]) -> None:
        for thread, answer in answers.items():
            thread.request, thread.result = None, answer
        self._waiting = [each for each in self._waiting if each not in answers]
        self._ready.extend(answers)

    # -- failures --------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """Stop the launch: threads that have begun unwind, the others do not begin."""
        self._failure = error
        begun = [thread for thread in self._ready if thread.carrier is not None]
        self._ready = deque(begun + self._waiting)
        self._waiting = []

    def _deadlock(self) -> KernelError:
        waits: dict[str, list[Thread]] = {}
        for each in self._waiting:
            waits.setdefault(f"{each.request} at {each.place}", []).append(each)
        lines = [
            f"  {len(threads)} wait at {what}, such as {threads[0]}"
            for what, threads in waits.items()
        ]
        return KernelDeadlockError(
            (_SPINS if self._spinning() else _BARRIERS) + "\n" + "\n".join(lines)
        )
