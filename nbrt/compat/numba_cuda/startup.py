"""The effect of ``NBRT_NUMBA_CUDA`` at the start of an interpreter.

The path file that is installed beside the packages imports this module if the variable exists.
Without it, the path file costs the start of Python about 50 microseconds.
"""

from __future__ import annotations

from nbrt.compat.numba_cuda import install_at_import
from nbrt.compat.numba_cuda.import_hook import is_requested

__all__: list[str] = []

if is_requested():
    install_at_import()
