"""Datashader's pipeline for cuDF on the stand-in for cuDF, against its pipeline for pandas."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

cudf = import_module("cudf")
ds = import_module("datashader")
pd = import_module("pandas")

_REDUCTIONS = {
    "count": ds.count(),
    "count column": ds.count("i32"),
    "any": ds.any("f64"),
    "sum": ds.sum("f64"),
    "min": ds.min("f64"),
    "max": ds.max("i32"),
    "mean": ds.mean("f32"),
    "var": ds.var("f64"),
    "std": ds.std("f64"),
    "summary": ds.summary(low=ds.min("f32"), total=ds.sum("i32")),
    "by": ds.by("cat", ds.count()),
    "where": ds.where(ds.max("f64"), "i32"),
    "first": ds.first("f64"),
    "last": ds.last("f64"),
    "max_n": ds.max_n("f64", n=3),
    "min_n": ds.min_n("f32", n=2),
}


def _table(count: int = 600) -> Any:
    random = np.random.default_rng(5)
    values = random.normal(size=count)
    values[::17] = np.nan
    return pd.DataFrame(
        {
            "x": random.uniform(0, 1, count),
            "y": random.uniform(-1, 1, count),
            "z": random.uniform(-1, 0, count),
            "i32": np.arange(count, dtype=np.int32),
            "f32": values.astype(np.float32),
            "f64": values,
            "cat": pd.Categorical.from_codes(np.arange(count) % 3, ["a", "b", "c"]),
        }
    )


def _compare(found: Any, expected: Any) -> None:
    if hasattr(expected, "data_vars"):
        for name in expected.data_vars:
            _compare(found[name], expected[name])
        return
    assert found.dims == expected.dims
    values = np.asarray(found.data)
    np.testing.assert_allclose(values, expected.data, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("reduction", _REDUCTIONS)
def test_points(reduction: str) -> None:
    """600 points on 12 x 9 pixels."""
    table, canvas = _table(), ds.Canvas(12, 9, (0, 1), (-1, 1))
    expected = canvas.points(table, "x", "y", _REDUCTIONS[reduction])
    _compare(canvas.points(cudf.DataFrame(table), "x", "y", _REDUCTIONS[reduction]), expected)


@pytest.mark.parametrize("reduction", ["count", "sum", "max", "by", "mean"])
def test_lines(reduction: str) -> None:
    """A line of 100 points on 12 x 9 pixels."""
    table, canvas = _table(100), ds.Canvas(12, 9, (0, 1), (-1, 1))
    expected = canvas.line(table, "x", "y", _REDUCTIONS[reduction])
    _compare(canvas.line(cudf.DataFrame(table), "x", "y", _REDUCTIONS[reduction]), expected)


@pytest.mark.parametrize("reduction", ["count", "max"])
def test_area(reduction: str) -> None:
    """An area below a line, and one between two lines."""
    table, canvas = _table(100).sort_values("x"), ds.Canvas(12, 9, (0, 1), (-1, 1))
    for options in ({}, {"y_stack": "z"}):
        chosen = _REDUCTIONS[reduction]
        expected = canvas.area(table, "x", "y", chosen, **options)
        _compare(canvas.area(cudf.DataFrame(table), "x", "y", chosen, **options), expected)
