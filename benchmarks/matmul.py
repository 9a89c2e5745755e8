"""The register-tiled matrix product of `nbrt_kernels`, and OpenBLAS by NumPy.

Each number of threads has a separate process, in which both are measured in interleaved passes.
Two threads are also compared with two threads of NumPy that share nothing: on a machine with other
work, even these do less than twice the work of one.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.environment import run_pinned
from benchmarks.harness import (
    Contender,
    Measurement,
    Options,
    each,
    measure,
    wait_for_other_threads,
)
from benchmarks.report import Report, Table, Target, run

_SIZES = (512, 1024)
_SHARE = 1 / 0.9
_SCALING = 1 / 1.8
_ROOTS = 300
"""Square roots of an array in the second level of the cache: some 8 ms."""


def worker(cores: int, quick: bool, *names: str) -> dict[str, list[Measurement]]:
    """Measure every size in this process, which is pinned already."""
    import nbrt
    from nbrt_kernels import linalg

    options = Options(passes=7 if quick else 41, sample_seconds=0.0)
    # On one core the CPU time of the process is the time on an idle machine.
    clock = time.process_time if cores == 1 else time.perf_counter
    found = {}
    for n in _SIZES[:1] if quick else _SIZES:
        generator = np.random.default_rng(1)
        a, b = generator.random((2, n, n), np.float32)
        out, blas = np.zeros((2, n, n), np.float32)
        blocks = -(-n // linalg.MATRIX_TILE)
        with nbrt.device("cpu:0"):
            launch = nbrt.kernel(linalg.matmul)[(blocks, blocks), linalg.MATRIX_THREADS]
        launch(out, a, b)
        np.testing.assert_allclose(out, linalg.matmul_reference(a, b), rtol=1e-5)
        contenders = [
            Contender("nbrt", each(lambda out=out, a=a, b=b, k=launch: k(out, a, b))),
            Contender(
                "OpenBLAS",
                each(lambda c=blas, a=a, b=b: np.matmul(a, b, out=c)),
                wait_for_other_threads if cores > 1 else None,
            ),
        ]
        if cores > 1:
            contenders += _bare_threads(cores)
        found[str(n)] = measure(contenders, options, clock)
    return found


def _bare_threads(cores: int) -> list[Contender]:
    """Return the same work of NumPy in one thread, and in each of several threads."""
    arrays = np.ones((cores, 1 << 17), np.float32)
    executor = ThreadPoolExecutor(cores)

    def work(array: np.ndarray) -> None:
        for _ in range(_ROOTS):
            np.sqrt(array, out=array)

    return [
        Contender("one bare thread", each(lambda: list(executor.map(work, arrays[:1])))),
        Contender(f"{cores} bare threads", each(lambda: list(executor.map(work, arrays)))),
    ]


def fill(report: Report, quick: bool) -> None:
    """Add a table for each size and number of threads."""
    flags = ["--quick"] if quick else []
    least: dict[tuple[int, str], float] = {}
    for cores in (1,) if quick else (1, 2):
        if cores > len(os.sched_getaffinity(0)):
            report.notes.append("Two threads were not measured: the process may use one core.")
            break
        for n, group in run_pinned("benchmarks.matmul", cores, *flags).items():
            rows = [Measurement.from_json(row) for row in group]
            rows, bare = rows[:2], rows[2:]
            heading = f"{n} x {n} float32, {cores} thread{'s' * (cores > 1)}"
            report.tables.append(Table(heading, rows, "OpenBLAS", items=float(n) ** 3))
            least[cores, n] = rows[0].least
            if cores == 1:
                text = (
                    f"{n} x {n}, one thread, over OpenBLAS: at most 1 / 0.9 (least of the passes)"
                )
                ratio = rows[0].least / rows[1].least
                report.targets.append(Target(text, ratio, _SHARE, "x"))
            else:
                text = f"{n} x {n}, two threads over one: at most 1 / 1.8 (least of the passes)"
                ratio = rows[0].least / least[1, n]
                report.targets.append(Target(text, ratio, _SCALING, "x"))
                done = cores * bare[0].least / bare[1].least
                report.notes.append(
                    f"{n} x {n}, two threads: {1 / ratio:.2f} times the work of one; two bare "
                    f"threads of NumPy in the same passes: {done:.2f} times."
                )
    report.notes.append("An item is a multiply-add. One thread: CPU time; two: elapsed time.")


if __name__ == "__main__":
    run("matmul", "Matrix product with tiles in registers", fill)
