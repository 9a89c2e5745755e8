"""`nbrt.compile` for GPUs on a machine without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helpers.processes import run_python

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
    import nbrt
    from numba import cuda

    @nbrt.kernel
    def scale(x, factor):
        i = cuda.grid(1)
        if i < x.size:
            x[i] *= factor

    @nbrt.kernel
    def broken(x):
        x[0] = x.nonsense

    SIGNATURES = "void(float32[::1], float64)", "void(float64[:], float64)"
    assert not nbrt.is_available("cuda")
    try:
        future = nbrt.compile(scale, *SIGNATURES, targets=["sm_80", "H100"])
        print(len(future.jobs), len({job.key for job in future.jobs}))
        print(type(future.result()).__name__)
        print(len(nbrt.compile(scale, SIGNATURES[0], device="cuda", targets="sm_90").jobs))
    except nbrt.errors.BackendUnavailableError as error:
        raise SystemExit(f"no compiler: {error}")
    try:
        nbrt.compile(broken, "void(float32[::1])", targets=["sm_80"]).result()
    except nbrt.errors.CompileError as error:
        print("nonsense" in str(error))
    try:
        nbrt.compile(scale, SIGNATURES[0], device="cuda")
    except nbrt.errors.BackendUnavailableError as error:
        print(*error.__notes__)
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_code_for_gpus_without_a_gpu(tmp_path: Path, workers: int) -> None:
    settings = {"NBRT_CACHE_DIR": str(tmp_path), "NBRT_COMPILE_WORKERS": str(workers)}
    # A GPU of this machine is hidden.
    done = run_python(PROGRAM, environment=settings | {"CUDA_VISIBLE_DEVICES": ""})
    if "no compiler" in done.stderr:
        pytest.skip("the libraries of CUDA's compiler are not installed")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "4 4",
        "ConfiguredKernel",
        "0",
        "True",
        "To compile without a device, name its model: targets=['sm_90'].",
    ]
