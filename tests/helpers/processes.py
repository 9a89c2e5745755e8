"""Run Python code in a child process with exactly the environment that a test sets."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from helpers.clocks import HANG_TIMEOUT

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
_SIMULATED_CUDA = "NBRT_SIM_LIBRARY"
_STARTUP = TESTS / "simulated_cuda" / "startup"


def environment_of_users() -> dict[str, str]:
    """Return the environment without settings of nbrt and without the simulated CUDA driver."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NBRT_")}
    if library := os.environ.get(_SIMULATED_CUDA):
        _remove(kept, "LD_LIBRARY_PATH", Path(library).parent)
        _remove(kept, "PYTHONPATH", _STARTUP)
    return kept


def _remove(environment: dict[str, str], variable: str, folder: Path) -> None:
    parts = environment.pop(variable, "").split(os.pathsep)
    if rest := [part for part in parts if part and Path(part) != folder]:
        environment[variable] = os.pathsep.join(rest)


def run_python(
    code: str,
    *options: str,
    environment: dict[str, str] | None = None,
    path: tuple[Path, ...] = (),
    timeout: float = HANG_TIMEOUT,
    simulated_cuda: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run dedented code in a fresh interpreter; nothing of the parent's NBRT_* is inherited.

    Nor is the simulated CUDA driver, unless `simulated_cuda`: most tests of processes are about
    what users without a GPU see.
    """
    inherited = environment_of_users()
    if simulated_cuda and (library := os.environ.get(_SIMULATED_CUDA)):
        inherited |= {_SIMULATED_CUDA: library, "LD_LIBRARY_PATH": os.environ["LD_LIBRARY_PATH"]}
        path = (*path, _STARTUP)
    inherited["PYTHONPATH"] = os.pathsep.join(map(str, (*path, ROOT, ROOT / "kernels", TESTS)))
    return subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**inherited, **(environment or {})},
    )


def output_of(
    code: str,
    *options: str,
    environment: dict[str, str] | None = None,
    path: tuple[Path, ...] = (),
    simulated_cuda: bool = False,
) -> str:
    """Return what the code prints; the process must succeed and write nothing to stderr."""
    done = run_python(
        code, *options, environment=environment, path=path, simulated_cuda=simulated_cuda
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout
