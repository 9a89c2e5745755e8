"""A pytest plugin for the runs of public programs.

Each mode gets the same random numbers. NumPy has the names that some programs use and that newer
versions removed. The processor time of each test is in its report.
"""

from __future__ import annotations

import importlib
import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["pytest_configure", "pytest_runtest_call", "pytest_runtest_setup", "same_as_simulator"]

_REMOVED = {"trapz": "trapezoid", "row_stack": "vstack", "in1d": "isin"}


def pytest_configure() -> None:
    """Seed before modules of tests are imported: some draw their data then.

    Imports `numba.cuda`, which is not a part of the time of the test that imports it first.
    """
    importlib.import_module("numba.cuda")
    for old, new in _REMOVED.items():
        if not hasattr(np, old):
            setattr(np, old, getattr(np, new))
    _seed()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed before each test, so that data do not depend on the tests before it."""
    _seed()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Record the processor time of the test."""
    started = time.process_time()
    try:
        return (yield)
    finally:
        item.user_properties.append(("cpu_seconds", time.process_time() - started))


@pytest.fixture
def same_as_simulator(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compare arrays with those of the same test under the simulator, which must run first."""
    folder = Path(os.environ["NUMBA_CUDA_PROGRAM_OUTPUTS"])

    def check(rtol: float = 1e-6, atol: float = 1e-9, **arrays: Any) -> None:
        for name, array in arrays.items():
            file = folder / f"{request.node.name}-{name}.npy".replace("/", "_")
            if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
                folder.mkdir(parents=True, exist_ok=True)
                np.save(file, np.asarray(array))
            elif file.exists():
                np.testing.assert_allclose(np.asarray(array), np.load(file), rtol, atol)

    return check


def _seed() -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 (the programs draw from it)
