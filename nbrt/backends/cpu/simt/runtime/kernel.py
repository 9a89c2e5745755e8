"""What the CPU backend holds: a kernel, and the plan of launching it with one configuration."""

from __future__ import annotations

import ctypes
import functools
import time
from threading import get_ident
from typing import TYPE_CHECKING, Any

from numba._dispatcher import compute_fingerprint

from nbrt.backends.captures import Captures
from nbrt.backends.cpu.block_scheduler import LaunchRecord, get_num_threads, run_shared
from nbrt.backends.cpu.crash import LAST_LAUNCH, crash_text
from nbrt.backends.cpu.interrupts import main_runner, run_stoppable, runners
from nbrt.backends.cpu.simt.frontend.source import kernel_function
from nbrt.backends.cpu.simt.runtime.arguments import check_count
from nbrt.backends.cpu.simt.runtime.cache import KernelCache
from nbrt.backends.cpu.simt.runtime.launch import EntryDispatcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.simt.frontend.pipeline import KernelBody

__all__ = ["LaunchPlan", "SimtKernel"]

Dim3 = tuple[int, int, int]

_WORTH_SHARING_NS = 60_000
"""Launches shorter than this run in the caller: waking a helper takes some tens of microseconds."""

_CHUNK_NS = 20_000
"""Least work claimed at a time, so that claiming costs next to nothing."""

_CHUNKS_PER_THREAD = 16
"""Enough pieces for the threads to finish together though blocks and cores differ in speed."""

_MAX_PLANS = 256


class SimtKernel:
    """A kernel in the CUDA dialect, compiled for the CPU on first use for each block and types.

    Parameters
    ----------
    function : callable
        A plain function in the dialect, or a ``@cuda.jit`` dispatcher.
    cache : bool, default True
        Whether compiled code is kept on disk for other processes.

    Attributes
    ----------
    name : str
        The kernel's name.
    captures : Captures
        The values of globals and the like that it is compiled with, as they were when it was made.

    Raises
    ------
    ArgumentTypeError
        If `function` is not a function.
    CompileError
        If it is of a kind that no kernel can be, such as a generator.
    """

    def __init__(self, function: Callable[..., object], *, cache: bool = True) -> None:
        self.captures = Captures(kernel_function(function))
        self._function = self.captures.frozen
        self.name = self._function.__name__
        self._cache = KernelCache(self.captures) if cache else None
        self._entries: dict[Dim3, EntryDispatcher] = {}
        self._plans: dict[tuple[Dim3, Dim3, int], LaunchPlan] = {}

    def __repr__(self) -> str:
        return f"<SimtKernel {self.name}>"

    def plan(self, grid: Dim3, block: Dim3, shared: int = 0) -> LaunchPlan:
        """Give what launches this kernel with one configuration; cheap, compiles nothing.

        Parameters
        ----------
        grid : tuple of int
            Blocks along x, y and z, each at least 1.
        block : tuple of int
            Threads of a block along x, y and z, each at least 1.
        shared : int, default 0
            Bytes of dynamic shared memory for each block.

        Returns
        -------
        LaunchPlan
            Call it with the kernel's arguments.
        """
        plan = self._plans.get((grid, block, shared))
        if plan is None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            plan = self._plans[grid, block, shared] = LaunchPlan(self, grid, block, shared)
        return plan

    def entry(self, block: Dim3, *, cached: bool = True) -> EntryDispatcher:
        """Give the dispatcher of the native entry function for one block shape."""
        if not cached:
            return EntryDispatcher(self.captures, lambda: self._body, block, None)
        entry = self._entries.get(block)
        if entry is None:
            made = EntryDispatcher(self.captures, lambda: self._body, block, self._cache)
            entry = self._entries.setdefault(block, made)
        return entry

    @functools.cached_property
    def _body(self) -> KernelBody:
        from nbrt.backends.cpu.simt.frontend.pipeline import KernelBody

        return KernelBody(self.captures)

    def check_count(self, arguments: tuple[object, ...]) -> None:
        """Raise `ArgumentTypeError` if there are too few or too many arguments."""
        check_count(self._function, arguments)


