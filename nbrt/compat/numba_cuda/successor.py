"""Names that numba-cuda-mlir, the successor of numba-cuda, has in addition.

Programs that import ``numba_cuda_mlir.cuda`` get the module ``numba.cuda``, which kernels know.
These names are attributes of that module while the drop-in is installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbrt.compat.numba_cuda.patches import Patches

__all__ = ["REFUSED", "SUPPLIED", "add_names", "refusal"]

SUPPLIED = {
    "DeviceNDArray": ("numba.cuda.cudadrv.devicearray", "DeviceNDArray"),
    "carray": ("numba", "carray"),
    "farray": ("numba", "farray"),
    "fp16": ("numba.cuda.fp16", ""),
    "libdevicefuncs": ("numba.cuda.libdevicefuncs", ""),
    "random": ("numba.cuda.random", ""),
    "vector_types": ("numba.cuda.vector_types", ""),
}
"""Names, their modules in Numba or numba-cuda, and their names there; empty: the module itself."""

_HALF = "vectors of float16 are not in numba-cuda; use float16 arrays, or float32x2 and the like"
_GPU_CODE = (
    "it makes code for GPUs by MLIR; use numba.cuda.compile or compile_ptx, which need NVVM, or "
    "kernel.inspect of nbrt"
)
REFUSED = {
    **dict.fromkeys(("compile_cubin", "compile_for", "compile_mlir"), _GPU_CODE),
    "complex32": "kernels on CPU devices have no complex numbers of float16; use complex64",
    **{f"{kind}{n}": _HALF for kind in ("float16x", "half") for n in range(1, 5)},
    "experimental": "its functions are MLIR's; use local arrays and records of Numba",
    "inline_ptx": "CPU devices do not run PTX; use the functions of numba.cuda and libdevice",
    "intrin": "its functions are MLIR's; use numba.cuda.extending.intrinsic",
    "local_array": "numba-cuda does not know the name; use cuda.local.array",
    "resolve_cuda_array_interface_dtype": (
        "it is internal to numba-cuda-mlir; use cuda.as_cuda_array"
    ),
    "shared_array": "numba-cuda does not know the name; use cuda.shared.array",
    "tensor_map": "CPU devices have no tensor memory accelerator; copy tiles in the kernel",
    "vector": "numba-cuda has no vector loads; index the array, which nbrt vectorises",
}
"""Names of numba-cuda-mlir 0.6.0 that CPU devices lack, with what to use instead."""


def refusal(name: str) -> str:
    """Return the message that refuses a name."""
    return f"numba.cuda on a CPU device of nbrt has no {name}: {REFUSED[name]}"


def add_names(patches: Patches) -> None:
    """Add the names to ``numba.cuda`` until `patches.undo`."""
    patches.set(importlib.import_module("numba.cuda"), "__getattr__", _attribute)


def _attribute(name: str) -> Any:
    """Return an attribute of ``numba.cuda`` that numba-cuda has not set there."""
    if name in SUPPLIED:
        module, attribute = SUPPLIED[name]
        found = importlib.import_module(module)
        return getattr(found, attribute) if attribute else found
    if name in REFUSED:
        raise AttributeError(refusal(name), name=name)
    raise AttributeError(f"module 'numba.cuda' has no attribute {name!r}", name=name)
