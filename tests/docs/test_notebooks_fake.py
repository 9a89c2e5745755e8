"""Notebooks and pages on fake devices: cells run, and peaks of memory equal those of a real run.

`helpers.notebook_runs` says how the code is changed: values are zeros, and assertions do not fail,
so this proves that the code runs and which memory it needs, not what it computes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from helpers.fork_server import ForkServer

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parents[2]
NOTEBOOKS = sorted((FOLDER / "notebooks").glob("*.ipynb"))
PAGES = [
    FOLDER / "README.md",
    # Programs for numba.cuda run on CPU devices, and read values.
    *(p for p in sorted((FOLDER / "docs" / "guide").glob("*.md")) if p.stem != "numba_cuda"),
    FOLDER / "docs" / "inspection.md",
    FOLDER / "docs" / "debugging.md",
]

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
    # Memory of a GPU is not shared with the host.
    ("arrays", "gpu", 1): "ArgumentError: expected memory that can be shared",
    # Fake devices have no compilers.
    ("compiled_code", "fake", 1): "DeviceError: expected the devices of this machine",
    ("compiled_code", "gpu", 1): "DeviceError: expected the devices of this machine",
    ("debugging", "gpu", 0): "DeviceMismatchError",
    # NumPy joins the parts of ranks on several devices; a capture moves no data between GPUs.
    ("distributed", "gpu", 5): "DeviceMismatchError",
    ("distributed", "gpu", 7): "CaptureError",
    ("distributed_random", "gpu", 2): "DeviceMismatchError",
    # Fake devices take no memory of other allocators.
    ("memory", "fake", 2): "NotSupportedError",
    ("memory", "gpu", 2): "NotSupportedError",
    ("memory", "fake", 10): "IndexError",
    ("memory", "gpu", 10): "IndexError",
}
"""The cells that fail on fake devices: notebook, run and cell -> the error."""

OTHER_PEAKS = ("04_sharded_random", "kernels", "memory")
"""Where peaks differ: ranks that share a device run at once, so that the peak of a real run varies;
a refused compilation, which a fake launch leaves out, keeps an argument alive in its traceback; or
cells fail."""


@pytest.fixture(scope="module")
def processes() -> Iterator[ForkServer]:
    """Processes that have run nothing; most of the time of a page was that of its imports."""
    with ForkServer("helpers.notebook_runs", "matplotlib.pyplot", "nbrt.distributed") as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("path", [*NOTEBOOKS, *PAGES], ids=lambda path: path.stem)
def test_notebook_or_page_runs_on_fake_devices(
    path: Path, processes: ForkServer, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"from helpers.notebook_runs import print_runs\nprint_runs({str(path)!r})\n")
    said = processes.output_of(program, environment={"NBRT_CPU_DEVICES": "4"})
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    assert not any(found["real"]), found["real"]
    for run in ("fake", "gpu"):
        for cell, error in enumerate(found[run]):
            expected = FAILURES.get((path.stem, run, cell), "")
            assert error.startswith(expected) if expected else not error, (run, cell, error)
    if path.stem not in OTHER_PEAKS:
        assert found["fake_peaks"] == found["real_peaks"]