class LaunchPlan:
    """A kernel with its launch configuration; calling it runs every block, then returns.

    Made by `SimtKernel.plan`. Safe to call from several threads at once.

    Attributes
    ----------
    kernel : SimtKernel
        The kernel.
    grid, block : tuple of int
        The launch configuration.
    shared : int
        Bytes of dynamic shared memory for each block.
    label : str
        What messages call it.
    crash_text : bytes
        What the process writes if it crashes; a caller of `direct` puts it into `LAST_LAUNCH`.
    record : LaunchRecord
        What launches that run in one thread share with native code.
    direct : callable or None
        For a grid of one block, what a call comes down to, less the check of a wrong number of
        arguments; None for other grids.
    """

    def __init__(self, kernel: SimtKernel, grid: Dim3, block: Dim3, shared: int) -> None:
        self.kernel = kernel
        self.shared = shared
        self.label = f"kernel {kernel.name}"
        self.crash_text = crash_text(kernel._function)
        self.grid = grid
        self.block = block
        self._total = grid[0] * grid[1] * grid[2]
        self._entry = kernel.entry(block)
        self.record = LaunchRecord(*grid, self._total, 0, 0, shared)
        self._address = ctypes.addressof(self.record)
        # One block needs no schedule: the native function itself, called without a Python frame.
        self.direct: Callable[..., object] | None = None
        if self._total == 1:
            native: Any = self._entry
            self.direct = functools.partial(native, self._address)
        self._block_ns: float | None = None
        self._prepared: set[bytes] = set()

    def __repr__(self) -> str:
        return f"<LaunchPlan {self.kernel.name}[{self.grid}, {self.block}]>"

    def __call__(self, *args: object) -> None:
        """Run the kernel: compile it first if these argument types are new.

        Parameters
        ----------
        *args : object
            The kernel's arguments.

        Raises
        ------
        ArgumentTypeError
            If the number or a type of the arguments does not fit.
        CompileError
            If the kernel does not compile for these types.
        Exception
            What the kernel itself raises, with a note of the block and the thread.
        """
        LAST_LAUNCH[0] = self.crash_text
        try:
            self._run(args)
        except Exception as error:
            if isinstance(error, TypeError):
                self.kernel.check_count(args)
            self.note(error)
            raise

    def note(self, error: Exception) -> None:
        """Note on an exception which thread has raised it; who calls `direct` does that himself."""
        self.record.note(error)

    def prepare(self, args: tuple[object, ...]) -> None:
        """Check the arguments and compile for their types, without running anything.

        Parameters
        ----------
        args : tuple
            The kernel's arguments.

        Raises
        ------
        ArgumentTypeError
            If the number or a type of the arguments does not fit.
        CompileError
            If the kernel does not compile for these types.
        """
        try:
            fingerprint = compute_fingerprint(args)
        except NotImplementedError:
            fingerprint = None
        if fingerprint in self._prepared:
            return
        self.kernel.check_count(args)
        self._entry.prepare(args)
        if fingerprint is not None:
            self._prepared.add(fingerprint)

    def _run(self, args: tuple[object, ...]) -> None:
        """Run several blocks: alone if that is quickest, else together with helper threads."""
        threads = get_num_threads()
        if threads == 1 or self._total == 1:
            self._run_alone(args)
            return
        done = 0
        if self._block_ns is None:
            self.prepare(args)
            done = 1
            record = self._new_record(1, 1, 0)
            self._block_ns = float(self._timed(args, record))
            if record.activity:  # blocks that wait for each other: it has run them all
                self._block_ns /= self._total
                return
        expected = (self._total - done) * self._block_ns
        if expected < _WORTH_SHARING_NS:
            if done:
                self._timed(args, self._new_record(self._total, self._total, done))
            else:
                begin = time.perf_counter_ns()
                self._run_alone(args)
                self._block_ns = (time.perf_counter_ns() - begin) / self._total
            return
        pieces = max(1, min(threads * _CHUNKS_PER_THREAD, int(expected / _CHUNK_NS)))
        chunk = max(1, (self._total - done) // pieces)
        begin = time.perf_counter_ns()
        run_shared(self._entry, self._new_record(self._total, chunk, done), args)
        self._block_ns = (time.perf_counter_ns() - begin) * threads / self._total

    def _run_alone(self, args: tuple[object, ...]) -> None:
        """Run all blocks in this thread."""
        runner = runners.get(get_ident())
        if runner is main_runner:
            # As `run_stoppable` does it, without its calls: a launch takes about a microsecond.
            before, main_runner.record = main_runner.record, self.record
            if not main_runner.is_watched:
                main_runner.watch()
            try:
                self._entry(self._address, *args)
            finally:
                main_runner.record = before
        elif runner is None:
            self._entry(self._address, *args)
        else:
            # A record of its own thread: cancelling this launch ends no other.
            self._timed(args, self._new_record(self._total, 0, 0))

    def _new_record(self, total: int, chunk: int, first: int) -> LaunchRecord:
        return LaunchRecord(*self.grid, total, chunk, first, self.shared)

    def _timed(self, args: tuple[object, ...], record: LaunchRecord) -> int:
        begin = time.perf_counter_ns()
        try:
            run_stoppable(self._entry, ctypes.addressof(record), record, args)
        except Exception as error:
            record.note(error)
            raise
        return time.perf_counter_ns() - begin

    # -- looking inside ----------------------------------------------------------------------

    @property
    def signatures(self) -> list[tuple[Any, ...]]:
        """Argument types that this block shape has been compiled for, without hidden ones."""
        return [tuple(signature[1:]) for signature in self._entry.overloads]

    def llvm(self, *args: object) -> str:
        """Give the optimised LLVM IR for these arguments' types; compiles anew, uses no cache."""
        return str(self._inspected(args).get_llvm_str())

    def asm(self, *args: object) -> str:
        """Give the machine code for these arguments' types as assembly text."""
        return str(self._inspected(args).get_asm_str())

    def _inspected(self, args: tuple[object, ...]) -> Any:
        self.kernel.check_count(args)
        return self.kernel.entry(self.block, cached=False).prepare(args).library
