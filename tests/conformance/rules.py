"""Which tests do not apply to a compiler for CPUs, and why.

A rule names something that a test *calls*, or, where nothing in the call tells, the test itself. No
rule may name a language feature that nbrt merely lacks: such tests fail. One rule is not in these
tables: a test that passes without nbrt having compiled anything says nothing about nbrt.
"""

from __future__ import annotations

import unittest
from typing import NoReturn

__all__ = [
    "FUNCTIONS",
    "METHODS",
    "NO_KERNEL",
    "OPTIONS",
    "OVERLOADS",
    "PACKAGES",
    "TESTS",
    "NotApplicable",
    "refuse",
]


class NotApplicable(unittest.SkipTest):
    """Raised where a test asks for what only a GPU, or numba-cuda's own compiler, has."""


def refuse(reason: str) -> NoReturn:
    raise NotApplicable(reason)


_CODE = "reads the code that numba-cuda's compiler makes (PTX, LLVM IR for NVVM, SASS)"
_LINK = "links CUDA C++, PTX or device bitcode"
_DRIVER = "is about the CUDA driver: contexts, handles, foreign streams, shared memory handles"
_RESOURCES = "asks how many registers or bytes of a GPU a kernel uses"
_INTERNALS = "looks at numba-cuda's own tables of compiled versions or at its cache"
_DISPATCHER = "is about options and overloads of numba-cuda's dispatcher, for which nbrt has none"
_WARNINGS = "expects numba-cuda's own performance warnings"
_EXCHANGE = "exchanges addresses of device memory (CUDA array interface)"
_WORDS = "an error is raised as it should be; the test compares its words with numba-cuda's"
_HOST_ARRAYS = "is about numba-cuda's device arrays on the host: their strides and addresses"
_POINTER = "passes an address of device memory as an integer"
_COMPILERS = dict.fromkeys(
    (
        "compile",
        "compile_ptx",
        "compile_for_current_device",
        "compile_ptx_for_current_device",
        "compile_all",
        "compile_cuda",
    ),
    _CODE,
)

NO_KERNEL = "compiles and runs no kernel"

FUNCTIONS = {
    "numba.cuda": {
        **_COMPILERS,
        "declare_device": _LINK,
        "external_stream": _DRIVER,
        "open_ipc_array": _DRIVER,
    },
    "numba.cuda.compiler": _COMPILERS,
}
"""Functions of numba-cuda, by module."""

METHODS = {
    "inspect_llvm": _CODE,
    "inspect_asm": _CODE,
    "inspect_sass": _CODE,
    "inspect_sass_cfg": _CODE,
    "inspect_lto_ptx": _CODE,
    "inspect_types": _CODE,
    "get_regs_per_thread": _RESOURCES,
    "get_const_mem_size": _RESOURCES,
    "get_shared_mem_per_block": _RESOURCES,
    "get_max_threads_per_block": _RESOURCES,
    "get_local_mem_per_thread": _RESOURCES,
    "get_metadata": _INTERNALS,
    "recompile": _INTERNALS,
}
"""Methods of a dispatcher."""

OVERLOADS = _INTERNALS
"""What reading ``dispatcher.overloads`` is about."""

OPTIONS = {"link": _LINK}
"""Options of ``cuda.jit``, where they are set."""

PACKAGES = ("cffi", "cupy", "ml_dtypes", "psutil")
"""Packages that tests import; where one is missing, its tests are left out under every engine."""

TESTS = {
    "cudapy/test_array_alignment.py::*.test_array_alignment_*": _CODE,
    "cudapy/test_array.py::*.test_array_like_2d_view_transpose_device": _HOST_ARRAYS,
    "cudapy/test_caching.py::*": _INTERNALS,
    "cudapy/test_cuda_array_interface.py::*": _EXCHANGE,
    "cudapy/test_datetime.py::*_view_as_int64": _HOST_ARRAYS,
    "cudapy/test_debug.py::*": _CODE,
    "cudapy/test_debuginfo.py::*": _CODE,
    "cudapy/test_debuginfo_types.py::*": _CODE,
    "cudapy/test_array_alignment.py::*.test_invalid_aligments": _WORDS,
    "cudapy/test_device_func.py::*.test_inspect_*": _CODE,
    "cudapy/test_dispatcher.py::TestDispatcher.test_*launch_config*": _DISPATCHER,
    "cudapy/test_dispatcher.py::TestDispatcher.test_capture_compile_config": _DISPATCHER,
    "cudapy/test_dispatcher.py::TestDispatcher.test_dispatcher_cpointer*": _POINTER,
    "cudapy/test_dispatcher.py::TestDispatcherSpecialization.*": _DISPATCHER,
    "cudapy/test_dispatcher.py::TestDispatcherKernelProperties.*": _RESOURCES,
    "cudapy/test_dispatcher.py::TestLaunchBounds.*": _DISPATCHER,
    "cudapy/test_dispatcher.py::TestSharedMemoryCarveout.*": _DISPATCHER,
    "cudapy/test_intrinsics.py::*.test_nonliteral_grid*_error": _WORDS,
    "cudapy/test_ipc.py::*": _DRIVER,
    "cudapy/test_launch_config_sensitive.py::*": _DISPATCHER,
    "cudapy/test_lineinfo.py::*": _CODE,
    "cudapy/test_serialize.py::TestPickle.test_pickling_configured_*": _DISPATCHER,
    "cudapy/test_sm_creation.py::*.test_global_build_*": _WORDS,
    "cudapy/test_sm_creation.py::*.test_invalid_*": _WORDS,
    "cudapy/test_transpose.py::*.test_transpose_view": _HOST_ARRAYS,
    "cudapy/test_userexc.py::*": _WORDS,
    "cudapy/test_vectorize.py::*.test_no_transfer_for_device_data": _DRIVER,
    "cudapy/test_warning.py::*": _WARNINGS,
    "cudapy/test_gufunc.py::*.test_inefficient_launch_configuration": _WARNINGS,
    "doc_examples/test_cpointer.py::*": _POINTER,
}
"""Tests by pattern (`fnmatch`) of ``folder/file.py::Class.test``."""
