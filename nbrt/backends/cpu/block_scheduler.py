"""The block scheduler: distributes the blocks of one launch over the cores.

A launch is a native function that claims blocks from a shared record until none is left, without
the GIL. The calling thread always works on its launch, and idle helper threads join it. A launch
never waits for a helper to become idle, so Python threads that launch at once do not block each
other. Numba's threading layers are not used: one is not thread-safe, another kills forked children.

Kernels share their launches in native code (`shared_launches`). `run_shared` is for work that calls
Python, such as regions of graphs.
"""

from __future__ import annotations

import ctypes
import os
import queue
import re
import threading
from threading import get_ident
from typing import TYPE_CHECKING, Any

from nbrt.backends.cpu.interrupts import (
    forget_tick,
    main_runner,
    run_stoppable,
    runners,
    stop,
)
from nbrt.backends.cpu.spinning import Signal
from nbrt.backends.cpu.waiting import wait_address
from nbrt.errors import ArgumentError, KernelDeadlockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.typing import Dim3

__all__ = [
    "PART_SIZE",
    "SLOT_SIZE",
    "LaunchRecord",
    "chunk_size",
    "get_num_threads",
    "raising_thread",
    "run_shared",
    "set_num_threads",
]

_NONE = -1
"""In `LaunchRecord.failed`, where no thread has raised."""

_MIN_CHUNK_NS = 5_000
"""Least work claimed at a time, so that the cost of claiming is negligible."""

_CHUNKS_PER_THREAD = 16
"""Chunks for each thread: they balance blocks and cores of different speed."""


SLOT_SIZE = 64
"""Bytes of the memory of a helper thread; see `helpers.HelperSlot`."""

PART_SIZE = 128
"""Bytes of a part: processors load neighbouring cache lines together."""


