"""The names of the CUDA dialect, known by identity.

``from numba import cuda as c``, ``from numba.cuda import grid`` and a closure variable that holds
``cuda.threadIdx`` are all the same object, so a table from object to dotted name recognises every
spelling. It is built from ``numba.cuda`` only when a kernel has already imported that itself.
"""

from __future__ import annotations

import sys
from types import ModuleType

__all__ = ["AXES", "dialect_name", "is_dialect_module", "next_step"]

AXES = ("x", "y", "z")

_NAMESPACES = ("local", "shared", "const", "atomic", "cg")

_STEPS = {
    "syncthreads": "barriers are not compiled yet: split the kernel in two at the barrier",
    "syncwarp": "remove it: without warp operations no thread of the kernel needs it",
    "shared": "without barriers shared memory has no use: use cuda.local.array or a global array",
    "atomic": "give each thread its own output element and reduce afterwards",
    "cg": "split the kernel in two at the grid barrier and launch both",
    "libdevice": "use the function of the same meaning from the math module",
    "const": "refer to the array as a global: it is compiled in as a constant",
}
_FALLBACK_STEP = "run the kernel on a CUDA device, or write this part with supported names"

_table: dict[int, str] = {}
_keep_alive: list[object] = []
_table_module: ModuleType | None = None


def _members(namespace: object) -> list[str]:
    return [name for name in dir(namespace) if not name.startswith("_")]


def _is_owned(value: object) -> bool:
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and module.startswith(("numba.cuda", "numba_cuda"))


def _refresh() -> None:
    """Build the table from ``numba.cuda`` as it is now, if the program has imported it."""
    global _table_module
    module = sys.modules.get("numba.cuda")
    if module is _table_module or module is None:
        return
    _table.clear()
    _keep_alive.clear()
    for name in _members(module):
        value = getattr(module, name)
        if _is_owned(value) and not isinstance(value, ModuleType):
            _enter(value, name)
    for space in _NAMESPACES:
        namespace = getattr(module, space, None)
        if namespace is not None:
            _enter(namespace, space)
            for name in _members(namespace):
                value = getattr(namespace, name)
                if _is_owned(value) and not isinstance(value, ModuleType):
                    _enter(value, f"{space}.{name}")
    _table_module = module


def _enter(value: object, name: str) -> None:
    _table.setdefault(id(value), name)
    _keep_alive.append(value)


def is_dialect_module(value: object) -> bool:
    """Tell whether a value is the module ``numba.cuda`` itself."""
    return isinstance(value, ModuleType) and value is sys.modules.get("numba.cuda")


def dialect_name(value: object) -> str | None:
    """Give the dotted name under ``numba.cuda`` of an object of the dialect.

    Parameters
    ----------
    value : object
        What a global, a closure variable or an attribute of a kernel holds.

    Returns
    -------
    str or None
        For instance ``"threadIdx"`` or ``"local.array"``; None if it is not of the dialect.
    """
    _refresh()
    name = _table.get(id(value))
    if name is not None or isinstance(value, ModuleType) or not _is_owned(value):
        return name
    if not callable(value):
        return None
    # Not a public name of numba.cuda, but its own: libdevice functions, for one.
    module = str(getattr(value, "__module__", "")).rpartition("numba.cuda.")[2]
    return f"{module}.{getattr(value, '__qualname__', value)}"


def next_step(name: str) -> str:
    """Give the advice that goes with an unsupported name of the dialect."""
    for key in (name, name.partition(".")[0], name.partition("_")[0]):
        if key in _STEPS:
            return _STEPS[key]
    return _FALLBACK_STEP
