"""`BriefLaunches`: launches of a few microseconds, which run in the thread that submits them.

Handing a launch to the thread of its stream costs 10 to 50 microseconds on both sides. So a launch
that is expected to be shorter runs at once, in the thread that submits it, if its stream is idle.
So does a launch of less than a millisecond whose caller is expected to wait for it immediately.
The work of the stream stays in order, because a stream runs one command at a time, and failures
stay failures of the stream.
"""

from __future__ import annotations

import ctypes
import functools
import os
from _thread import get_ident
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING, Any, Protocol

from nbrt.backends.cpu.crash import LAST_LAUNCH
from nbrt.backends.cpu.interrupts import forget_tick, main_runner, run_stoppable
from nbrt.backends.cpu.queue_items import BoundLaunch, Brevity, Record
from nbrt.backends.cpu.turns import Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.block_scheduler import LaunchRecord
    from nbrt.backends.cpu.interrupts import Runner
    from nbrt.backends.cpu.queues import WorkerQueue
    from nbrt.backends.cpu.simt.runtime.dispatcher import EntryDispatcher

__all__ = ["BRIEF_NS", "SHORT_NS", "BriefLaunches"]

BRIEF_NS = 20_000
"""Shorter launches are brief: for longer ones, another thread is worth its cost."""

SHORT_NS = 1_000_000
"""The main thread runs shorter launches that it waits for; longer ones would delay its signals."""

_SHORT_LAUNCHES = 3
"""Consecutive short launches before one is run so."""

_LAUNCHES = 8
"""Consecutive brief launches in the thread of a stream before one may run in its caller."""

_DOUBTFUL = 8
"""Launches that are measured by processor time after one that took long by the clock."""

_MEASURED = 2 * _DOUBTFUL
"""Launches whose begin is measured, too, after a time between two ends that was not brief.

In a burst, the time between the ends of two launches is an upper bound for the second one.
"""

_LONG = 2
"""How many of these must be long: the host of a virtual machine may take time of one of them."""

_TINY_NS = 5_000
"""Threads run shorter launches in turn: exchanging the interpreter's lock would take longer."""

_turn, _NO_TURN = Turn(), Turn()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_turn.reset)
    os.register_at_fork(after_in_child=_NO_TURN.reset)


class _Program(Protocol):
    @property
    def may_wait_for_memory(self) -> bool: ...


class _Plan(Protocol):
    label: str

    def new_record(self, total: int, chunk: int, first: int) -> LaunchRecord: ...


