"""Addresses of local and shared arrays with an alignment, in every form of a block's code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import cuda

import nbrt

SIZES = (1, 50, 333)
ALIGNMENTS = (64, 256, 4096)


def local_kernel(size: int, alignment: int | None) -> Any:
    @nbrt.kernel
    def local(addresses, x):
        i = cuda.grid(1)
        mine = cuda.local.array(size, np.uint8, alignment=alignment)
        for k in range(size):
            mine[k] = x[(i + k) % x.size]
        addresses[i] = mine.ctypes.data
        x[i] = mine[x[i] % size]

    return local


def shared_kernel(size: int, alignment: int) -> Any:
    @nbrt.kernel
    def shared(addresses, x):
        i = cuda.grid(1)
        tile = cuda.shared.array(size, np.uint8, alignment=alignment)
        if i < size:
            tile[i] = x[i]
        cuda.syncthreads()
        addresses[i] = tile.ctypes.data
        x[i] = tile[0]

    return shared


@pytest.mark.parametrize("make", [local_kernel, shared_kernel])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("threads", [1, 40])
def test_addresses_are_aligned(make: Any, size: int, alignment: int, threads: int) -> None:
    addresses = np.zeros(threads, np.uint64)
    with nbrt.device("cpu:0"):
        make(size, alignment)[1, threads](addresses, np.arange(threads, dtype=np.uint8))
    assert addresses.all()
    assert not (addresses % alignment).any()


@pytest.mark.parametrize("size", [1024, 1030, 3000])
@pytest.mark.parametrize("threads", [1, 2, 40])
def test_large_local_arrays_begin_at_a_cache_line(size: int, threads: int) -> None:
    addresses = np.zeros(threads, np.uint64)
    with nbrt.device("cpu:0"):
        local_kernel(size, None)[1, threads](addresses, np.arange(threads, dtype=np.uint8))
    assert addresses.all()
    assert not (addresses % 64).any()
