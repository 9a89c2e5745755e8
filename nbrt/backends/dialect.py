"""The names of the CUDA dialect, recognised by identity.

A table maps each object of ``numba.cuda`` to its dotted name, so that every spelling of a name is
recognised: ``from numba import cuda as c``, ``from numba.cuda import grid``, a closure variable.
The table includes ``numba_cuda_mlir.cuda``, and either module only if the program has imported it.
"""

from __future__ import annotations

import enum
import importlib
import sys
from types import ModuleType

__all__ = [
    "AXES",
    "dialect_member",
    "dialect_name",
    "is_dialect_module",
    "is_of_dialect",
    "next_step",
]

AXES = ("x", "y", "z")

_MODULES = ("numba.cuda", "numba_cuda_mlir.cuda")
_PACKAGES = ("numba.cuda.", "numba_cuda.", "numba_cuda_mlir.")
_NAMESPACES = ("local", "shared", "const", "atomic", "cg")
_SUBMODULES = ("bf16", "fp16", "libdevice")
"""Modules that numba.cuda imports only if there is a device; kernels name them in any case."""

_STEPS = {
    "bf16": "move the bits of a bfloat16 as int32, with cuda.shfl_sync and its relatives",
    "libdevice": "use the function of the same meaning from the math module, if there is one",
}
_FALLBACK_STEP = "run the kernel on a CUDA device, or write this part with supported names"

_table: dict[int, str] = {}
_keep_alive: list[object] = []
_table_modules: list[ModuleType | None] = []


def _members(namespace: object) -> list[str]:
    return [name for name in dir(namespace) if not name.startswith("_")]


def is_of_dialect(value: object) -> bool:
    """Return whether a value is defined by a package of the dialect, publicly or not.

    What the tests of a package define is of a program.
    """
    module = getattr(value, "__module__", None)
    if not isinstance(module, str):
        return False
    return f"{module}.".startswith(_PACKAGES) and ".tests." not in f"{module}."


def _refresh() -> None:
    """Build the table from the dialect's modules that the program has imported."""
    modules = [sys.modules.get(name) for name in _MODULES]
    if modules == _table_modules:
        return
    _table.clear()
    _keep_alive.clear()
    for module in filter(None, modules):
        _enter_members(module, "")
        for space in _NAMESPACES:
            namespace = getattr(module, space, None)
            if namespace is not None:
                _enter(namespace, space)
                _enter_members(namespace, f"{space}.")
    _table_modules[:] = modules


def _enter_members(namespace: object, prefix: str) -> None:
    for name in _members(namespace):
        value = getattr(namespace, name)
        if is_of_dialect(value) and not isinstance(value, ModuleType):
            # A type is entered under its `__name__`: `float4` is `float32x4`.
            own = getattr(value, "__name__", name) if isinstance(value, type) else name
            _enter(value, f"{prefix}{own if hasattr(namespace, own) else name}")


def _enter(value: object, name: str) -> None:
    _table.setdefault(id(value), name)
    _keep_alive.append(value)


def is_dialect_module(value: object) -> bool:
    """Return whether a value is the module ``numba.cuda`` itself, or one with the same names."""
    return isinstance(value, ModuleType) and any(
        value is sys.modules.get(name) for name in _MODULES
    )


def dialect_member(module: ModuleType, name: str) -> tuple[bool, object]:
    """Return ``(True, value)`` for a name of ``numba.cuda``, or ``(False, None)`` for other names.

    Parameters
    ----------
    module : module
        ``numba.cuda``, or one with the same names.
    name : str
        The attribute.
    """
    if name in _SUBMODULES and not hasattr(module, name):
        try:
            return True, importlib.import_module(f"{module.__name__}.{name}")
        except ImportError:
            return False, None
    return hasattr(module, name), getattr(module, name, None)


def dialect_name(value: object) -> str | None:
    """Return the dotted name under ``numba.cuda`` of an object of the dialect.

    Parameters
    ----------
    value : object
        The value of a global, a closure variable or an attribute in a kernel.

    Returns
    -------
    str or None
        For instance ``"threadIdx"`` or ``"local.array"``; None if it is not of the dialect.
    """
    _refresh()
    name = _table.get(id(value))
    if name is not None or isinstance(value, ModuleType) or not is_of_dialect(value):
        return name
    if not callable(value):
        return None
    if isinstance(value, enum.EnumMeta):
        return None  # Python's, as any other
    # Not a public name of numba.cuda, such as functions of libdevice or fp16.
    module = str(getattr(value, "__module__", "")).rpartition("cuda.")[2]
    if module == "vector_types":
        return str(value)  # the type behind the constructor of that name
    module = module.removeprefix("_internal.cuda_")
    return f"{module}.{getattr(value, '__qualname__', value)}"


def next_step(name: str) -> str:
    """Return the next step after an error about an unsupported name of the dialect."""
    return _STEPS.get(name.partition(".")[0], _FALLBACK_STEP)
