"""Checked mode as the CPU backend holds it: a kernel, and the plan of launching it with checks."""

from __future__ import annotations

import ctypes
import inspect
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.cpu.block_scheduler import note_place
from nbrt.backends.cpu.interrupts import run_stoppable
from nbrt.backends.cpu.simt.checked.compiler import compiled_sites
from nbrt.backends.cpu.simt.checked.entry import CheckedEntry, CheckedLaunch
from nbrt.backends.cpu.simt.checked.kinds import Kind, SiteKind
from nbrt.backends.cpu.simt.checked.layout import MAX_SEATS
from nbrt.backends.cpu.simt.checked.limits import faults, static_faults
from nbrt.backends.cpu.simt.checked.memory import LaunchState, arrays_in, lock
from nbrt.backends.cpu.simt.checked.reports import CheckReport, Reader, unravelled
from nbrt.backends.cpu.simt.frontend.pipeline import marker_kinds
from nbrt.backends.cpu.waiting import wait_address
from nbrt.errors import KernelCheckError, KernelDeadlockError, LaunchError

if TYPE_CHECKING:
    from nbrt.backends.captures import Captures
    from nbrt.backends.cpu.simt.checked.limits import Fault
    from nbrt.backends.cpu.simt.checked.memory import Argument
    from nbrt.backends.interface import Check
    from nbrt.typing import Dim3

__all__ = ["CheckedKernel", "CheckedRun"]

_SHOWN = 10
"""Reports whose text goes into the error's own; all are in its `reports`."""


class CheckedKernel:
    """A kernel in the CUDA dialect, compiled with checks.

    Parameters
    ----------
    captures : Captures
        Those of a plain function in the dialect.

    Attributes
    ----------
    name : str
        The kernel's name.
    function : function
        Its plain function, over the captured values.
    """

    def __init__(self, captures: Captures) -> None:
        self._captures = captures
        self.function = captures.frozen
        self.name = self.function.__name__
        self._entries: dict[tuple[Dim3, bool], CheckedEntry] = {}

    def run(self, grid: Dim3, block: Dim3, shared: int, check: Check) -> CheckedRun:
        """Return the launch of this kernel in one configuration; compiles nothing."""
        return CheckedRun(self, grid, block, shared, check)

    def entry(self, block: Dim3, seeded: bool) -> CheckedEntry:
        """Give the compiled entry for one block shape, with threads in or out of their order."""
        entry = self._entries.get((block, seeded))
        if entry is None:
            made = CheckedEntry(self._captures, block, seeded)
            entry = self._entries.setdefault((block, seeded), made)
        return entry