class BriefLaunches(Brevity):
    """Measures the launches of a plan on streams with a thread, and runs brief ones at once.

    A launch is expected to be brief after some consecutive brief ones, unless it may run until its
    caller or another stream writes memory.

    Parameters
    ----------
    program : CpuProgram
        The kernel.
    plan : CpuPlan
        Its plan.
    total : int
        Blocks of the grid.
    entry : EntryDispatcher
        The native entry function.
    crash_text : bytes
        The line that names the kernel if the process crashes.

    Attributes
    ----------
    are_expected : bool
        Whether the next launch is expected to be brief.
    """

    __slots__ = (
        "_bound", "_clock", "_crash_text", "_doubts", "_entry", "_latest", "_long", "_measured",
        "_plan", "_program", "_row", "_short_row", "_total", "_turn",
    )  # fmt: skip

    def __init__(
        self,
        program: _Program,
        plan: _Plan,
        total: int,
        entry: EntryDispatcher,
        crash_text: bytes,
    ) -> None:
        super().__init__()
        self._program = program
        self._plan = plan
        self._entry = entry
        self._crash_text = crash_text
        self._total = total
        self._bound: dict[Runner, BoundLaunch] = {}
        self._row = self._short_row = 0
        self._doubts = self._long = 0
        self._measured = _MEASURED
        self._clock: Callable[[], int] = perf_counter_ns
        self._turn: Turn | None = None
        self._latest: tuple[Any, Any, Any, int] = (None, None, None, 0)

    def run(self, queue: WorkerQueue, args: tuple[Any, ...], turn: Turn | None = None) -> bool:
        """Run a launch here if that is best and the queue is idle; return whether it was run.

        That is best for a brief launch, and for a short one that its caller is expected to wait
        for. An exception of the kernel becomes the failure of the queue. `turn` is given to a
        launch that has waited for other threads.

        Raises
        ------
        Exception
            Of an argument, or of a signal handler, which has ended the launch.
        """
        is_brief = self.are_expected
        if not is_brief and not queue.immediate_waits.are_expected:
            return False
        if turn is None:
            if not queue.is_ready:
                queue.drain()
            turn = self._turn or queue.turn
            if turn.waiting or turn.owner is not None:
                return turn.run(functools.partial(self.run, queue, args, _NO_TURN))
        runner, record, native, stops = self._latest
        if runner is not queue.runner or runner.stops != stops:
            runner, record, native, stops = self._use(queue.runner)
        ident = get_ident()
        is_main = ident == main_runner.ident
        owner = main_runner.owner if is_main else [ident]
        before, is_begun = main_runner.record, False
        clock, measured = self._clock, self._measured
        begin = clock() if measured or not is_brief else queue.last_end
        try:
            # No call comes between these tests and the assignments behind them.
            if not queue.is_ready or queue.owner is not None or runner.stops != stops:
                return False
            queue.owner = turn.owner = owner
            is_begun = True
            runner.record = record
            LAST_LAUNCH[0] = self._crash_text
            if is_main:
                # As `run_stoppable` does: signals end the launch, and come out of this call.
                main_runner.record = record
                if not main_runner.is_watched:
                    main_runner.watch()
            native(*args)
        except Exception as error:
            if not record.has_raised:
                raise
            record.note(error)
            queue.fail(error, self._plan.label)
        finally:
            # No calls before the last one, so that no signal handler interrupts before the queue
            # and the turn are released.
            if is_main:
                main_runner.record = before
            if is_begun:
                runner.record = queue.owner = turn.owner = None
                latch = turn.latch
                if latch is not None:
                    turn.latch = None
                    latch.release()
        queue.last_end = end = clock()
        if not is_brief:
            self.measured(end - begin)
            queue.immediate_waits.submitted()
            return True
        if measured:
            self._measured = measured - 1
        elapsed = end - begin
        if elapsed >= BRIEF_NS or self._doubts:
            self._judge(record, elapsed, is_exact=measured > 0)
        return True

    def _use(self, runner: Runner) -> tuple[Runner, Record, Callable[..., object], int]:
        """Return what launches of a runner need, and keep it for the next launch."""
        stops, bound = runner.stops, self._bound.get(runner)
        if bound is None or bound.stops != stops:
            bound = self._bind(runner, stops)
        latest = self._latest = (runner, *bound)
        return latest

    def run_in_thread(self, runner: Runner, args: tuple[Any, ...]) -> None:
        """Run a launch in the thread of a stream, and measure it."""
        record: Any
        if runner.is_stopping:
            record = self._plan.new_record(self._total, 0, 0)
        else:
            record = self.bind(runner).record
        begin = thread_time_ns()
        try:
            run_stoppable(self._entry, ctypes.addressof(record), record, args)
        except Exception as error:
            record.note(error)
            raise
        self.measured(thread_time_ns() - begin)

    def bind(self, runner: Runner) -> BoundLaunch:
        """Return how to run the next launch, if launches are short."""
        stops, bound = runner.stops, self._bound.get(runner)
        if bound is None or bound.stops != stops or bound.record.stop:
            bound = self._bind(runner, stops)
        return bound

    def measured(self, elapsed: int) -> None:
        """Learn from the nanoseconds of processor time that a launch has taken."""
        self._short_row = self._short_row + 1 if elapsed < SHORT_NS else 0
        is_short = self._short_row >= _SHORT_LAUNCHES
        self.are_short = is_short and not self._program.may_wait_for_memory
        if elapsed >= BRIEF_NS:
            self._row = 0
            self.are_expected = False
            return
        self._turn = _turn if elapsed < _TINY_NS else None
        self._row += 1
        if self._row == _LAUNCHES:
            self.are_expected = not self._program.may_wait_for_memory

    def expect_long(self) -> None:
        """Expect longer launches, until there are some brief ones again."""
        self._row = self._short_row = 0
        self.are_expected = self.are_short = False

    def _judge(self, record: Record, elapsed: int, *, is_exact: bool) -> None:
        """Learn from the time of a launch that was expected to be brief.

        By the clock, a launch is also long if the thread had to wait for the interpreter's lock or
        for a processor. So the next ones are measured by their processor time, which costs more.
        A time that is not exact includes the time since the launch before.
        """
        if not is_exact:
            self._measured = _MEASURED
        elif self._doubts:
            self._turn = _turn if elapsed < _TINY_NS else None
            self._doubts -= 1
            if elapsed >= BRIEF_NS:
                self._long += 1
            if self._long >= _LONG:
                self._doubts = 0
                self.expect_long()
            if not self._doubts:
                self._clock = perf_counter_ns
        else:
            self._doubts, self._long = _DOUBTFUL, 0
            self._measured = _MEASURED
            self._clock = thread_time_ns
            forget_tick(record)

    def _bind(self, runner: Runner, stops: int) -> BoundLaunch:
        record = self._plan.new_record(self._total, 0, 0)
        entry: Any = self._entry
        native = functools.partial(entry, ctypes.addressof(record))
        bound = self._bound[runner] = BoundLaunch(record, native, stops)
        self._latest = (None, None, None, 0)
        return bound
