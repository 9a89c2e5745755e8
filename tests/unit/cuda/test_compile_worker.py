"""CUDA kernels compiled in worker processes, which have no device."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda

import nbrt
from helpers.clocks import HANG_TIMEOUT
from nbrt.backends.cuda.backend import CudaInterface
from nbrt.backends.cuda.kernel_images import STORE, load_image, target_of
from nbrt.backends.cuda.ptx import compile_ptx
from nbrt.backends.registry import get_interface_for_device
from nbrt.compilation.pool import AsyncCompile
from nbrt.config import override
from nbrt.errors import ArgumentError, ArgumentTypeError, CompileError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nbrt.backends.compile_jobs import CompileJob

pytestmark = pytest.mark.usefixtures("cuda_interface", "no_overloads")

OFFSET = 5


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with override(cache_dir=str(tmp_path)):
        yield tmp_path


@cuda.jit(device=True, fastmath=True)
def helper(a):  # type: ignore[no-untyped-def]
    return a + OFFSET


@cuda.jit(max_registers=64)
def scaled(x, factor=2.0):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < x.size:
        x[i] = helper(x[i]) * factor


def broken(x):  # type: ignore[no-untyped-def]
    x[0] = x.nonsense


def jobs_of(function: Any, *args: Any, targets: tuple[str, ...] = ()) -> list[CompileJob]:
    """Return the jobs of a launch, or of GPUs that are not there."""
    interface = get_interface_for_device("cuda")
    program = function if targets else nbrt.kernel(function).program(interface)
    one = (1, 1, 1)
    return interface.compile_jobs(program, 0, one, one, 0, args, targets)


def launched() -> list[float]:
    with nbrt.device("cuda:0"):
        x = nbrt.full(4, 3.0)
        nbrt.kernel(scaled)[1, 4](x)
        values: list[float] = nbrt.to_host(x).tolist()
    return values


def test_a_job_has_the_key_of_the_launch() -> None:
    (job,) = jobs_of(scaled, np.zeros(4))
    assert job.kind == "cuda"
    assert job.label.startswith("scaled(array(float64, 1d, C), float64) sm_")
    assert launched() == [16] * 4
    assert [entry.key for entry in STORE.entries()] == [job.key]
    assert jobs_of(scaled, np.zeros(4)) == []


def test_jobs_for_gpus_that_are_not_there() -> None:
    jobs = jobs_of(scaled, np.zeros(4), targets=("A100", "sm_80", "H100"))
    assert [job.label.rpartition(" ")[2] for job in jobs] == ["sm_80", "sm_90a"]
    worker = CudaInterface().worker()
    for job in jobs:
        assert worker.compile(job.payload) == job.key
    assert {entry.key for entry in STORE.entries()} == {job.key for job in jobs}
    assert jobs_of(scaled, np.zeros(4), targets=("A100", "H100")) == []
    image = load_image(jobs[1].key)
    assert image is not None
    assert image.target == target_of((9, 0))
    assert image.max_registers == 64


def test_mistakes_are_found_before_a_process_is_asked() -> None:
    with pytest.raises(ArgumentError, match="GTX 9999"):
        jobs_of(scaled, np.zeros(4), targets=("GTX 9999",))
    with pytest.raises(ArgumentTypeError, match="text"):
        jobs_of(scaled, "text")
    with pytest.raises(ArgumentTypeError, match="expected 2 arguments"):
        jobs_of(scaled, 1, 2, 3)


def test_kernels_that_cannot_be_stored_have_no_job() -> None:
    assert jobs_of(cuda.jit(debug=True, opt=False)(scaled.py_func), np.zeros(4)) == []
    assert jobs_of(scaled, np.zeros(4), np.datetime64(1, "s")) == []


_FIRST_JOB = """
import sys
from nbrt.backends.cuda.compile_worker import CudaWorker
from nbrt.compilation.server import preload

preload(CudaWorker.preload)
before = set(sys.modules)
CudaWorker("cuda", (), 0).compile(sys.stdin.buffer.read())
print([name for name in sys.modules.keys() - before if name.startswith("numba.cuda")])
"""


@pytest.mark.slow
def test_a_job_finds_all_of_numba_cuda_imported(folder: Path) -> None:
    (job,) = jobs_of(scaled, np.zeros(4), targets=("A100",))
    done = subprocess.run(
        [sys.executable, "-c", _FIRST_JOB],
        env=os.environ | {"NBRT_CACHE_DIR": str(folder)},
        input=job.payload,
        capture_output=True,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == (b"[]", 0), done.stderr.decode()


@pytest.mark.slow
def test_a_process_compiles_what_is_launched_here(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.cuda.cudadrv import nvvm

    jobs = jobs_of(scaled, np.zeros(4)) + jobs_of(scaled, np.zeros(4), targets=("T4",))
    bad = jobs_of(broken, np.zeros(4))
    with AsyncCompile(1) as pool:
        future = pool.submit(jobs, launched, "scaled")
        failing = pool.submit(bad, launched, "broken")
        monkeypatch.setattr(nvvm, "compile_ir", None)
        assert future.result(HANG_TIMEOUT) == [16] * 4
        line = broken.__code__.co_firstlineno + 1
        with pytest.raises(CompileError, match=rf"broken\(x.*test_compile_worker\.py:{line}"):
            failing.result(HANG_TIMEOUT)
    assert {entry.key for entry in STORE.entries()} == {job.key for job in jobs}


def test_settings_of_the_program_reach_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.cuda.core.config.FORCE_CUDA_CC", (8, 9))
    (job,) = jobs_of(scaled, np.zeros(4), targets=("sm_80",))
    monkeypatch.setattr("numba.cuda.core.config.FORCE_CUDA_CC", None)
    worker = get_interface_for_device("cuda").worker()
    assert worker.compile(job.payload) == job.key
    assert ".target sm_89" in compile_ptx(scaled, (np.zeros(4), 2.0), (8, 0))
