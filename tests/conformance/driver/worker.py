"""Runs one file of a foreign test suite on the simulated driver; reports lines of JSON.

Started by `runner.run_worker` as ``python -m tests.conformance.driver.worker MODULE FD``; the names
of tests to leave out come on standard input.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

import pytest

# Tests are collected from a file that imports the module by its name: pytest would import the
# installed file under a name that its own imports do not know.
_STAND_IN = """
import importlib
module = importlib.import_module({name!r})
globals().update({{key: value for key, value in vars(module).items() if not key.startswith("__")}})
"""
_OPTIONS = ["-q", "-c", os.devnull, "-p", "no:cacheprovider", "--import-mode=importlib"]
_DETAIL = 1500


class Reporter:
    """A plugin of pytest that writes one line for each event, at once: the process may die."""

    def __init__(self, descriptor: int, done: set[str]) -> None:
        self._file = os.fdopen(descriptor, "w", buffering=1)
        self._done = done
        self._found = "passed", ""
        self._begin = 0.0

    def write(self, **event: Any) -> None:
        self._file.write(json.dumps(event) + "\n")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid not in self._done]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            self.write(
                id=report.nodeid, outcome=report.outcome, detail=_detail(report), seconds=0.0
            )

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._found = "passed", ""
        self._begin = time.perf_counter()
        self.write(start=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed" and self._found[0] != "failed":
            self._found = report.outcome, _detail(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        outcome, detail = self._found
        seconds = round(time.perf_counter() - self._begin, 3)
        self.write(id=nodeid, outcome=outcome, detail=detail, seconds=seconds)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        """Count a package that is missing as a skip."""
        report = yield
        if report.failed and call.excinfo is not None:
            kind, value = call.excinfo.type, call.excinfo.value
            if issubclass(kind, unittest.SkipTest) or (
                isinstance(value, ModuleNotFoundError) and value.name in _PACKAGES
            ):
                report.outcome = "skipped"
                report.longrepr = "", 0, f"needs a package that is not installed: {value}"
        return report


_PACKAGES = frozenset({"cffi", "cloudpickle", "filecheck", "psutil", "pytest_benchmark"})


class Fixtures:
    """Fixtures of the conftest.py in numba-cuda's repository, which is not installed."""

    @pytest.fixture(scope="class")
    def initialize_from_pytest_config(self, request: pytest.FixtureRequest) -> None:
        """Set the option of the command line that the class of tests reads."""
        request.cls._dump_failed_filechecks = False


def _detail(report: Any) -> str:
    if isinstance(report.longrepr, tuple):  # of a skip
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    if hasattr(report, "wasxfail"):
        return "numba-cuda expects the failure"
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longrepr or "")[:_DETAIL]


def main(module: str, descriptor: str) -> int:
    done = set(sys.stdin.read().split("\n"))
    root = Path(__file__).parents[2]
    sys.path.append(str(root))
    from simulated_cuda import loader

    loader.load()
    from tests.conformance import stubs

    stubs.install()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, *module.split(".")[-2:]).with_suffix(".py")
        file.parent.mkdir()
        file.write_text(_STAND_IN.format(name=module), encoding="utf-8")
        options = [*_OPTIONS, f"--rootdir={folder}", str(file)]
        return pytest.main(options, [Reporter(int(descriptor), done), Fixtures()])


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # no waiting for what a test may have left behind
