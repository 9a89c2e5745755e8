# mypy: disable-error-code="no-untyped-def"
"""Lanes: loops over rows whose length is a multiple of the block, and over other rows."""

from __future__ import annotations

import numpy as np
import pytest
from numba import cuda, float32, int32

import nbrt
from helpers.lowerings import agree, code_of
from nbrt.backends.cpu.simt.processor import processor
from nbrt_kernels import row_ops

BLOCKS = (32, 64, 96, 256)
RNG = np.random.default_rng(8)
WHOLE = "all threads run the same iterations"
IN_ORDER = "one after the other"


def lengths(block):
    """Lengths of rows: none, one, around the block, and several times the block."""
    return (0, 1, block - 1, block, block + 1, 2 * block, 3 * block + 5, 5 * block, 8 * block)


def centre_kernel(out, x):
    parts = cuda.shared.array(1024, int32)
    row, t, step = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    total = int32(0)
    for i in range(t, x.shape[1], step):
        total += x[row, i]
    parts[t] = total
    cuda.syncthreads()
    total = parts[0]
    for other in range(1, step):
        total += parts[other]
    for i in range(t, x.shape[1], step):
        out[row, i] = x[row, i] * int32(3) - total


def between_kernel(out, x, begin, end, other):
    """Use three limits; the second loop begins elsewhere and has twice the step."""
    parts = cuda.shared.array(1024, int32)
    t, step = cuda.threadIdx.x, cuda.blockDim.x
    total = int32(0)
    for i in range(t, end, step):
        total += x[i]
    for i in range(t, other, 2 * step):
        total ^= x[i]
    i = t
    while not i >= begin:
        total -= 2 * x[i]
        i += step
    parts[t] = total
    cuda.syncthreads()
    out[t] = parts[step - 1 - t]


def some_kernel(out, x, few, n):
    """Let some threads run a loop, and leave another at different times."""
    parts = cuda.shared.array(1024, int32)
    t, step = cuda.threadIdx.x, cuda.blockDim.x
    total = int32(0)
    if t < few:
        for i in range(t, n, step):
            total += x[i]
    for i in range(t, n, step):
        if x[i] > 40:
            break
        total += int32(100)
    parts[t] = total
    cuda.syncthreads()
    out[t] = parts[(t + 1) % step]


def rows_kernel(out, x):
    """Run the loop once for each row of a block, between barriers."""
    parts = cuda.shared.array(1024, int32)
    t, step = cuda.threadIdx.x, cuda.blockDim.x
    for row in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
        total = int32(0)
        for i in range(t, x.shape[1], step):
            total += x[row, i]
        parts[t] = total
        cuda.syncthreads()
        out[row, t] = parts[t] - parts[step - 1 - t]
        cuda.syncthreads()


def thread_sums_kernel(out, x):
    parts = cuda.shared.array(1024, float32)
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    total = float32(0)
    for i in range(t, x.shape[1], cuda.blockDim.x):
        total += x[row, i]
    parts[t] = total
    cuda.syncthreads()
    out[row, t] = parts[t]


def integers(*shape):
    return RNG.integers(-50, 50, shape).astype(np.int32)


@pytest.mark.parametrize("block", BLOCKS)
def test_rows_of_any_length(block) -> None:
    for n in lengths(block):
        x = integers(2, n)
        expected = x * 3 - x.sum(axis=1, keepdims=True)
        agree(centre_kernel, 2, block, np.zeros_like(x), x, expected=expected)


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint32])
def test_limits_that_are_arguments(kind) -> None:
    block, x = 64, integers(700)
    ends = [(0, 0, 0), (128, 192, 256), (128, 192, 255), (1, 64, 128), (640, 640, 640), (63, 3, 65)]
    if kind is not np.uint32:
        ends += [(-64, -128, -192), (64, -1, 128)]
    for begin, end, other in ends:
        limits = (kind(begin), kind(end), kind(other))
        agree(between_kernel, 1, block, np.zeros(block, np.int32), x, *limits)


@pytest.mark.parametrize("few", [0, 1, 32, 40, 64, 100])
def test_loops_that_some_threads_run_or_leave(few) -> None:
    x = integers(640)
    for n in (0, 64, 65, 640):
        agree(some_kernel, 1, 64, np.zeros(64, np.int32), x, few, n)


def test_loops_inside_of_loops_around_barriers() -> None:
    for n in lengths(64):
        x = integers(5, n)
        agree(rows_kernel, 2, 64, np.zeros((5, 64), np.int32), x)


@pytest.mark.parametrize("block", BLOCKS)
def test_each_thread_adds_in_order(block) -> None:
    launch = nbrt.kernel(thread_sums_kernel)
    for n in lengths(block):
        x = RNG.standard_normal((3, n)).astype(np.float32)
        expected = np.zeros((3, block), np.float32)
        for begin in range(0, n, block):
            part = x[:, begin : begin + block]
            expected[:, : part.shape[1]] += part
        out = np.zeros_like(expected)
        launch[3, block](out, x)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("fastmath", [False, True])
@pytest.mark.parametrize("block", [32, 256])
def test_layer_norm_and_softmax(block, fastmath) -> None:
    layer_norm = nbrt.kernel(row_ops.layer_norm, fastmath=fastmath)
    softmax = nbrt.kernel(row_ops.softmax, fastmath=fastmath)
    for n in lengths(block)[1:]:
        x, weight, bias = (RNG.random(s, np.float32) for s in ((3, n), n, n))
        out, epsilon = np.full_like(x, np.nan), np.float32(1e-3)
        layer_norm[3, block](out, x, weight, bias, epsilon)
        expected = row_ops.layer_norm_reference(x, weight, bias, epsilon)
        np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-5)
        softmax[3, block](out, x)
        np.testing.assert_allclose(out, row_ops.softmax_reference(x), rtol=2e-5)


def reasons(kernel, block, *args):
    return "; ".join(code_of(kernel, block, *args).lowering.reasons)


def test_inspection_tells_of_the_version() -> None:
    x = integers(2, 64)
    found = reasons(centre_kernel, 64, x, x)
    assert "multiple of the 64 threads of a block (2)" in found
    assert WHOLE in found
    # Sums of 32 threads need 128 bytes, and of 1024 threads more than half of the registers.
    assert IN_ORDER in reasons(thread_sums_kernel, 32, np.zeros((1, 32), np.float32), x)
    number, size = processor().vector_registers
    assert number * size < 2 * 4 * 1024
    assert IN_ORDER not in reasons(rows_kernel, 1024, x, x)
    assert WHOLE in reasons(rows_kernel, 1024, x, x)


def test_blocks_that_are_no_rows_of_warps_have_no_version() -> None:
    x = integers(2, 64)
    assert WHOLE not in reasons(centre_kernel, 48, x, x)
    assert WHOLE not in reasons(centre_kernel, (64, 2), x, x)
