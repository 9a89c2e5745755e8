"""Tests that need a CUDA device; without one they are skipped with the backend's own reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import nbrt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.backends.cuda.backend import CudaInterface


@pytest.fixture(scope="session")
def cuda_interface() -> Any:
    """The CUDA backend, initialised."""
    interface = nbrt.get_interface_for_device("cuda")
    reason = interface.unavailable_reason()
    if reason is not None:
        pytest.skip(f"cuda is unavailable: {reason}")
    interface.lazy.ensure()
    return interface


@pytest.fixture(autouse=True)
def on_device_zero(cuda_interface: CudaInterface) -> Iterator[None]:
    """Each test starts on cuda:0 and leaves nothing queued."""
    with nbrt.device("cuda:0"):
        yield
    cuda_interface.synchronize(0)


@pytest.fixture
def cupy(cuda_interface: CudaInterface) -> Any:
    return pytest.importorskip("cupy")


@pytest.fixture
def second_device(cuda_interface: CudaInterface) -> nbrt.Device:
    if cuda_interface.device_count() < 2:
        pytest.skip("there is one cuda device only")
    return nbrt.Device("cuda", 1)
