"""Sums of warps that stay vectors in shared memory until they are added up."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, float64, int32, int64

import nbrt
from helpers.lowerings import launched
from nbrt.backends.cpu.simt.lanes.analysis.warp_sums import SUMS_NOTE

RNG = np.random.default_rng(3)
TYPES = {"float32": float32, "float64": float64, "int32": int32, "int64": int64}
KINDS = pytest.mark.parametrize("kind", TYPES)


@cuda.jit(device=True)
def _warp_sum(value: Any) -> Any:
    distance = 16
    while distance > 0:
        value += cuda.shfl_xor_sync(0xFFFFFFFF, value, distance)
        distance //= 2
    return value


@cuda.jit(device=True)
def _warp_sum_down(value: Any) -> Any:
    value += cuda.shfl_down_sync(0xFFFFFFFF, value, 1)
    value += cuda.shfl_down_sync(0xFFFFFFFF, value, 8)
    value += cuda.shfl_down_sync(0xFFFFFFFF, value, 16)
    value += cuda.shfl_down_sync(0xFFFFFFFF, value, 2)
    value += cuda.shfl_xor_sync(0xFFFFFFFF, value, 4)
    return value


def _sums(kind: str, add: Any, size: int) -> Any:
    """Return a kernel that adds up blocks twice in one shared array, and adds other values."""
    typ = TYPES[kind]
    warps = size // 32

    def kernel(out: Any, x: Any, y: Any) -> None:
        parts = cuda.shared.array(32, typ)
        t = cuda.threadIdx.x
        i = cuda.grid(1)
        value = add(x[i])
        if cuda.laneid == 0:
            parts[t // 32] = value
        cuda.syncthreads()
        total = parts[0] + y[0]
        for warp in range(1, warps):
            total += parts[warp]
        out[i] = total
        cuda.syncthreads()
        value = add(x[i] + y[i])
        if cuda.laneid == 0:
            parts[t // 32] = value
        cuda.syncthreads()
        other = parts[0]
        for warp in range(1, warps):
            other += parts[warp]
        out[i] += 2 * other

    return kernel


@lru_cache(maxsize=2)
def _with_options(kernel: Any, fast: bool) -> Any:
    return nbrt.kernel(kernel, fastmath=fast).function


def _run(kernel: Any, grid: int, block: Any, *args: Any, fast: bool = True) -> bool:
    """Run a kernel; return whether sums of warps stay vectors."""
    return SUMS_NOTE in launched(_with_options(kernel, fast), grid, block, *args).lowering.reasons


@KINDS
@pytest.mark.parametrize("add", [_warp_sum, _warp_sum_down])
@pytest.mark.parametrize("size", [64, 96, 256, 1024])
def test_block_sums(kind: str, add: Any, size: int) -> None:
    x, y = RNG.integers(0, 50, (2, 3, size)).astype(kind)
    out = np.zeros_like(x)
    stays = _run(_sums(kind, add, size), 3, size, out.ravel(), x.ravel(), y.ravel())
    # Numba adds int32 as int64, and LLVM keeps the loop over 32 warps.
    assert stays is (kind != "int32" and size < 1024)
    total = x.sum(1) + y[0, 0] + 2 * (x + y).sum(1)
    # Whole numbers far below 2**24: exact in any order.
    np.testing.assert_array_equal(out, np.broadcast_to(total[:, None], out.shape).astype(kind))


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_sums_of_floats_are_reordered_only_with_fast_math(kind: str) -> None:
    x, y = RNG.random((2, 256)).astype(kind)
    out = np.zeros_like(x)
    assert not _run(_sums(kind, _warp_sum, 256), 1, 256, out, x, y, fast=False)
    totals = []
    for values in (x, x + y):
        lanes = values.reshape(8, 32)
        for distance in (16, 8, 4, 2, 1):
            lanes = lanes + lanes[:, np.arange(32) ^ distance]
        totals.append(lanes[:, 0])
    total = totals[0][0] + y[0]
    for part in totals[0][1:]:
        total += part
    other = totals[1][0]
    for part in totals[1][1:]:
        other += part
    np.testing.assert_array_equal(out, np.full_like(x, total + 2 * other))


def test_integers_need_no_fast_math() -> None:
    x, y = RNG.integers(-(2**50), 2**50, (2, 128))
    out = np.zeros_like(x)
    assert _run(_sums("int64", _warp_sum, 128), 1, 128, out, x, y, fast=False)
    np.testing.assert_array_equal(out, x.sum() + y[0] + 2 * (x + y).sum())


def _stored_by_all_lanes(parts: Any, t: Any, value: Any) -> None:
    parts[t // 32] = value


def _stored_by_lane_1(parts: Any, t: Any, value: Any) -> None:
    if t % 32 == 1:
        parts[t // 32] = value


def _stored_as_product(parts: Any, t: Any, value: Any) -> None:
    if cuda.laneid == 0:
        parts[t // 32] = value * 3


def _stored_twice(parts: Any, t: Any, value: Any) -> None:
    if cuda.laneid == 0:
        parts[t // 32] = value
    if t == 33:
        parts[8] = float32(5)


@pytest.mark.parametrize(
    "store", [_stored_by_all_lanes, _stored_by_lane_1, _stored_as_product, _stored_twice]
)
def test_other_stores_keep_sums(store: Any) -> None:
    store = cuda.jit(device=True)(store)

    def kernel(out: Any, x: Any) -> None:
        parts = cuda.shared.array(9, float32)
        t = cuda.threadIdx.x
        if t == 0:
            parts[8] = 0
        cuda.syncthreads()
        store(parts, t, _warp_sum(x[t]))
        cuda.syncthreads()
        out[t] = parts[0] + parts[1] + parts[8]

    x = RNG.integers(0, 50, 64).astype(np.float32)
    out = np.zeros_like(x)
    assert not _run(kernel, 1, 64, out, x)
    expected = x.sum() * (3 if "product" in store.__name__ else 1)
    np.testing.assert_array_equal(out, expected + (5 if "twice" in store.__name__ else 0))


def test_other_loads_keep_sums() -> None:
    """A sum that each thread picks, one that is scaled, and four of the five shuffles."""

    def picks(out: Any, x: Any) -> None:
        parts = cuda.shared.array(2, float32)
        t = cuda.threadIdx.x
        value = _warp_sum(x[t])
        if cuda.laneid == 0:
            parts[t // 32] = value
        cuda.syncthreads()
        out[t] = parts[0] + parts[t % 2]

    def scales(out: Any, x: Any) -> None:
        parts = cuda.shared.array(2, float32)
        t = cuda.threadIdx.x
        value = _warp_sum(x[t])
        if cuda.laneid == 0:
            parts[t // 32] = value
        cuda.syncthreads()
        out[t] = parts[0] + parts[1] * parts[1]

    def halves(out: Any, x: Any) -> None:
        parts = cuda.shared.array(2, float32)
        t = cuda.threadIdx.x
        value = x[t]
        for distance in (8, 4, 2, 1):
            value += cuda.shfl_xor_sync(0xFFFFFFFF, value, distance)
        if cuda.laneid == 0:
            parts[t // 32] = value
        cuda.syncthreads()
        out[t] = parts[0] + parts[1]

    x = RNG.integers(0, 9, 64).astype(np.float32)
    first, second = x.reshape(2, 32).sum(1)
    half = x.reshape(2, 32)[:, :16].sum()
    picked = first + np.where(np.arange(64) % 2, second, first)
    for kernel, expected in (
        (picks, picked), (scales, first + second * second), (halves, half),
    ):  # fmt: skip
        out = np.zeros_like(x)
        _run(kernel, 1, 64, out, x)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("block", [48, 100, (32, 4), (16, 8)])
def test_other_blocks_keep_sums(block: Any) -> None:
    size = int(np.prod(block))
    whole = size // 32 * 32

    def kernel(out: Any, x: Any) -> None:
        parts = cuda.shared.array(4, float32)
        t = cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x
        if t < 4:
            parts[t] = 0
        cuda.syncthreads()
        value = float32(0)
        if t < whole:
            value = x[t]
        value = _warp_sum(value)
        if cuda.laneid == 0 and t < whole:
            parts[t // 32] = value
        cuda.syncthreads()
        out[t] = parts[0] + parts[1] + parts[2] + parts[3]

    x = RNG.integers(0, 9, size).astype(np.float32)
    out = np.zeros_like(x)
    _run(kernel, 1, block, out, x)
    np.testing.assert_array_equal(out, x[:whole].sum())


@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("block", [32, 64, 256])
def test_layer_norm(kind: str, block: int) -> None:
    from nbrt_kernels.row_ops import layer_norm, layer_norm_reference

    for columns in (1, 31, 256, 257, 1000, 1024, 5000):  # compiled once for all
        x = RNG.random((5, columns)).astype(kind)
        weight, bias = RNG.random((2, columns)).astype(kind)
        out = np.zeros_like(x)
        epsilon = x.dtype.type(1e-3)
        _run(layer_norm, 5, block, out, x, weight, bias, epsilon)
        expected = layer_norm_reference(x, weight, bias, epsilon)
        atol = 1e-5 if kind == "float32" else 1e-12
        np.testing.assert_allclose(out, expected, atol=atol, err_msg=f"{columns} columns")


_OTHERS = [
    "first[0] + first[1] + t",
    "x[t] + first[0] + first[1]",
    "x[t] + first[0] + first[1] + t",
    "(x[t] + first[0]) + (first[1] + x[63 - t])",
    "first[0] + x[t] * x[t] + first[1] - x[0]",
    "first[0] + second[1] + first[1] + x[t] + second[0]",
    "first[0] + t + first[1] + second[0] * t",
]


@KINDS
@pytest.mark.parametrize("expression", _OTHERS)
def test_values_of_each_thread_are_added_to_sums(kind: str, expression: str) -> None:
    source = f"""
def kernel(out, x):
    first = cuda.shared.array(2, typ)
    second = cuda.shared.array(2, typ)
    t = cuda.threadIdx.x
    value, other = add(x[t]), add(x[63 - t] * x[t])
    if cuda.laneid == 0:
        first[t // 32] = value
        second[t // 32] = other
    cuda.syncthreads()
    out[t] = {expression}
"""
    space: dict[str, Any] = {"cuda": cuda, "typ": TYPES[kind], "add": _warp_sum}
    exec(source, space)
    x = RNG.integers(-50, 50, 64).astype(kind)  # exact in any order
    products = x[::-1] * x
    names = {"t": np.arange(64), "first": [x[:32].sum(), x[32:].sum()], "x": x}
    names["second"] = [products[:32].sum(), products[32:].sum()]
    expected = eval(expression, names).astype(kind)
    for fast in (True, False):
        out = np.zeros(64, kind)
        _run(space["kernel"], 1, 64, out, x, fast=fast)
        np.testing.assert_array_equal(out, expected)
