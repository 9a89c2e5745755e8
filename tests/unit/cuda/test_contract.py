from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.clocks import HANG_TIMEOUT

TESTS = Path(__file__).resolve().parents[2]

# What needs no draw, no compiler and no arithmetic of CuPy's.
SUITES = (
    "test_memory",
    "test_memory_allocators",
    "test_memory_model",
    "test_memory_pools",
    "test_memory_pressure",
    "test_memory_threads",
    "test_record_stream",
    "test_memory_callbacks",
    "test_memory_races",
    "test_launch_races",
    "test_freed_memory",
    "test_streams",
    "test_stream_failures",
    "test_events",
    "test_await",
    "test_guards",
)
CHOSEN = "cuda and not random_numbers"


@pytest.mark.slow
def test_contract_holds_on_the_simulation() -> None:
    """The contract suite, with the simulated CUDA in the place of the real one."""
    files = [str(TESTS / "contract" / f"{name}.py") for name in SUITES]
    plugin = ["-p", "unit.cuda.threaded_cuda", "-p", "no:cacheprovider", "-k", CHOSEN, "-q"]
    path = os.pathsep.join([str(TESTS), str(TESTS.parent), str(TESTS.parent / "kernels")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, *files],
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=HANG_TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
