"""Two streams: compute-bound kernels of one thread each, one after the other or side by side."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import nbrt
from benchmarks.environment import run_pinned
from benchmarks.harness import Contender, Measurement, Options, each, measure
from benchmarks.report import Report, Table, Target, run

if TYPE_CHECKING:
    from collections.abc import Callable

_THREADS = 64
_ROUNDS = 20_000


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


def worker(cores: int, quick: bool) -> dict[str, list[Measurement]]:
    """Measure in this process, whose launches use one thread each (see `fill`)."""
    spin = _spin_kernel()
    rounds = _ROUNDS // 4 if quick else _ROUNDS
    streams = [nbrt.Stream("cpu:0") for _ in range(2)]
    arrays = [nbrt.zeros(_THREADS * 16, device="cpu:0") for _ in streams]
    nbrt.synchronize("cpu:0")

    def launch(stream: nbrt.Stream, array: Any) -> None:
        spin[16, _THREADS, stream](array, rounds)

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
    options = Options(passes=5 if quick else 15, sample_seconds=0.0)
    contenders = [Contender(name, each(call)) for name, call in calls.items()]
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
    report.targets.append(
        Target(
            "two streams over one: at most 0.6 (an aim; 0.5 is perfect overlap)",
            rows[2].ratio_to(rows[1]),
            0.6,
            "x",
        )
    )


if __name__ == "__main__":
    run("streams", "Streams side by side", fill)