class CheckedRun:
    """A kernel with its launch configuration, run with checks.

    Attributes
    ----------
    kernel : CheckedKernel
        The kernel.
    label : str
        The kernel's name in messages.
    """

    def __init__(
        self, kernel: CheckedKernel, grid: Dim3, block: Dim3, shared: int, check: Check
    ) -> None:
        self.kernel = kernel
        self.label = f"kernel {kernel.name}"
        self._grid, self._block, self._shared = grid, block, shared
        self._check = check
        self._entry = kernel.entry(block, check.seed is not None)

    def prepare(self, args: tuple[object, ...]) -> None:
        """Compile for the types of the arguments, without running anything."""
        self._entry.prepare(args)

    def __call__(self, args: tuple[object, ...]) -> None:
        """Run every block, then raise what was found.

        Raises
        ------
        KernelCheckError
            With one report for each fault.
        """
        thread = self._entry.prepare(args)
        self._raise(self._limits(thread))
        arguments = self._arrays(args)
        with lock:
            together = self._runs_together(thread)
            strict = self._check.strict
            state = LaunchState(arguments, *self._counts(), together=together, strict=strict)
            try:
                self._run(args, together)
            except Exception as error:
                # A wrong read may well be why the kernel has raised: the reports say more.
                self._raise(self._read(state, arguments), error)
                if state.block >= 0:
                    block = unravelled(state.block, self._grid)
                    thread = unravelled(state.thread, self._block)
                    error.add_note(f"in block {block}, thread {thread}")
                raise
            found = self._read(state, arguments)
            left_out = state.unchecked
        if left_out:
            warnings.warn(
                f"{self.label}: {left_out} arrays were checked for their bounds only, because "
                "checked mode keeps a shadow of a limited number; check fewer at a time",
                RuntimeWarning,
                stacklevel=2,
            )
        self._raise(found)

    def _counts(self) -> tuple[int, int]:
        blocks = self._grid[0] * self._grid[1] * self._grid[2]
        return blocks, self._block[0] * self._block[1] * self._block[2]

    def _runs_together(self, thread: Any) -> bool:
        """Return whether all blocks are under way at once: they wait for each other, or may."""
        blocks, threads = self._counts()
        fits = blocks * threads <= MAX_SEATS
        if "grid" in marker_kinds(thread) and not fits:
            raise LaunchError(
                f"expected at most {MAX_SEATS} threads in all for the checked mode of "
                f"{self.label}, whose blocks wait for each other, got {blocks * threads}; check it "
                "with a smaller grid"
            )
        return fits and ("grid" in marker_kinds(thread) or self._entry.spins(thread))

    def _run(self, args: tuple[object, ...], together: bool) -> None:
        generator = np.random.default_rng(self._check.seed)
        orders = [
            np.arange(count) if self._check.seed is None else generator.permutation(count)
            for count in self._counts()
        ]
        blocks, threads = (order.astype(np.int64) for order in orders)
        # Words, so that it is aligned for every type; filled with what is unlikely to go unnoticed.
        shared = np.full(-(-self._shared // 8) or 1, -1, np.int64)
        launch = CheckedLaunch(
            *self._grid,
            *(len(blocks), blocks.ctypes.data),
            *(len(threads), threads.ctypes.data),
            *(shared.ctypes.data, self._shared, self._check.seed or 0),
            *(0, together, wait_address()),
        )
        try:
            run_stoppable(self._entry, ctypes.addressof(launch), launch, args)
        except KernelDeadlockError as error:
            note_place(error, tuple(launch.failed))
            raise

    def _arrays(self, args: tuple[object, ...]) -> list[Argument]:
        signature = inspect.signature(self.kernel.function, follow_wrapped=False)
        bound = signature.bind(*args)
        bound.apply_defaults()
        return [
            argument
            for name, value in bound.arguments.items()
            for argument in arrays_in(name, value)
        ]

    def _read(self, state: LaunchState, arguments: list[Argument]) -> list[CheckReport]:
        reader = Reader(self.kernel.name, self._grid, self._block, arguments)
        return _distilled([reader.read(row) for row in state.rows()])

    def _limits(self, thread: Any) -> list[CheckReport]:
        static = self._entry.static_shared(thread)
        declared = static_faults(static, self._shared)
        where = self._largest_array(thread) if declared else {}
        reports = [self._limit(fault, **where) for fault in declared]
        if self._check.target is not None:
            found = faults(self._check.target, self._grid, self._block, static, self._shared)
            reports += map(self._limit, found)
        return reports

    def _limit(self, fault: Fault, **where: Any) -> CheckReport:
        message, advice, block, thread = fault
        kind, name = Kind.LIMITS.name.lower(), self.kernel.name
        return CheckReport(kind, name, message, advice, block=block, thread=thread, **where)

    def _largest_array(self, thread: Any) -> dict[str, Any]:
        """Tell where the largest shared array is declared, in the terms of a report."""
        arrays = [site for site in compiled_sites(thread) if site.kind is SiteKind.SHARED]
        site = max(arrays, key=lambda each: each.detail[2])
        names = ("function", "file", "line", "source", "variable")
        return {name: getattr(site, name) for name in names}

    def _raise(self, reports: list[CheckReport], cause: Exception | None = None) -> None:
        if not reports:
            return
        count = f"{len(reports)} fault{'s' * (len(reports) > 1)}"
        shown = [str(report) for report in reports[:_SHOWN]]
        if len(reports) > _SHOWN:
            shown.append(f"... and {len(reports) - _SHOWN} more in the error's `reports`")
        message = "\n".join([f"checked mode found {count} in {self.label}", *shown])
        raise KernelCheckError(message, tuple(reports)) from cause


def _distilled(reports: list[CheckReport]) -> list[CheckReport]:
    """Leave out what says the same again."""
    races = {
        (party.line, party.variable)
        for report in reports
        if report.kind == Kind.RACE.name.lower()
        for party in (report, report.other)
        if party is not None
    }
    found: dict[tuple[object, ...], CheckReport] = {}
    for report in reports:
        # Read too early is what a race looks like when the reader comes first.
        is_race = (report.line, report.variable) in races
        if report.kind == Kind.UNINITIALISED.name.lower() and is_race:
            continue
        # `x[i] += 1` is two accesses, and one fault.
        other = report.other
        theirs = (other.file, other.line) if other is not None else None
        place = (report.kind, report.file, report.line, report.variable, report.index, theirs)
        found.setdefault(place, report)
    return list(found.values())
