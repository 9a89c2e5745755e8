"""First calls of `benchmarks.simt`, each in a fresh process: ``python -m benchmarks.simt_first W``.

Inputs and the imports of nbrt, Numba and the kernels are off the clock, which counts CPU time; what
nbrt imports when it is first used is on it. Run twice with one folder for compiled kernels
(``NBRT_CACHE_DIR``), it compiles the first time and reads from disk the second.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from benchmarks.environment import ROOT
from benchmarks.harness import Measurement

if TYPE_CHECKING:
    from benchmarks.simt_works import Work

__all__ = ["first_calls"]


def first_calls(works: tuple[Work, ...]) -> list[Measurement]:
    """Return two rows for each work: compiled, and from disk."""
    found = []
    for work in works:
        with tempfile.TemporaryDirectory() as folder:
            for how in ("compiled", "from disk"):
                seconds, note = _one(work, folder)
                found.append(Measurement(f"{work.name}, {how}", seconds, len(seconds), note))
    return found


def _one(work: Work, folder: str) -> tuple[tuple[float, ...], str]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.simt_first", work.name],
        cwd=ROOT,
        env={**os.environ, "NBRT_CACHE_DIR": folder},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return (), done.stderr.splitlines()[-1][:90]
    return (float(done.stdout.splitlines()[-1]),), ""


def main(name: str) -> None:
    """Print the seconds that a work's first call takes."""
    import nbrt
    from benchmarks.simt_library import LIBRARY
    from benchmarks.simt_works import WORKS

    work = next(work for work in (*WORKS, *LIBRARY) if work.name == name)
    problem = work.problem(work.small)
    with nbrt.device("cpu:0"):
        kernel = nbrt.kernel(work.kernel)
        start = time.process_time()
        kernel[problem.grid, problem.block](*problem.arguments)
        print(time.process_time() - start)


if __name__ == "__main__":
    main(sys.argv[1])
