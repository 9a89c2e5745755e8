"""``print`` of the dialect's own values, ``round`` to digits, and arrays over pointers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba import cuda, types
from numba.core.errors import NumbaWarning
from numba.cuda import bf16
from numba.cuda.np.numpy_support import carray, farray

import nbrt
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def _on_cpu() -> Iterator[None]:
    with nbrt.device("cpu:0"):
        yield


def launch(kernel: Callable[..., None], *arguments: Any, threads: int = 1) -> None:
    CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (threads, 1, 1))(*arguments)


@cuda.jit(device=True)  # type: ignore[untyped-decorator]  # numba-cuda is not annotated
def weighted(position: Any, size: Any) -> Any:
    return position.x + 100 * position.y + size.x


def test_positions_are_values(capsys: pytest.CaptureFixture[str]) -> None:
    def kernel(out: Any) -> None:
        i = cuda.threadIdx
        out[i.x, i.y] = weighted(i, cuda.blockDim)
        print(cuda.threadIdx)
        if i.x == 0 and i.y == 0:
            print("size", cuda.blockDim, cuda.gridDim, cuda.blockIdx)

    out = np.zeros((2, 2))
    CpuProgram(kernel, cache=False).plan(0, (1, 1, 1), (2, 2, 1))(out)
    np.testing.assert_array_equal(out, [[2, 102], [3, 103]])
    lines = capsys.readouterr().out.splitlines()
    expected = [f"({x}, {y}, 0)" for x in (0, 1) for y in (0, 1)]
    assert sorted(lines) == sorted([*expected, "size (2, 2, 1) (1, 1, 1) (0, 0, 0)"])


def test_bfloat16_is_printed_with_six_decimals(capsys: pytest.CaptureFixture[str]) -> None:
    def kernel(x: Any) -> None:
        print(bf16.bfloat16(x[0]), bf16.bfloat16(x[1]), x[0])

    launch(kernel, np.array([0.9375, np.inf]))
    assert capsys.readouterr().out == "0.937500 inf 0.9375\n"


def test_more_values_than_cuda_prints(capsys: pytest.CaptureFixture[str]) -> None:
    names = ", ".join(["x[0]"] * 30 + ["y[0]", "x[1] == 0", "(x[0], x[1])"])
    scope: dict[str, Any] = {}
    exec(f"def many(x, y):\n    print({names})\n", scope)
    with pytest.warns(NumbaWarning, match="cannot print more than 32 items"):
        launch(scope["many"], np.arange(2), np.ones(1, np.float32))
    assert capsys.readouterr().out == "%lld " * 30 + "%f %s (%lld, %lld)\n"


def test_round_to_digits_computes_in_double() -> None:
    def kernel(out: Any, x: Any, digits: Any) -> None:
        i = cuda.threadIdx.x
        out[i] = round(x[i], digits)

    values = np.array([0.3425, 2.5, 1234.567, -0.125, 3e38, np.inf], np.float32)
    for digits in (-3, -1, 0, 1, 2, 3, 5, 40):
        out = np.zeros_like(values)
        launch(kernel, out, values, digits, threads=len(values))
        expected = [float(value) if np.isinf(value) else round(float(value), digits)
                    for value in values]  # fmt: skip
        np.testing.assert_array_equal(out, np.array(expected, np.float32))
    out64 = np.zeros(2)
    launch(kernel, out64, np.array([0.3425, 2.125]), 2, threads=2)
    np.testing.assert_array_equal(out64, [round(0.3425, 2), round(2.125, 2)])


def test_round_to_an_integer() -> None:
    def kernel(out: Any, x: Any) -> None:
        out[0] = round(x[0])
        out[1] = round(x[1])

    out = np.zeros(2, np.int64)
    launch(kernel, out, np.array([2.5, 3.5], np.float32))
    np.testing.assert_array_equal(out, [2, 4])


def pointer_kernel(function: Callable[..., None], *declared: Any) -> nbrt.Kernel:
    dispatcher = cuda.jit(function)
    dispatcher.declared_signatures = [declared]
    dispatcher._can_compile = False
    dispatcher._specialized = True
    return nbrt.kernel(dispatcher)


def test_arrays_over_pointers() -> None:
    def kernel(pointer: Any, rows: Any) -> None:
        c = carray(pointer, (rows, 3), dtype=cuda.float32)
        f = farray(pointer, (rows, 3))
        flat = carray(pointer, 6)
        flat[5] = c[1, 1] + f.shape[0]
        f[1, 0] = c[0, 2]

    x = np.arange(6, dtype=np.float32)
    pointer_kernel(kernel, types.CPointer(types.float32), types.int32)[1, 1](x.ctypes.data, 2)
    np.testing.assert_array_equal(x, [0, 2, 2, 3, 4, 6])


def test_a_pointer_has_one_dtype() -> None:
    def kernel(pointer: Any) -> None:
        carray(pointer, 6, cuda.int32)[0] = 1

    with pytest.raises(CompileError, match="carray takes a pointer"):
        pointer_kernel(kernel, types.CPointer(types.float32))[1, 1](np.zeros(6).ctypes.data)
