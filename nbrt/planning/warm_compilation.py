"""Compilation of collected kernels by a pool, with the time of each."""

from __future__ import annotations

import time
from concurrent.futures import as_completed
from pathlib import Path
from typing import TYPE_CHECKING

from nbrt.backends.interface import PreparablePlan
from nbrt.planning.progress import ProgressLine
from nbrt.planning.warm_result import WarmedKernel, WarmResult
from nbrt.runtime.programs import programs_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt._internal.callsite import CallSite
    from nbrt.compilation.future import CompileFuture
    from nbrt.compilation.pool import AsyncCompile
    from nbrt.planning.launched_kernels import LaunchedKernel, LaunchedKernels
    from nbrt.planning.warm_result import Source

__all__ = ["compile_kernels"]


def compile_kernels(
    found: LaunchedKernels, pool: AsyncCompile, *, progress: bool | None, loads: bool
) -> WarmResult:
    """Compile kernels in the processes of a pool; wait; return the table.

    Parameters
    ----------
    found : LaunchedKernels
        The kernels.
    pool : AsyncCompile
        The processes.
    progress : bool or None
        Whether to show a progress bar; None: in terminals and notebooks.
    loads : bool
        Whether this process will launch the kernels.
    """
    begin = time.perf_counter()
    rows: dict[int, WarmedKernel] = {}
    numbers: dict[object, int] = {}
    futures: list[CompileFuture[None]] = []
    with ProgressLine(len(found.kernels), is_shown=progress) as line:
        try:
            for number, kernel in enumerate(found.kernels):
                load = _loader(kernel, is_here=loads and not found.targets)
                new = [job for job in kernel.jobs if not job.is_stored]
                line.show(len(rows), kernel.signature)
                futures.append(pool.submit(new, load, kernel.signature))
                numbers[futures[-1]] = number
            for future in as_completed(futures):
                number = numbers[future]
                rows[number] = _row(found.kernels[number], futures[number], found.targets)
                line.show(len(rows), rows[number].kernel)
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    ordered = tuple(rows[number] for number in sorted(rows))
    return WarmResult(ordered, time.perf_counter() - begin, pool.workers)


def _loader(kernel: LaunchedKernel, *, is_here: bool) -> Callable[[], None]:
    """Return a function that loads the code of a kernel for launches of this process."""

    def load() -> None:
        version, interface = kernel.version, kernel.interface
        configuration = version.grid, version.block, version.shared
        for programs in programs_of(version.function) if is_here else ():
            program = programs.get(interface).program
            plan = program.plan(version.index, *configuration)
            if isinstance(plan, PreparablePlan):
                plan.prepare(version.args)

    return load


def _row(
    kernel: LaunchedKernel, future: CompileFuture[None], targets: tuple[str, ...]
) -> WarmedKernel:
    """Return the row of a kernel whose compilation has ended; load its code."""
    begin = time.perf_counter()
    error = future.exception()
    here = time.perf_counter() - begin
    outcomes = [outcome for outcome in future.outcomes if outcome is not None]
    seconds = sum(outcome.seconds for outcome in outcomes)
    source: Source = "compiled" if outcomes else "cached"
    if error is not None:
        source = "failed"
    elif not kernel.jobs or any(outcome.status == "unstored" for outcome in outcomes):
        source, seconds = "unstored", seconds + here
    elif any(outcome.status == "lost" for outcome in outcomes):
        seconds += here
    version, kind = kernel.version, kernel.interface.name
    return WarmedKernel(
        kernel=version.function.__name__,
        signature=kernel.signature,
        block=version.block if kind == "cpu" else None,
        device=", ".join(targets) if targets and kind != "cpu" else kind,
        is_draw=version.is_draw,
        source=source,
        seconds=seconds,
        error=error,
        site=_text_of(kernel.site),
    )


def _text_of(site: CallSite) -> str:
    frames = site.frames()
    if not frames:
        return ""
    return f"{Path(frames[0]['filename']).name}:{frames[0]['line']} {frames[0]['name']}"
