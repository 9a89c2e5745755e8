"""Functions of higher modules that the methods of `DeviceMesh` and `DTensor` call.

The table names the module of each function, which is imported at the first call. So no lower module
imports a higher one.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["extension"]

_MODULES = {
    "dispatch": "nbrt.distributed.random.dispatch",
    "dtensor_html": "nbrt.distributed.visualization.html",
    "mesh_html": "nbrt.distributed.visualization.html",
}


@functools.cache
def extension(name: str) -> Callable[..., Any]:
    """Return a function of the table."""
    function: Callable[..., Any] = getattr(importlib.import_module(_MODULES[name]), name)
    return function
