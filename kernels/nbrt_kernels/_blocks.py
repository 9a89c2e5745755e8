"""Reductions over a warp and over a thread block, as device functions.

Blocks consist of whole warps and have one or two dimensions. Every thread calls the function and
receives the same bits: partial results are combined in the order of the warps.
"""

from __future__ import annotations

from nbrt_kernels._dialect import Scalar, cuda, device_function

__all__ = ["ALL_LANES", "WARP", "block_max", "block_sum", "warp_sum"]

WARP = 32
ALL_LANES = 0xFFFFFFFF
# Warps of the largest block, 1024 threads.
_WARPS = 32


@device_function
def warp_sum(value: Scalar) -> Scalar:
    """Return the sum over the lanes of a warp."""
    distance = WARP // 2
    while distance > 0:
        value += cuda.shfl_xor_sync(ALL_LANES, value, distance)
        distance //= 2
    return value


@device_function
def warp_max(value: Scalar) -> Scalar:
    """Return the maximum over the lanes of a warp."""
    distance = WARP // 2
    while distance > 0:
        other = cuda.shfl_xor_sync(ALL_LANES, value, distance)
        value = value if value > other else other
        distance //= 2
    return value


@device_function
def block_sum(value: Scalar) -> Scalar:
    """Return the sum over the threads of a block."""
    parts = cuda.shared.array(_WARPS, type(value))
    value = warp_sum(value)
    if cuda.laneid == 0:
        parts[(cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y) // WARP] = value
    cuda.syncthreads()
    total = parts[0]
    for warp in range(1, cuda.blockDim.x * cuda.blockDim.y // WARP):
        total += parts[warp]
    # The next call writes to the same shared memory.
    cuda.syncthreads()
    return total


@device_function
def block_max(value: Scalar) -> Scalar:
    """Return the maximum over the threads of a block."""
    parts = cuda.shared.array(_WARPS, type(value))
    value = warp_max(value)
    if cuda.laneid == 0:
        parts[(cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y) // WARP] = value
    cuda.syncthreads()
    largest = parts[0]
    for warp in range(1, cuda.blockDim.x * cuda.blockDim.y // WARP):
        largest = largest if largest > parts[warp] else parts[warp]
    cuda.syncthreads()
    return largest
