"""Tests of CUDA devices; without a GPU, of those of the simulated driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import nbrt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.backends.cuda.backend import CudaInterface


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
