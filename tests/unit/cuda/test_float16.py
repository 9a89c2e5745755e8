"""numba-cuda's code of float16 in a process that compiles for CPU devices too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helpers.processes import output_of

if TYPE_CHECKING:
    from pathlib import Path

CODE = """
import numpy as np
import nbrt
from numba import cuda
from nbrt.backends.cuda.ptx import compile_ptx

@nbrt.kernel
def copy(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i]

@nbrt.kernel
def halve(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = -abs(x[i]) / np.float16(2) + np.float16(np.float32(i))

half, single = np.zeros(4, np.float16), np.zeros(4, np.float32)

def on_cpu():
    x = nbrt.full(4, 3, "float16", device="cpu:0")
    halve[1, 4](x, x)
    print(nbrt.to_host(x).tolist())

def for_cuda():
    return compile_ptx(halve.function, (half, half), (9, 0))

{order}
"""
ORDERS = {
    "cuda first": "for_cuda(); on_cpu()",
    "cpu first": "on_cpu(); for_cuda()",
    "cuda, cpu, cuda": "compile_ptx(copy.function, (single, single), (9, 0)); on_cpu(); for_cuda()",
}


@pytest.mark.parametrize("order", ORDERS)
def test_either_compiler_may_be_first(order: str, tmp_path: Path) -> None:
    # A new cache, so that the CPU's compiler is loaded.
    environment = {"NBRT_CACHE_DIR": str(tmp_path)}
    code = CODE.format(order=ORDERS[order])
    assert output_of(code, environment=environment) == "[-1.5, -0.5, 0.5, 1.5]\n"
