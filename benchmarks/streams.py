"""Streams: what handing over a launch costs, and kernels of two streams side by side."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

import nbrt
from benchmarks.environment import run_pinned
from benchmarks.harness import Contender, Measurement, Options, each, measure
from benchmarks.report import Report, Table, Target, run
from benchmarks.stream_works import (
    BURST,
    LONG_BURST,
    bare_spin_kernel,
    long_contenders,
    short_contenders,
    spin_kernel,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_THREADS = 64
_ELEMENTS = 16 * _THREADS
_ROUNDS = 5_000


def _bare_threads(rounds: int) -> list[Contender]:
    """Return the same work in a bare thread pool: what two cores give at this moment."""
    spin = bare_spin_kernel()
    pool = ThreadPoolExecutor(2)
    arrays = [np.zeros(_ELEMENTS, np.float32) for _ in range(2)]

    def one_after_the_other() -> None:
        for array in arrays:
            pool.submit(spin, array, rounds).result()

    def side_by_side() -> None:
        for future in [pool.submit(spin, array, rounds) for array in arrays]:
            future.result()

    return [
        Contender("two tasks, bare thread", each(one_after_the_other), note="Numba nogil"),
        Contender("two tasks, two bare threads", each(side_by_side), note="Numba nogil"),
    ]


def worker(cores: int, quick: bool) -> dict[str, list[Measurement]]:
    """Measure in this process, whose launches use one thread each (see `fill`)."""
    spin = spin_kernel()
    rounds = _ROUNDS // 4 if quick else _ROUNDS
    streams = [nbrt.Stream("cpu:0") for _ in range(2)]
    arrays = [nbrt.zeros(_ELEMENTS, device="cpu:0") for _ in streams]
    nbrt.synchronize("cpu:0")

    def launch(stream: nbrt.Stream, array: Any) -> None:
        spin[_ELEMENTS // _THREADS, _THREADS, stream](array, rounds)

    def one() -> None:
        launch(streams[0], arrays[0])
        streams[0].synchronize()

    def one_after_the_other() -> None:
        for array in arrays:
            launch(streams[0], array)
        streams[0].synchronize()

    def side_by_side() -> None:
        for stream, array in zip(streams, arrays, strict=True):
            launch(stream, array)
        for stream in streams:
            stream.synchronize()

    calls: dict[str, Callable[[], None]] = {
        "one kernel": one,
        "two kernels, one stream": one_after_the_other,
        "two kernels, two streams": side_by_side,
    }
    options = Options(passes=7 if quick else 31, sample_seconds=0.0)
    contenders = [Contender(name, each(call)) for name, call in calls.items()]
    contenders += _bare_threads(rounds)
    passes = 9 if quick else 101
    short, bursts = short_contenders()
    whole = Options(passes, sample_seconds=0.0)
    return {
        "short": measure(short, Options(passes, sample_seconds=0.0005)),
        "bursts": measure(bursts, whole),
        "long": measure(long_contenders(), whole),
        "overlap": measure(contenders, options),
    }


def _add_short(report: Report, single: list[Measurement], bursts: list[Measurement]) -> None:
    report.tables += [
        Table("Launch 2 blocks of 128 threads and synchronize", single, "default stream"),
        Table(f"Bursts of {BURST} such launches", bursts, "default stream", items=BURST),
    ]
    report.targets.append(
        Target("launch, synchronize: at most 6 µs (least)", single[1].least * 1e6, 6, " µs")
    )
    report.targets += [
        Target(
            f"burst, {row.name}: at most 1.5 µs a launch (least)",
            row.least / BURST * 1e6,
            1.5,
            " µs",
        )
        for row in bursts[1:5]
    ]
    ratio = bursts[1].ratio_to(bursts[0])
    report.targets.append(
        Target("burst, a stream over the default stream: at most 1.3", ratio, 1.3, "x")
    )


def _add_long(report: Report, rows: list[Measurement]) -> None:
    by_name = {row.name: row for row in rows}
    report.tables.append(
        Table(f"{LONG_BURST} launches of 0.1 ms on two cores", rows, "default stream")
    )
    alone = by_name["default stream"]
    names = {
        "default stream, shared by 2 OS threads": alone,
        "2 streams": alone,
        "2 threads, a stream each, synchronized each": alone,
        "2 bare threads": by_name["a bare thread"],
    }
    report.targets += [
        Target(
            f"0.1 ms, {name}: at most 1/1.8 of one (least)",
            by_name[name].least / one.least,
            1 / 1.8,
            "x",
        )
        for name, one in names.items()
    ]
    over = by_name["a stream, synchronized each"].least - alone.least
    report.targets.append(
        Target(
            "0.1 ms, launch and synchronize: at most 6 µs more than by default (least)",
            over / LONG_BURST * 1e6,
            6,
            " µs",
        )
    )


def fill(report: Report, quick: bool) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        report.notes.append("Not measured: the process may use one core only.")
        return
    found = run_pinned("benchmarks.streams", 2, *(["--quick"] if quick else []), threads=1)
    tables = {name: [Measurement.from_json(row) for row in rows] for name, rows in found.items()}
    _add_short(report, tables["short"], tables["bursts"])
    _add_long(report, tables["long"])
    rows = tables["overlap"]
    report.tables.append(
        Table("Kernels of one thread each on two cores", rows, "two kernels, one stream")
    )
    overlap = rows[2].ratio_to(rows[1])
    bare = rows[4].ratio_to(rows[3])
    report.targets += [
        Target("two streams over one: at most 0.6 (0.5 is perfect overlap)", overlap, 0.6, "x"),
        Target("that, over what two bare threads reach: at most 1.1", overlap / bare, 1.1, "x"),
    ]
    report.notes.append(
        "Where others use the machine, no two threads overlap fully: the rows of bare threads say "
        "how far they did here."
    )


if __name__ == "__main__":
    run("streams", "Streams side by side", fill)
