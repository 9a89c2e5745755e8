"""The functions of Numba that kernels compile with, and code that block shapes share."""

from __future__ import annotations

import subprocess
import sys
import types
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import pytest
from numba import cuda
from numba.core.codegen import JitEngine

import nbrt
from nbrt.backends.cpu.simt.frontend.pipeline import DeviceCompiler
from nbrt.backends.cpu.simt.frontend.wait_points import mentions_thread
from nbrt.config import override

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LAUNCH = """
import sys
import numpy as np
from numba import cuda
import nbrt

@cuda.jit(device=True)
def mean(x):
    return x.mean()

def kernel(out, x):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = {expression}

out, x = np.zeros(4), np.arange(6.0)
with nbrt.device("cpu:0"):
    nbrt.kernel(kernel)[1, 4](out, x)
print(out.tolist(), "numba.np.linalg" in sys.modules)
"""


def _printed(expression: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("NBRT_CACHE_DIR", str(folder))
    command = [sys.executable, "-W", "ignore", "-c", _LAUNCH.format(expression=expression)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_first_launch_leaves_out_the_parts_of_numba_that_it_does_not_call(tmp_path, monkeypatch):
    assert _printed("x[i] + 1", tmp_path, monkeypatch) == "[1.0, 2.0, 3.0, 4.0] False"


def test_a_kernel_that_calls_them_compiles_with_all_of_numba(tmp_path, monkeypatch):
    assert _printed("mean(x)", tmp_path, monkeypatch) == "[2.5, 2.5, 2.5, 2.5] True"


@cuda.jit(device=True)
def _twice(x: Any) -> Any:
    return x + x


@cuda.jit(device=True)
def _twice_and_thread(x: Any) -> Any:
    return _twice(x) + cuda.threadIdx.x


def _launched(function: Any) -> list[int]:
    """Return the versions of a device function and of one that it calls, for two block shapes."""

    def kernel(out: Any) -> None:
        i = cuda.grid(1)
        out[i] = function(i)

    out = np.zeros(8)
    with nbrt.device("cpu:0"):
        kernel_of_nbrt = nbrt.kernel(kernel)
        kernel_of_nbrt[1, 8](out)
        kernel_of_nbrt[2, 4](out)
    return [
        len(DeviceCompiler.devices.dispatcher(each, hidden=True).overloads)
        for each in (function, _twice)
    ]


@pytest.fixture
def empty_cache(tmp_path: Path) -> Iterator[None]:
    """Kernels compile."""
    with override(cache_dir=str(tmp_path)):
        yield


@pytest.mark.usefixtures("empty_cache")
def test_device_functions_compile_once_for_all_block_shapes():
    assert _launched(_twice) == [1, 1]


@pytest.mark.usefixtures("empty_cache")
def test_device_functions_that_read_the_index_of_their_thread_compile_for_each():
    assert _launched(_twice_and_thread) == [2, 1]


@pytest.mark.usefixtures("empty_cache")
def test_functions_that_a_kernel_calls_become_no_machine_code(monkeypatch):
    modules, add = [], JitEngine.add_module
    monkeypatch.setattr(JitEngine, "add_module", lambda *args: (modules.append(args), add(*args)))

    @numba.njit
    def jitted(x: Any) -> Any:
        return x * 2

    @cuda.jit(device=True)
    def function(x: Any) -> Any:
        return jitted(x) + max(x, np.int64(3))  # an overload, for integers

    def kernel(out: Any) -> None:
        out[0] = function(cuda.threadIdx.x) + np.sum(out)

    out = np.full(2, 5)
    with nbrt.device("cpu:0"):
        nbrt.kernel(kernel)[1, 1](out)
    assert out[0] == 13
    assert len(modules) == 1


def test_indices_are_found_in_modules_of_modules():
    inner, outer = types.ModuleType("inner"), types.ModuleType("outer")
    inner.place = cuda.threadIdx
    outer.inner = inner

    def function() -> int:
        return outer.inner.place.x

    def other() -> Any:
        return outer.inner.place_of

    assert mentions_thread(function)
    assert not mentions_thread(other)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.uint64, np.complex128])
def test_views_have_the_shape_and_the_bits_of_numpy(dtype):
    def kernel(bits: Any, sizes: Any, x: Any) -> None:
        view = x.view(dtype)
        sizes[0], sizes[1], sizes[2] = view.shape[0], view.size, view.strides[0]
        for i in range(view.shape[0]):
            bits[i] = view[i]

    x = np.array([1.5, -2.25, 1e300, 0.0])
    expected = x.view(dtype)
    bits, sizes = np.zeros(expected.shape, dtype), np.zeros(3, np.int64)
    with nbrt.device("cpu:0"):
        nbrt.kernel(kernel)[1, 1](bits, sizes, x)
    assert bits.tobytes() == expected.tobytes()
    assert sizes.tolist() == [expected.shape[0], expected.size, expected.strides[0]]


def test_functions_jitted_for_the_cpu_are_independent_of_kernels():
    @numba.njit
    def norm(x: Any) -> Any:
        return np.linalg.norm(x.view(np.float64)) + np.trapezoid(x)

    def kernel(out: Any, x: Any) -> None:
        out[0] = x.view(np.float64)[0]

    x = np.array([3.0, 4.0])
    out = np.zeros(1)
    with nbrt.device("cpu:0"):
        nbrt.kernel(kernel)[1, 1](out, x)
    assert out[0] == 3
    assert norm(x) == 8.5


def test_a_call_typed_for_the_cpu_between_two_kernels_compiles_for_the_second(tmp_path):
    def kernel(out: Any, a: Any) -> None:
        i = cuda.grid(1)
        out[i] = min(i, a)

    def second(out: Any, a: Any) -> None:
        i = cuda.grid(1)
        out[i] = min(i, a) + max(i, a)

    @numba.njit
    def least(a: Any, b: Any) -> Any:
        return min(a, b) + max(a, b)

    out = np.zeros(4)
    with nbrt.device("cpu:0"), override(cache_dir=str(tmp_path)):
        nbrt.kernel(second)[1, 4](out, 2)
        assert least(1, 2) == 3
        nbrt.kernel(kernel)[1, 4](out, 2)
        assert out.tolist() == [0, 1, 2, 2]
