"""Fixtures: CuPy on the simulated driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from simulated_cuda import loader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType


@pytest.fixture(scope="session")
def cupy() -> ModuleType:
    if not loader.is_wanted():
        pytest.skip("the simulated CUDA driver is not wanted here")
    loader.load()
    return pytest.importorskip("cupy")


@pytest.fixture
def runtime(cupy: Any) -> Iterator[Any]:
    """CuPy's module of the CUDA runtime, with device 0 current in this thread."""
    cupy.cuda.runtime.setDevice(0)
    yield cupy.cuda.runtime
    cupy.cuda.runtime.setDevice(0)


@pytest.fixture
def fails(runtime: Any) -> Callable[..., None]:
    """Check that a call raises a CUDARuntimeError whose name begins so."""

    def check(name: str, function: Callable[..., Any], *args: Any) -> None:
        with pytest.raises(runtime.CUDARuntimeError, match=rf"^{name}"):
            function(*args)

    return check
