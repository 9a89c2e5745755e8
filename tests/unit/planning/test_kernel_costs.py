"""The work of kernels in a plan of a run on a real device: as the kernels estimate it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from nbrt.errors import BackendUnavailableError, NbrtCleanupWarning
from nbrt.planning.plan import MemoryPlan
from nbrt_kernels.elementwise import saxpy

pytestmark = pytest.mark.usefixtures("no_garbage")

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


@nbrt.kernel(cost=lambda x, n: (x.size * (n[0] if isinstance(n, tuple) else 1000.0 * abs(n)), None))
def repeat(x: Any, n: Any) -> None:
    x[0] = 1


def repeated(kind: str) -> None:
    small, large = (nbrt.zeros(shape, "float32", device=kind) for shape in (10, (7, 3)))
    half = nbrt.zeros(20, "float32", device=kind)[::2]
    numbers = [1, 1, 1.0, 2, True, 2.0, np.float32(2), 2j, np.int8(-3), 2, (5, 1), (6, 1), (5, 2)]
    for n in [*numbers, *reversed(numbers)]:
        for x in (small, small, large, half, small.reshape(2, 5)):
            repeat[1, 1](x, n)
    small.shape = 5, 2
    repeat[1, 1](small, 2)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_costs_of_fake_launches_are_those_of_real_ones(kind: str) -> None:
    device = nbrt.Device("cpu:0")
    plan = MemoryPlan("cpu", (device,), nbrt.get_device_properties(device))
    plan._start()
    with nbrt.device(device):
        repeated("cpu")
    plan._stop()
    with nbrt.fake(kind) as fake, nbrt.device(kind):
        repeated(kind)
    (real,), (found,) = plan.kernels, fake.kernels
    assert (found.launches, found.flops, found.nbytes) == (real.launches, real.flops, None)
    assert real.launches == 131


def test_a_plan_shows_what_compiled_kernels_need() -> None:
    with nbrt.fake("cuda", gpu="L4", compile=True) as plan, nbrt.device("cuda"):
        x, y = nbrt.zeros(100, "float32"), nbrt.zeros(100, "float64")
        for values in (x, y, x):
            nbrt.kernel(saxpy)[1, 128](values, values.dtype.type(2), values, values)
        nbrt.kernel(saxpy)[1, 256, None, 512](x, np.float32(2), x, x)
    single, dynamic, double = plan.compiled
    expected = nbrt.kernel(saxpy)[1, 128].inspect(
        "float32[::1]", "float32", "float32[::1]", "float32[::1]", gpu="L4"
    )
    assert single.signature.startswith("saxpy(out: array(float32")
    assert double.signature.startswith("saxpy(out: array(float64")
    assert (single.block, single.shared, dynamic.block, dynamic.shared) == (
        (128, 1, 1), 0, (256, 1, 1), 512,
    )  # fmt: skip
    restored = MemoryPlan.from_json(plan.to_json())
    assert restored.compiled == plan.compiled
    try:
        resources, occupancy = expected.resources, expected.occupancy
    except BackendUnavailableError:
        assert single.registers is single.occupancy is None
        return
    assert (single.registers, single.spilled) == (resources.registers, 0)
    assert single.static_shared == resources.static_shared == 0
    assert (single.occupancy, single.limited_by) == (occupancy.fraction, occupancy.limited_by)
    assert "compiled kernels" in str(restored)
    assert "128 x 1 x 1" in str(restored)


def test_a_plan_without_compilation_shows_no_code() -> None:
    with nbrt.fake("cpu") as plan:
        x = nbrt.zeros(3, "float32", device="cpu")
        nbrt.kernel(saxpy)[1, 4, nbrt.current_stream("cpu")](x, 2.0, x, x)
    assert plan.compiled == ()
    assert "compiled kernels" not in str(plan)
