"""Kernels with a thread block per row of a matrix: softmax, layer norm, sort, segmented scan.

Launch them with one block of whole warps per row: ``kernel[rows, 256](...)``. `bitonic_sort` needs
blocks of `SORT_THREADS`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from nbrt_kernels._blocks import ALL_LANES, WARP, block_max, block_sum
from nbrt_kernels._costs import costs, per_element
from nbrt_kernels._dialect import Array, Scalar, cuda, device_function

__all__ = [
    "SORT_THREADS",
    "SORT_WIDTH",
    "bitonic_sort",
    "bitonic_sort_reference",
    "layer_norm",
    "layer_norm_reference",
    "segmented_scan",
    "segmented_scan_reference",
    "softmax",
    "softmax_reference",
]

SORT_WIDTH = 1024
SORT_THREADS = SORT_WIDTH // 2
_WARPS = 32

_INFINITY = math.inf
_LOG2_E = np.float32(math.log2(math.e))
# log(2) in two parts; multiples of the first are exact.
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(math.log(2.0) - 0.693359375)
_HALF = np.float32(0.5)
_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)
# Below it the result would be subnormal.
_MIN_EXPONENT = np.float32(-87.0)
_E2, _E3, _E4, _E5, _E6, _E7 = (np.float32(1.0 / math.factorial(n)) for n in range(2, 8))


_SOFTMAX_FLOPS = 24
"""Of an element: 10 fused multiply-adds and a product of `exp_f32`, two sums and a product."""


@device_function
def exp_f32(x: Scalar) -> Scalar:
    """Compute ``exp(x)`` for a float32 x <= 0; 0 from -87 down, which is negligible in `softmax`.

    The error is below 1 ulp, and the bits are equal on all devices. Library exponentials differ
    between devices, and not every compiler vectorises them.
    """
    reachable = x if x > _MIN_EXPONENT else _MIN_EXPONENT
    # Rounded to nearest: the conversion truncates, and x is not positive.
    n = np.int32(cuda.fma(reachable, _LOG2_E, -_HALF))
    whole = np.float32(n)
    r = cuda.fma(whole, -_LN2_LOW, cuda.fma(whole, -_LN2_HIGH, reachable))
    series = cuda.fma(r, cuda.fma(r, _E7, _E6), _E5)
    series = cuda.fma(r, cuda.fma(r, series, _E4), _E3)
    series = cuda.fma(r, cuda.fma(r, cuda.fma(r, series, _E2), _ONE), _ONE)
    power = np.int32((n + 127) << 23).view(np.float32)
    # Round explicitly: in a branch, a compiler could contract the product with a following sum.
    product = cuda.libdevice.fmul_rn(series, power)
    # NaN stays NaN.
    return product if x > _MIN_EXPONENT else (_ZERO if x <= _MIN_EXPONENT else x)


@costs(per_element(_SOFTMAX_FLOPS))
def softmax(out: Array, x: Array) -> None:
    """Compute ``exp(x) / sum(exp(x))`` of each row, after subtraction of the row's maximum.

    Parameters
    ----------
    out : float32, shape (rows, columns)
        Result; may be `x`.
    x : float32, shape (rows, columns)
        Input.
    """
    row, t, step = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    columns = x.shape[1]
    largest = x[row, 0]
    for i in range(t, columns, step):
        largest = largest if largest > x[row, i] else x[row, i]
    largest = block_max(largest)
    total = _ZERO
    for i in range(t, columns, step):
        value = exp_f32(x[row, i] - largest)
        out[row, i] = value
        total += value
    scale = _ONE / block_sum(total)
    for i in range(t, columns, step):
        out[row, i] *= scale


def softmax_reference(x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the softmax of each row, in float64."""
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


@costs(per_element(8))
def layer_norm(out: Array, x: Array, weight: Array, bias: Array, epsilon: Scalar) -> None:
    """Shift and scale each row to mean 0 and variance 1, then by a weight and a bias per column.

    ``out = (x - mean) / sqrt(variance + epsilon) * weight + bias``; the variance is the mean of
    squares, taken about the mean in a second pass.

    Parameters
    ----------
    out : floating, shape (rows, columns)
        Result; may be `x`.
    x : floating, shape (rows, columns)
        Input.
    weight, bias : dtype of `x`, shape (columns,)
        Per column.
    epsilon : scalar of the dtype of `x`
        Keeps constant rows finite.
    """
    row, t, step = cuda.blockIdx.x, cuda.threadIdx.x, cuda.blockDim.x
    columns = x.shape[1]
    count = x.dtype.type(columns)
    total = x.dtype.type(0)
    for i in range(t, columns, step):
        total += x[row, i]
    mean = block_sum(total) / count
    squares = x.dtype.type(0)
    for i in range(t, columns, step):
        distance = x[row, i] - mean
        squares = cuda.fma(distance, distance, squares)
    scale = x.dtype.type(1) / math.sqrt(block_sum(squares) / count + epsilon)
    for i in range(t, columns, step):
        out[row, i] = cuda.fma((x[row, i] - mean) * scale, weight[i], bias[i])


