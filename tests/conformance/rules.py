"""Which tests do not apply to CPU devices, and why others fail.

A rule names the hardware or the feature of a GPU compiler that a test is about. No rule may name
what nbrt merely lacks: such tests fail.
"""

from __future__ import annotations

import unittest
from typing import NoReturn

__all__ = [
    "ERRORS",
    "PACKAGES",
    "REASONS",
    "SETTINGS",
    "TESTS",
    "WITHOUT_NBRT",
    "NotApplicable",
    "refuse",
]


class NotApplicable(unittest.SkipTest):
    """Raised where a test asks for what is not there."""


def refuse(reason: str) -> NoReturn:
    raise NotApplicable(reason)


WITHOUT_NBRT = "reached no part of nbrt"
"""The detail of a test that passes with numba-cuda's own Python code alone."""

PACKAGES = ("cffi", "cupy", "ml_dtypes", "psutil")
"""Packages that tests import; where one is missing, its tests are left out under every engine."""

SETTINGS = {"cudapy.test_array_methods": {"NUMBA_CUDA_ENABLE_NRT": "1"}}
"""Environment variables for a file: its kernels make arrays, which numba-cuda permits then only."""

_LINK = "links CUDA C++, PTX or device bitcode, which is code for a GPU"

ERRORS = {
    r"^cupy_backends\.": "calls CuPy, which needs a GPU",
    r"is a function in CUDA C\+\+ or PTX, declared with cuda.declare_device": _LINK,
    r"expected a kernel without link= on CPU devices": _LINK,
}
"""Errors with which a test ends, and what it needs: patterns of ``module.class: text``."""

_MODULE = "loads PTX or machine code for a GPU into the driver"
_CORE = "uses streams or graphs of cuda.core, which are those of NVIDIA's driver"
_PASS = "adds a pass to numba-cuda's compiler for GPUs"
_DUMP = "prints the code that numba-cuda compiles for a GPU"
_LTO = "is about linking with nvJitLink, which only code for a GPU needs"
_VISIBLE = "hides one of two GPUs by CUDA_VISIBLE_DEVICES"

TESTS: dict[str, str] = {
    "cudapy/test_caching.py::LaunchConfigSensitiveCachingTest.*": _PASS,
    "cudapy/test_debug.py::TestDebugOutput.test_dump_assembly": _DUMP,
    "cudapy/test_debug.py::TestDebugOutput.test_dump_llvm": _DUMP,
    "cudapy/test_errors.py::TestJitErrors.test_lto_without_nvjitlink_error": _LTO,
    "cudapy/test_launch_config_sensitive.py::*": _PASS,
    "cudapy/test_warning.py::TestWarnings.test_float16_warn_if_lto_missing": _LTO,
    "cudadrv/test_cuda_driver.py::TestCudaDriver.test_cuda_cache_config": _MODULE,
    "cudadrv/test_cuda_driver.py::TestCudaDriver.test_cuda_set_shared_memory_carveout": _MODULE,
    "cudadrv/test_cuda_driver.py::TestCudaDriver.test_cuda_driver_basic": _MODULE,
    "cudadrv/test_cuda_driver.py::TestCudaDriver.test_cuda_driver_stream_operations": _MODULE,
    "cudadrv/test_cuda_driver.py::TestCudaDriver.test_cuda_driver_occupancy": _MODULE,
    "cudadrv/test_cuda_driver.py::TestCudaDriver.test_cuda_core_*": _CORE,
    "cudadrv/test_runtime.py::TestVisibleDevices.*": _VISIBLE,
    "cudadrv/test_linker.py::TestLinker.test_linking_*": _LINK,
    "cudadrv/test_linker.py::TestLinker.test_try_to_link_nonexistent": _LINK,
    "cudadrv/test_module_callbacks.py::TestMultithreadedCallbacks.*": _LINK,
    "cudadrv/test_events.py::TestCudaEvent.test_event_elapsed_cuda_core_stream": _CORE,
}
"""Tests by pattern (`fnmatch`) of ``folder/file.py::Class.test``, and what they need."""

_CAPTURES = (
    "nbrt compiles a kernel anew when a global or closure variable that it reads has changed; "
    "numba-cuda keeps the code with the old values, also on disk"
)
_SHARED_INDEX = (
    "counts the files of a cache index that numba-cuda shares with the installed Numba; fails on "
    "the simulated CUDA driver too"
)

REASONS: dict[str, str] = {
    "cudapy/test_alignment.py::*.test_record_alignment_error": (
        "kernels on CPU devices read and write fields that are not aligned; numba-cuda refuses them"
    ),
    "cudapy/test_array_alignment.py::*.test_invalid_aligments": (
        "the alignment is refused as it should be, but as a TypingError, and in other words"
    ),
    "cudapy/test_caching.py::CUDAAndCPUCachingTest.*": _SHARED_INDEX,
    "cudapy/test_caching.py::*.test_recompile": _CAPTURES,
    "cudapy/test_debug.py::*.test_dump_ir": (
        "numba-cuda's option that prints the intermediate representation of kernels has no effect"
    ),
    "cudapy/test_debuginfo.py::*.test_missing_source": (
        "numba-cuda warns that debug information lacks the source; a launch on a CPU device makes "
        "none"
    ),
    "cudapy/test_fastmath.py::*.test_divf_exception": (
        "with debug=True, a division of floats by zero raises under fastmath=True too"
    ),
    "doc_examples/test_globals.py::*.test_ex_globals_constant_capture": _CAPTURES,
}
"""Failures by pattern (`fnmatch`) of ``folder/file.py::Class.test``, and why they fail."""
