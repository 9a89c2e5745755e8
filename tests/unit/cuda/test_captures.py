"""Kernels for CUDA after a captured value has changed."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda, njit

import nbrt
from nbrt.backends.cuda.numba_compiler import NumbaCudaCompiler
from nbrt.errors import BackendUnavailableError

if TYPE_CHECKING:
    from nbrt.backends.cuda.backend import CudaInterface


def test_launches_notice_a_change(interface: CudaInterface) -> None:
    value = 3

    @nbrt.kernel
    def kernel(o):  # type: ignore[no-untyped-def]
        o[0] = value

    configured = kernel[1, 1]
    with nbrt.device("cuda:0"):
        out = nbrt.zeros(1)
        for value in (3, 4, 4, 5):
            configured(out)
            assert nbrt.to_host(out).tolist() == [value]


SOURCE = """
scale = 11
@cuda.jit(device=True)
def inner(x): return x + scale
twice = njit(lambda x: 2 * inner(x))
def kernel(o): o[0] = twice(o[1]) + scale
"""


def constants(compiler: NumbaCudaCompiler, function: Any) -> set[int]:
    """Return the numbers that PTX of the kernel contains."""
    try:
        ptx = compiler.adopt(function).compile_ptx((np.zeros(2, np.int64),), (8, 0))
    except BackendUnavailableError as error:
        pytest.skip(f"NVVM or NVRTC is not installed: {str(error).splitlines()[0]}")
    return set(map(int, re.findall(r"[ -](\d+);", ptx)))


@pytest.mark.parametrize("kind", ["function", "dispatcher"])
def test_compiled_code_is_of_the_values_at_adoption(kind: str) -> None:
    """Also in device functions, of which numba-cuda keeps what it has compiled."""
    driver: Any = SimpleNamespace(cupy=np)
    compiler = NumbaCudaCompiler(driver)
    scope: dict[str, Any] = {"cuda": cuda, "njit": njit, "__name__": "cells"}
    exec(SOURCE, scope)
    function = scope["kernel"] if kind == "function" else cuda.jit(scope["kernel"])
    assert constants(compiler, function) & {11, 33, 22, 1234, 3702, 2468} == {33}
    scope["scale"] = 1234
    assert constants(compiler, function) & {11, 33, 22, 1234, 3702, 2468} == {3702}
