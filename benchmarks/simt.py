"""CUDA kernels on the CPU, and the same work in other systems.

Each system and number of threads has a separate process, which also measures NumPy. Times of
different processes are scaled by the times of NumPy, so that drift and other users of the machine
have less effect.

The figures of one system: ``python -m benchmarks.pinned 1 benchmarks.simt nbrt reduce scan``.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.environment import run_pinned
from benchmarks.harness import Contender, Measurement, Options, absent, each, measure
from benchmarks.report import Report, Table, Target, run
from benchmarks.simt_first import first_calls
from benchmarks.simt_library import LIBRARY
from benchmarks.simt_simulator import simulated
from benchmarks.simt_systems import SYSTEMS, Form, numpy_forms
from benchmarks.simt_works import WORKS, Problem, Work

if TYPE_CHECKING:
    from collections.abc import Callable

_LIMIT = 1.1
_SCALING = 1 / 1.8
_LIBRARY_SYSTEMS = ("nbrt", "numba")
_ROUNDS = 3
_MIN_SECONDS = 5.0
_EXTRA_SECONDS = 60.0
"""About the time of first calls and the simulator."""
_PAIRS = (
    ("histogram", "nbrt", "Numba prange", 0.9),
    ("sort", "nbrt", "Numba prange", 0.5),
    ("heat", "nbrt", "Numba prange", 1.0),
    ("Jacobi", "nbrt", "Numba prange", 1.0),
    ("norm", "nbrt, fast", "Numba prange, fast", 1.1),
    ("k-means", "nbrt, fast", "Numba prange, fast", 1.1),
    ("SpMV", "nbrt", "Numba prange", 1.0),
    ("CSR", "nbrt", "Numba prange", 1.0),
)
"""Works, two systems, and the limit of their ratio."""

Rows = dict[str, list[Measurement]]


def worker(cores: int, quick: bool, system: str, *names: str) -> Rows:
    """Measure one system and NumPy in this process, which is pinned already."""
    options = Options(passes=5 if quick else 9)
    # On one core the CPU time of the process is the time on an idle machine.
    clock = time.process_time if cores == 1 else time.perf_counter
    works = (*WORKS, *LIBRARY) if system in _LIBRARY_SYSTEMS else WORKS
    found = {}
    for work in works:
        if names and work.name not in names:
            continue
        problem = work.problem(work.size)
        contenders = [
            contender
            for name, forms in (("NumPy", numpy_forms), (system, SYSTEMS[system]))
            for contender in _contenders(name, forms, work, problem, cores)
        ]
        found[work.name] = measure(contenders, options, clock)
    if system == "nbrt" and not names:
        found["launch"] = measure(_launches(), Options.quick() if quick else Options(), clock)
    return found


def _contenders(
    system: str, forms: Callable[..., Any], work: Work, problem: Problem, cores: int
) -> list[Contender]:
    """Return the forms of a work with correct results; the others have notes with their errors."""
    found: list[Contender] = []
    try:
        found.extend(
            form if isinstance(form, Contender) else _checked(form, problem)
            for form in forms(work, problem, cores)
        )
    except Exception as error:  # noqa: BLE001  # other systems must still run
        found.append(absent(system, _brief(error)))
    return found


def _checked(form: Form, problem: Problem) -> Contender:
    form.out[...] = 0
    try:
        form.call()
        problem.check(form.name, form.out)
    except Exception as error:  # noqa: BLE001
        return absent(form.name, _brief(error))
    return Contender(form.name, each(form.call), form.settle, form.note)


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:80]}"


def _launches() -> list[Contender]:
    """Return launches of one block of 256 threads, without a barrier and with eight."""
    import nbrt

    found = []
    for work in WORKS[:2]:
        problem = work.problem(256)
        with nbrt.device("cpu:0"):
            launch = nbrt.kernel(work.kernel)[1, 256]
        form = Form(
            f"nbrt, {work.name}", lambda p=problem, k=launch: k(*p.arguments), problem.arguments[0]
        )
        found.append(_checked(form, problem))
    x, y, out = np.ones((3, 256), np.float32)
    return [*found, Contender("NumPy", each(lambda: np.add(x, y, out=out)), note="one addition")]


def fill(report: Report, quick: bool) -> None:
    counts = [1] if quick else [1, 2]
    if counts[-1] > len(os.sched_getaffinity(0)):
        report.notes.append("Two threads were not measured: the process may use one core.")
        counts = [1]
    found = _measured(report, counts, quick)
    for cores in counts:
        for work in (*WORKS, *LIBRARY):
            heading = f"{work.heading}, {cores} thread{'s' * (cores > 1)}"
            items = work.items(work.size)
            nbytes = work.nbytes * items or None
            rows = found[cores][work.name]
            report.tables.append(Table(heading, rows, _reference(rows), items, nbytes))
    _comparisons(report, found)
    launches = found[1].get("launch", [])
    report.tables.append(Table("Launch of one block of 256 threads", launches, "NumPy"))
    for text, name in (("launch of one block", "nbrt, saxpy"), ("with barriers", "nbrt, reduce")):
        row = _row(launches, name)
        report.targets.append(
            Target(f"{text}: at most 2 µs", row.median if row else None, 2e-6, "s")
        )
    report.notes.append(
        "One thread: CPU time of a process on one core; two threads: elapsed time. "
        "Every system ran in separate processes. Its times are scaled by what NumPy took there "
        "over what NumPy took beside nbrt; the row of NumPy is the latter. PoCL and Intel run the "
        "same algorithm as the kernel; Numba, Warp and Taichi each their own form of the work. "
        "Numba prange, fast, and nbrt, fast: with fast-math but for infinities and NaN."
    )


def _measured(report: Report, counts: list[int], quick: bool) -> dict[int, Rows]:
    """Return the rows of every number of threads; the limit decides on the number of rounds.

    First calls and the simulator come after the first round, so that a limit does not omit them.
    """
    rounds: list[dict[int, Rows]] = []
    longest = 0.0
    while len(rounds) < (1 if quick else _ROUNDS) and (not rounds or report.has_time_for(longest)):
        begin = time.monotonic()
        rounds.append({cores: _round(report, cores, quick) for cores in counts})
        longest = max(longest, time.monotonic() - begin)
        if len(rounds) > 1 or quick:
            continue
        if report.has_time_for(_EXTRA_SECONDS):
            _first(report)
            _simulator(report, rounds[0][1])
        else:
            report.notes.append("First calls and the simulator: the limit of the run was reached.")
    # A round that the limit has cut short would take the rows of the others with it.
    rounds = [each for each in rounds if _gaps(each) <= _gaps(rounds[0])]
    report.notes.append(f"Rounds of all systems: {len(rounds)}.")
    return {cores: _merged([each[cores] for each in rounds]) for cores in counts}


def _gaps(found: dict[int, Rows]) -> set[tuple[int, str, str]]:
    """Return the rows without times."""
    return {
        (cores, name, row.name)
        for cores, groups in found.items()
        for name, rows in groups.items()
        for row in rows
        if not row.seconds
    }


def _round(report: Report, cores: int, quick: bool) -> Rows:
    """Measure every system once, and scale the rows to one NumPy time.

    With a limit, no system takes more than a quarter of it. A work that no system measured has the
    rows of the systems that failed.
    """
    flags = ["--quick"] if quick else []
    found: Rows = {}
    failed = []
    for system in SYSTEMS:
        left = report.seconds_left
        if left < _MIN_SECONDS:
            failed.append(Measurement(system, note="the limit of the run was reached"))
            continue
        limit = None if report.limit is None else min(left, report.limit / 4)
        try:
            groups = run_pinned("benchmarks.simt", cores, system, *flags, seconds=limit)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            reason = str(error).partition("\n")[0]
            failed.append(Measurement(system, note=f"{reason[:90]}"))
            continue
        for name, group in groups.items():
            numpy, *rows = (Measurement.from_json(row) for row in group)
            if name == "launch":
                found[name] = [numpy, *rows]
                continue
            if name not in found:
                found[name] = [numpy]
            scale = found[name][0].median / numpy.median
            found[name] += [_scaled(row, scale) for row in rows]
    names = dict.fromkeys([*(work.name for work in (*WORKS, *LIBRARY)), *found])
    return {name: [*found.get(name, []), *failed] for name in names}


def _scaled(row: Measurement, scale: float) -> Measurement:
    return Measurement(row.name, tuple(s * scale for s in row.seconds), row.calls, row.note)


def _merged(rounds: list[Rows]) -> Rows:
    """Join the passes of the rounds; a row that is missing in one round is missing."""
    merged: Rows = {}
    for name, rows in rounds[0].items():
        merged[name] = []
        for row in rows:
            parts = [_row(found.get(name, []), row.name) for found in rounds]
            whole = [part.seconds for part in parts if part is not None]
            seconds = tuple(itertools.chain(*whole)) if len(whole) == len(rounds) else ()
            merged[name].append(Measurement(row.name, seconds, row.calls, row.note))
    return merged


def _row(rows: list[Measurement], name: str) -> Measurement | None:
    return next((row for row in rows if row.name == name and row.seconds), None)


def _reference(rows: list[Measurement]) -> str:
    return "nbrt" if _row(rows, "nbrt") else "NumPy"


def _comparisons(report: Report, found: dict[int, Rows]) -> None:
    """Add the targets: relative to the fastest peer on one thread, and two threads to one."""
    for work in WORKS:
        rows = found[1][work.name]
        nbrt = _row(rows, "nbrt")
        peers = [
            row
            for row in rows
            if row.seconds and not row.name.startswith("nbrt") and row.note != "BLAS"
        ]
        if not peers:
            continue
        best = min(peers, key=lambda row: row.median)
        if best.name.endswith(", fast"):
            nbrt = _row(rows, "nbrt, fast")
        ratio = nbrt.ratio_to(best) if nbrt else None
        own = nbrt.name if nbrt else "nbrt"
        text = f"{work.name}, one thread, {own} over the best peer ({best.name}): at most {_LIMIT}"
        report.targets.append(Target(text, ratio, _LIMIT, "x"))
    for name, own, peer, limit in _PAIRS:
        rows = found[1][name]
        nbrt, other = _row(rows, own), _row(rows, peer)
        ratio = nbrt.ratio_to(other) if nbrt and other else None
        text = f"{name}, one thread, {own} over {peer}: at most {limit}"
        report.targets.append(Target(text, ratio, limit, "x"))
    for work in (*WORKS, *LIBRARY):
        one, two = (_row(found.get(cores, {}).get(work.name, []), "nbrt") for cores in (1, 2))
        if work.nbytes or one is None or two is None:
            continue
        text = f"{work.name}, two threads over one: at most 1 / 1.8"
        report.targets.append(Target(text, two.median / one.median, _SCALING, "x"))


def _first(report: Report) -> None:
    rows = first_calls((*WORKS, *LIBRARY))
    report.tables.append(Table("First call in a fresh process", rows, rows[0].name))
    for how, limit in (("compiled", 1.5), ("from disk", 0.05)):
        slowest = [row for row in rows if row.name.endswith(how) and row.seconds]
        if slowest:
            row = max(slowest, key=lambda row: row.median)
            text = f"slowest first call, {how} ({row.name.partition(',')[0]})"
            report.targets.append(Target(f"{text}: at most {limit} s", row.median, limit, "s"))


def _simulator(report: Report, found: Rows) -> None:
    each_one = simulated(tuple(work.name for work in WORKS))
    for work in WORKS:
        nbrt = _row(found[work.name], "nbrt")
        if work.name not in each_one:
            report.notes.append(f"{work.name}: numba-cuda's simulator has no warp operations.")
        elif nbrt is not None:
            ratio = each_one[work.name] / (nbrt.median / work.items(work.size))
            text = f"{work.name}, 10,000 elements over one in the CUDA simulator: at most 1"
            report.targets.append(Target(text, 1e4 / ratio, 1.0, "x"))
            report.notes.append(f"{work.name}: {ratio:.3g} times the speed of the simulator.")


if __name__ == "__main__":
    run("simt", "CUDA-shaped kernels on CPUs", fill)
