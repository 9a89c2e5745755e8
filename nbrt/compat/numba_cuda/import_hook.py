"""The import hook: installation when a program imports ``numba.cuda``, and ``numba_cuda_mlir``.

The module imports little, because a path file imports it at the start of each interpreter for which
``NBRT_NUMBA_CUDA=1`` is set.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

from nbrt.errors import BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from nbrt.compat.numba_cuda.patches import Patches

__all__ = ["ImportHook", "add_import_hook", "check_numba_cuda", "is_requested"]

_VARIABLE = "NBRT_NUMBA_CUDA"
_SIMULATOR = "NUMBA_ENABLE_CUDASIM"
_NUMBA_CUDA = "numba.cuda"
_SUCCESSOR = "numba_cuda_mlir"
_SUCCESSOR_VERSION = "0.6.0"
"""The version of numba-cuda-mlir whose names of modules the hook answers for."""

_SUCCESSOR_MODULES = {
    "cuda": _NUMBA_CUDA,
    "numba_cuda": _NUMBA_CUDA,
    "types": "numba.cuda.types",
    "errors": "numba.cuda.core.errors",
}


class ImportHook:
    """A finder of modules, before all others while it is in ``sys.meta_path``.

    Parameters
    ----------
    install : callable
        Called once ``numba.cuda`` is imported, in the thread that imports it.
    replaces_successor : callable
        Returns whether the modules of numba-cuda-mlir are those of numba-cuda.
    prepare : callable
        Called before ``numba.cuda`` is imported.
    """

    def __init__(
        self,
        install: Callable[[], None],
        replaces_successor: Callable[[], bool],
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self._install = install
        self._replaces_successor = replaces_successor
        self._prepare = prepare
        self._searches = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of ``numba.cuda`` or of a module of numba-cuda-mlir."""
        if name == _NUMBA_CUDA:
            return self._spec_of_numba_cuda(path, target)
        if name == _SUCCESSOR or name.startswith(f"{_SUCCESSOR}."):
            return self._spec_of_successor(name)
        if name.startswith(f"{_NUMBA_CUDA}."):
            self._refuse(name)
        if name.startswith(f"{__package__}.") and _NUMBA_CUDA not in sys.modules:
            # The preparation imports a module that does not need ``numba.cuda``.
            return None if self._is_searching else _spec_of_own(name)
        return None

    @property
    def _is_searching(self) -> bool:
        """Whether this thread looks for ``numba.cuda``."""
        return getattr(self._searches, "is_running", False)

    def _refuse(self, name: str) -> None:
        """Raise ImportError for ``from numba_cuda_mlir.cuda import`` of a name that is refused."""
        module = sys.modules.get("nbrt.compat.numba_cuda.successor")
        last = name[len(_NUMBA_CUDA) + 1 :]
        if module is not None and last in module.REFUSED and self._replaces_successor():
            raise ImportError(module.refusal(last), name=name)

    def _spec_of_numba_cuda(
        self, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        # The finder of numba-cuda asks all finders, this one among them.
        if self._is_searching:
            return None
        self._searches.is_running = True
        try:
            check_numba_cuda()
            self._prepare()
            spec = _spec_of_others(self, _NUMBA_CUDA, path, target)
        finally:
            self._searches.is_running = False
        if spec is not None and spec.loader is not None:
            loader: Any = _InstallingLoader(spec.loader, self._install)
            spec.loader = loader
        return spec

    def _spec_of_successor(self, name: str) -> ModuleSpec | None:
        importlib.import_module(_NUMBA_CUDA)
        if not self._replaces_successor():
            return None
        loader: Any = _SuccessorLoader()
        return ModuleSpec(name, loader, is_package=True)


def add_import_hook(patches: Patches, hook: ImportHook) -> None:
    """Put a hook in place, and the environment of child processes, until `patches.undo`.

    numba-cuda's simulator is switched off, also for a program that sets its variable.

    Raises
    ------
    BackendUnavailableError
        If ``numba.cuda`` is imported, and is the simulator.
    """
    loaded = sys.modules.get("numba.cuda.core.config")
    if loaded is not None and loaded.ENABLE_CUDASIM:
        raise BackendUnavailableError(
            f"expected numba.cuda without its simulator, got {_SIMULATOR}=1, with which numba.cuda "
            f"was imported; start a new process without the variable or with {_VARIABLE}=1, which "
            f"has precedence"
        )
    if not is_requested():
        patches.set_item(os.environ, _VARIABLE, "1")
    _switch_simulator_off(patches)
    _take_aside_successor(patches)
    sys.meta_path.insert(0, hook)
    patches.add_undo(lambda: sys.meta_path.remove(hook))


def is_requested() -> bool:
    """Return whether the environment asks for the hook.

    A wrong value does; the import of ``numba.cuda`` reads the settings of nbrt, and raises.
    """
    return os.environ.get(_VARIABLE, "").strip() not in ("", "0")


def _switch_simulator_off(patches: Patches) -> None:
    before = os.environ.pop(_SIMULATOR, None)
    if before is not None:
        patches.add_undo(lambda: os.environ.__setitem__(_SIMULATOR, before))
    if (numba := sys.modules.get("numba.core.config")) is not None and numba.ENABLE_CUDASIM:
        patches.set(numba, "ENABLE_CUDASIM", 0)


def _take_aside_successor(patches: Patches) -> None:
    """Forget the modules of numba-cuda-mlir that are imported; `patches.undo` brings them back."""

    def remove() -> dict[str, ModuleType]:
        prefix = f"{_SUCCESSOR}."
        names = [name for name in sys.modules if name == _SUCCESSOR or name.startswith(prefix)]
        return {name: sys.modules.pop(name) for name in names}

    before = remove()

    def restore() -> None:
        remove()
        sys.modules.update(before)

    patches.add_undo(restore)


def _spec_of_own(name: str) -> ModuleSpec | None:
    """Return the specification of a module of the drop-in that is imported before ``numba.cuda``.

    Unpickling a kernel does that. The modules import ``numba.cuda``, and the installation imports
    them, so it comes first.
    """
    importlib.import_module(_NUMBA_CUDA)
    # With the module in place, the import system would take its specification, and load it anew.
    # Until the loader puts it back, this thread holds its lock.
    module = sys.modules.pop(name, None)
    if module is None:
        return None
    loader: Any = _LoadedLoader(module)
    return ModuleSpec(name, loader)


class _LoadedLoader:
    """A loader whose module is loaded."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the import system create a module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the loaded module in the place of the new one."""
        sys.modules[module.__name__] = self._module


def check_numba_cuda() -> None:
    """Raise BackendUnavailableError if numba-cuda is not installed."""
    from importlib.util import find_spec

    if find_spec("numba_cuda") is None:
        raise BackendUnavailableError(
            "expected the package numba-cuda, which supplies numba.cuda, but it is not installed; "
            "install it with: pip install numba-cuda (it has wheels for Linux and Windows only)"
        )


def _spec_of_others(
    hook: ImportHook, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if finder is not hook and hasattr(finder, "find_spec"):
            spec: ModuleSpec | None = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


class _InstallingLoader:
    """The loader of ``numba.cuda``, followed by the installation."""

    def __init__(self, loader: Any, install: Callable[[], None]) -> None:
        self._loader = loader
        self._install = install

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return what the loader returns."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the module without the simulator, then install."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        os.environ.pop(_SIMULATOR, None)  # set by the program
        if "numba.core.config" in sys.modules:
            sys.modules["numba.core.config"].ENABLE_CUDASIM = 0  # type: ignore[attr-defined]
        self._loader.exec_module(module)
        self._install()


class _SuccessorLoader:
    """Loads modules of numba-cuda as those of numba-cuda-mlir."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Let the import system create a module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill the package, or put numba-cuda's module in the place of a submodule."""
        name = module.__name__
        if name == _SUCCESSOR:
            vars(module).update(
                __version__=_SUCCESSOR_VERSION,
                __doc__="numba-cuda, under the name of its successor.",
                cuda=importlib.import_module(_NUMBA_CUDA),
            )
            return
        sys.modules[name] = _module_for(name)


def _module_for(name: str) -> Any:
    """Return the module or class of numba-cuda for a module of numba-cuda-mlir."""
    from nbrt.compat.numba_cuda.successor import REFUSED, refusal

    first, *rest = name.split(".")[1:]
    if first == "cuda" and rest[:1] and rest[0] in REFUSED:
        raise ModuleNotFoundError(refusal(rest[0]), name=name)
    if first in _SUCCESSOR_MODULES:
        parent = ".".join([_SUCCESSOR_MODULES[first], *rest[:-1]])
        full = ".".join([_SUCCESSOR_MODULES[first], *rest])
        try:
            return importlib.import_module(full)
        except ModuleNotFoundError as error:
            if error.name != full:
                raise
        # Modules there, classes here: `shared`, `local` and `const`.
        if hasattr(found := importlib.import_module(parent), rest[-1]):
            return getattr(found, rest[-1])
    raise ModuleNotFoundError(
        f"numba.cuda on nbrt has no equivalent of {name}: expected modules of numba-cuda-mlir "
        f"that numba-cuda has too, such as numba_cuda_mlir.cuda; Numba's own extension API is in "
        f"numba.cuda.extending",
        name=name,
    )
