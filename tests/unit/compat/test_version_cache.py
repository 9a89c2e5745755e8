"""Kernels of ``numba.cuda`` with ``cache=True``."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest
from numba import cuda

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
