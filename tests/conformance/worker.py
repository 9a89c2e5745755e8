"""Runs the tests of one file under one engine and reports each as a line of JSON.

Started by `runner` as ``python -m tests.conformance.worker ENGINE TESTS MODULE FD``; the ids of
tests to leave out come on standard input. Tests print and capture what they like: the report goes
to a separate descriptor.
"""

from __future__ import annotations

import fnmatch
import importlib
import inspect
import json
import os
import re
import sys
import time
import traceback
import unittest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conformance import FOLDERS
from tests.conformance.rules import ERRORS, PACKAGES, TESTS, WITHOUT_NBRT

if TYPE_CHECKING:
    from tests.conformance.uses import Uses

CHILD_LIMIT = 60
"""Seconds that a test waits for a child process, where numba-cuda's tests set 4."""

SKIPS = ("SkipTest", "NotApplicable", "MissingPackageError", "Skipped")


class Report:
    """Writes one line for each event, at once: the process may die any time."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "w", buffering=1)

    def __call__(self, **event: Any) -> None:
        self._file.write(json.dumps(event) + "\n")


class Result(unittest.TestResult):
    """Reports each test; one that passes and reached no part of nbrt says so in its detail."""

    def __init__(self, report: Report, prefix: str, uses: Uses | None) -> None:
        super().__init__()
        self._report = report
        self._prefix = prefix
        self._uses = uses
        self._found: dict[str, str] = {}

    def _used(self) -> int:
        return self._uses.count if self._uses else -1

    def run(self, test: unittest.TestCase) -> None:
        """Run a test, with what its class and module set up, and report it."""
        name = identity(self._prefix, test)
        self._found = {}
        began, used = time.perf_counter(), self._used()
        self._report(start=name)
        unittest.TestSuite([test]).run(self)
        self._previousTestClass = None  # unittest would take the next one's class for set up
        found = self._found or {"outcome": "passed", "detail": ""}
        if found["outcome"] == "passed" and self._used() == used >= 0:
            found = {"outcome": "passed", "detail": WITHOUT_NBRT}
        self._report(id=name, seconds=round(time.perf_counter() - began, 3), **found)

    def addSkip(self, test: Any, reason: str) -> None:
        self._found = self._found or {"outcome": "skipped", "detail": reason}

    def addError(self, test: Any, err: Any) -> None:
        found = outcome_of(err)
        if found["outcome"] == "failed" or not self._found:
            self._found = found

    addFailure = addError  # noqa: N815  # unittest's name

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.addError(test, err)

    def addUnexpectedSuccess(self, test: Any) -> None:
        """Let what numba-cuda cannot do, and nbrt can, count as passed."""


def outcome_of(err: Any) -> dict[str, str]:
    """Tell a skip, or the want of a package, from a failure."""
    kind, value, _ = err
    if kind.__name__ in SKIPS:
        return {"outcome": "skipped", "detail": str(value)}
    if issubclass(kind, ModuleNotFoundError) and value.name in PACKAGES:
        detail = f"needs the package {value.name}, which is not installed"
        return {"outcome": "skipped", "detail": detail}
    for pattern, reason in ERRORS.items():
        if re.search(pattern, f"{kind.__module__}.{kind.__name__}: {value}"):
            return {"outcome": "skipped", "detail": reason}
    return {"outcome": "failed", "detail": described(err)}


def described(err: Any) -> str:
    """Say what went wrong and where in the test."""
    kind, value, trace = err
    frames = [f for f in traceback.extract_tb(trace) if Path(f.filename).name.startswith("test_")]
    place = f" (line {frames[-1].lineno})" if frames else ""
    return f"{kind.__name__}: {str(value).strip()[:1500]}{place}"


def identity(prefix: str, test: unittest.TestCase) -> str:
    if isinstance(test, unittest.FunctionTestCase):
        return f"{prefix}::{test._testFunc.__name__}"
    return f"{prefix}::{type(test).__name__}.{test._testMethodName}"


def flattened(suite: Any) -> list[unittest.TestCase]:
    if isinstance(suite, unittest.TestCase):
        return [suite]
    return [test for part in suite for test in flattened(part)]


def tests_of(module: Any) -> list[unittest.TestCase]:
    """Collect the test cases of a module, and its plain test functions."""
    found = flattened(unittest.defaultTestLoader.loadTestsFromModule(module))
    for name, value in vars(module).items():
        own = inspect.isfunction(value) and value.__module__ == module.__name__
        if own and name.startswith("test_") and not inspect.signature(value).parameters:
            found.append(unittest.FunctionTestCase(value))
    return found


def prepare(engine: str) -> Uses | None:
    """Set the engine up, for this process; the environment does for those that its tests start."""
    from tests.conformance import stubs

    stubs.install()
    from numba.cuda import testing

    testing.CUDATestCase._dump_failed_filechecks = False  # an option of numba-cuda's conftest.py
    if engine != "nbrt":
        return None
    from tests.conformance.uses import Uses  # imports modules that the simulator lacks

    return Uses()


def redirect(tests: str) -> None:
    """Let ``numba.cuda.tests`` and its folders be the given ones, what is missing the installed."""
    # The folders first, while they are still found where numba-cuda's own finder looks.
    for folder in (*FOLDERS, ""):
        package = importlib.import_module(f"numba.cuda.tests.{folder}".rstrip("."))
        package.__path__ = [str(Path(tests, folder)), *package.__path__]


def excluded(engine: str, test: str) -> str:
    """Return the reason of the rule that leaves a test out, or nothing."""
    rules = TESTS if engine == "nbrt" else {}
    return next((why for pattern, why in rules.items() if fnmatch.fnmatch(test, pattern)), "")


def main(engine: str, tests: str, module: str, descriptor: str) -> None:
    done = set(sys.stdin.read().split("\n"))
    report = Report(int(descriptor))
    prefix = module.replace(".", "/") + ".py"
    result = Result(report, prefix, prepare(engine))
    redirect(tests)
    try:
        tested = importlib.import_module(f"numba.cuda.tests.{module}")
        if hasattr(tested, "FUTURE_TIMEOUT"):  # for a child process to start on an idle machine
            tested.FUTURE_TIMEOUT = CHILD_LIMIT
        found = tests_of(tested)
    except BaseException:  # noqa: BLE001  # pytest's skip is one
        report(id=prefix, seconds=0, **outcome_of(sys.exc_info()))
        return
    for test in found:
        name = identity(prefix, test)
        reason = excluded(engine, name)
        if name in done:
            continue
        if reason:
            report(id=name, outcome="skipped", detail=reason, seconds=0)
        else:
            result.run(test)


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # no waiting for what a test may have left behind
