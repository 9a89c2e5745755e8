"""Uninstalling leaves numba-cuda as it was, also with arrays and streams of programs alive."""

from __future__ import annotations

import gc
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.core.target_extension import dispatcher_registry, target_registry
from numba.cuda import api, args, decorators, device_init
from numba.cuda.core import config
from numba.cuda.cudadrv import devicearray, devices, driver

import nbrt
from helpers.processes import run_python
from nbrt.compat import numba_cuda

OWNERS: list[Any] = [
    cuda, api, args.In, args.Out, config, decorators, device_init, devicearray, devices,
    devices._runtime, driver, driver.Device, driver.driver,
]  # fmt: skip


def attributes() -> dict[tuple[str, str], Any]:
    found = {
        (repr(owner), name): value
        for owner in OWNERS
        for name, value in list(vars(owner).items())
        if not isinstance(value, ModuleType) and name != "_logger"
    }
    found["registry", "cuda"] = dispatcher_registry[target_registry["cuda"]]
    return found


def test_every_attribute_is_restored() -> None:
    before = attributes()
    numba_cuda.install()
    cuda.jit(lambda x: None)[1, 1](cuda.to_device(np.zeros(2)))
    assert attributes() != before
    numba_cuda.uninstall()
    after = attributes()
    assert after.keys() == before.keys()
    assert [name for name in before if after[name] is not before[name]] == []


@pytest.mark.filterwarnings("error")
def test_objects_that_outlive_an_installation_keep_their_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} of the real driver was called")

    numba_cuda.install()
    gc.collect()
    before = nbrt.memory.memory_allocated("cpu:0")
    array, other = (cuda.to_device(np.arange(5000.0)) for _ in range(2))
    held = [cuda.stream(), cuda.event(), cuda.mapped_array(8), cuda.managed_array(8)]
    del other
    numba_cuda.uninstall()
    gc.collect()
    allocated = nbrt.memory.memory_allocated("cpu:0") - before
    assert 40_000 <= allocated < 80_000  # what was freed, and waited for a common free, is free
    numba_cuda.install()
    assert array.copy_to_host()[-1] == 4999
    numba_cuda.uninstall()
    monkeypatch.setattr(driver.driver, "_cuda_python_wrap_fn", refuse)
    for name in list(vars(driver.driver)):
        if name.startswith("cu"):
            monkeypatch.delattr(driver.driver, name)
    del array
    held.clear()
    gc.collect()
    assert nbrt.memory.memory_allocated("cpu:0") == before


def test_installations_can_be_repeated() -> None:
    for _ in range(3):
        numba_cuda.install()
        numba_cuda.install()
        assert numba_cuda.is_installed()
        array = cuda.to_device(np.arange(3))
        assert array.copy_to_host().tolist() == [0, 1, 2]
        numba_cuda.uninstall()
        numba_cuda.uninstall()
        assert not numba_cuda.is_installed()


@pytest.mark.gpu
def test_on_a_cuda_device_numba_cuda_allocates_from_the_pools_of_nbrt() -> None:
    done = run_python(
        """
        import gc
        import numpy as np
        import nbrt
        from numba import cuda
        from nbrt.compat import numba_cuda

        numba_cuda.install()
        array = cuda.to_device(np.arange(1000.0))
        print(nbrt.memory.memory_allocated("cuda:0") >= 8000)

        @cuda.jit
        def add_one(x):
            i = cuda.grid(1)
            if i < x.size:
                x[i] += 1

        add_one[8, 128](array)
        print(array.copy_to_host()[-1])
        del array
        cuda.synchronize()
        gc.collect()
        print(nbrt.memory.memory_allocated("cuda:0"))
        """,
        environment={"NBRT_DEVICE": "cuda", "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0"},
        simulated_cuda=True,
    )
    assert done.stdout.splitlines() == ["True", "1000.0", "0"], done.stderr
