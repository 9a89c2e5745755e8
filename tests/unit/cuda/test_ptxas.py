"""Parsing of ptxas reports: recorded ones and, where ptxas exists, those of real kernels."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

from nbrt.backends.cuda import ptxas
from nbrt.backends.cuda.ptx import CudaCode, compile_ptx
from nbrt.backends.inspection import Resources
from nbrt.errors import ArgumentTypeError, BackendUnavailableError, CompileError

if TYPE_CHECKING:
    from pathlib import Path

FLOATS = np.ones(4, np.float32)

# From ptxas 12.9 and 13.4, names shortened.
REPORT = """\
ptxas info    : 8 bytes gmem, 40 bytes cmem[3]
ptxas info    : Compiling entry function '_Z5other' for 'sm_80'
ptxas info    : Function properties for _Z5other
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 99 registers, used 0 barriers, 388 bytes cmem[0]
ptxas info    : Compiling entry function '_Z6kernel' for 'sm_80'
ptxas info    : Function properties for _Z6kernel
    328 bytes stack frame, 512 bytes spill stores, 640 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 4096 bytes smem, 388 bytes cmem[0], 8 bytes cmem[2]
"""  # noqa: E501


def reverse(x, y):  # type: ignore[no-untyped-def]
    tile = cuda.shared.array(96, "float32")
    pair = cuda.shared.array((2, 8), "float64")
    t = cuda.threadIdx.x
    tile[t] = x[t]
    pair[t % 2, t % 8] = x[t]
    cuda.syncthreads()
    y[t] = tile[95 - t] + pair[0, 0]


def scratch(x, y):  # type: ignore[no-untyped-def]
    mine = cuda.local.array(64, "float64")
    for i in range(64):
        mine[i] = x[i]
    y[0] = mine[int(x[0])]


def broken(x):  # type: ignore[no-untyped-def]
    x[0] = x.nonsense


def resources(kernel: Any, *args: Any, gpu: str = "A100") -> Resources:
    """Skip by name where CUDA's compiler or a ptxas that fits it is missing."""
    try:
        return CudaCode(kernel, args, (96, 1, 1), 0, gpu).resources
    except BackendUnavailableError as error:
        pytest.skip(str(error))


def test_report_of_one_kernel() -> None:
    assert ptxas._parsed(REPORT, ["_Z6kernel"]) == Resources(
        registers=32,
        static_shared=4096,
        stack=328,
        spill_stores=512,
        spill_loads=640,
        constant=396,
        barriers=1,
    )


def test_ptx_without_a_gpu() -> None:
    for capability in ((8, 0), (9, 0)):
        try:
            ptx = compile_ptx(reverse, (FLOATS, FLOATS), capability)
        except BackendUnavailableError as error:
            pytest.skip(str(error))
        assert f".target sm_{capability[0]}{capability[1]}" in ptx
        assert ptx.count(".entry") == 1
        assert "bar.sync" in ptx or "barrier.sync" in ptx


def test_shared_memory_and_barriers() -> None:
    found = resources(reverse, FLOATS, FLOATS)
    assert found.static_shared == 96 * 4 + 2 * 8 * 8
    assert found.barriers == 1
    assert 8 <= found.registers <= 64
    assert (found.spill_stores, found.spill_loads) == (0, 0)


def test_local_array_is_on_the_stack() -> None:
    assert resources(scratch, FLOATS, FLOATS).stack >= 64 * 8


def test_calls_of_the_device_runtime() -> None:
    def waits(x):  # type: ignore[no-untyped-def]
        tile = cuda.shared.array(96, "float32")
        tile[cuda.threadIdx.x] = x[cuda.threadIdx.x]
        cuda.cg.this_grid().sync()
        x[0] = tile[95 - cuda.threadIdx.x]

    found = resources(waits, FLOATS)
    assert found.registers > 16  # values are kept across the calls
    assert found.static_shared == 96 * 4


def test_default_values_are_filled_in() -> None:
    def scaled(x, factor=2.0):  # type: ignore[no-untyped-def]
        x[0] *= factor

    assert resources(scaled, FLOATS).registers > 0


def test_compiler_options_of_the_dispatcher() -> None:
    def sums(x, y):  # type: ignore[no-untyped-def]
        total = 0.0
        for i in range(64):
            for j in range(i):
                total += x[i * j % 61] / x[j] + x[i + j] * x[63 - j]
        y[0] = total

    plain = resources(sums, FLOATS, FLOATS).registers
    assert plain > 24
    assert resources(cuda.jit(max_registers=24)(sums), FLOATS, FLOATS).registers <= 24
    bounded = CudaCode(cuda.jit(launch_bounds=64)(sums), (FLOATS, FLOATS), (64, 1, 1), 0, "A100")
    assert ".maxntid 64" in bounded.ptx


def test_what_does_not_compile() -> None:
    with pytest.raises(CompileError, match=r"test_ptxas.py:\d+\n(.*\n)*.*nonsense"):
        resources(broken, FLOATS)
    with pytest.raises(ArgumentTypeError, match=r"argument 0 \(x\) of broken"):
        resources(broken, object())


def test_capability_that_cuda_does_not_have() -> None:
    with pytest.raises(BackendUnavailableError, match=r"7\.0"):
        compile_ptx(reverse, (FLOATS, FLOATS), (7, 0))


def test_no_ptxas(monkeypatch: pytest.MonkeyPatch) -> None:
    pathfinder = pytest.importorskip("cuda.pathfinder")
    monkeypatch.setattr(pathfinder, "find_nvidia_binary_utility", lambda _: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BackendUnavailableError, match=r"nbrt\[ptxas\].*the wheel nvidia-cuda-nvcc"):
        ptxas.find_ptxas()


@pytest.mark.parametrize(
    ("says", "error", "match"),
    [
        ("fatal: Unsupported .version 9.4; current version is '9.0'", BackendUnavailableError,
         "another CUDA version.*nvidia-cuda-nvcc"),
        ("fatal: Value 'sm_90' is not defined for option 'gpu-name'", BackendUnavailableError,
         "another CUDA version"),
        ("error: syntax error near 'x'", CompileError, "to assemble for sm_90.*syntax error"),
    ],
)  # fmt: skip
def test_ptxas_that_refuses(
    says: str,
    error: type[Exception],
    match: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = tmp_path / "ptxas"
    program.write_text(f'#!/bin/sh\necho "{says}" >&2\nexit 255\n', encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(ptxas, "find_ptxas", lambda: str(program))
    with pytest.raises(error, match=match):
        ptxas.resources_of(".version 9.4", (9, 0))
