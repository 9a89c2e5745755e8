"""Two streams: compute-bound kernels of one thread each, one after the other or side by side."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

import nbrt
from benchmarks.environment import run_pinned
from benchmarks.harness import Contender, Measurement, Options, each, measure
from benchmarks.report import Report, Table, Target, run

if TYPE_CHECKING:
    from collections.abc import Callable

_THREADS = 64
_ELEMENTS = 16 * _THREADS
_ROUNDS = 5_000


def _spin_kernel() -> nbrt.Kernel:
    from numba import cuda

    @nbrt.kernel
    def spin(out: Any, rounds: Any) -> None:
        i = cuda.grid(1)
        value = out[i]
        for _ in range(rounds):
            value = value * 0.999 + 0.25
        out[i] = value

    return spin


def _bare_threads(rounds: int) -> list[Contender]:
    """Return the same work in a bare thread pool: what two cores give at this moment."""
    import numba

    @numba.njit(nogil=True, error_model="numpy")
    def spin(out: Any, rounds: Any) -> None:
        for i in range(out.size):
            value = out[i]
            for _ in range(rounds):
                value = value * 0.999 + 0.25
            out[i] = value

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
    spin = _spin_kernel()
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
    return {"overlap": measure(contenders, options)}


def fill(report: Report, quick: bool) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        report.notes.append("Not measured: the process may use one core only.")
        return
    found = run_pinned("benchmarks.streams", 2, *(["--quick"] if quick else []), threads=1)
    rows = [Measurement.from_json(row) for row in found["overlap"]]
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
