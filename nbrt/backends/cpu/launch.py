"""Kernels on CPU devices: `CpuProgram` holds a kernel, `CpuPlan` launches it."""

from __future__ import annotations

import ctypes
import functools
import operator
import time
from dataclasses import replace
from threading import get_ident
from typing import TYPE_CHECKING, Any

from nbrt import config
from nbrt.backends.captures import Captures
from nbrt.backends.cpu.block_scheduler import LaunchRecord, chunk_size, get_num_threads
from nbrt.backends.cpu.brief_launches import BriefLaunches
from nbrt.backends.cpu.crash import LAST_LAUNCH, crash_text, watch_for_crashes
from nbrt.backends.cpu.interrupts import main_runner, run_stoppable, runners
from nbrt.backends.cpu.launch_arguments import as_numpy, check_owners
from nbrt.backends.cpu.queues import WorkerQueue
from nbrt.backends.cpu.shared_launches import MIN_SHARED_NS, SharedLaunches
from nbrt.backends.cpu.simt.code_options import CodeOptions
from nbrt.backends.cpu.simt.frontend.source import kernel_function
from nbrt.backends.cpu.simt.runtime.arguments import argument_types
from nbrt.backends.cpu.simt.runtime.cache import KernelCache
from nbrt.backends.cpu.simt.runtime.declared_types import declared_types
from nbrt.backends.cpu.simt.runtime.dispatcher import EntryDispatcher, lost_exceptions_raised
from nbrt.backends.cpu.typed_launches import typed_launch
from nbrt.backends.graphs import RecordingQueue
from nbrt.backends.synchronous import SynchronousQueue
from nbrt.errors import ArgumentTypeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.cpu.simt.checked.launch import CheckedLaunch
    from nbrt.backends.cpu.simt.frontend.pipeline import KernelBody
    from nbrt.backends.cpu.simt.runtime.declared_types import DeclaredTypes
    from nbrt.backends.cpu.simt.runtime.dispatcher import NativeEntry
    from nbrt.backends.interface import Check
    from nbrt.backends.queue import Queue
    from nbrt.typing import Dim3

__all__ = ["MIN_SHARED_NS", "CpuPlan", "CpuProgram"]


