"""``cuda.jit(fastmath=True)`` and ``debug=True`` in native code."""

from __future__ import annotations

import math
import pickle
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


def _llvm(function: Any, **options: Any) -> str:
    x, out = np.zeros(8, np.float32), np.zeros(1, np.float32)
    return nbrt.kernel(function, **options).inspect(x, out, block=1).llvm


def _has_vectors(function: Any, **options: Any) -> bool:
    return "reassoc" in _llvm(function, **options)


def test_sums_are_reordered_only_with_fast_math() -> None:
    assert _has_vectors(cuda.jit(fastmath=True)(_sum_of_squares))
    assert not _has_vectors(cuda.jit(_sum_of_squares))


def test_fast_math_is_an_option_of_nbrt_kernel() -> None:
    fast = cuda.jit(fastmath=True)(_sum_of_squares)
    assert _has_vectors(_sum_of_squares, fastmath=True)
    assert _has_vectors(cuda.jit(_sum_of_squares), fastmath=True)
    assert _has_vectors(fast)
    assert not _has_vectors(fast, fastmath=False)
    assert not _has_vectors(nbrt.kernel(fast), fastmath=False)
    assert _has_vectors(nbrt.kernel(fastmath=True)(_sum_of_squares))
    kernel = nbrt.kernel(fast)
    assert nbrt.kernel(kernel, fastmath=True) is kernel


def test_fast_math_may_be_a_set_of_flags() -> None:
    for some in ({"contract", "nsz"}, {"contract": True, "nsz": True, "reassoc": False}):
        for llvm in (
            _llvm(_sum_of_squares, fastmath=some),
            _llvm(cuda.jit(fastmath=some)(_sum_of_squares)),
        ):
            assert "contract" in llvm
            assert "reassoc" not in llvm
    assert "contract" not in _llvm(_sum_of_squares, fastmath=set())
    for wrong in ({"quick"}, {"quick": True}):
        with pytest.raises(nbrt.errors.ArgumentError, match="fastmath to be a bool or a set of"):
            nbrt.kernel(_sum_of_squares, fastmath=wrong)


def test_results_of_the_option_and_of_the_dispatcher_are_equal() -> None:
    x = np.random.default_rng(7).random(1000, dtype=np.float32)
    results = []
    for kernel in (
        nbrt.kernel(_sum_of_squares, fastmath=True),
        nbrt.kernel(cuda.jit(fastmath=True)(_sum_of_squares)),
    ):
        out = np.zeros(1, np.float32)
        with nbrt.device("cpu:0"):
            kernel[1, 1](x, out)
        results.append(out[0])
        np.testing.assert_allclose(out[0], np.sum(x.astype(np.float64) ** 2), rtol=1e-5)
    assert results[0] == results[1]


def test_the_option_keeps_the_cost_and_the_pickle_of_a_kernel() -> None:
    def cost(x: Any, out: Any) -> tuple[float, float]:
        return 2.0 * x.size, 4.0 * x.size

    x, out = np.ones(5, np.float32), np.zeros(1, np.float32)
    kernel = nbrt.kernel(nbrt.kernel(_sum_of_squares, cost=cost), fastmath=True)
    estimate = kernel.cost(x, out)
    assert estimate is not None
    assert estimate.flops == 10
    copy = pickle.loads(pickle.dumps(nbrt.kernel(_sum_of_squares, fastmath=True)))
    assert copy.targetoptions["fastmath"] is True
    with nbrt.device("cpu:0"):
        copy[1, 1](x, out)
    assert out[0] == 5


def test_the_option_is_the_one_of_cuda_devices() -> None:
    def divide(x: Any, y: Any) -> None:
        i = cuda.grid(1)
        x[i] = x[i] / y[i]

    kinds = "float32[::1]", "float32[::1]"
    assert "div.approx" not in nbrt.kernel(divide).inspect(*kinds, gpu="sm_80").ptx
    for option in (True, {"arcp"}):
        fast = nbrt.kernel(divide, fastmath=option)
        assert "div.approx" in fast.inspect(*kinds, gpu="sm_80").ptx


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


_RECIPROCALS = "divisions by a value of all lanes are products with its reciprocal (fastmath)"


def _divides(out: Any, x: Any, scale: Any) -> None:
    parts = cuda.shared.array(64, x.dtype)
    t, row = cuda.threadIdx.x, cuda.blockIdx.x
    total = x.dtype.type(0)
    for i in range(t, x.shape[1], 64):
        total += x[row, i] / scale
    parts[t] = total
    cuda.syncthreads()
    whole = x.dtype.type(1)
    for k in range(64):
        whole += parts[k]
    for _ in range(3):
        for i in range(t, x.shape[1], 64):
            out[row, i] += x[row, i] / whole
        whole *= scale


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fast", [True, {"arcp"}, {"reassoc"}, False], ids=str)
def test_divisions_by_a_value_of_the_block_are_products(fast: Any, dtype: str) -> None:
    """The divisors are an argument, the result of a sum, and a value that a loop changes."""
    kind = np.dtype(dtype).type
    launch = nbrt.kernel(_divides, fastmath=fast)[3, 64]
    for columns in (1, 100, 256, 700):
        x = np.random.default_rng(5).random((3, columns)).astype(dtype)
        wide = x.astype(np.float64)
        whole = 1 + wide.sum(axis=1, keepdims=True) / 1.5
        expected = wide / whole + wide / (whole * 1.5) + wide / (whole * 2.25)
        out = np.zeros_like(x)
        with nbrt.device("cpu:0"):
            launch(out, x, kind(1.5))
        np.testing.assert_allclose(out, expected, rtol=1e-5 if kind is np.float32 else 1e-13)
    if fast != {"arcp"}:  # LLVM alone takes such divisions out of loops
        with nbrt.device("cpu:0"):
            reasons = launch.inspect(out, x, kind(1.5)).lowering.reasons
        assert (_RECIPROCALS in reasons) is (fast is True)


@pytest.mark.parametrize(
    "options", [{"fastmath": True}, {"fastmath": {"contract"}}, {"debug": True, "opt": False}]
)
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


@pytest.mark.parametrize("jit", [cuda.jit(device=True), njit])
@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_called_functions_have_the_flags_of_each_kernel(jit: Any, order: tuple[bool, bool]) -> None:
    inner = jit(_sum_of_squares)

    @jit
    def outer(x: Any, out: Any) -> None:
        inner(x, out)

    def kernel(x: Any, out: Any) -> None:
        outer(x, out)

    # What a kernel compiles of the functions is not used by one with other flags.
    assert [_has_vectors(kernel, fastmath=fast) for fast in order] == list(order)


def test_functions_with_flags_keep_them_from_what_they_call() -> None:
    inner = cuda.jit(device=True)(_sum_of_squares)

    @cuda.jit(device=True, fastmath={"contract"})
    def outer(x: Any, out: Any) -> None:
        inner(x, out)

    def kernel(x: Any, out: Any) -> None:
        inner(x, out)

    def indirect(x: Any, out: Any) -> None:
        outer(x, out)

    assert "contract" in _llvm(indirect)
    assert "contract" not in _llvm(kernel)
