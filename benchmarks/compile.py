"""Forty cold kernels: in place, in compile processes, and by the ways of Numba and Warp.

Each figure is of a new process with an empty folder of compiled code, from the end of its imports
to the last kernel; a second process loads the code that the first has left. All systems compile
the kernels of `benchmarks.compile_kernels`.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.compile_kernels import FORTY
from benchmarks.compile_systems import write_kernels
from benchmarks.environment import last_line, version_of
from benchmarks.harness import Measurement
from benchmarks.report import Report, Sheet, Table, Target, run

if TYPE_CHECKING:
    from collections.abc import Sequence

_PASSES = 5
_LIMITED_KERNELS = 12
_QUICK_KERNELS = 6
_MB = 1e6


@dataclass(frozen=True, slots=True)
class _Case:
    """A process that compiles all kernels.

    Attributes
    ----------
    name : str
        Its row.
    arguments : str
        Those of `benchmarks.compile_systems`.
    load : str
        Those of the second process, which loads; empty: none.
    package : str or None
        What it needs.
    """

    name: str
    arguments: str
    load: str = ""
    package: str | None = None


@dataclass(slots=True)
class _Found:
    """The figures of a case, one for each pass."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    here: list[float] = field(default_factory=list)
    load: list[float] = field(default_factory=list)
    first_load: list[float] = field(default_factory=list)
    note: str = ""


def _ours(rest: str, load: str = "") -> list[_Case]:
    """Return the ways of nbrt."""
    usable = len(os.sched_getaffinity(0))
    numbers = [1, 2] if usable <= 2 else [1, 2, usable]
    return [
        _Case("nbrt, in place", f"nbrt --workers 0{rest}", load),
        *(
            _Case(f"nbrt, {n} {'process' if n == 1 else 'processes'}", f"nbrt --workers {n}{rest}")
            for n in numbers
        ),
    ]


def _groups() -> dict[str, list[_Case]]:
    """Return the cases by what they compile."""
    one, two = " --targets sm_80", " --targets sm_80 sm_90"
    groups = {
        "CPU code": [
            *_ours("", "nbrt-load"),
            _Case("nbrt.warm", "nbrt-warm"),
            _Case("numba.njit, cache=True", "njit", "njit"),
            _Case("numba.njit, cache=True, 2 threads", "njit --workers 2"),
            _Case("Warp, one module", "warp", "", "warp-lang"),
            _Case("Warp, 40 modules", "warp --workers 0", "warp --workers 0 --each", "warp-lang"),
            _Case("Warp, 40 modules, 2 threads", "warp --workers 2", "", "warp-lang"),
        ]
    }
    for heading, rest in (("code for sm_80", one), ("code for sm_80 and sm_90", two)):
        groups[heading] = [
            *_ours(rest, f"nbrt-load{rest}"),
            _Case("nbrt.warm", f"nbrt-warm{rest}"),
            _Case("numba.cuda.compile_ptx", f"numba-cuda{rest}"),
            _Case("numba.cuda.compile_ptx, 2 threads", f"numba-cuda --workers 2{rest}"),
        ]
    groups["CPU code of nbrt_kernels, with barriers"] = _ours(" --library")
    return groups


def _run(arguments: str, kernels: str, folder: str, most: int) -> dict[str, Any]:
    """Return the figures of one process, or raise RuntimeError with its last line."""
    system, *rest = arguments.split()
    command = ["-m", "benchmarks.compile_systems", system, kernels, *rest, "--most", str(most)]
    folders = {"NBRT_CACHE_DIR": folder, "NUMBA_CACHE_DIR": folder}
    found: dict[str, Any] = json.loads(last_line(command, folders))
    return found


def _measure(case: _Case, found: _Found, kernels: str, most: int) -> None:
    """Add one pass of a case."""
    with tempfile.TemporaryDirectory() as folder:
        cold = _run(case.arguments, kernels, folder, most)
        found.wall.append(cold["wall"])
        found.cpu.append(cold["cpu"])
        found.here.append(cold["here"])
        if case.load:
            loaded = _run(case.load, kernels, folder, most)
            found.load.append((loaded["wall"] - loaded["first"]) / (loaded["kernels"] - 1))
            found.first_load.append(loaded["first"])


def _rows(found: dict[str, _Found], figures: str, only: Sequence[str] = ()) -> list[Measurement]:
    return [
        Measurement(name, tuple(getattr(each, figures)), len(each.wall), each.note)
        for name, each in found.items()
        if not only or name in only
    ]


