"""A pytest plugin that loads the simulated CUDA driver and watches what the tests ask of it.

Where a real driver works, or ``NBRT_SIMULATED_CUDA=0``, the plugin does nothing. A test fails if it
calls a function of the driver that is not simulated, in this process or in a child process: the
result would say nothing about a GPU. The marker ``allows_stubs`` names functions that a test may
call nevertheless.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from simulated_cuda import control, loader
from simulated_cuda.build import BuildError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from types import ModuleType

__all__ = ["CalledStubs", "why_absent"]

_MARKER = (
    "allows_stubs(*functions): the test may call these functions of the driver, which the "
    "simulated driver does not have; without names, any"
)
_STUBS = "NBRT_SIM_STUBS"
_ABSENT = pytest.StashKey[str]()
_CALLED = pytest.StashKey["CalledStubs"]()


class CalledStubs:
    """The functions that are not simulated and were called, by this process and its children.

    The driver appends their names to a file, one a line.

    Parameters
    ----------
    path : Path
        The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def take(self) -> list[str]:
        """Return the names of the calls since the last time."""
        if self._path.stat().st_size == self._read:
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        self._read += len(text)
        return text.decode().split()

    def close(self) -> None:
        """Delete the file."""
        self._path.unlink(missing_ok=True)


def why_absent(config: pytest.Config) -> str | None:
    """Return the reason why the simulated driver is not loaded, or None if it is."""
    return config.stash.get(_ABSENT, None)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)
    if not loader.is_wanted():
        config.stash[_ABSENT] = "there is a CUDA driver, or NBRT_SIMULATED_CUDA=0"
        return
    number, name = tempfile.mkstemp(prefix="nbrt-stubs-")
    os.close(number)
    os.environ[_STUBS] = name  # the driver opens it when it is loaded
    config.stash[_CALLED] = CalledStubs(Path(name))
    try:
        loader.load()
    except BuildError as error:
        if os.environ.get("NBRT_SIMULATED_CUDA") == "force":
            raise
        config.stash[_ABSENT] = str(error)


def pytest_unconfigure(config: pytest.Config) -> None:
    if called := config.stash.get(_CALLED, None):
        called.close()


def pytest_report_header(config: pytest.Config) -> str:
    reason = why_absent(config)
    if reason is None:
        return f"simulated CUDA driver: {os.environ['NBRT_SIM_LIBRARY']}"
    return f"simulated CUDA driver: not loaded: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    _check(item)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    _check(item)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the driver reported during the test, such as an access out of bounds."""
    report = yield
    if loader.loaded() is not None and call.when == "call" and (text := control.take_report()):
        report.sections.append(("Report of the simulated CUDA driver", text))
    return report


def _check(item: pytest.Item) -> None:
    called = item.config.stash.get(_CALLED, None)
    names = called.take() if called is not None else []
    if not names:
        return
    allowed: set[str] = set()
    for marker in item.iter_markers("allows_stubs"):
        if not marker.args:
            return
        allowed.update(marker.args)
    if unexpected := sorted(set(names) - allowed):
        pytest.fail(f"the simulated CUDA driver has no {', '.join(unexpected)}", pytrace=False)


@pytest.fixture
def simulation(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """`simulated_cuda.control`, without injected faults and reports of other tests."""
    if (reason := why_absent(request.config)) is not None:
        pytest.skip(f"the simulated CUDA driver is not loaded: {reason}")
    loader.load()
    control.clear()
    control.take_report()
    yield control
    control.clear()
