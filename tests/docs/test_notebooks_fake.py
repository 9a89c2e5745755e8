"""Notebooks on fake devices: every cell runs, and peaks of memory equal those of a real run.

`helpers.notebook_runs` says how the code is changed: values are zeros, and assertions do not fail,
so this proves that the code runs and which memory it needs, not what it computes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.processes import environment_of_users

FOLDER = Path(__file__).parents[2]
NOTEBOOKS = sorted((FOLDER / "notebooks").glob("*.ipynb"))

FAILURES = {
    # Host calls run when they are submitted, and raise there.
    ("00_quickstart", "fake", 3): "ValueError: planted",
    ("00_quickstart", "gpu", 3): "ValueError: planted",
    # Arrays of four devices are joined by NumPy, which CUDA refuses too.
    ("00_quickstart", "gpu", 4): "DeviceMismatchError",
    # There are no races where work is done when it is submitted.
    ("02_memory", "fake", 11): "IndexError",
    ("02_memory", "gpu", 11): "IndexError",
    # Bits of draws are compared.
    ("03_reproducible_random", "gpu", 2): "NotReproducibleError",
    ("03_reproducible_random", "fake", 8): "IndexError",
    ("03_reproducible_random", "gpu", 8): "IndexError",
}
"""The cells that fail on fake devices: notebook, run and cell -> the error."""

CONCURRENT = ("00_quickstart", "04_sharded_random")
"""Streams or ranks that share a device run at once, so that the peak of a real run varies."""


def results_of(path: Path, tmp_path: Path) -> dict[str, Any]:
    environment = environment_of_users()
    environment["PYTHONPATH"] = f"{FOLDER / 'tests'}:{environment.get('PYTHONPATH', '')}"
    environment["NBRT_CPU_DEVICES"] = "4"
    done = subprocess.run(
        [sys.executable, "-m", "helpers.notebook_runs", str(path)],
        env=environment,
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_on_fake_devices(path: Path, tmp_path: Path) -> None:
    found = results_of(path, tmp_path)
    assert not any(found["real"]), found["real"]
    for run in ("fake", "gpu"):
        for cell, error in enumerate(found[run]):
            expected = FAILURES.get((path.stem, run, cell), "")
            assert error.startswith(expected) if expected else not error, (run, cell, error)
    assert found["gpu_peak"] > 0
    if path.stem not in CONCURRENT:
        assert found["fake_peaks"] == found["real_peaks"]