def layer_norm_reference(
    x: npt.NDArray[Any], weight: npt.NDArray[Any], bias: npt.NDArray[Any], epsilon: Any
) -> npt.NDArray[np.float64]:
    """Return the normalised rows of `layer_norm`, in float64."""
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=1, keepdims=True)
    scale = 1.0 / np.sqrt(np.square(centred).mean(axis=1, keepdims=True) + float(epsilon))
    return np.asarray(centred * scale * weight + bias)


@costs(per_element(0))
def bitonic_sort(out: Array, x: Array) -> None:
    """Sort each row in ascending order: K. E. Batcher's bitonic network, in shared memory.

    One block of `SORT_THREADS` threads per row, each with one comparison per step.

    Parameters
    ----------
    out : floating, shape (rows, columns)
        Result; may be `x`.
    x : floating, shape (rows, columns)
        Input of at most `SORT_WIDTH` columns, without NaN.
    """
    keys = cuda.shared.array(SORT_WIDTH, x.dtype)
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    columns = x.shape[1]
    for i in range(t, SORT_WIDTH, SORT_THREADS):
        keys[i] = x[row, i] if i < columns else x.dtype.type(_INFINITY)
    cuda.syncthreads()
    size = 2
    while size <= SORT_WIDTH:
        distance = size // 2
        while distance > 0:
            low = 2 * t - (t & (distance - 1))
            high = low + distance
            a, b = keys[low], keys[high]
            if (a > b) == ((low & size) == 0):
                keys[low] = b
                keys[high] = a
            cuda.syncthreads()
            distance //= 2
        size *= 2
    for i in range(t, columns, SORT_THREADS):
        out[row, i] = keys[i]


def bitonic_sort_reference(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the rows sorted."""
    return np.sort(x, axis=1)


def segmented_scan(out: Array, x: Array, heads: Array) -> None:
    """Compute the cumulative sum of each row, restarted at each segment head.

    Shuffles scan each tile of the row within warps; warps and tiles are then combined in order.

    Parameters
    ----------
    out : numeric, shape (rows, columns)
        Sums up to and including each element.
    x : dtype of `out`, shape (rows, columns)
        Input.
    heads : int32, shape (rows, columns)
        Not 0 where a segment begins.
    """
    totals = cuda.shared.array(_WARPS, x.dtype)
    begins = cuda.shared.array(_WARPS, heads.dtype)
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    columns = x.shape[1]
    lane, warp, warps = cuda.laneid, t // WARP, cuda.blockDim.x // WARP
    carry = x.dtype.type(0)
    for start in range(0, columns, cuda.blockDim.x):
        i = start + t
        value = x[row, i] if i < columns else x.dtype.type(0)
        begun = heads[row, i] if i < columns else heads.dtype.type(0)
        distance = 1
        while distance < WARP:
            left = cuda.shfl_up_sync(ALL_LANES, value, distance)
            left_begun = cuda.shfl_up_sync(ALL_LANES, begun, distance)
            if lane >= distance:
                if begun == 0:
                    value += left
                begun |= left_begun
            distance *= 2
        if lane == WARP - 1:
            totals[warp] = value
            begins[warp] = begun
        cuda.syncthreads()
        before = carry
        for w in range(warps):
            if w == warp:
                before = carry
            carry = totals[w] if begins[w] != 0 else carry + totals[w]
        if i < columns:
            out[row, i] = value if begun != 0 else before + value
        cuda.syncthreads()


def segmented_scan_reference(
    x: npt.NDArray[Any], heads: npt.NDArray[Any]
) -> npt.NDArray[np.float64]:
    """Return the sums of `segmented_scan`, in float64."""
    out = np.empty(x.shape, np.float64)
    for row in range(x.shape[0]):
        starts = np.flatnonzero(heads[row])
        for part in np.split(np.arange(x.shape[1]), starts):
            out[row, part] = np.cumsum(x[row, part], dtype=np.float64)
    return out
