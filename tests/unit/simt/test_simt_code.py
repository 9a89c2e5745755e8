"""The code that comes out: vector instructions where a plain loop would get them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numba import cuda

from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.cpu.simt.runtime.inspection import CpuCode


def saxpy(a: Any, x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    if i < n:
        y[i] = a * x[i] + y[i]


def saxpy_by_formula(a: Any, x: Any, y: Any, n: Any) -> None:
    i = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    if i >= n:
        return
    y[i] = a * x[i] + y[i]


def saxpy_in_block(a: Any, x: Any, y: Any, n: Any) -> None:
    t, b = cuda.threadIdx.x, cuda.blockIdx.x
    y[b * 256 + t] = a * x[b * 256 + t] + y[t + b * 256]


@cuda.jit(device=True)
def multiply_add(a: Any, b: Any, c: Any) -> Any:
    return a * b + c


def saxpy_with_device_function(a: Any, x: Any, y: Any, n: Any) -> None:
    i = cuda.grid(1)
    if i < n:
        y[i] = multiply_add(a, x[i], y[i])


def saxpy_2d(a: Any, x: Any, y: Any, n: Any) -> None:
    i, j = cuda.grid(2)
    if i < n and j < n:
        y[j, i] = a * x[j, i] + y[j, i]


def stencil(a: Any, x: Any, y: Any, n: Any) -> None:
    i, j = cuda.grid(2)
    if 0 < i < n - 1 and 0 < j < n - 1:
        y[j, i] = a * (x[j, i - 1] + x[j, i + 1] + x[j - 1, i] + x[j + 1, i])


LINE = (np.zeros(512, np.float32), np.zeros(512, np.float32), 512)
PLANE = (np.zeros((64, 64), np.float32), np.zeros((64, 64), np.float32), 64)


def vector_operations(kernel: Any, block: tuple[int, int, int], args: Any) -> set[str]:
    text = CpuCode(kernel, (np.float32(2), *args), block).llvm
    assert "masked" not in text
    assert "gather" not in text
    return set(re.findall(r"(fmul|fadd|load|store) <\d+ x float>", text))


@pytest.mark.parametrize(
    "kernel", [saxpy, saxpy_by_formula, saxpy_in_block, saxpy_with_device_function]
)
def test_one_dimensional_kernels_vectorise(kernel: Any) -> None:
    assert vector_operations(kernel, (256, 1, 1), LINE) == {"fmul", "fadd", "load", "store"}


@pytest.mark.parametrize("kernel", [saxpy_2d, stencil])
@pytest.mark.parametrize("block", [(16, 16, 1), (32, 8, 1), (1, 32, 1), (1, 1, 1)])
def test_two_dimensional_kernels_vectorise(kernel: Any, block: tuple[int, int, int]) -> None:
    assert vector_operations(kernel, block, PLANE) == {"fmul", "fadd", "load", "store"}


def test_fma_vectorises() -> None:
    def kernel(a: Any, x: Any, y: Any, n: Any) -> None:
        i = cuda.grid(1)
        if i < n:
            y[i] = cuda.fma(a, x[i], y[i])

    text = CpuCode(kernel, (np.float32(2), *LINE), (256, 1, 1)).llvm
    assert re.search(r"@llvm\.fma\.v\d+f32", text)
    assert "@llvm.fmuladd" not in text


def test_machine_code_and_signatures_can_be_seen() -> None:
    code = CpuCode(saxpy, (2.0, *LINE), (256, 1, 1))
    assert "float64" in code.signature
    assert "int64" in code.signature
    assert "saxpy" in code.asm


def test_names_are_shown() -> None:
    kernel = CpuProgram(saxpy, cache=False)
    assert repr(kernel) == "<CpuProgram saxpy>"
    assert repr(kernel.plan(0, (2, 1, 1), (8, 1, 1))) == "<CpuPlan saxpy[(2, 1, 1), (8, 1, 1)]>"
