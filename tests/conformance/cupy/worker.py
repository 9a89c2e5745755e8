"""Runs one file of CuPy's tests with pytest and reports each test as a line of JSON.

Started by `__main__` as ``python -m tests.conformance.cupy.worker FOLDER FILE EVERY FD``; the ids
of tests to leave out come on standard input.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[3]
_DETAIL_LENGTH = 1500

NOT_APPLICABLE = (
    (r"NotSimulatedError: (\S+) is machine code", r"needs {}, which is machine code for a GPU"),
    (r"CUDA_ERROR_NO_BINARY_FOR_GPU", r"needs machine code for a GPU, which NVCC made"),
    (r"no arrays and textures", r"needs arrays or textures, which the simulated driver has not"),
    (r"Failure finding \"(lib\w+)", r"needs {}, which is not installed"),
    (r"(lib\w+)\.so[.\d]*: cannot open shared object", r"needs {}, which is not installed"),
    (r"ModuleNotFoundError: No module named '(\w+)", r"needs the package {}, not installed"),
)
"""Patterns of failures, each with its reason."""


class Reporter:
    """A plugin of pytest that writes a line for the start and the outcome of each test."""

    def __init__(self, descriptor: int, done: set[str], every: int) -> None:
        self._file = os.fdopen(descriptor, "w", buffering=1)
        self._done = done
        self._every = every
        self._found: dict[str, str] = {}
        self._seconds = 0.0

    def _write(self, **event: Any) -> None:
        self._file.write(json.dumps(event) + "\n")

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        items[:] = [
            item
            for number, item in enumerate(items)
            if number % self._every == 0 and item.nodeid not in self._done
        ]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed and report.nodeid.endswith(".py"):
            self._write(id=report.nodeid, seconds=0.0, **outcome_of(report))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._found, self._seconds = {}, 0.0
        self._write(start=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds += report.duration
        if not report.passed and self._found.get("outcome") != "failed":
            self._found = outcome_of(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        found = self._found or {"outcome": "passed", "detail": ""}
        self._write(id=nodeid, seconds=round(self._seconds, 3), **found)


def outcome_of(report: pytest.CollectReport | pytest.TestReport) -> dict[str, str]:
    """Tell a skip, or the want of a library, from a failure."""
    text = str(report.longrepr)
    if report.skipped:
        # A test that CuPy expects to fail is reported as skipped.
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "expected to fail"
        return {"outcome": "skipped", "detail": reason.removeprefix("Skipped: ")}
    for pattern, reason in NOT_APPLICABLE:
        if match := re.search(pattern, text):
            return {"outcome": "skipped", "detail": reason.format(*match.groups())}
    errors = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    return {"outcome": "failed", "detail": "\n".join(errors or [text])[-_DETAIL_LENGTH:]}


def main(folder: str, file: str, every: str, descriptor: str) -> int:
    done = set(sys.stdin.read().split("\n"))
    sys.path.insert(0, str(_ROOT / "tests"))
    from simulated_cuda import loader

    loader.load()
    os.chdir(folder)
    reporter = Reporter(int(descriptor), done, int(every))
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", "not slow"]
    status = pytest.main([*options, f"tests/cupy_tests/{file}"], plugins=[reporter])
    return 0 if status in (0, 1, 2, 5) else int(status)


if __name__ == "__main__":
    status = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)  # no waiting for what a test may have left behind
