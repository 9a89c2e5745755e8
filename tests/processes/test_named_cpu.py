"""``NBRT_CPU``: code for a named CPU, its keys on disk, and names that do not fit the machine."""

from __future__ import annotations

import json
import platform
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from helpers.processes import output_of, run_python

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="names of x86-64 processors"
)

PROGRAM = """
import json
import numpy as np
from numba import cuda
import nbrt
from nbrt.backends.cpu.launch import CpuProgram

@cuda.jit
def scale(y, x):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = 3 * x[i] + 1

@cuda.jit
def rotate(y, x):
    tile = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    y[cuda.grid(1)] = tile[t ^ 1] * tile[(t + 5) % 64]

x = np.arange(256, dtype=np.float32)
results = []
text = ""
with nbrt.device("cpu:0"):
    for function in scale, rotate:
        kernel, y = nbrt.kernel(function), np.zeros_like(x)
        kernel[4, 64](y, x)
        results.append(y.tolist())
        text += kernel.inspect(y, x, block=64).asm
    draws = np.asarray(nbrt.random.Generator(7, "cpu").standard_normal(100)).tolist()
widths = [name for name in ("xmm", "ymm", "zmm") if "%" + name in text]
targets = sorted({each.entry.target for each in nbrt.cache.entries()})
print(json.dumps([results, draws, widths, targets]))
"""


def run(folder: Path, cpu: str) -> Any:
    variables = {"NBRT_CACHE_DIR": str(folder), "NBRT_CPU": cpu}
    return json.loads(output_of(PROGRAM, environment=variables))


def test_code_has_the_instructions_of_the_named_cpu(tmp_path: Path) -> None:
    x = np.arange(256, dtype=np.float32)
    tiles = x.reshape(4, 64)
    products = tiles[:, np.arange(64) ^ 1] * tiles[:, (np.arange(64) + 5) % 64]
    results, draws, widths, targets = run(tmp_path, "x86-64")
    np.testing.assert_array_equal(results[0], 3 * x + 1)
    np.testing.assert_array_equal(results[1], products.ravel())
    assert widths == ["xmm"]
    assert targets == ["x86_64-x86-64"]

    # The same results and draws on this machine's own CPU, from other code.
    own_results, own_draws, _, own_targets = run(tmp_path, "")
    assert (own_results, own_draws) == (results, draws)
    assert len(own_targets) == 2


@pytest.mark.parametrize(
    ("name", "message"), [("no-such-cpu", "LLVM knows no"), ('x"y', "LLVM knows no")]
)
def test_unknown_names(tmp_path: Path, name: str, message: str) -> None:
    program = """
import nbrt
try:
    nbrt.zeros(3, device="cpu")
except nbrt.errors.ArgumentError as error:
    print(error)
"""
    variables = {"NBRT_CACHE_DIR": str(tmp_path), "NBRT_CPU": name}
    said = run_python(program, environment=variables).stdout
    assert "expected NBRT_CPU to be a CPU of LLVM" in said
    assert message in said
