"""Fixtures for tests of the simulated driver itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cuda.bindings import driver

from helpers.driver_calls import call
from simulated_cuda.plugin import simulation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

__all__ = ["simulation"]

TESTS = Path(__file__).parents[2]
_IS_CHILD = "NBRT_TEST_IS_CHILD"


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test with the marker `own_process` by pytest in a new process."""
    if pyfuncitem.get_closest_marker("own_process") is None or os.environ.get(_IS_CHILD):
        return None
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", pyfuncitem.nodeid],
        cwd=pyfuncitem.config.rootpath,
        env={**os.environ, _IS_CHILD: "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        pytest.fail(done.stdout + done.stderr, pytrace=False)
    return True


@pytest.fixture
def initialised(simulation: ModuleType) -> ModuleType:
    """The control of the simulated driver after `cuInit`."""
    call(driver.cuInit(0))
    return simulation


@pytest.fixture
def primary(initialised: ModuleType) -> Iterator[driver.CUcontext]:
    """The primary context of device 0, retained and current."""
    context = call(driver.cuDevicePrimaryCtxRetain(0))
    call(driver.cuCtxPushCurrent(context))
    yield context
    while int(call(driver.cuCtxGetCurrent())):
        call(driver.cuCtxPopCurrent())
    call(driver.cuDevicePrimaryCtxRelease(0))


@pytest.fixture
def run_child(simulation: ModuleType) -> Callable[..., str]:
    """Run a program in a child process with some settings, and return its output."""

    def run(program: str, *options: str, **settings: str) -> str:
        done = subprocess.run(
            [sys.executable, *options, "-c", program],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run
