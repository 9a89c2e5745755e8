"""Stand-ins for packages that numba-cuda imports and CPU devices do not need.

numba-cuda imports cuda-bindings, cuda-core and cuda-pathfinder, which exist for few systems. Where
one is missing, `add_missing_packages` puts modules in its place: enumerators of the CUDA driver,
and classes that refuse to be made.
"""

from __future__ import annotations

import enum
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from nbrt.errors import BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nbrt.compat.numba_cuda.patches import Patches

__all__ = ["add_missing_packages"]

_CORE_VERSION = "0.6.0"
"""The version of cuda-core whose names the stand-ins have."""

_RUNTIME_VERSION = 13000
"""CUDA 13.0, as ``1000 * major + 10 * minor``."""

_CORE_CLASSES = (
    "Buffer Device GraphBuilder LaunchConfig Linker LinkerOptions ObjectCode Program "
    "ProgramOptions Stream"
)
_RESULTS = (
    "CUDA_SUCCESS 0 CUDA_ERROR_INVALID_VALUE 1 CUDA_ERROR_OUT_OF_MEMORY 2 "
    "CUDA_ERROR_NOT_INITIALIZED 3 CUDA_ERROR_DEINITIALIZED 4 CUDA_ERROR_NO_DEVICE 100 "
    "CUDA_ERROR_INVALID_DEVICE 101 CUDA_ERROR_INVALID_CONTEXT 201 CUDA_ERROR_INVALID_HANDLE 400 "
    "CUDA_ERROR_NOT_FOUND 500 CUDA_ERROR_NOT_READY 600 CUDA_ERROR_ILLEGAL_ADDRESS 700 "
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES 701 CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED 712 "
    "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED 713 CUDA_ERROR_LAUNCH_FAILED 719 "
    "CUDA_ERROR_NOT_PERMITTED 800 CUDA_ERROR_NOT_SUPPORTED 801 CUDA_ERROR_UNKNOWN 999"
)
_ATTRIBUTES = (
    "MAX_THREADS_PER_BLOCK 1 MAX_BLOCK_DIM_X 2 MAX_BLOCK_DIM_Y 3 MAX_BLOCK_DIM_Z 4 "
    "MAX_GRID_DIM_X 5 MAX_GRID_DIM_Y 6 MAX_GRID_DIM_Z 7 MAX_SHARED_MEMORY_PER_BLOCK 8 "
    "TOTAL_CONSTANT_MEMORY 9 WARP_SIZE 10 MAX_PITCH 11 MAX_REGISTERS_PER_BLOCK 12 CLOCK_RATE 13 "
    "TEXTURE_ALIGNMENT 14 GPU_OVERLAP 15 MULTIPROCESSOR_COUNT 16 KERNEL_EXEC_TIMEOUT 17 "
    "INTEGRATED 18 CAN_MAP_HOST_MEMORY 19 COMPUTE_MODE 20 CONCURRENT_KERNELS 31 ECC_ENABLED 32 "
    "PCI_BUS_ID 33 PCI_DEVICE_ID 34 TCC_DRIVER 35 MEMORY_CLOCK_RATE 36 GLOBAL_MEMORY_BUS_WIDTH 37 "
    "L2_CACHE_SIZE 38 MAX_THREADS_PER_MULTIPROCESSOR 39 ASYNC_ENGINE_COUNT 40 "
    "UNIFIED_ADDRESSING 41 PCI_DOMAIN_ID 50 COMPUTE_CAPABILITY_MAJOR 75 "
    "COMPUTE_CAPABILITY_MINOR 76 STREAM_PRIORITIES_SUPPORTED 78 "
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR 81 MAX_REGISTERS_PER_MULTIPROCESSOR 82 "
    "MANAGED_MEMORY 83 MULTI_GPU_BOARD 84 SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO 87 "
    "PAGEABLE_MEMORY_ACCESS 88 CONCURRENT_MANAGED_ACCESS 89 COMPUTE_PREEMPTION_SUPPORTED 90 "
    "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM 91 COOPERATIVE_LAUNCH 95 "
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN 97 HOST_REGISTER_SUPPORTED 99 "
    "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES 100 DIRECT_MANAGED_MEM_ACCESS_FROM_HOST 101 "
    "MAX_BLOCKS_PER_MULTIPROCESSOR 106 MEMORY_POOLS_SUPPORTED 115"
)
_JIT_INPUTS = "CUBIN 0 PTX 1 FATBINARY 2 OBJECT 3 LIBRARY 4 NVVM 5"
_NUMBERS = {
    "CU_MEMHOSTALLOC_PORTABLE": 1,
    "CU_MEMHOSTALLOC_DEVICEMAP": 2,
    "CU_MEMHOSTALLOC_WRITECOMBINED": 4,
    "CU_MEMHOSTREGISTER_DEVICEMAP": 2,
    "CU_STREAM_LEGACY": 1,
    "CU_STREAM_PER_THREAD": 2,
}


