"""`lazy_exports`: public names of a package that load their modules on first use (PEP 562)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["lazy_exports"]


def lazy_exports(
    package: str,
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a module with lazy exports.

    The exports are the imports ``from home import name as name`` in the module's block ``if
    TYPE_CHECKING:``, so that every name stands in one list, which static type checkers read as
    well. The module's source file must therefore be installed.

    Parameters
    ----------
    package : str
        The module's ``__name__``.

    Raises
    ------
    ImportError
        If the source file is missing.

    Examples
    --------
    >>> import nbrt.memory
    >>> names, load, _ = lazy_exports("nbrt.memory")
    >>> "MemoryPool" in names, load("MemoryPool")
    (True, <class 'nbrt.runtime.memory.pool.MemoryPool'>)
    """
    spec = sys.modules[package].__spec__
    try:
        source = spec.loader.get_data(spec.origin).decode()  # type: ignore[union-attr]
    except (AttributeError, OSError) as error:
        raise ImportError(f"expected the source file of {package}, got none: {error}") from error
    exports = {}
    # Not `re`: to compile a pattern costs more than the rest of ``import nbrt``.
    for statement in source.split("\n    from ")[1:]:
        home, _, imported = statement.partition(" import ")
        attribute, _, name = imported.lstrip("(\n ").split(maxsplit=3)[:3]
        exports[name.rstrip(",")] = home, attribute

    def load(name: str) -> object:
        import importlib

        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, attribute = exports[name]
        if home == package:
            return importlib.import_module(f"{home}.{attribute}")
        value = getattr(importlib.import_module(home), attribute)
        setattr(sys.modules[package], name, value)
        return value

    names = sorted(exports)
    return names, load, names.copy
