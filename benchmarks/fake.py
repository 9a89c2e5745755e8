"""Fake devices: the time of a run beside the real CPU device's, the memory it takes, and torch's.

A pass enters each kind of device once. The time to enter `nbrt.fake` and to compile is left out.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import cuda

import nbrt
from benchmarks.allocation_traces import all_traces
from benchmarks.fake_memory import NEEDED, resident_memory
from benchmarks.fake_torch import fill_torch
from benchmarks.harness import Contender, Measurement, Options, each, measure
from benchmarks.report import Report, Sheet, Table, Target, run
from benchmarks.trace_replay import replay, streams_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from benchmarks.allocation_traces import Event

_REAL = "real cpu:0"
_GPU = "H100 SXM"
_LAUNCHES = 1000
_THREADS = 256
_ALLOCATIONS = 1_000_000
_MAX_SECONDS = 10.0
_MAX_MEGABYTES = 5.0


@nbrt.kernel
def add(x: Any, value: Any) -> None:
    """Add a value to every element."""
    i = cuda.grid(1)
    if i < x.size:
        x[i] += value


def _kinds() -> dict[str, tuple[str, AbstractContextManager[Any]]]:
    """Return the device and the block that makes it, by name."""
    return {
        _REAL: ("cpu:0", nullcontext()),
        "fake cpu": ("cpu:0", nbrt.fake("cpu")),
        "fake cuda": ("cuda:0", nbrt.fake("cuda", gpu=_GPU)),
    }


def _rotated(turn: int) -> list[tuple[str, str, AbstractContextManager[Any]]]:
    kinds = [(name, *kind) for name, kind in _kinds().items()]
    return kinds[turn % len(kinds) :] + kinds[: turn % len(kinds)]


# -- programs that spend their time in launches ----------------------------------------------------


def _launches() -> Callable[[], None]:
    x, value = nbrt.zeros(_THREADS, "float32"), np.float32(1)
    launch = add[1, _THREADS]

    def program() -> None:
        for _ in range(_LAUNCHES):
            launch(x, value)

    return program


def _launches_and_arrays(arrays: int, draws: int) -> Callable[[], Callable[[], None]]:
    """Return a program with an array in every `arrays` launches, and a draw in every `draws`."""

    def prepare() -> Callable[[], None]:
        x, value = nbrt.zeros(_THREADS, "float32"), np.float32(1)
        launch = add[1, _THREADS]

        def program() -> None:
            y = x
            for step in range(_LAUNCHES):
                if step % arrays == 0:
                    y = nbrt.empty(_THREADS, "float32")
                if step % draws == 0:
                    nbrt.random.normal_(y)
                launch(y, value)

        return program

    return prepare


_PROGRAMS = {
    f"{_LAUNCHES} launches of {_THREADS} threads": _launches,
    f"{_LAUNCHES} launches, an array for every tenth, a draw for every hundredth": (
        _launches_and_arrays(10, 100)
    ),
    f"{_LAUNCHES} launches, an array for each, a draw for every tenth": _launches_and_arrays(1, 10),
}


def _timed(prepare: Callable[[], Callable[[], None]], options: Options) -> list[Measurement]:
    """Measure a program on each kind of device, in interleaved passes."""
    seconds: dict[str, list[float]] = {name: [] for name in _kinds()}
    one_pass = Options(1, options.sample_seconds)
    for turn in range(options.passes):
        for name, device, block in _rotated(turn):
            with block, nbrt.device(device):
                found = measure([Contender(name, each(prepare()))], one_pass)
            seconds[name] += found[0].seconds
    return [Measurement(name, tuple(taken)) for name, taken in seconds.items()]


def _fill_programs(report: Report) -> None:
    for heading, prepare in _PROGRAMS.items():
        rows = _timed(prepare, report.options)
        report.tables.append(Table(heading, rows, _REAL, items=_LAUNCHES))
        real = rows[0]
        for row in rows[1:]:
            text = f"{heading}: {row.name} over {_REAL}, at most 1"
            ratios = (row.ratio_to(real), "medians"), (row.least / real.least, "least")
            report.targets += [Target(f"{text} ({of})", ratio, 1.0, "x") for ratio, of in ratios]


# -- allocations -----------------------------------------------------------------------------------


class _Taken(NamedTuple):
    """Seconds that passed, and seconds of the processor: other work shares the machine."""

    seconds: float
    of_processor: float


def _replay_seconds(traces: Sequence[Sequence[Event]], device: str, repetitions: int) -> _Taken:
    """Return the time of some replays of traces, after one that does not count."""
    streams = [streams_for(events, device) for events in traces]
    for events, own in zip(traces, streams, strict=True):
        replay(events, own)
    gc.disable()
    try:
        start = time.perf_counter(), time.process_time()
        for _ in range(repetitions):
            for events, own in zip(traces, streams, strict=True):
                replay(events, own)
        return _Taken(time.perf_counter() - start[0], time.process_time() - start[1])
    finally:
        gc.enable()


def _least_seconds(
    traces: Sequence[Sequence[Event]], repetitions: int, passes: int
) -> dict[str, _Taken]:
    """Return the least times of the passes on each kind of device."""
    least = dict.fromkeys(_kinds(), _Taken(float("inf"), float("inf")))
    for turn in range(passes):
        for name, device, block in _rotated(turn):
            with block:
                taken = _replay_seconds(traces, device, repetitions)
            least[name] = _Taken(*map(min, least[name], taken))
    return least


def _allocations(events: Sequence[Event]) -> int:
    return sum(1 for event in events if event.nbytes)


def _fill_traces(report: Report, quick: bool) -> None:
    traces = all_traces()
    rows: list[tuple[str, list[float | None]]] = []
    for name, events in traces.items():
        count = _allocations(events)
        repetitions = max(1, (1000 if quick else 5000) // count)
        least = _least_seconds([events], repetitions, 2 if quick else 5)
        found = [taken.of_processor / repetitions / count * 1e6 for taken in least.values()]
        rows.append((name, [count, *found]))
    columns = ["allocations", *(f"CPU µs each, {name}" for name in _kinds())]
    heading = "Allocate and free, trace by trace, with a plan on fake devices (least of the passes)"
    report.sheets.append(Sheet(heading, columns, rows))
    whole = list(traces.values())
    count = sum(map(_allocations, whole))
    wanted = _ALLOCATIONS // 50 if quick else _ALLOCATIONS
    repetitions = -(-wanted // count)
    passes = 1 if quick or report.limit is not None else 3
    least = _least_seconds(whole, repetitions, passes)
    scale = wanted / (repetitions * count)
    heading = f"{wanted} allocations and their frees: all traces in turn (least of the passes)"
    sums = [(name, [value * scale for value in taken]) for name, taken in least.items()]
    report.sheets.append(Sheet(heading, ["s", "CPU s"], sums))
    limit = _MAX_SECONDS * wanted / _ALLOCATIONS
    for name, (seconds, of_processor) in sums[1:]:
        text = f"{wanted} allocations and frees on {name}: at most {limit:g} s"
        report.targets.append(Target(text, seconds, limit, "s"))
        report.targets.append(Target(f"{text} of the processor", of_processor, limit, "s"))


# -- memory ----------------------------------------------------------------------------------------


def _fill_resident(report: Report) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(resident_memory)
    names = ["resident before", "resident at the end", "most resident, above before"]
    terabytes = found.peak / 1e12
    heading = f"Memory of the process, a program that needs {terabytes:.2f} TB of 8 GPUs"
    values = [found.before, found.after, found.most - found.before]
    rows = [(name, [value / 1e6]) for name, value in zip(names, values, strict=True)]
    report.sheets.append(Sheet(heading, ["MB"], rows))
    text = f"{NEEDED / 1e12:g} TB on fake GPUs: at most {_MAX_MEGABYTES:g} MB more resident"
    report.targets.append(Target(text, values[2] / 1e6, _MAX_MEGABYTES, " MB"))


def fill(report: Report, quick: bool) -> None:
    """Add the tables and targets."""
    _fill_programs(report)
    _fill_traces(report, quick)
    _fill_resident(report)
    fill_torch(report, quick)
    report.notes.append(
        "On fake devices a plan records each launch, array and draw. A pass enters each kind of "
        "device anew; the first run of a program, which checks the kernel, does not count. Beside "
        "medians, the least of the passes is compared, and traces are timed in seconds of the "
        "processor as well: other work shares the machine."
    )


if __name__ == "__main__":
    run("fake", "Fake devices: the cost of a plan, and its accuracy", fill)
