"""The works in the simulator of numba-cuda, at small sizes, in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from benchmarks.environment import ROOT

__all__ = ["simulated"]


def simulated(works: tuple[str, ...]) -> dict[str, float]:
    """Return seconds per element for each work that the simulator can run."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.simt_simulator", *works],
        cwd=ROOT,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the simulator failed:\n{done.stdout}{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(names: list[str]) -> None:
    """Print seconds per element, by work."""
    from numba import cuda

    from benchmarks.simt_works import WORKS

    found = {}
    for work in WORKS:
        if work.name not in names:
            continue
        problem = work.problem(work.small)
        kernel = cuda.jit(work.kernel)[problem.grid, problem.block]
        start = time.perf_counter()
        try:
            kernel(*problem.arguments)
        except AttributeError:
            # It has no warp operations.
            continue
        found[work.name] = (time.perf_counter() - start) / work.items(work.small)
        problem.check(work.name, problem.arguments[0])
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
