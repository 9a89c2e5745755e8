"""An import hook that changes a module right after it has been executed."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    Change = Callable[[ModuleType], None]

__all__ = ["ModuleChanges"]


class ModuleChanges(importlib.abc.MetaPathFinder):
    """Finds some modules as Python would, and changes them before their importer goes on.

    An exception of a change ends the import, as one of the module itself does.
    """

    def __init__(self, changes: Mapping[str, Change]) -> None:
        self._changes = dict(changes)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        change = self._changes.get(fullname)
        if change is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ChangingLoader(spec.loader, change)
        return spec

    def install(self) -> None:
        """Put the hook in front of Python's finders.

        Raises
        ------
        ImportError
            If one of the modules has been imported already.
        """
        if late := [name for name in self._changes if name in sys.modules]:
            raise ImportError(
                f"expected CuPy to be imported after the simulated CUDA driver was loaded, but "
                f"{late[0]} has been imported: load the driver first"
            )
        sys.meta_path.insert(0, self)


class _ChangingLoader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, change: Change) -> None:
        self._loader = loader
        self._change = change

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        # Nothing of the hook stays in the module.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._change(module)