class CpuProgram:
    """A kernel for CPU devices, compiled on first use for each block shape and argument types.

    Parameters
    ----------
    function : callable
        A plain function in the CUDA dialect, or a ``@cuda.jit`` dispatcher.
    has_many_devices : bool, default False
        Whether several CPU devices exist; every launch then checks the device of its arrays.
    cache : bool, default True
        Whether compiled code is kept on disk for other processes.

    Attributes
    ----------
    captures : Captures
        The values of globals, closure variables and attributes that the kernel is compiled with.
    source, has_many_devices
        `function` and `has_many_devices`, as given.
    function : function
        The kernel's Python function, over the captured values.

    Raises
    ------
    ArgumentTypeError
        If `function` is not a function.
    CompileError
        If it is of a kind that a kernel cannot be, such as a generator.
    """

    def __init__(
        self, function: Callable[..., object], *, has_many_devices: bool = False, cache: bool = True
    ) -> None:
        self.source = function
        self.captures = Captures(kernel_function(function))
        self.function = self.captures.frozen
        self.has_many_devices = has_many_devices
        self._options = CodeOptions.of(function)
        self._cache = KernelCache(self.captures, self._options) if cache else None
        self._entries: dict[tuple[Dim3, bool | None], EntryDispatcher] = {}

    def __repr__(self) -> str:
        return f"<CpuProgram {self.function.__name__}>"

    @functools.cached_property
    def declared(self) -> DeclaredTypes | None:
        """The types that launches convert their arguments to, if `source` has signatures.

        Read at the first launch: numba-cuda compiles the signatures before they limit the types.
        """
        return declared_types(self.source, self.function)

    @functools.cached_property
    def may_wait_for_memory(self) -> bool:
        """Whether a launch may run until another thread of the host writes memory."""
        from nbrt.backends.cpu.memory_waits import may_wait_for_memory

        return may_wait_for_memory(self.function)

    def plan(self, index: int, grid: Dim3, block: Dim3, shared: int = 0) -> CpuPlan:
        """Return a plan that launches the kernel in one configuration; compiles nothing.

        Parameters
        ----------
        index : int
            The CPU device.
        grid, block : tuple of int
            Blocks of the grid and threads of a block along x, y and z, each at least 1.
        shared : int, default 0
            Bytes of dynamic shared memory for each block.
        """
        return CpuPlan(self, index, grid, block, shared)

    def checked_plan(
        self, index: int, grid: Dim3, block: Dim3, shared: int, check: Check
    ) -> CpuPlan:
        """Return a plan whose launches raise `KernelCheckError` if they find a fault."""
        return CpuPlan(self, index, grid, block, shared, check)

    def entry(self, block: Dim3, check: Check | None = None) -> EntryDispatcher:
        """Return the dispatcher of the native entry function for one block shape."""
        seeded = None if check is None else check.seed is not None
        entry = self._entries.get((block, seeded))
        if entry is None:
            entry = self._entries.setdefault((block, seeded), self._new_entry(block, seeded))
        return entry

    def compiled_types(self) -> set[tuple[Any, ...]]:
        """Return the argument types for which launches have compiled or loaded code."""
        entries = list(self._entries.values())
        return {types[1:] for entry in entries for types in list(entry.overloads)}

    def is_stored(self, key: str) -> bool:
        """Return whether the code of a key is in the disk cache."""
        return self._cache is not None and self._cache.has(key)

    def _new_entry(self, block: Dim3, seeded: bool | None) -> EntryDispatcher:
        if seeded is None:
            return EntryDispatcher(self.captures, lambda: self.body, block, self._cache)
        # Imported, and its runtime compiled, by programs that use checked mode only.
        with lost_exceptions_raised():
            from nbrt.backends.cpu.simt.checked.blocks import emit_linear, emit_seeded

        emit = emit_seeded if seeded else emit_linear
        return EntryDispatcher(self.captures, lambda: self.checked_body, block, None, emit)

    @functools.cached_property
    def body(self) -> KernelBody:
        """The code of one thread, which all block shapes share."""
        from nbrt.backends.cpu.simt.frontend.pipeline import KernelBody

        return KernelBody(self.captures, options=self._options)

    @functools.cached_property
    def checked_body(self) -> KernelBody:
        """The code of one thread with checks."""
        from nbrt.backends.cpu.simt.checked.compiler import CheckedKernelCompiler
        from nbrt.backends.cpu.simt.frontend.pipeline import KernelBody

        options = replace(self._options, is_silent=False)
        return KernelBody(self.captures, CheckedKernelCompiler, options=options)


