"""The work of kernels in a plan of a run on a real device: as the kernels estimate it."""

from __future__ import annotations

from typing import Any

import pytest
from numba import cuda

import nbrt
from nbrt.errors import NbrtCleanupWarning
from nbrt.planning.plan import MemoryPlan
from nbrt_kernels.elementwise import saxpy

DEVICE = nbrt.Device("cpu:1")


def launched(cost: Any, times: int) -> Any:
    @nbrt.kernel(cost=cost)
    def negate(x: Any) -> None:
        i = cuda.grid(1)
        if i < x.size:
            x[i] = -x[i]

    plan = MemoryPlan("cpu", (DEVICE,), nbrt.get_device_properties(DEVICE))
    x = nbrt.zeros(100, "float32", device=DEVICE)
    plan._start()
    try:
        with nbrt.device(DEVICE):
            for _ in range(times):
                negate[1, 128](x)
            nbrt.kernel(saxpy)[1, 128](x, 2.0, x, x)
    finally:
        plan._stop()
    return {each.kernel.rpartition(".")[2]: each for each in plan.kernels}


def test_costs_add_up() -> None:
    found = launched(lambda x: nbrt.KernelCost(flops=x.size), 3)
    negate, library = found["negate"], found["saxpy"]
    assert (negate.launches, negate.flops, negate.nbytes) == (3, 300, None)
    assert (library.launches, library.flops, library.nbytes) == (1, 200, 1200)


def test_a_launch_counts_if_its_estimate_fails() -> None:
    with pytest.warns(NbrtCleanupWarning, match="no size of"):
        found = launched(lambda _: _fail(), 2)["negate"]
    assert (found.launches, found.flops, found.nbytes) == (2, None, None)


def _fail() -> float:
    raise ValueError("no size of this")