class LaunchRecord(ctypes.Structure):
    """State that the OS threads of one launch share; native code reads it by address."""

    _fields_ = (
        ("grid_x", ctypes.c_int64),
        ("grid_y", ctypes.c_int64),
        ("grid_z", ctypes.c_int64),
        ("total", ctypes.c_int64),
        ("chunk", ctypes.c_int64),
        ("next", ctypes.c_int64),
        ("shared", ctypes.c_int64),
        ("stop", ctypes.c_int64),
        ("failed", ctypes.c_int32 * 6),
        ("activity", ctypes.c_int64),
        ("wait", ctypes.c_void_p),
        ("share", ctypes.c_void_p),
        ("helpers", ctypes.c_int64),
        ("wakes", ctypes.c_int64),
        ("slots", ctypes.c_int64),
        ("parts", ctypes.c_int64),
        ("part_count", ctypes.c_int64),
        ("done", ctypes.c_void_p),
        ("pending", ctypes.c_int64),
        ("work_ns", ctypes.c_int64),
        ("elapsed_ns", ctypes.c_int64),
        ("helper_failed", ctypes.c_int64),
        ("call", ctypes.c_void_p),
        ("entry", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
    )

    grid_x: int
    grid_y: int
    grid_z: int
    total: int
    """Blocks to run: indices below this, x fastest."""
    chunk: int
    """Blocks claimed at a time; 0: the caller runs all blocks and ignores `next`."""
    next: int
    """First block that is not claimed, if there are no parts."""
    shared: int
    """Bytes of dynamic shared memory for each block."""
    stop: int
    """The stop word: not 0 if the launch shall end early; native code polls it."""
    failed: ctypes.Array[ctypes.c_int32]
    """Index of the thread that raised, in its block, and index of that block in the grid."""
    activity: int
    """State that OS threads with resident blocks share (`resident.ll`); 0 before the first."""
    wait: int
    """Address of `waiting.wait`, which native code calls while no thread makes progress."""
    share: int
    """Address of the function that runs a launch in this thread and its helpers.

    It takes addresses: of the record, of a function that calls an entry function with arguments
    from memory, of this entry function, of the error's description, and of the arguments.
    """
    helpers: int
    """Helper threads that may take part; 0 once they have been offered the launch."""
    wakes: int
    """Whether helpers that sleep are woken."""
    slots: int
    """Address of the slots of the helpers."""
    parts: int
    """Address of the parts of the blocks: the caller's, those of the helpers; 0: no parts.

    Each is the first block that is not claimed, and the one behind the last, in `PART_SIZE` bytes.
    """
    part_count: int
    """Number of parts."""
    done: int
    """Address of the lock that the last helper releases if the caller waits."""
    pending: int
    """Threads that take part in the launch, or may still do so."""
    work_ns: int
    """Nanoseconds that the threads have worked, all together."""
    elapsed_ns: int
    """Nanoseconds from the begin to the end of the launch."""
    helper_failed: int
    """Not 0 once the kernel has failed in a helper."""

    def __init__(self, *fields: int) -> None:
        super().__init__(*fields)
        self.failed[0] = _NONE
        self.wait = wait_address()

    @property
    def has_raised(self) -> bool:
        """Whether a thread has raised since the last `note`."""
        return bool(self.failed[0] != _NONE)

    def note(self, error: BaseException) -> None:
        """Add to an exception the index of the kernel's thread that raised it, or deadlocks."""
        index = tuple(self.failed)
        if index[0] == _NONE:
            return
        self.failed[0] = _NONE
        thread = f"block {index[3:]}, thread {index[:3]}"
        if isinstance(error, KernelDeadlockError):
            error.args = (f"{error}; one of them is {thread}",)
        else:
            error.add_note(f"in {thread}")


_INDEX = r"\((\d+), (\d+), (\d+)\)"
_THREAD = re.compile(f"in block {_INDEX}, thread {_INDEX}")


def raising_thread(error: BaseException) -> tuple[Dim3, Dim3] | None:
    """Return the block and the thread that raised an exception, as noted; None: no kernel did."""
    for note in getattr(error, "__notes__", ()):
        found = _THREAD.fullmatch(note)
        if found:
            index = tuple(map(int, found.groups()))
            return (index[0], index[1], index[2]), (index[3], index[4], index[5])
    return None


_num_threads: int | None = None


def get_num_threads() -> int:
    """Return the number of OS threads that one launch may use, the caller's included.

    Returns
    -------
    int
        As set by `set_num_threads`; by default the CPUs this process may run on.
    """
    global _num_threads
    if _num_threads is None:
        _num_threads = _usable_cpus()
    return _num_threads


def set_num_threads(count: int) -> None:
    """Set the number of OS threads that one launch may use, the caller's included.

    Parameters
    ----------
    count : int
        At least 1; with 1 every launch runs in its calling thread.

    Raises
    ------
    ArgumentError
        If `count` is less than 1.
    """
    global _num_threads
    if count < 1:
        raise ArgumentError(f"the number of threads must be at least 1, got {count}")
    _num_threads = count


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def chunk_size(blocks: int, expected_ns: float) -> int:
    """Return the number of blocks that a thread claims at a time.

    Parameters
    ----------
    blocks : int
        Blocks to run.
    expected_ns : float
        Nanoseconds that one thread would need for all of them.
    """
    most = get_num_threads() * _CHUNKS_PER_THREAD
    return max(1, blocks // max(1, min(most, int(expected_ns / _MIN_CHUNK_NS))))


def run_shared(
    entry: Callable[..., object], record: LaunchRecord, arguments: tuple[Any, ...]
) -> None:
    """Run a launch on this thread and on idle helper threads.

    Parameters
    ----------
    entry : callable
        Takes the address of a `LaunchRecord` and `arguments`; claims blocks until none is left.
    record : LaunchRecord
        The launch; its `chunk` must not be 0.
    arguments : tuple
        The kernel's own arguments.

    Raises
    ------
    Exception
        The first exception that the kernel raised in any thread; it ends the launch.
    """
    chunks = -(-(record.total - record.next) // record.chunk)
    job = _Job(entry, record, arguments)
    runner = runners.get(get_ident())
    before = runner.begin(record) if runner is not None and runner is not main_runner else None
    try:
        # A signal handler may raise between any two lines: helpers must leave even then.
        _pool.offer(job, min(get_num_threads(), chunks) - 1)
        job.run_as_caller()
    finally:
        job.close()
        if runner is not None and runner is not main_runner:
            runner.record = before


class _Job:
    """One launch that several threads run.

    Python switches threads at calls and jumps back only, so a test and the assignment behind it are
    one step. A condition variable would take some microseconds.
    """

    __slots__ = (
        "_arguments", "_closed", "_entry", "_error", "_helpers", "_latch", "_record",
    )  # fmt: skip

    def __init__(
        self, entry: Callable[..., object], record: LaunchRecord, arguments: tuple[Any, ...]
    ) -> None:
        self._entry: Callable[..., object] | None = entry
        self._record = record
        self._arguments = arguments
        self._helpers = 0
        self._latch: threading.Lock | None = None
        self._closed = False
        self._error: BaseException | None = None

    def run_as_helper(self) -> None:
        """Work on the job as a helper, unless it is closed."""
        if self._closed:
            return
        self._helpers += 1
        try:
            self.work()
        finally:
            self._helpers -= 1
            latch = self._latch
            if latch is not None and not self._helpers:
                latch.release()

    def run_as_caller(self) -> None:
        """Run blocks until none is left, as the thread that launches."""
        record = self._record
        try:
            self.work(run_stoppable)
        finally:
            forget_tick(record)

    def work(self, run: Callable[..., None] | None = None) -> None:
        """Run blocks until none is left, here or in any other thread."""
        entry = self._entry
        assert entry is not None
        address = ctypes.addressof(self._record)
        try:
            if run is None:
                entry(address, *self._arguments)
            else:
                run(entry, address, self._record, self._arguments)
        except BaseException as error:  # noqa: BLE001 - handed to the caller in close()
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Store the first exception, and end the launch in all threads."""
        stop(self._record)
        self._record.next = self._record.total
        if self._error is None:
            self._error = error
            self._record.note(error)

    def close(self) -> None:
        """Wait for the helpers of the job, then raise the first exception of any thread."""
        self._closed = True
        is_left = not self._helpers
        while not is_left:
            try:
                self._await_helpers()
                is_left = True
            except BaseException as error:  # noqa: BLE001 - raised below, by a signal's handler
                # Helpers write into the caller's arrays, so they must leave first.
                self._fail(error)
        raised, self._error = self._error, None
        # A stale offer may stay in the queue: it must not keep the arrays alive.
        self._entry, self._arguments = None, ()
        if raised is not None:
            try:
                raise raised
            finally:
                del raised

    def _await_helpers(self) -> None:
        """Wait until no helper works on the job: awake as long as most take, then asleep."""
        left = _pool.left
        for _ in range(self._helpers):
            seen = left.word.value
            if not self._helpers:
                return
            left.wait(seen)
        latch = threading.Lock()
        latch.acquire()
        self._latch = latch
        if self._helpers:
            latch.acquire()


class _WorkerPool:
    """Helper threads, started on first use; they live as long as the process.

    Attributes
    ----------
    left : Signal
        Sent when a helper has left a job.
    """

    left: Signal
    _offered: Signal

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._size = 0
        self._offers: queue.SimpleQueue[_Job] = queue.SimpleQueue()

    def offer(self, job: _Job, helpers: int) -> None:
        """Offer a job to `helpers` threads, which join it now or when they become idle."""
        if not helpers:
            return
        if helpers > self._size:
            self._grow(helpers)
        for _ in range(helpers):
            self._offers.put(job)
        self._offered.send()

    def _grow(self, size: int) -> None:
        with self._lock:
            if not self._size:
                self.left, self._offered = Signal(), Signal()
            while self._size < size:
                name = f"nbrt-cpu-{self._size}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
                self._size += 1

    def _serve(self) -> None:
        offers, offered = self._offers, self._offered
        while True:
            seen = offered.word.value
            if offers.empty():
                offered.wait(seen)
            # A call, so that no job stays referenced while this thread sleeps.
            offers.get().run_as_helper()
            self.left.send()


_pool = _WorkerPool()


def _reset_pool() -> None:
    """Start without helpers in a forked child: the parent's threads do not exist there."""
    global _pool
    _pool = _WorkerPool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_pool)
