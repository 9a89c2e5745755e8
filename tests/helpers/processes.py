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


def run_python(
    code: str,
    *options: str,
    environment: dict[str, str] | None = None,
    path: tuple[Path, ...] = (),
    timeout: float = HANG_TIMEOUT,
) -> subprocess.CompletedProcess[str]:
    """Run dedented code in a fresh interpreter; nothing of the parent's NBRT_* is inherited."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NBRT_")}
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
) -> str:
    """Return what the code prints; the process must succeed and write nothing to stderr."""
    done = run_python(code, *options, environment=environment, path=path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout
