"""A checked launch: runs the blocks under a lock, then raises the faults that were found."""

from __future__ import annotations

import ctypes
import inspect
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from nbrt.backends.cpu.interrupts import run_stoppable
from nbrt.backends.cpu.simt.checked.blocks import CheckedRecord, spins
from nbrt.backends.cpu.simt.checked.instrument import compiled_sites, view_size
from nbrt.backends.cpu.simt.checked.layout import MAX_RESIDENT_THREADS, Kind
from nbrt.backends.cpu.simt.checked.limits import static_shared_violations, violations
from nbrt.backends.cpu.simt.checked.memory import LaunchState, arrays_in, lock
from nbrt.backends.cpu.simt.checked.reports import CheckReport, Reader
from nbrt.backends.cpu.simt.checked.source_locations import SiteKind
from nbrt.backends.cpu.simt.codegen.block_calls import static_shared_bytes
from nbrt.backends.cpu.simt.frontend.pipeline import marker_kinds
from nbrt.errors import KernelCheckError, LaunchError

if TYPE_CHECKING:
    from types import FunctionType

    from nbrt.backends.cpu.simt.checked.limits import Violation
    from nbrt.backends.cpu.simt.checked.memory import Argument
    from nbrt.backends.cpu.simt.runtime.dispatcher import EntryDispatcher
    from nbrt.backends.interface import Check
    from nbrt.typing import Dim3

__all__ = ["CheckedLaunch"]

_MAX_SHOWN = 10
"""Reports whose text is part of the error's message; its `reports` hold all of them."""

_SIZES = "nbrt.sizes"
"""Key of a compile result's metadata: the result of `_sizes`."""


