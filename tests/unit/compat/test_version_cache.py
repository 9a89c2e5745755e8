"""Kernels of ``numba.cuda`` with ``cache=True``."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numba import cuda
from numba.cuda.core import config
from numba.cuda.dispatcher import CUDACache, _Kernel

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("installed")

GLOBAL: object = None


def reads_global(out):  # type: ignore[no-untyped-def]
    out[0] = GLOBAL[0]  # type: ignore[index]  # a device array


def test_kernel_with_a_global_device_array_is_not_cached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(globals(), "GLOBAL", cuda.to_device([1.0]))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    kernel = cuda.jit(cache=True)(reads_global)
    with pytest.raises(pickle.PicklingError, match="global device arrays, got GLOBAL"):
        kernel[1, 1](cuda.device_array(1))


def adds_one(out):  # type: ignore[no-untyped-def]
    out[0] += 1


def test_a_cache_of_the_program_stores_no_code_for_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("numba-cuda compiled for a GPU")

    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_Kernel, "__init__", refuse)
    out = np.zeros(1)
    for hits in (0, 1):
        kernel = cuda.jit(adds_one)
        kernel._cache = CUDACache(adds_one)
        kernel[1, 1](out)
        assert sum(kernel.stats.cache_hits.values()) == hits
    assert out[0] == 2
