"""The modules that programs do not modify: those of the standard library, NumPy and Numba.

A module of the program may have the name of one, such as ``trace`` or ``token``.
"""

from __future__ import annotations

import os
import sys
import sysconfig

__all__ = ["STABLE_PACKAGES", "is_stable_class", "is_stable_module", "is_standard_module"]

STABLE_PACKAGES = frozenset(
    {"builtins", "numba", "numba_cuda", "numba_cuda_mlir", "llvmlite", "numpy"}
)
"""Packages whose modules programs do not modify."""

_INSTALLED = ("site-packages", "dist-packages")
"""Folders of other packages, which may be below that of the standard library."""

_FOLDERS = tuple(
    {
        os.path.join(os.path.realpath(folder), "")
        for folder in (
            os.path.dirname(os.__file__),
            sysconfig.get_path("stdlib"),
            sysconfig.get_path("platstdlib"),
            os.path.join(sys.base_exec_prefix, "DLLs"),
        )
    }
)


def is_stable_module(name: str | None) -> bool:
    """Return whether a module is of the standard library, NumPy or Numba, by its name.

    Parameters
    ----------
    name : str or None
        The full name of a module, or the ``__module__`` of an object.
    """
    root, _, rest = (name or "").partition(".")
    if root in STABLE_PACKAGES:
        return ".tests." not in f".{rest}."  # its tests are programs
    return is_standard_module(name)


def is_stable_class(value: type) -> bool:
    """Return whether a class is of the standard library, NumPy or Numba: it is there by its name.

    A class that ``exec`` makes in a namespace without ``__name__`` calls itself one of `builtins`.

    Parameters
    ----------
    value : type
        The class.
    """
    if not is_stable_module(value.__module__):
        return False
    found: object = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value


def is_standard_module(name: str | None) -> bool:
    """Return whether a module is of the standard library; not one of the program of such a name.

    Parameters
    ----------
    name : str or None
        The full name of a module, or the ``__module__`` of an object.
    """
    root = (name or "").partition(".")[0]
    if root not in sys.stdlib_module_names:
        return False
    module = sys.modules.get(root)
    if module is None:
        return True
    file = getattr(module, "__file__", None)
    if file is None:
        return getattr(getattr(module, "__spec__", None), "origin", None) in ("built-in", "frozen")
    path = os.path.realpath(file)
    return path.startswith(_FOLDERS) and not any(
        f"{os.sep}{folder}{os.sep}" in path for folder in _INSTALLED
    )
