"""``cuda.jit(fastmath=True)`` and ``debug=True`` in native code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numba import cuda, njit

import nbrt
from nbrt.backends.cpu.launch import CpuProgram


def _sum_of_squares(x: Any, out: Any) -> None:
    total = np.float32(0)
    for i in range(x.size):
        total += x[i] * x[i]
    out[0] = total


def _kinds(x: Any, out: Any) -> None:
    i = cuda.grid(1)
    if i < x.size:
        if math.isnan(x[i]):
            out[i] = 1
        elif math.isinf(x[i]):
            out[i] = 2
        else:
            out[i] = 1 / x[i]


def _has_vectors(function: Any) -> bool:
    x, out = np.zeros(8, np.float32), np.zeros(1, np.float32)
    loops = nbrt.kernel(function).inspect(x, out, block=1).llvm
    return "reassoc" in loops


def test_sums_are_reordered_only_with_fast_math() -> None:
    assert _has_vectors(cuda.jit(fastmath=True)(_sum_of_squares))
    assert not _has_vectors(cuda.jit(_sum_of_squares))


def test_a_sum_with_fast_math_is_as_exact_as_one_in_order() -> None:
    x = np.random.default_rng(7).random(100_000, dtype=np.float32)
    exact = float(np.sum(x.astype(np.float64) ** 2))
    results = []
    for function in (cuda.jit(fastmath=True)(_sum_of_squares), cuda.jit(_sum_of_squares)):
        out = np.zeros(1, np.float32)
        with nbrt.device("cpu:0"):
            nbrt.kernel(function)[1, 1](x, out)
        results.append(abs(float(out[0]) - exact))
    assert results[0] <= results[1]


def test_nan_and_infinities_keep_their_meaning() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 4.0, 0.0])
    out = np.zeros(5)
    with nbrt.device("cpu:0"):
        nbrt.kernel(cuda.jit(fastmath=True)(_kinds))[1, 8](x, out)
    np.testing.assert_array_equal(out, [1, 2, 2, 0.25, np.inf])


@pytest.mark.parametrize("options", [{"fastmath": True}, {"debug": True, "opt": False}])
def test_options_are_part_of_the_key_on_disk(options: dict[str, Any]) -> None:
    def key(function: Any) -> str | None:
        entry = CpuProgram(function).entry((8, 1, 1))
        return entry.key(entry.types_of((np.zeros(4), np.zeros(4))))

    plain, other = key(cuda.jit(_kinds)), key(cuda.jit(**options)(_kinds))
    assert plain is not None
    assert other is not None
    assert plain != other


@pytest.mark.parametrize("jit", [cuda.jit(device=True, fastmath=True), njit(fastmath=True)])
def test_options_of_device_functions_are_part_of_the_key(jit: Any) -> None:
    def key(function: Any) -> str | None:
        @cuda.jit
        def kernel(x: Any, out: Any) -> None:
            function(x, out)

        entry = CpuProgram(kernel).entry((8, 1, 1))
        return entry.key(entry.types_of((np.zeros(4, np.float32), np.zeros(4, np.float32))))

    plain = cuda.jit(device=True) if "cuda" in type(jit(_sum_of_squares)).__module__ else njit
    assert key(plain(_sum_of_squares)) != key(jit(_sum_of_squares))
