"""The cost of a launch by programs for ``numba.cuda``: at most 0.5 µs above a launch of nbrt.

Both run the same kernel over one block of 256 threads, with device arrays. numba-cuda's simulator,
in another process, runs it too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from typing import Any

import numpy as np
from numba import cuda

import nbrt
from benchmarks.environment import ROOT, run_pinned
from benchmarks.harness import Contender, Measurement, Options, each, measure
from benchmarks.report import Report, Table, Target, run

_N = 256
_NBRT = "nbrt.kernel"
_DROP_IN = "numba.cuda on nbrt"
_SIMULATOR = "numba-cuda's simulator"
_SIMULATED_LAUNCHES = 5


def _add(x: Any, y: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        x[i] += y[i]


def _contenders() -> list[Contender]:
    host = np.zeros(_N, np.float32), np.ones(_N, np.float32)
    kernel, reference = cuda.jit(_add), nbrt.kernel(_add)
    d_x, d_y = map(cuda.to_device, host)
    x, y = (nbrt.asarray(vector, device="cpu:0") for vector in host)
    stream = cuda.stream()
    configured = kernel[1, _N]

    return [
        Contender(_NBRT, each(lambda: reference[1, _N](x, y)), note="k[1, 256](x, y)"),
        Contender(_DROP_IN, each(lambda: kernel[1, _N](d_x, d_y)), note="k[1, 256](d_x, d_y)"),
        Contender(
            f"{_DROP_IN}, configured",
            each(lambda: configured(d_x, d_y)),
            note="c = k[1, 256] made once",
        ),
        Contender(
            f"{_DROP_IN}, host arrays",
            each(lambda: kernel[1, _N](*host)),
            note="k[1, 256](x, y) with NumPy arrays",
        ),
        Contender(
            f"{_DROP_IN}, stream",
            each(lambda: kernel[1, _N, stream](d_x, d_y)),
            stream.synchronize,
            "k[1, 256, s](d_x, d_y), submission only",
            1000,
        ),
    ]


def worker(cores: int, quick: bool) -> dict[str, list[Measurement]]:
    """Measure in this process."""
    from nbrt.compat import numba_cuda

    warnings.simplefilter("ignore")  # of numba-cuda, about grids that are small for a GPU
    numba_cuda.install()
    with nbrt.device("cpu:0"):
        return {"launch": measure(_contenders(), Options.quick() if quick else Options())}


def _simulated() -> Measurement:
    """Measure the simulator, where `NUMBA_ENABLE_CUDASIM` is read: in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", "from benchmarks.numba_cuda_launch import simulate; simulate()"],
        cwd=ROOT,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = json.loads(done.stdout.splitlines()[-1])
    return Measurement(_SIMULATOR, tuple(seconds), len(seconds), "k[1, 256](x, y)")


def simulate() -> None:
    """Print the seconds of launches in the simulator."""
    kernel = cuda.jit(_add)
    d_x, d_y = (cuda.to_device(np.ones(_N, np.float32)) for _ in range(2))
    kernel[1, _N](d_x, d_y)
    seconds = []
    for _ in range(_SIMULATED_LAUNCHES):
        begin = time.perf_counter()
        kernel[1, _N](d_x, d_y)
        seconds.append(time.perf_counter() - begin)
    print(json.dumps(seconds))


def fill(report: Report, quick: bool) -> None:
    """Run the benchmark."""
    flags = ["--quick"] if quick else []
    found = run_pinned("benchmarks.numba_cuda_launch", 1, *flags)
    rows = [Measurement.from_json(row) for row in found["launch"]]
    heading = "One block of 256 threads: launched, run, done (one core)"
    report.tables.append(Table(heading, rows, _NBRT))
    report.tables.append(Table("The same in the simulator", [_simulated()], _SIMULATOR))
    excess = rows[1].excess_over(rows[0])
    report.targets.append(
        Target(
            "launch by numba.cuda above that of nbrt.kernel: at most 0.5 µs", excess, 0.5e-6, "s"
        )
    )


if __name__ == "__main__":
    run("numba_cuda_launch", "Launches by programs for numba.cuda", fill)
