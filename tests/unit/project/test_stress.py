"""`make stress` repeats a suite beside busy loops, and reports failed runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.clocks import HANG_TIMEOUT

ROOT = Path(__file__).resolve().parents[3]
SUITE = """
import os
from pathlib import Path

def test_runs():
    here = Path(__file__).parent
    with open(here / "runs", "a") as file:
        file.write(str(len(os.sched_getaffinity(0))))
    assert not (here / "fail").exists()
"""


def stress(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]")
    (folder / "test_suite.py").write_text(SUITE)
    command = [sys.executable, str(ROOT / "tools" / "stress.py"), "--workers", "1", *options]
    # Other plugins take most of the time of so small a suite.
    return subprocess.run(
        [*command, "-p", "xdist", "-p", "no:cacheprovider", str(folder)], cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, capture_output=True,
        text=True, timeout=HANG_TIMEOUT, check=False,
    )  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs sched_setaffinity")
def test_every_run_counts(tmp_path: Path) -> None:
    done = stress(tmp_path, "--times", "2", "--loops", "1", "--cores", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "==> 2 of 2 runs without a failure"
    assert (tmp_path / "runs").read_text() == "11"  # twice, on one core


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs sched_setaffinity")
def test_a_failure_is_told(tmp_path: Path) -> None:
    (tmp_path / "fail").touch()
    done = stress(tmp_path, "--times", "1", "--loops", "0")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "==> 0 of 1 runs without a failure"
