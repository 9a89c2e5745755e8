"""The statistics of the memory that kernels allocate, which is none on CPU devices.

On a GPU, numba-cuda can compile kernels that make arrays (NRT), and counts them in a module of CUDA
C++. On a CPU device such kernels do not compile, so that all counts stay 0.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.cuda.core import config
from numba.cuda.memory_management import nrt

if TYPE_CHECKING:
    from nbrt.compat.numba_cuda.patches import Patches

__all__ = ["replace_statistics"]

_ALLOCATIONS = ("allocate", "ensure_allocated", "initialize", "ensure_initialized")
"""Methods that put the counts into the memory of a GPU."""

_COUNTS = ("alloc", "free", "mi_alloc", "mi_free")


class _Statistics:
    """Whether the program has enabled the statistics."""

    def __init__(self) -> None:
        self.is_enabled = bool(config.CUDA_NRT_STATS)

    def enable(self, stream: Any = None) -> None:  # noqa: ARG002  # numba-cuda's signature
        self.is_enabled = True

    def disable(self, stream: Any = None) -> None:  # noqa: ARG002  # the same
        self.is_enabled = False

    def print(self, stream: Any = None) -> None:  # noqa: ARG002  # the same
        sys.stdout.write(f"TheMSys->stats.enabled {int(self.is_enabled)}\n")
        sys.stdout.writelines(f"TheMSys->stats.{name} 0\n" for name in _COUNTS)


def replace_statistics(patches: Patches) -> None:
    """Count allocations of kernels on the host."""
    statistics = _Statistics()
    for name, method in {
        **dict.fromkeys(_ALLOCATIONS, lambda *_, **__: None),
        "memsys_enable_stats": statistics.enable,
        "memsys_disable_stats": statistics.disable,
        "memsys_stats_enabled": lambda *_, **__: statistics.is_enabled,
        "print_memsys": statistics.print,
        "_copy_memsys_to_host": lambda *_: dict.fromkeys(_COUNTS, np.uint64(0)),
        "_get_single_stat": lambda *_: np.uint64(0),
    }.items():
        patches.set(nrt.rtsys, name, method)
