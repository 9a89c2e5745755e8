"""Programs for ``numba.cuda``, unchanged, on CPU devices.

`install` puts nbrt under numba-cuda's host code: ``cuda.jit`` makes kernels that nbrt compiles, and
device arrays, streams and events are those of nbrt. `uninstall` restores numba-cuda.

Examples
--------
>>> from nbrt.compat import numba_cuda
>>> numba_cuda.install()
>>> from numba import cuda
>>> @cuda.jit
... def double(x):
...     i = cuda.grid(1)
...     if i < x.size:
...         x[i] *= 2
>>> x = cuda.to_device([1.0, 2.0, 3.0])
>>> double[1, 32](x)
>>> x.copy_to_host()
array([2., 4., 6.])
>>> numba_cuda.uninstall()
"""

from __future__ import annotations

import importlib
import sys
import threading
from functools import partial

from nbrt.compat.numba_cuda.import_hook import ImportHook, add_import_hook, check_numba_cuda
from nbrt.compat.numba_cuda.patches import Patches

__all__ = ["install", "install_at_import", "is_installed", "uninstall"]

_lock = threading.RLock()
_hook: Patches | None = None
"""What `install_at_import` changed; None: nothing."""

_patches: Patches | None = None
"""What is changed in the modules of numba-cuda; None: nothing."""


def install() -> None:
    """Run programs for ``numba.cuda`` on nbrt from now on; do nothing if they do already.

    The default device of nbrt decides: on a CPU device, all of numba-cuda's host API runs on nbrt.
    If it is a CUDA device, programs run on numba-cuda as without nbrt, and allocate from the pools
    of nbrt.

    Imports of ``numba_cuda_mlir`` give the modules of numba-cuda. Child processes do the same, by
    the variable ``NBRT_NUMBA_CUDA``. numba-cuda's simulator is switched off.

    Raises
    ------
    BackendUnavailableError
        If numba-cuda is not installed, or if ``numba.cuda`` is imported as the simulator.
    """
    check_numba_cuda()
    try:
        install_at_import()
        # Outside the lock: another thread may be importing the module, and then installs.
        importlib.import_module("numba.cuda")
        _patch()
    except BaseException:
        uninstall()
        raise


def install_at_import() -> None:
    """Install when the program first imports ``numba.cuda``; now, if it has.

    ``NBRT_NUMBA_CUDA=1`` calls this at the start of the interpreter. A program that does not import
    ``numba.cuda`` pays for a look at the names of its imports only.
    """
    global _hook
    with _lock:
        if _hook is None:
            patches = Patches()
            try:
                prepare = partial(_add_missing_packages, patches)
                add_import_hook(patches, ImportHook(_patch, _replaces_successor, prepare))
            except BaseException:
                patches.undo()
                raise
            _hook = patches
    if "numba.cuda" in sys.modules:
        _patch()


def uninstall() -> None:
    """Restore numba-cuda, the import system and the environment as they were before `install`."""
    global _hook, _patches
    with _lock:
        for patches in (_patches, _hook):
            if patches is not None:
                patches.undo()
        _hook = _patches = None


def is_installed() -> bool:
    """Return whether programs for ``numba.cuda`` run on nbrt, or will once they import it."""
    return _hook is not None


def _patch() -> None:
    """Change the modules of numba-cuda, which is imported, unless that is done or undone."""
    global _patches
    with _lock:
        if _patches is not None or _hook is None:
            return
        patches = Patches()
        try:
            _apply(patches)
        except BaseException:
            patches.undo()
            raise
        _patches = patches


def _apply(patches: Patches) -> None:
    if _runs_on_cuda():
        from nbrt.compat.numba_cuda.memory_manager import select

        select(patches)
        return
    from nbrt.compat.numba_cuda.installation import apply
    from nbrt.compat.numba_cuda.successor import add_names

    apply(patches)
    add_names(patches)


def _add_missing_packages(patches: Patches) -> None:
    from nbrt.compat.numba_cuda.missing_packages import add_missing_packages

    add_missing_packages(patches)


def _runs_on_cuda() -> bool:
    from nbrt.runtime.device import default_device

    return default_device().kind == "cuda"


def _replaces_successor() -> bool:
    """Return whether ``numba_cuda_mlir`` is numba-cuda: always, but for a real one on a GPU."""
    from importlib.machinery import PathFinder

    return not _runs_on_cuda() or PathFinder.find_spec("numba_cuda_mlir") is None
