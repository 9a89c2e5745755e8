"""`Execution`: a program in memory, and its runs."""

from __future__ import annotations

import ctypes
import threading
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt import config
from nbrt.backends.cpu.block_scheduler import get_num_threads, run_shared
from nbrt.backends.cpu.crash import LAST_LAUNCH, crash_text_of_graph
from nbrt.backends.cpu.graphs.chains import Chain, chains_of
from nbrt.backends.cpu.graphs.flat_nodes import flat_nodes
from nbrt.backends.cpu.graphs.instructions import assemble
from nbrt.backends.cpu.graphs.layout import INSTRUCTION, Image, Operation, Status
from nbrt.backends.cpu.graphs.native import runners
from nbrt.backends.cpu.graphs.regions import Region, SharedRecord, new_state, regions, stages
from nbrt.backends.cpu.helpers import helper_slots, share_address, take_error
from nbrt.backends.cpu.interrupts import STOP, forget_tick, main_runner
from nbrt.backends.cpu.interrupts import runners as thread_runners
from nbrt.backends.cpu.launch import MIN_SHARED_NS, CpuPlan
from nbrt.backends.cpu.native_code import raise_kernel_error
from nbrt.backends.cpu.simt.frontend.source import kernel_function
from nbrt.backends.cpu.simt.stop_codes import HELPER_FAILED
from nbrt.backends.graphs import ArrayView, host_array, with_arrays
from nbrt.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbrt.backends.cpu.graphs.changes import Changes
    from nbrt.backends.cpu.graphs.instructions import PlacedNode
    from nbrt.backends.cpu.graphs.layout import ThreadState
    from nbrt.backends.cpu.interrupts import Runner, Stoppable
    from nbrt.backends.graphs import GraphBuffer, GraphNode, ReplayValues

__all__ = ["Execution"]

_NEVER = 1 << 62


