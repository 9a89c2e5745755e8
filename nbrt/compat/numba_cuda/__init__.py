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

import threading

from nbrt.compat.numba_cuda.patches import Patches

__all__ = ["install", "is_installed", "uninstall"]

_lock = threading.RLock()
_patches: Patches | None = None


def install() -> None:
    """Run programs for ``numba.cuda`` on nbrt from now on; do nothing if they do already."""
    global _patches
    with _lock:
        if _patches is not None:
            return
        from nbrt.compat.numba_cuda.installation import apply

        patches = Patches()
        try:
            apply(patches)
        except BaseException:
            patches.undo()
            raise
        _patches = patches


def uninstall() -> None:
    """Restore numba-cuda as it was before `install`."""
    global _patches
    with _lock:
        if _patches is not None:
            _patches.undo()
            _patches = None


def is_installed() -> bool:
    """Return whether programs for ``numba.cuda`` run on nbrt."""
    return _patches is not None
