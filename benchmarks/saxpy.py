"""saxpy on 2**24 float32: target at most 1.15 times the best peer on one thread."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.environment import ROOT, run_pinned
from benchmarks.harness import Contender, Measurement, Options, measure
from benchmarks.report import Report, Table, Target, run

_N = 1 << 24
_SIMULATED = 2048
_PEERS = ("NumPy", "Numba prange", "PoCL", "Warp")
"""The peers of the target; the report also shows others."""

_SIMULATOR = """
import time, numpy as np
from numba import cuda
from nbrt_kernels.elementwise import saxpy
n = {n}
kernel = cuda.jit(saxpy)
x = np.ones(n, np.float32); out = np.zeros_like(x)
seconds = []
for _ in range(3):
    start = time.perf_counter()
    kernel[n // 256, 256](out, np.float32(2.5), x, x)
    seconds.append(time.perf_counter() - start)
assert (out == 3.5).all()
print(min(seconds[1:]))
"""


def worker(cores: int, quick: bool) -> dict[str, list[Measurement]]:
    """Measure in this process, which is pinned already."""
    from benchmarks.saxpy_peers import contenders

    found: list[Contender] = contenders(_N, cores)
    options = Options(passes=7 if quick else 21, sample_seconds=0.0)
    return {"saxpy": measure(found, options)}


def _simulator_seconds() -> float | None:
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", _SIMULATOR.format(n=_SIMULATED)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return float(done.stdout) if done.returncode == 0 else None


def _targets(table: Table) -> list[Target]:
    peers = [row for row in table.rows if row.seconds and row.name.startswith(_PEERS)]
    best = min(peers, key=lambda row: row.median)
    found = []
    for row in table.rows[:2]:
        text = f"{row.name}, one thread, over the best peer ({best.name}): at most 1.15"
        found.append(Target(text, row.ratio_to(best), 1.15, "x"))
    return found


def fill(report: Report, quick: bool) -> None:
    n = _N
    flags = ["--quick"] if quick else []
    for cores in (1,) if quick else (1, 2):
        if cores > len(os.sched_getaffinity(0)):
            report.notes.append("Two threads were not measured: the process may use one core.")
            break
        found = run_pinned("benchmarks.saxpy", cores, *flags)
        rows = [Measurement.from_json(row) for row in found["saxpy"]]
        heading = f"saxpy, {n} float32, {cores} thread{'s' * (cores > 1)}"
        table = Table(heading, rows, "nbrt", items=n, nbytes=12 * n)
        report.tables.append(table)
        if cores == 1:
            report.targets += _targets(table)
            nbrt = table.row("nbrt")
    simulated = None if quick else _simulator_seconds()
    if simulated is not None and nbrt is not None:
        ratio = (simulated / _SIMULATED) / (nbrt.median / n)
        report.notes.append(
            f"numba-cuda's simulator (NUMBA_ENABLE_CUDASIM), {_SIMULATED} elements: "
            f"{simulated / _SIMULATED * 1e6:.3g} µs per element, {ratio:.3g} times nbrt's."
        )
    else:
        report.notes.append("numba-cuda's simulator: left out of quick runs, or did not run.")
    report.notes.append("GB/s counts 12 bytes per element: two reads and one write.")


if __name__ == "__main__":
    run("saxpy", "saxpy", fill)