class CpuPlan:
    """A kernel with its launch configuration. Several threads may launch it at once.

    Parameters
    ----------
    program : CpuProgram
        The kernel.
    index : int
        The CPU device, compared with that of array arguments if there are several.
    grid, block : tuple of int
        Blocks of the grid and threads of a block along x, y and z.
    shared : int
        Bytes of dynamic shared memory for each block.
    check : Check, optional
        How launches are checked for faults; None: not at all.

    Attributes
    ----------
    brief : BriefLaunches
        What is known of the time of launches; runs short ones in the submitting thread.
    record : LaunchRecord
        State that launches in the main thread share with native code.
    """

    __slots__ = (
        "_adapts",
        "_check",
        "_converts",
        "_crash_text",
        "_entry",
        "_expected_ns",
        "_index",
        "_is_short",
        "_is_single",
        "_launches",
        "_native",
        "_program",
        "_total",
        "block",
        "brief",
        "grid",
        "label",
        "record",
        "shared",
    )

    def __init__(
        self,
        program: CpuProgram,
        index: int,
        grid: Dim3,
        block: Dim3,
        shared: int = 0,
        check: Check | None = None,
    ) -> None:
        watch_for_crashes()
        self._program = program
        self._index = index if program.has_many_devices else None
        self.grid, self.block, self.shared = grid, block, shared
        self._total = grid[0] * grid[1] * grid[2]
        self.label = f"kernel {program.function.__name__}"
        self._crash_text = crash_text(program.function, checked=check is not None)
        self.record = self.new_record(self._total, 0, 0)
        self._check: CheckedLaunch | None = None
        native: Any = program.entry(block, check)
        self._entry = native
        if check is None:
            # A C function around a C function: a call makes no Python frame.
            self._native = functools.partial(native, ctypes.addressof(self.record))
        else:
            from nbrt.backends.cpu.simt.checked.launch import CheckedLaunch

            self._check = CheckedLaunch(native, program.function, grid, block, shared, check)
        self.brief = BriefLaunches(program, self, self._total, native, self._crash_text)
        self._launches = SharedLaunches(native, self.new_record, self._total)
        self._expected_ns: float | None = None
        self._is_single = self._total == 1
        self._is_short = self._is_single and check is None
        self._converts = False
        self._adapts = self._index is not None or program.declared is not None

    def __repr__(self) -> str:
        return f"<CpuPlan {self._program.function.__name__}[{self.grid}, {self.block}]>"

    @property
    def is_long(self) -> bool:
        """Whether the next launch may use several threads: it is not known to be short."""
        return self._total > 1 and not self._is_short and get_num_threads() > 1

    @property
    def function(self) -> Callable[..., object]:
        """The kernel, or a ``cuda.jit`` dispatcher of it."""
        return self._program.source

    @property
    def captures(self) -> Captures:
        """The captured values that the kernel is compiled with."""
        return self._program.captures

    def launch(self, queue: Queue, *args: Any) -> None:
        """Launch, as `launch_packed`."""
        self.launch_packed(queue, args)

    def launch_packed(self, queue: Queue, args: tuple[Any, ...]) -> None:
        """Run all blocks: at once, or in the thread of the stream; see `BriefLaunches`.

        Raises
        ------
        ArgumentTypeError
            If the number or a type of the arguments does not fit.
        CompileError
            If the kernel does not compile for these types.
        Exception
            What the kernel raises, with a note of the block and the thread.
        """
        if config.interprets and type(queue) is not RecordingQueue:
            queue.synchronize()
            self.interpret(*args)
            return
        if self._adapts:
            args = self._adapted(args)
        try:
            if type(queue) is not SynchronousQueue:
                brief = self.brief
                if (
                    (brief.are_expected or brief.are_short)
                    and type(queue) is WorkerQueue
                    and brief.run(queue, args)
                ):
                    return
                # Wrong types raise here, in the caller, not in the thread that runs the work.
                self._entry.prepare(args)
                queue.put(self, *args)
                return
            with queue.lock:
                if not self._is_short or get_ident() != main_runner.ident:
                    self._run(args)
                    return
                # `run_stoppable` without its calls: a launch takes about a microsecond.
                LAST_LAUNCH[0] = self._crash_text
                begin = 0 if self._is_single else time.perf_counter_ns()
                before, main_runner.record = main_runner.record, self.record
                if not main_runner.is_watched:
                    main_runner.watch()
                try:
                    self._native(*args)
                finally:
                    main_runner.record = before
                if begin:
                    self._expected_ns = elapsed = time.perf_counter_ns() - begin
                    self._is_short = elapsed < MIN_SHARED_NS
        except Exception as error:
            # Arrays of other libraries are looked for once the compiler has refused an argument:
            # a launch without any pays nothing for them. Any other TypeError may be the kernel's,
            # and a kernel that has started must not be launched again.
            converted = self._converted(error, args)
            if converted is not None:
                self.launch_packed(queue, converted)
                return
            self._explain(error, args)
            raise

    def typed_launch(self, args: tuple[Any, ...]) -> Callable[..., bool] | None:
        """Return a launch for the types of an earlier one's arguments; see `typed_launches`."""
        if not self._is_short or not self._is_single or self._program.declared is not None:
            return None
        entry_point = self._entry.prepare(args).entry_point
        return typed_launch(entry_point, self.record, self._crash_text, args[2:])

    def __call__(self, *args: Any) -> None:
        """Run all blocks now, in this thread and its helpers; raises as `launch`."""
        try:
            self._run(args)
        except Exception as error:
            self._explain(error, args)
            raise

    def checked_args(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Check and compile as `launch` does; return the arguments for a call of the plan."""
        if self._adapts:
            args = self._adapted(args)
        try:
            self._entry.prepare(args)
        except Exception as error:
            converted = self._converted(error, args)
            if converted is not None:
                return self.checked_args(converted)
            self._explain(error, args)
            raise
        return args

    def prepare(self, args: tuple[object, ...]) -> None:
        """Compile for the types of the arguments, without running anything.

        Raises
        ------
        ArgumentTypeError
            If the number or a type of the arguments does not fit.
        CompileError
            If the kernel does not compile for these types.
        """
        self._entry.prepare(self._adapted(args) if self._adapts else args)

    def is_prepared(self, queue: Queue, args: tuple[Any, ...]) -> bool:
        """Return whether a launch with the arguments compiles and loads nothing."""
        if self._adapts:
            args = self._adapted(args)
        is_prepared: Callable[..., bool] = self._entry.is_prepared
        try:
            return is_prepared(args)
        except ArgumentTypeError:
            converted = as_numpy(args)
            if self._converts or not any(map(operator.is_not, converted, args)):
                raise
            self._converts = self._adapts = True
            return is_prepared(converted)

    def native_entry(self, args: tuple[object, ...]) -> NativeEntry | None:
        """Return the entry function for the types of the arguments; None in checked mode.

        It raises as `prepare`.
        """
        return None if self._check is not None else self._entry.native(args)

    def _adapted(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments as NumPy arrays, and with the types that the kernel declares.

        Raises
        ------
        DeviceMismatchError
            For arrays of other devices.
        """
        declared = self._program.declared
        if self._converts or declared is not None:
            args = as_numpy(args)
        if self._index is not None:
            check_owners(args, self._index)
        return args if declared is None else declared.converted(args)

    def _converted(self, error: Exception, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return refused arguments as NumPy arrays; None if that was not the fault."""
        if isinstance(error, ArgumentTypeError) and not self._converts:
            converted = as_numpy(args)
            if any(map(operator.is_not, converted, args)):
                self._converts = self._adapts = True
                return converted
        return None

    def _explain(self, error: Exception, args: tuple[Any, ...]) -> None:
        """Note which thread raised an error; raise another one for wrong arguments."""
        if isinstance(error, TypeError) and not isinstance(error, ArgumentTypeError):
            argument_types(self._program.function, args)
        self.record.note(error)

    def interpret(self, *args: Any) -> None:
        """Run the blocks in plain Python, in the calling thread, which has the debugger."""
        from nbrt.backends.cpu.interpret import interpret

        adapted = self._adapted(as_numpy(args))
        chosen = config.settings()
        watched = chosen.interpret_block, chosen.interpret_thread
        interpret(self.function, self.grid, self.block, self.shared, adapted, watched)

    def _run(self, args: tuple[object, ...]) -> None:
        """Run all blocks in this thread if that is quickest, else together with helpers."""
        LAST_LAUNCH[0] = self._crash_text
        if self._check is not None:
            self._check(args)
            return
        threads, total = get_num_threads(), self._total
        if threads == 1 or total == 1:
            self._run_alone(args)
            return
        done, expected = 0, self._expected_ns
        if expected is None:
            self._entry.prepare(args)
            first = self.new_record(1, 1, 0)
            elapsed = self._timed(args, first)
            if first.activity:  # blocks that wait for each other: it has run them all
                self._expect(elapsed)
                return
            self._expect(elapsed * total)
            done, expected = 1, float(elapsed * (total - 1))
        if expected >= MIN_SHARED_NS and (done or not self._launches.is_paused(expected)):
            self.brief.expect_long()
            self._expect(self._launches.run(args, expected, done))
        elif done:
            self._timed(args, self.new_record(total, total, done))
        else:
            begin = time.thread_time_ns()
            self._run_alone(args)
            self._expect(time.thread_time_ns() - begin)

    def chunk(self) -> int:
        """Return the number of blocks that a thread of a long launch claims at a time."""
        return chunk_size(self._total, self._expected_ns or 0.0)

    def _expect(self, elapsed: float) -> None:
        """Expect the next launch to take as many nanoseconds, in one thread."""
        self._expected_ns = elapsed
        self._is_short = elapsed < MIN_SHARED_NS

    def _run_alone(self, args: tuple[object, ...]) -> None:
        """Run all blocks in this thread."""
        runner = runners.get(get_ident())
        if runner is None:
            self._native(*args)
        elif runner is main_runner:
            run_stoppable(self._entry, ctypes.addressof(self.record), self.record, args)
        else:
            # Each stream has another record: cancelling this launch ends no other.
            self.brief.run_in_thread(runner, args)

    def new_record(self, total: int, chunk: int, first: int) -> LaunchRecord:
        """Return the record of a launch that runs blocks from `first` to `total`."""
        return LaunchRecord(*self.grid, total, chunk, first, self.shared)

    def _timed(self, args: tuple[object, ...], record: LaunchRecord) -> int:
        begin = time.perf_counter_ns()
        try:
            run_stoppable(self._entry, ctypes.addressof(record), record, args)
        except Exception as error:
            record.note(error)
            raise
        return time.perf_counter_ns() - begin
