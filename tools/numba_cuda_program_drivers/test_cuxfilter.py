"""Kernels of cuxfilter, whose other parts need cuDF: points in polygons and edges of graphs."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

_PACKAGE = Path(os.environ["NUMBA_CUDA_PROGRAM"]) / "python" / "cuxfilter"


def _module(path: str) -> Any:
    """Import one file of cuxfilter without its packages, which import cuDF."""
    for name in ("cudf", "dask_cudf", "cuxfilter", "cuxfilter.assets", "cuxfilter.assets.datetime"):
        sys.modules.setdefault(name, ModuleType(name))
    assets: Any = sys.modules["cuxfilter.assets"]
    assets.cudf_utils = assets.datetime = sys.modules["cuxfilter.assets.datetime"]
    name = "cuxfilter." + path.removesuffix(".py").replace("/", ".")
    spec = spec_from_file_location(name, _PACKAGE / path)
    assert spec is not None
    assert spec.loader is not None
    for end in range(2, name.count(".") + 1):
        package = ".".join(name.split(".")[:end])
        sys.modules.setdefault(package, ModuleType(package)).__path__ = []
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _inside(points: Any, polygon: Any) -> Any:
    """Return which points a polygon contains, by the rule of even and odd."""
    x, y = points[:, :1], points[:, 1:]
    x0, y0 = polygon.T
    x1, y1 = np.roll(polygon, -1, axis=0).T
    crosses = (y0 <= y) != (y1 <= y)
    with np.errstate(divide="ignore", invalid="ignore"):
        at = x0 + (y - y0) * (x1 - x0) / (y1 - y0)
    return (crosses & (x < at)).sum(axis=1) % 2 == 1


@pytest.mark.parametrize("corners", [3, 7, 40])
def test_point_in_polygon(corners: int) -> None:
    """Points in star-shaped polygons, against NumPy."""
    cupy = import_module("cupy")
    module = _module("charts/core/non_aggregate/utils.py")
    random = np.random.default_rng(corners)
    angle = np.linspace(0, 2 * np.pi, corners, endpoint=False)
    polygon = np.stack([np.cos(angle), np.sin(angle)], 1) * random.uniform(0.3, 1, (corners, 1))
    points = random.uniform(-1, 1, (2000, 2))
    out = cupy.zeros(2000, dtype=bool)
    module.point_in_polygon_kernel[8, 256](
        cupy.asarray(points.ravel()), cupy.asarray(polygon.ravel()), corners, out
    )
    np.testing.assert_array_equal(out.get(), _inside(points, polygon))


@pytest.mark.parametrize("columns", [4, 5])
def test_edges(columns: int) -> None:
    """Straight and curved edges of a graph, against NumPy."""
    cupy = import_module("cupy")
    module = _module("charts/datashader/custom_extensions/graph_assets.py")
    random = np.random.default_rng(columns)
    edges = random.uniform(size=(300, columns)).astype(np.float32)
    controls = random.uniform(size=(300, 2)).astype(np.float32)
    steps = np.linspace(0, 1, 20)
    straight = cupy.zeros((300, columns - 2, 3), dtype=np.float32)
    module.connect_edges[module.cuda_args(300)](cupy.asarray(edges), straight)
    expected = np.full((300, columns - 2, 3), np.nan, np.float32)
    expected[:, 0, :2], expected[:, 1, :2] = edges[:, [0, 2]], edges[:, [1, 3]]
    if columns == 5:
        expected[:, 2, :2] = edges[:, 4:]
    np.testing.assert_array_equal(straight.get(), expected)
    curved = cupy.zeros((300, columns - 2, 21), dtype=np.float32)
    module.compute_curves[module.cuda_args(300)](
        cupy.asarray(edges), cupy.asarray(controls), curved, cupy.asarray(steps)
    )
    for axis in (0, 1):
        start, end, control = edges[:, [axis]], edges[:, [axis + 2]], controls[:, [axis]]
        curve = start * (1 - steps) ** 2 + 2 * (1 - steps) * steps * control + end * steps**2
        np.testing.assert_allclose(curved.get()[:, axis, :-1], curve, rtol=1e-5, atol=1e-6)
        assert np.isnan(curved.get()[:, axis, -1]).all()
