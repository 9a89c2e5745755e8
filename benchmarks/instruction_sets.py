"""The instruction set that results are for: this machine's, or that of the CPU in ``NBRT_CPU``."""

from __future__ import annotations

import importlib
import os
import platform

import llvmlite.binding as llvm

from nbrt.backends.cpu.simt.processor import processor

__all__ = ["instruction_set", "variables_of_peers"]

#: The first that code may use names the folder of the results.
_SETS = {"avx512f": "avx512", "avx2": "avx2", "sve": "sve", "neon": "neon"}

_AVX2_ONLY = {
    "OPENBLAS_CORETYPE": "Haswell",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
    "CL_CONFIG_CPU_TARGET_ARCH": "core-avx2",
}
"""Variables by which OpenBLAS, torch, XLA and Intel's OpenCL leave AVX-512 alone.

PoCL, Warp and Taichi have none and compile for the machine.
"""


def instruction_set() -> str:
    """Return the name of the widest instruction set that kernels are compiled for."""
    features = set(processor().features.split(","))
    found = (name for feature, name in _SETS.items() if f"+{feature}" in features)
    return next(found, platform.machine())


def variables_of_peers() -> dict[str, str]:
    """Return the environment variables by which the peers use the instruction set of nbrt."""
    named = os.environ.get("NBRT_CPU")
    if not named:
        return {}
    chosen = {"NUMBA_CPU_NAME": processor().name, "NUMBA_CPU_FEATURES": processor().features}
    if instruction_set() == "avx2" and llvm.get_host_cpu_features().get("avx512f", False):
        chosen |= _AVX2_ONLY
        dispatched = importlib.import_module("numpy._core._multiarray_umath").__cpu_dispatch__
        wide = [name for name in dispatched if name.startswith(("AVX512", "X86_V4"))]
        chosen["NPY_DISABLE_CPU_FEATURES"] = " ".join(wide)
    return chosen