def _add_group(
    report: Report, heading: str, cases: list[_Case], kernels: str, passes: int, most: int
) -> None:
    """Measure the cases of a group in interleaved passes, and add its tables and targets."""
    present = [case for case in cases if case.package is None or version_of(case.package)]
    found = {case.name: _Found() for case in cases}
    for case in cases:
        if case not in present:
            found[case.name].note = "not installed"
    for turn in range(passes):
        shift = turn % len(present)
        for case in (*present[shift:], *present[:shift]):
            if not found[case.name].note:
                try:
                    _measure(case, found[case.name], kernels, most)
                except RuntimeError as error:
                    found[case.name].note = str(error)
    reference = cases[0].name
    for name, figures in (("wall time", "wall"), ("CPU time of all processes", "cpu")):
        report.tables.append(Table(f"{heading}: {name}", _rows(found, figures), reference))
    ours = [case.name for case in cases if case.name.startswith("nbrt,")]
    parent = _rows(found, "here", ours)
    report.tables.append(Table(f"{heading}: CPU time of the program's process", parent, reference))
    loads = [case.name for case in cases if case.load]
    if loads:
        for name, figures in (("the first kernel", "first_load"), ("each further kernel", "load")):
            rows = _rows(found, figures, loads)
            report.tables.append(Table(f"{heading} from disk: {name}", rows, reference))
    _add_targets(report, heading, found)


def _add_targets(report: Report, heading: str, found: dict[str, _Found]) -> None:
    serial, pool = found["nbrt, in place"], found["nbrt, 2 processes"]
    for name, figures, limit in (("time", "wall", 0.6), ("CPU time", "cpu", 1.25)):
        ours, theirs = getattr(pool, figures), getattr(serial, figures)
        ratio = None
        if theirs and len(theirs) == len(ours):
            ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        text = f"{heading}, 2 processes: at most {limit} of the {name} in place"
        report.targets.append(Target(text, ratio, limit, "x"))
    if serial.load:
        text = f"{heading}, from disk: at most 6 ms for each further kernel"
        report.targets.append(Target(text, statistics.median(serial.load), 6e-3, "s"))


def _add_processes(report: Report, kernels: str, most: int, passes: int) -> None:
    """Add the memory of compile processes, and the times of their starts."""
    rows: list[tuple[str, list[float | None]]] = []
    largest = 0.0
    for heading, rest in (
        ("CPU code", ""),
        ("CPU code of nbrt_kernels", " --library"),
        ("code for sm_80 and sm_90", " --targets sm_80 sm_90"),
    ):
        with tempfile.TemporaryDirectory() as folder:
            found = _run(f"nbrt --workers 2 --memory{rest}", kernels, folder, most)
        for is_server in (True, False):
            seen = [each for each in found["memory"] if each["is_server"] == is_server]
            most_used = {
                key: max(each.get(key, 0.0) for each in seen) for key in ("rss", "pss", "own")
            }
            largest = max(largest, most_used["rss"])
            name = "server" if is_server else f"largest of {len(seen)} workers"
            rows.append((f"{heading}: {name}", [each / _MB for each in most_used.values()]))
    columns = ["resident (RSS), MB", "its share (PSS), MB", "private, MB"]
    report.sheets.append(Sheet("Memory of compile processes, most", columns, rows))
    text = "memory of a compile process: at most 250 MB"
    report.targets.append(Target(text, largest / _MB, 250.0, " MB"))
    starts: dict[str, list[float]] = {}
    for _ in range(passes):
        with tempfile.TemporaryDirectory() as folder:
            for name, seconds in _run("starts", kernels, folder, most).items():
                starts.setdefault(name, []).append(seconds)
    measured = [Measurement(name, tuple(each), len(each)) for name, each in starts.items()]
    report.tables.append(Table("Start of compile processes", measured, measured[0].name))
    further = statistics.median(starts["a further process"])
    report.targets.append(Target("start of a further process: at most 50 ms", further, 0.05, "s"))


def fill(report: Report, quick: bool) -> None:
    passes, most = min(report.options.passes, _PASSES), len(FORTY)
    if quick or report.limit is not None:
        passes, most = 1, _QUICK_KERNELS if quick else _LIMITED_KERNELS
        report.notes.append(
            f"{most} of the {len(FORTY)} kernels, and one pass; `python -m benchmarks.compile` "
            f"compiles all of them {_PASSES} times."
        )
    with tempfile.TemporaryDirectory() as folder:
        write_kernels(Path(folder))
        for heading, cases in _groups().items():
            _add_group(report, heading, cases, folder, passes, most)
        _add_processes(report, folder, most, passes)
    report.notes += [
        "Time in a process begins after its imports; that of a pool includes the start of its "
        "processes. On a machine that runs other work, compare CPU times.",
        "nbrt loads what it has compiled, except code for GPUs, which it stores. `compile_ptx` "
        "keeps nothing. Warp's `force_load` compiles modules in threads; Numba holds one lock "
        "while it compiles, so that threads gain nothing.",
        "Numba's functions are loops over all elements. The forms of nbrt and Warp compile one "
        "element; nbrt's also the loops over the threads of a block.",
    ]


if __name__ == "__main__":
    run("compile", "Forty cold kernels", fill)
