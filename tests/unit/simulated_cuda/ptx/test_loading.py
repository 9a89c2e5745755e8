"""Loading of compiled modules where free memory is scattered."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = """
import ctypes, mmap
import numpy as np
from simulated_cuda.ptx import compile as compiling
from unit.simulated_cuda.ptx.executor import Program

TEXT = '''.visible .entry scale(.param .u64 out, .param .f64 x) {
  .reg .u64 %o; .reg .f64 %x;
  ld.param.u64 %o, [out]; ld.param.f64 %x, [x];
  @BODY@
  st.global.f64 [%o], %x; ret;
}'''
STEPS = [f"mul.f64 %x, %x, 0d3FF{digit:x}800000000001;" for digit in range(16)] * 100
MAP_FIXED, MAP_NORESERVE = 0x10, 0x4000
GAP, DISTANCE = 1 << 14, 3 << 30

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] + [ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def reserve(address, size, fixed=0):
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE | fixed
    return libc.mmap(address, size, 0, flags, -1, 0)


def scatter_free_memory():
    # Leaves gaps of GAP bytes, DISTANCE bytes apart.
    base = reserve(None, 1 << 43)
    with open("/proc/self/maps") as file:
        ranges = [[int(x, 16) for x in line.split()[0].split("-")] for line in file]
    above = [(start, end) for start, end in ranges if base <= start < 1 << 47]
    for (_, end), (start, _) in zip(above, above[1:]):
        if start > end:
            reserve(end, start - end, MAP_FIXED)
    for index in range(1, 2000):
        libc.munmap(base + index * DISTANCE, GAP)


load = compiling.LoadedObject.__init__

def scatter_and_load(self, *arguments):
    scatter_free_memory()
    load(self, *arguments)

compiling.LoadedObject.__init__ = scatter_and_load
out = np.zeros(1)
Program(TEXT.replace("@BODY@", " ".join(STEPS))).run("scale", out, np.float64(1.0))
expected = 1.0
for step in STEPS:
    expected *= np.array(int(step.split("0d")[1][:-1], 16), np.uint64).view(np.float64)
print(out[0] == expected)
"""


def test_code_is_loaded_beside_its_constants(run_child: Callable[..., str]) -> None:
    """Code addresses its constants by distances of 32 bits."""
    path = os.pathsep.join([str(Path(__file__).parents[3]), os.environ["PYTHONPATH"]])
    assert run_child(PROGRAM, PYTHONPATH=path) == "True"
