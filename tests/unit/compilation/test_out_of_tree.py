"""A backend outside of nbrt whose kernels compile in worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.sample_backend import STORE
from nbrt.backends.registry import get_interface_for_device
from nbrt.compilation.pool import AsyncCompile
from nbrt.config import override
from nbrt.errors import CompileError

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator
    from pathlib import Path

    from nbrt.backends.interface import DeviceInterface
    from nbrt.compilation.future import CompileFuture


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, sample_backend: DeviceInterface) -> Iterator[None]:
    with override(cache_dir=str(tmp_path)):
        yield


@pytest.fixture(scope="module")
def pool() -> Iterator[AsyncCompile]:
    made = AsyncCompile(1)
    yield made
    made.close()


def compiled(pool: AsyncCompile, kernel: nbrt.Kernel) -> CompileFuture[Any]:
    interface = get_interface_for_device("sample")
    program: Any = kernel.program(interface)
    jobs = interface.compile_jobs(program, 0, (1, 1, 1), (8, 1, 1), 0, ())
    return pool.submit(jobs, program.load, kernel.__name__)


def test_launch_runs_the_code_of_the_worker(pool: AsyncCompile) -> None:
    @nbrt.kernel
    def shift(x: Any) -> None:
        i = cuda.grid(1)
        if i < x.size:
            x[i] += 3

    program: Any = shift.program(get_interface_for_device("sample"))
    before: types.CodeType = program.function.__code__
    future = compiled(pool, shift)
    assert future.wait()
    assert [outcome and outcome.status for outcome in future.outcomes] == ["stored"]
    assert future.result() == future.jobs[0].key
    assert program.function.__code__ is not before  # it is that of the store

    with nbrt.device("sample:0"):
        x = nbrt.full(8, 1.0)
        shift[1, 8](x)
    np.testing.assert_array_equal(x, 4)
    assert [stored.entry.name for stored in STORE.entries()] == ["shift"]
    assert compiled(pool, shift).jobs == ()


def test_error_of_the_worker_names_the_line(pool: AsyncCompile) -> None:
    @nbrt.kernel
    def generator(x: Any) -> Any:
        yield x

    with pytest.raises(CompileError, match=r"test_out_of_tree.py:\d+: a generator"):
        compiled(pool, generator).result()


def test_worker_has_the_properties_of_the_devices() -> None:
    worker = get_interface_for_device("sample").worker()

    worker.set_device(1)
    assert worker.current_device() == 1
    assert worker.get_device_properties().name == "sample device"
