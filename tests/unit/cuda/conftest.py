from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("cupy", reason="CuPy is not installed: the CUDA backend cannot be imported")

if TYPE_CHECKING:
    from nbrt.backends.cuda.backend import CudaInterface
    from unit.cuda.fake_cuda import Simulation


@pytest.fixture
def interface() -> CudaInterface:
    """The CUDA backend over a simulation of two devices, initialised."""
    from nbrt.backends.cuda.backend import CudaInterface
    from unit.cuda.fake_cuda import FakeDriver

    made = CudaInterface(FakeDriver)
    made.lazy.ensure()
    return made


@pytest.fixture
def simulation(interface: CudaInterface) -> Simulation:
    """The simulated CUDA of the backend of `interface`."""
    return interface._driver.simulation  # type: ignore[attr-defined,no-any-return]
