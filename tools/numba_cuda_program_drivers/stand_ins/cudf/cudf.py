"""A stand-in for cuDF: pandas with the methods that datashader calls to get CuPy's arrays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import cupy
import pandas as pd  # type: ignore[import-untyped]

__all__ = ["DataFrame", "Index", "Series", "core"]

__version__ = "25.6.0"
Index = pd.Index
pd.Index.to_pandas = lambda index: index
pd.Series.to_cupy = lambda series: cupy.asarray(series.to_numpy(copy=True))
core = SimpleNamespace(dtypes=SimpleNamespace(CategoricalDtype=pd.CategoricalDtype))


class Series(pd.Series):  # type: ignore[misc]
    """A column."""

    @property
    def _constructor(self) -> Any:
        return Series

    @property
    def _constructor_expanddim(self) -> Any:
        return DataFrame

    def to_cupy(self, na_value: Any = None) -> Any:
        """Return a copy as an array of the stand-in for CuPy."""
        del na_value
        return cupy.asarray(self.to_numpy(copy=True))


class DataFrame(pd.DataFrame):  # type: ignore[misc]
    """A table."""

    @property
    def _constructor(self) -> Any:
        return DataFrame

    @property
    def _constructor_sliced(self) -> Any:
        return Series