def add_missing_packages(patches: Patches) -> None:
    """Put stand-ins in the place of missing packages until `patches.undo`."""
    made: dict[str, dict[str, Any]] = {}
    if not _is_there("cuda"):
        made["cuda"] = {}
    if not _is_there("cuda.bindings"):
        made |= _bindings()
    if not _is_there("cuda.core"):
        made |= _core()
    if not _is_there("cuda.pathfinder"):
        made |= _pathfinder()
    for name, members in made.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        vars(module).update(members)
        patches.set_item(sys.modules, name, module)
        parent, _, last = name.rpartition(".")
        if parent:
            patches.set(sys.modules[parent], last, module)


def _is_there(name: str) -> bool:
    if name in sys.modules:
        return True
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _bindings() -> dict[str, dict[str, Any]]:
    driver = {
        "CUresult": _enumeration("CUresult", _RESULTS),
        "CUdevice_attribute": _enumeration(
            "CUdevice_attribute", _ATTRIBUTES, "CU_DEVICE_ATTRIBUTE_"
        ),
        "CUjitInputType": _enumeration("CUjitInputType", _JIT_INPUTS, "CU_JIT_INPUT_"),
        "CUmemAttach_flags": _enumeration(
            "CUmemAttach_flags", "GLOBAL 1 HOST 2 SINGLE 4", "CU_MEM_ATTACH_"
        ),
        "CUstream_flags": _enumeration("CUstream_flags", "DEFAULT 0 NON_BLOCKING 1", "CU_STREAM_"),
        "CUevent_flags": _enumeration(
            "CUevent_flags", "DEFAULT 0 BLOCKING_SYNC 1 DISABLE_TIMING 2", "CU_EVENT_"
        ),
        "CUpointer_attribute": _enumeration(
            "CUpointer_attribute", "DEVICE_POINTER 3", "CU_POINTER_ATTRIBUTE_"
        ),
        **_NUMBERS,
    }
    return {
        "cuda.bindings": {"__version__": "13.0.0"},
        "cuda.bindings.driver": driver,
        "cuda.bindings.utils": {"get_cuda_native_handle": int},
        "cuda.bindings.runtime": {
            "cudaRoundMode": _enumeration(
                "cudaRoundMode", "Nearest 0 Zero 1 PosInf 2 MinInf 3", "cudaRound"
            ),
            "getLocalRuntimeVersion": lambda: (0, _RUNTIME_VERSION),
        },
        "cuda.bindings.nvrtc": {"nvrtcVersion": _refusal("nvrtcVersion", "cuda-bindings")},
    }


def _core() -> dict[str, dict[str, Any]]:
    classes = {name: _stand_in(name, "cuda-core") for name in _CORE_CLASSES.split()}
    return {
        "cuda.core": {
            "__version__": _CORE_VERSION,
            "launch": _refusal("launch", "cuda-core"),
            **classes,
        },
        "cuda.core.utils": {"StridedMemoryView": _stand_in("StridedMemoryView", "cuda-core")},
        "cuda.core._utils": {},
        "cuda.core._utils.cuda_utils": {"CUDAError": type("CUDAError", (Exception,), {})},
    }


def _pathfinder() -> dict[str, dict[str, Any]]:
    error = type("DynamicLibNotFoundError", (RuntimeError,), {})

    def load_nvidia_dynamic_lib(name: str) -> NoReturn:
        raise error(f"expected the package cuda-pathfinder, to find {name}, got none")

    def find_nothing(name: str) -> None:  # noqa: ARG001  # the signature of the package
        return None

    return {
        "cuda.pathfinder": {
            "DynamicLibNotFoundError": error,
            "load_nvidia_dynamic_lib": load_nvidia_dynamic_lib,
            "find_nvidia_binary_utility": find_nothing,
            "locate_nvidia_header_directory": find_nothing,
        }
    }


def _enumeration(name: str, members: str, prefix: str = "") -> Any:
    words = members.split()
    pairs: Mapping[str, int] = {
        f"{prefix}{word}": int(number) for word, number in zip(words[::2], words[1::2], strict=True)
    }
    return enum.IntEnum(name, pairs)


def _refusal(name: str, package: str) -> Any:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise BackendUnavailableError(
            f"expected the package {package} for {name}, got none; install it, or use the "
            f"functions of numba.cuda, which do without it on CPU devices"
        )

    refuse.__name__ = name
    return refuse


def _stand_in(name: str, package: str) -> type:
    refuse = _refusal(name, package)
    return type(name, (), {"__init__": refuse, "from_handle": refuse})