class CheckedLaunch:
    """Runs a kernel with one launch configuration and checks.

    `entry` is the instrumented entry for the block shape; it takes the address of a
    `CheckedRecord`.
    """

    def __init__(
        self,
        entry: EntryDispatcher,
        function: FunctionType,
        grid: Dim3,
        block: Dim3,
        shared: int,
        check: Check,
    ) -> None:
        self._entry = entry
        self._function, self._name = function, function.__name__
        self._grid, self._block, self._shared = grid, block, shared
        self._check = check
        self._counts = grid[0] * grid[1] * grid[2], block[0] * block[1] * block[2]

    def __call__(self, args: tuple[object, ...]) -> None:
        """Run every block, then raise what was found.

        Raises
        ------
        KernelCheckError
            With one report for each fault.
        """
        thread = self._entry.thread(args)
        self._raise(self._limit_reports(thread))
        arguments = self._arrays(args)
        with lock:
            together = self._is_resident(thread)
            state = LaunchState(
                arguments,
                *self._counts,
                together=together,
                strict=self._check.strict,
                view_size=_sizes(thread)[1],
            )
            record = self._record(together)
            try:
                run_stoppable(self._entry, ctypes.addressof(record), record, args)
            except Exception as error:
                # The exception may follow from a wrong read: the reports say more.
                self._raise(self._reports(state, arguments), error)
                record.note(error)
                raise
            reports = self._reports(state, arguments)
            unchecked = state.unchecked
        if unchecked:
            warnings.warn(
                f"kernel {self._name}: {unchecked} arrays were checked for their bounds only, "
                "because checked mode keeps a shadow of a limited number; check fewer at a time",
                RuntimeWarning,
                stacklevel=2,
            )
        self._raise(reports)

    def _is_resident(self, thread: Any) -> bool:
        """Return whether all blocks are resident at once, because some may wait for others."""
        blocks, threads = self._counts
        fits = blocks * threads <= MAX_RESIDENT_THREADS
        waits_for_grid = "grid" in marker_kinds(thread)
        if waits_for_grid and not fits:
            raise LaunchError(
                f"expected at most {MAX_RESIDENT_THREADS} threads in all for the checked mode of "
                f"kernel {self._name}, whose blocks wait for each other, got {blocks * threads}; "
                "check it with a smaller grid"
            )
        return fits and (waits_for_grid or spins(thread))

    def _record(self, together: bool) -> CheckedRecord:
        generator = np.random.default_rng(self._check.seed)
        order = np.arange if self._check.seed is None else generator.permutation
        blocks, threads = (order(count).astype(np.int64) for count in self._counts)
        seed = self._check.seed or 0
        return CheckedRecord(self._grid, blocks, threads, self._shared, seed, together)

    def _arrays(self, args: tuple[object, ...]) -> list[Argument]:
        signature = inspect.signature(self._function, follow_wrapped=False)
        bound = signature.bind(*args)
        bound.apply_defaults()
        return [
            argument
            for name, value in bound.arguments.items()
            for argument in arrays_in(name, value)
        ]

    def _reports(self, state: LaunchState, arguments: list[Argument]) -> list[CheckReport]:
        reader = Reader(self._name, self._grid, self._block, arguments)
        return _without_duplicates([reader.read(row) for row in state.rows()])

    def _limit_reports(self, thread: Any) -> list[CheckReport]:
        static, _ = _sizes(thread)
        declared = static_shared_violations(static, self._shared)
        where = _largest_array(thread) if declared else {}
        reports = [self._limit_report(violation, **where) for violation in declared]
        target = self._check.target
        if target is not None:
            exceeded = violations(target, self._grid, self._block, static, self._shared)
            reports += map(self._limit_report, exceeded)
        return reports

    def _limit_report(self, violation: Violation, **where: Any) -> CheckReport:
        kind = Kind.LIMITS.name.lower()
        return CheckReport(kind, self._name, **violation._asdict(), **where)

    def _raise(self, reports: list[CheckReport], cause: Exception | None = None) -> None:
        if not reports:
            return
        count = f"{len(reports)} fault{'s' * (len(reports) > 1)}"
        shown = [str(report) for report in reports[:_MAX_SHOWN]]
        if len(reports) > _MAX_SHOWN:
            shown.append(f"... and {len(reports) - _MAX_SHOWN} more in the error's `reports`")
        message = "\n".join([f"checked mode found {count} in kernel {self._name}", *shown])
        raise KernelCheckError(message, tuple(reports)) from cause


def _sizes(thread: Any) -> tuple[int, int]:
    """Return the bytes of static shared memory, and of the smallest element of a view."""
    sizes: tuple[int, int] | None = thread.metadata.get(_SIZES)
    if sizes is None:
        static = static_shared_bytes(str(thread.library._get_module_for_linking()))
        sizes = thread.metadata[_SIZES] = static, view_size(thread)
    return sizes


def _largest_array(thread: Any) -> dict[str, Any]:
    """Return where the largest shared array is declared, as fields of a report."""
    arrays = [site for site in compiled_sites(thread) if site.kind is SiteKind.SHARED]
    site = max(arrays, key=lambda site: site.detail[2])
    return {**site.shown, "function": site.function}


def _without_duplicates(reports: list[CheckReport]) -> list[CheckReport]:
    """Leave out reports of a fault that another report is about."""
    races = {
        (party.line, party.variable)
        for report in reports
        if report.kind == Kind.RACE.name.lower()
        for party in (report, report.other)
        if party is not None
    }
    distinct: dict[tuple[object, ...], CheckReport] = {}
    for report in reports:
        # A race whose read comes first also looks like a read of uninitialised memory.
        is_race = (report.line, report.variable) in races
        if report.kind == Kind.UNINITIALISED.name.lower() and is_race:
            continue
        # `x[i] += 1` is two accesses, and one fault.
        other = report.other
        theirs = (other.file, other.line) if other is not None else None
        key = (report.kind, report.file, report.line, report.variable, report.index, theirs)
        distinct.setdefault(key, report)
    return list(distinct.values())
