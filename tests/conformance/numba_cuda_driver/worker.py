"""Runs one file of numba-cuda's tests on the simulated driver; reports tests as lines of JSON.

Started by `__main__` as ``python -m tests.conformance.numba_cuda_driver.worker MODULE FD``; the ids
of tests to leave out come on standard input.
"""

from __future__ import annotations

import os
import sys
import tempfile
import unittest
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conformance.cupy.worker import Reporter

if TYPE_CHECKING:
    from collections.abc import Generator

_ROOT = Path(__file__).parents[3]
# Tests are collected from a file that imports the module by its name: pytest would import the
# installed file under a name that its own imports do not know.
_STAND_IN = """
import importlib
module = importlib.import_module({name!r})
globals().update({{key: value for key, value in vars(module).items() if not key.startswith("__")}})
"""
_OPTIONS = ["-q", "-c", os.devnull, "-p", "no:cacheprovider", "--import-mode=importlib"]


class NumbaCuda:
    """A plugin of pytest with parts of the conftest.py in numba-cuda's repository."""

    @pytest.fixture(scope="class")
    def initialize_from_pytest_config(self, request: pytest.FixtureRequest) -> None:
        """Set the option of the command line that the class of tests reads."""
        request.cls._dump_failed_filechecks = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Count a test that needs a missing package as skipped."""
        report = yield
        if report.failed and call.excinfo and issubclass(call.excinfo.type, unittest.SkipTest):
            report.outcome = "skipped"
            report.longrepr = "", 0, str(call.excinfo.value)
        return report


def main(module: str, descriptor: str) -> int:
    done = set(sys.stdin.read().split("\n"))
    sys.path.append(str(_ROOT / "tests"))
    from simulated_cuda import loader

    loader.load()
    from tests.conformance import stubs

    stubs.install()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, *module.split(".")[-2:]).with_suffix(".py")
        file.parent.mkdir()
        file.write_text(_STAND_IN.format(name=module), encoding="utf-8")
        options = [*_OPTIONS, f"--rootdir={folder}", str(file)]
        return pytest.main(options, [Reporter(int(descriptor), done, 1), NumbaCuda()])


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # no waiting for what a test may have left behind
