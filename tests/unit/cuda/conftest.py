"""Tests of the CUDA backend; without a GPU, on the simulated driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt.backends.cuda.backend import CudaInterface


@pytest.fixture
def interface(cuda_interface: CudaInterface) -> Iterator[CudaInterface]:
    """A CUDA backend of the test's own, initialised, with device 0 current before and after."""
    made = type(cuda_interface)()
    made.lazy.ensure()
    made.exchange_device(0)
    yield made
    for index in range(made.device_count()):
        made.maybe_exchange_device(index)
        made.synchronize(index)
    made.exchange_device(0)