class Execution:
    """A program in memory. Its runs do not overlap.

    Parameters
    ----------
    nodes : sequence of GraphNode
        The nodes.
    buffers : sequence of GraphBuffer
        The buffers, by number.
    deterministic : bool
        Whether one thread runs all nodes in their order.

    Attributes
    ----------
    assembly : Assembly
        The program.
    buffers : list of GraphBuffer
        As given.
    thread : int or None
        The identifier of the thread that runs the program.
    """

    def __init__(
        self, nodes: Sequence[GraphNode], buffers: Sequence[GraphBuffer], *, deterministic: bool
    ) -> None:
        flat = flat_nodes(nodes)
        chains = (
            [Chain(list(range(len(flat))), ())]
            if deterministic
            else chains_of([node.dependencies for node in flat])
        )
        self.buffers = list(buffers)
        order = [flat[number] for chain in chains for number in chain.nodes]
        self._outer = [node.outer for node in order]
        self._count = len(nodes)
        self.assembly = assemble(order, buffers)
        self.thread: int | None = None
        self._lock = threading.Lock()
        self._native = runners()
        self._image = Image(self.assembly.address, None, MIN_SHARED_NS)
        self._image_address = ctypes.addressof(self._image)
        self._states = [new_state()]
        self._record = self._states[0].record
        self._begun: Stoppable = self._record
        self._end = len(self.assembly.instructions)
        self._first = ctypes.c_int64.from_address(self.assembly.address)
        """The operation of the first instruction."""
        self._regions = regions(chains, self.assembly.ends) if len(chains) > 1 else []
        self._disabled: dict[int, tuple[int, int]] = {}
        self._saved: tuple[Any, Any] | None = None
        self._arrays: dict[int, tuple[Any, ...]] = {}
        self._is_interpreted = False
        self._shares = False
        self._values: ReplayValues | None = None
        self._changes: Changes | None = None
        plans = {
            call.function for call in self.assembly.calls.values() if type(call.function) is CpuPlan
        }
        self._crash_text = crash_text_of_graph([kernel_function(plan.function) for plan in plans])

    def run(self, values: ReplayValues, changes: Changes) -> None:
        """Run the program once, in this thread and its helpers.

        Raises
        ------
        KernelError
            If a loop exceeds its limit.
        Exception
            What a kernel or a function raises, with a note of the node.
        """
        with self._lock:
            self.thread = get_ident()
            self._values, self._changes = values, changes
            callback = self._call
            self._image.callback = id(callback)
            try:
                self._apply(values, changes)
                self._run_stoppable()
            finally:
                self._values = self._changes = None
                if self._saved is not None:
                    self._restore()
                self.thread = None

    # -- values of a run ---------------------------------------------------------------------------

    def _apply(self, values: ReplayValues, changes: Changes) -> None:
        if self._saved is not None:
            self._restore()  # an interrupt may have prevented it
        if changes.disabled != self._disabled.keys():
            self._disable(changes.disabled)
        self._is_interpreted = config.interprets
        words, numbers = changes.words, changes.values
        if self._is_interpreted:
            launches = self.assembly.launches() * (INSTRUCTION.itemsize // words.itemsize)
            words = np.concatenate([words, launches])
            numbers = np.concatenate([numbers, np.full(len(launches), Operation.CALL, np.uint64)])
        if len(words):
            self._saved = words, self.assembly.words[words]
            self.assembly.words[words] = numbers
        for buffer, seed, offset in values.states:
            state = (ctypes.c_uint64 * 2).from_address(self._address(buffer))
            state[0], state[1] = seed, offset

    def _restore(self) -> None:
        assert self._saved is not None
        words, values = self._saved
        self.assembly.words[words] = values
        self._saved = None

    def _disable(self, disabled: set[int]) -> None:
        """Let these nodes be skipped, and no others."""
        operation, following = (self.assembly.instructions[name] for name in ("operation", "next"))
        for number in list(self._disabled.keys() - disabled):
            begin, end = self.assembly.placed[number][2:]
            if begin < end:
                operation[begin], following[begin] = self._disabled[number]
            del self._disabled[number]
        for number in disabled - self._disabled.keys():
            begin, end = self.assembly.placed[number][2:]
            if begin == end:  # the instruction is that of another node
                self._disabled[number] = 0, 0
                continue
            self._disabled[number] = int(operation[begin]), int(following[begin])
            operation[begin], following[begin] = Operation.SKIP, end

    def _address(self, buffer: int) -> int:
        assert self._values is not None
        return self._values.addresses.get(buffer, self.buffers[buffer].address)

    # -- run ---------------------------------------------------------------------------------------

    def _run_stoppable(self) -> None:
        record = self._record
        record.stop = 0
        LAST_LAUNCH[0] = self._crash_text
        threads = get_num_threads()
        self._image.max_short_ns = MIN_SHARED_NS if threads > 1 else _NEVER
        if self._shares:
            self._offer_slots(threads)
        runner = thread_runners.get(get_ident())
        if runner is None:
            self._run_stages(None)
            return
        before = runner.begin(record)
        if runner is main_runner and not main_runner.is_watched:
            main_runner.watch()
        try:
            self._run_stages(runner)
        finally:
            runner.record = before
            forget_tick(record)

    def _run_stages(self, runner: Runner | None) -> None:
        threads = get_num_threads()
        assert self._values is not None
        if self._values.times is not None:
            self._values.times[:] = self._timed_nodes()
            return
        if not self._regions or threads == 1:
            if self._end == 1 and self._first.value == Operation.CALL:
                self._run_call()
            else:
                self._run_native(self._states[0], self._native.run, 0, self._end)
            return
        for stage in stages(self._regions, threads):
            if stage.region is None:
                self._run_native(self._states[0], self._native.run, stage.begin, stage.end)
            elif stage.threads == 1:
                table = stage.region.reset()
                self._run_native(self._states[0], self._native.run_chains, table)
            else:
                self._run_shared(stage.region, stage.threads)
            if runner is not None:
                runner.begin(self._record)  # again: the stream may have been cancelled
            if self._record.stop == STOP:
                return

    def _run_call(self) -> None:
        """Run a program of one call without native code, as a launch that uses all cores is."""
        if self._record.stop == STOP:
            return
        try:
            self._call(0)
        except Exception as error:
            self._states[0].failed_at = 0
            self._explain(error, self._states[0])
            raise

    def _timed_nodes(self) -> list[float]:
        """Run the nodes one after the other; return their seconds, by number."""
        ends = self.assembly.ends
        nodes = [Chain([number], (number - 1,) if number else ()) for number in range(len(ends))]
        region = Region(nodes, range(len(nodes)), [0, *ends])
        self._run_native(self._states[0], self._native.run_chains, region.reset())
        seconds = [0.0] * self._count
        for outer, time in zip(self._outer, region.times(), strict=True):
            seconds[outer] += time * 1e-9
        return seconds

    def _run_shared(self, region: Region, threads: int) -> None:
        """Run a region in this thread and in helpers that are idle."""
        while len(self._states) < threads:
            self._states.append(new_state())
        caller, table = get_ident(), region.reset()
        helpers = iter(self._states[1:threads])

        def work(_record: int) -> None:
            state = self._states[0] if get_ident() == caller else next(helpers)
            self._run_native(state, self._native.run_chains, table)

        shared = SharedRecord(self._states[:threads])
        self._begun = shared
        try:
            run_shared(work, shared, ())
        finally:
            self._begun = self._record

    def _run_native(self, state: ThreadState, run: Callable[..., int], *args: int) -> None:
        state.failed_at = -1
        try:
            status = run(self._image_address, ctypes.addressof(state), *args)
            if status:
                self._raise(state, status)
        except BaseException as error:
            if state.record.helper_failed:
                take_error(state.record)  # of two exceptions, that of this thread is raised
            if isinstance(error, Exception):
                self._explain(error, state)
            raise

    def _raise(self, state: ThreadState, status: int) -> None:
        """Raise the exception for a status; a stopped run raises none."""
        if status == Status.KERNEL and state.code == HELPER_FAILED:
            error = take_error(state.record)
            if error is not None:
                try:
                    raise error
                finally:
                    del error
        elif status == Status.KERNEL:
            raise_kernel_error(state.code, state.error or 0)
        if status == Status.LIMIT:
            node = self._node_at(state.failed_at).node
            name = f"the loop {node.label!r}" if node.label else "a loop"
            raise KernelError(
                f"expected at most {node.limit} turns of {name}, got one more; check that its body "
                f"makes the flag 0, or raise the limit"
            )

    def _explain(self, error: Exception, state: ThreadState) -> None:
        """Note which node raised an error, and the thread of its kernel."""
        if state.failed_at < 0:
            return
        state.record.note(error)
        placed = self._node_at(state.failed_at)
        node, where = placed.node, ""
        if node.site is not None:
            where = f", which was captured here:\n{node.site.format()}"
        error.add_note(f"in node {placed.path} of the graph, {node.kind} {node.label!r}{where}")

    def _node_at(self, instruction: int) -> PlacedNode:
        placed = self.assembly.placed  # inner nodes first
        return next(node for node in placed if node.begin <= instruction < node.end)

    # -- calls from native code --------------------------------------------------------------------

    def _call(self, instruction: int) -> None:
        """Call the function of an instruction."""
        function = self.assembly.calls[instruction].function
        if self._is_interpreted and type(function) is CpuPlan:
            function = function.interpret
        function(*self._args(instruction))
        if type(function) is CpuPlan:
            LAST_LAUNCH[0] = self._crash_text
            if self.assembly.instructions["trampoline"][instruction]:
                self._promote(instruction, function)
        runner = thread_runners.get(get_ident())
        if runner is not None:
            # Again: the stream may have been cancelled during a launch of the function.
            runner.begin(self._begun)

    def _promote(self, instruction: int, plan: CpuPlan) -> None:
        """Let the next run launch a kernel in native code: in this thread, or with helpers."""
        row = self.assembly.instructions[instruction : instruction + 1]
        if plan.is_long:
            row["c"], self._shares = plan.chunk(), True
            self._offer_slots(get_num_threads())
            row["operation"] = Operation.SHARED
        else:
            row["operation"] = Operation.TIMED

    def _offer_slots(self, threads: int) -> None:
        image = self._image
        image.slots, image.slot_count = helper_slots(threads - 1)
        image.share = share_address()

    def _args(self, instruction: int) -> tuple[Any, ...]:
        assert self._values is not None
        assert self._changes is not None
        scalars = self._changes.scalars.get(instruction)
        if not scalars and not self._values.addresses:
            args = self._arrays.get(instruction)
            if args is None:
                args = with_arrays(self.assembly.calls[instruction].args, self._array)
                self._arrays[instruction] = args
            return args
        given = self.assembly.calls[instruction].args
        changed = scalars or {}
        args = tuple(changed.get(number, value) for number, value in enumerate(given))
        return with_arrays(args, self._array)

    def _array(self, view: ArrayView) -> Any:
        assert self._values is not None
        buffer = self.buffers[view.buffer]
        address = self._address(view.buffer)
        return host_array(view, buffer, address, (buffer.owner, self._values.owners))
