"""`nbrt.compile` and `kernel.compile`, on every device."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda, types

import nbrt
from nbrt.config import override
from nbrt.errors import ArgumentError, ArgumentTypeError, CompileError, LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INT64 = types.int64


@pytest.fixture(autouse=True)
def in_place(tmp_path: Path) -> Iterator[None]:
    """Compile in this process, without code of earlier tests."""
    with override(compile_workers=0, cache_dir=str(tmp_path)):
        yield


def new_kernel() -> nbrt.Kernel:
    """Return a kernel that no code is loaded for."""

    @nbrt.kernel
    def add(out, step):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < out.size:
            out[i] = out[i] * 2 + step

    return add


SPECS = [
    ("void(int64[::1], int64)",),
    (types.void(INT64[::1], INT64),),
    ((INT64[::1], INT64),),
    (INT64[::1], INT64),
    ("int64[::1]", "int64"),
    (np.zeros(1, "int64"), 1),
    (SimpleNamespace(shape=(1 << 40,), dtype="int64"), np.int64(1)),
    ("void(int64[::1], int64)", "void(float32[::1], int64)"),
]


@pytest.mark.parametrize("specs", SPECS, ids=str)
def test_the_result_is_ready_to_launch(device: nbrt.Device, specs: tuple[Any, ...]) -> None:
    future = nbrt.compile(new_kernel(), *specs, block=4, device=device)
    assert isinstance(future, Future)
    configured = future.result()
    assert configured.block == (4, 1, 1)
    with nbrt.device(device):
        out = nbrt.full(4, 1, "int64")
        configured(out, 1)
        assert nbrt.to_host(out).tolist() == [3] * 4


def test_a_launch_after_it_compiles_nothing(device: nbrt.Device) -> None:
    kernel = new_kernel()
    with nbrt.device(device):
        out = nbrt.full(4, 1, "int64")
        future = kernel[1, 4].compile(out, 1)
        future.result()
        interface = nbrt.get_interface_for_device(device)
        plan: Any = kernel.program(interface).plan(0, (1, 1, 1), (4, 1, 1), 0)
        if not hasattr(plan, "is_prepared"):
            pytest.skip(f"{device.kind} compiles at launches only")
        assert plan.is_prepared(nbrt.current_stream().queue, (out, 1))
        assert not plan.is_prepared(nbrt.current_stream().queue, (out, 1.5))


def test_a_second_request_needs_no_job(device: nbrt.Device) -> None:
    kernel = new_kernel()
    kernel.compile("void(int64[::1], int64)", device=device).result()
    again = new_kernel().compile("void(int64[::1], int64)", device=device)
    assert again.jobs == ()


def test_it_launches_nothing(device: nbrt.Device) -> None:
    with nbrt.device(device):
        out = nbrt.full(4, 1, "int64")
        new_kernel()[1, 4].compile(out, 1).result()
        assert nbrt.to_host(out).tolist() == [1] * 4


def test_the_device_of_a_stream(device: nbrt.Device) -> None:
    stream = nbrt.Stream(device)
    configured = new_kernel()[1, 4, stream]
    assert configured.compile("void(int64[::1], int64)").result() is configured
    out = nbrt.full(4, 1, "int64", device=device)
    stream.wait_stream(nbrt.current_stream(device))
    configured(out, 1)
    assert nbrt.to_host(out, stream=stream).tolist() == [3] * 4


def test_errors_of_the_kernel(device: nbrt.Device) -> None:
    if device.kind not in ("cpu", "cuda") or nbrt.get_interface_for_device(device).is_substitute:
        pytest.skip(f"{device.kind} compiles no kernels")

    @nbrt.kernel
    def broken(out):  # type: ignore[no-untyped-def]
        out[0] = out.nonsense

    future = nbrt.compile(broken, "void(int64[::1])", device=device)
    line = broken.py_func.__code__.co_firstlineno + 2
    for _ in range(2):
        with pytest.raises(CompileError, match=f"test_compile.py:{line}"):
            future.result()
    assert isinstance(future.exception(), CompileError)


def test_wrong_requests(device: nbrt.Device) -> None:
    kernel = new_kernel()
    with pytest.raises(ArgumentTypeError, match=r"decorate the function with nbrt\.kernel"):
        nbrt.compile(kernel.py_func, 1, device=device)
    with pytest.raises(ArgumentError, match="float33"):
        nbrt.compile(kernel, "void(float33)", device=device)
    with pytest.raises(LaunchError):
        nbrt.compile(kernel, "void(int64[::1], int64)", block=1 << 20, device=device)
    if device.kind == "cpu":
        with pytest.raises(ArgumentTypeError, match="step"):
            nbrt.compile(kernel, "void(int64[::1])", device=device)
        with pytest.raises(ArgumentTypeError, match="step"):
            nbrt.compile(kernel, np.zeros(1), object(), device=device)
        with pytest.raises(ArgumentError, match="leave one of the two out"):
            nbrt.compile(kernel, "void(int64[::1], int64)", device="cpu", targets=["sm_90"])


def test_checked_kernels(device: nbrt.Device) -> None:
    if device.kind != "cpu":
        pytest.skip("checked mode is for cpu devices")
    kernel = new_kernel().checked()
    future = kernel.compile("void(int64[::1], int64)", block=4, device=device)
    assert future.jobs == ()
    out = nbrt.full(4, 1, "int64", device=device)
    future.result()(out, 1)
    assert nbrt.to_host(out).tolist() == [3] * 4


def test_a_pool_of_its_own(device: nbrt.Device) -> None:
    kernel = new_kernel()
    with nbrt.AsyncCompile(workers=0) as pool:
        futures = [
            pool.compile(kernel, "void(int64[::1], int64)", device=device),
            nbrt.compile(kernel, "void(float64[::1], int64)", device=device),
        ]
    assert all(future.done() for future in futures)
    for future in futures:
        future.result()


def test_worker_processes(device: nbrt.Device) -> None:
    if device.kind == "sample":
        pytest.skip("the sample backend interprets kernels")
    kernel = new_kernel()
    with nbrt.AsyncCompile(1) as pool:
        future = pool.compile(kernel, "void(int64[::1], int64)", block=4, device=device)
        configured = future.result()
    with nbrt.device(device):
        out = nbrt.full(4, 1, "int64")
        configured(out, 1)
        assert nbrt.to_host(out).tolist() == [3] * 4
