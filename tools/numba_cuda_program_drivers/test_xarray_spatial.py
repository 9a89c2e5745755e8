"""Kernels of xarray-spatial on CuPy's arrays, against its functions for NumPy's."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import cupy
import numpy as np
import pytest

_SURFACES: dict[str, tuple[Any, ...]] = {
    "slope": (0.5, 0.7),
    "aspect": (),
    "curvature": (0.5,),
    "hillshade": (225, 25),
}


@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
@pytest.mark.parametrize("name", _SURFACES)
def test_surface(name: str, dtype: str) -> None:
    """A property of a surface of 40 x 30 heights."""
    module = import_module(f"xrspatial.{name}")
    heights = (np.random.default_rng(2).uniform(0, 100, (40, 30))).astype(dtype)
    expected = module._run_numpy(heights, *_SURFACES[name])
    found = module._run_cupy(cupy.asarray(heights), *_SURFACES[name])
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["arvi", "evi", "gci", "savi", "sipi", "ebbi"])
def test_multispectral(name: str) -> None:
    """An index of vegetation or buildings from bands of 40 x 30 pixels."""
    module = import_module("xrspatial.multispectral")
    random = np.random.default_rng(3)
    bands: list[Any] = [random.uniform(100, 4000, (40, 30)).astype("f4") for _ in range(3)]
    numbers = {"evi": (6.0, 7.5, 1.0, 2.5), "savi": (0.8,)}.get(name, ())
    if name in ("gci", "savi"):
        bands = bands[:2]
    cpu, gpu = (getattr(module, f"_{name}_{kind}") for kind in ("cpu", "cupy"))
    found = gpu(*map(cupy.asarray, bands), *numbers)
    np.testing.assert_allclose(np.asarray(found), cpu(*bands, *numbers), rtol=1e-4, atol=1e-4)


def test_focal_and_convolution() -> None:
    """A mean of neighbours and a convolution."""
    convolution = import_module("xrspatial.convolution")
    heights = np.random.default_rng(4).uniform(0, 100, (40, 30)).astype(np.float32)
    kernel = np.array([[0, 1, 0], [1, 2, 1], [0, 1, 0]], dtype=np.float32)
    expected = convolution._convolve_2d_numpy(heights, kernel)
    found = convolution._convolve_2d_cupy(cupy.asarray(heights), cupy.asarray(kernel))
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-4, atol=1e-3)
