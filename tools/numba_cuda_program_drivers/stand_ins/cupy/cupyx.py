"""A stand-in for ``cupyx``: ``cupyx.scipy`` is SciPy on the arrays of the stand-in for CuPy."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

import numpy as np
from cupy import module_attribute

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

__all__ = ["empty_pinned", "scatter_add"]

__path__: list[str] = []
_PREFIX = "cupyx."


def empty_pinned(shape: Any, dtype: Any = float, order: Any = "C") -> np.ndarray[Any, Any]:
    """Return NumPy's array without values."""
    return np.empty(shape, dtype, order)


def scatter_add(array: Any, indices: Any, values: Any) -> None:
    """Add values at indices, also where an index occurs several times."""
    np.add.at(array, indices, values)


class _Finder(MetaPathFinder, Loader):
    """Answers for ``cupyx.scipy`` and its submodules."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a specification if SciPy has the module."""
        del path, target
        if not name.startswith(_PREFIX + "scipy"):
            return None
        return ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module with the attributes of SciPy's."""
        original = importlib.import_module(module.__name__.removeprefix(_PREFIX))
        module.__dict__["__getattr__"] = lambda name: module_attribute(original, name)


sys.meta_path.insert(0, _Finder())
