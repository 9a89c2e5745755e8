"""`nbrt.warm` in one process, and the run in another, which compiles nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helpers.processes import run_python

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import sys

import numpy as np
from numba import cuda

import nbrt


@nbrt.kernel
def scale(x, factor):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= factor


def step(size):
    x = nbrt.full(size, 2.0, "float32")
    scale[1, 32](x, np.float32(3))
    scale[1, 32](x[::2], np.float32(3))
    noise = nbrt.random.rand(size, dtype="float32")
    with nbrt.graph() as g:
        scale[2, 16](noise, 1.0)
    g.replay()
    return x
"""

WARM = PROGRAM + "print(*(row.source for row in nbrt.warm(step, 8)))\n"

RUN_ON_CPU = (
    PROGRAM
    + """
from nbrt.backends.cpu.simt.runtime.dispatcher import EntryDispatcher

def refuse(self, types):
    raise AssertionError(f"compiled {types}")

EntryDispatcher._compile = refuse
print(step(8).tolist())
"""
)

RUN_ON_CUDA = (
    PROGRAM
    + """
from numba.cuda.cudadrv import nvvm

def refuse(*args, **options):
    raise AssertionError("called NVVM")

nvvm.compile_ir = refuse
print(nbrt.to_host(step(8)).tolist())
"""
)

EXPECTED = f"{[18.0, 6.0] * 4}\n"


@pytest.mark.parametrize("workers", [0, 1])
def test_the_run_compiles_nothing_on_a_cpu(tmp_path: Path, workers: int) -> None:
    settings = {
        "NBRT_CACHE_DIR": str(tmp_path),
        "NBRT_COMPILE_WORKERS": str(workers),
        "NBRT_DEVICE": "cpu",
    }
    warmed = run_python(WARM, environment=settings)
    assert warmed.stdout.split() == ["compiled"] * 4, warmed.stderr
    done = run_python(RUN_ON_CPU, environment=settings)
    assert (done.returncode, done.stdout) == (0, EXPECTED), done.stderr


def test_the_run_compiles_nothing_on_a_gpu(cuda_interface: object, tmp_path: Path) -> None:
    settings = {"NBRT_CACHE_DIR": str(tmp_path), "NBRT_DEVICE": "cuda"}
    warmed = run_python(WARM, environment=settings, simulated_cuda=True)
    # Code for a GPU does not depend on the block.
    assert warmed.stdout.split() == ["compiled"] * 4, warmed.stderr
    done = run_python(RUN_ON_CUDA, environment=settings, simulated_cuda=True)
    assert (done.returncode, done.stdout) == (0, EXPECTED), done.stderr
