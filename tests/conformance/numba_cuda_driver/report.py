"""The page with the results: docs/conformance_numba_cuda_driver.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.conformance.cupy.report import sections
from tests.conformance.numba_cuda_driver import FOLDERS

if TYPE_CHECKING:
    from tests.conformance.cupy.report import Results

__all__ = ["PAGE", "REASONS", "page"]

PAGE = Path(__file__).parents[3] / "docs" / "conformance_numba_cuda_driver.md"

REASONS = {
    r"test_set_registers_no_max": "The simulation allocates no registers, and reports 32.",
    r"test_device_arch_specific": "Descriptors of the tensor memory accelerator are missing.",
    r"mbarrier": "Asynchronous barriers of CUDA C++ (mbarrier) are missing.",
    r"no attribute 'reserved'": "numba-cuda reads a field of the handles that the installed "
    "cuda-bindings do not have.",
    r"CUDAAndCPUCachingTest": "The tests count the files of a cache index that numba-cuda shares "
    "with the installed Numba; no driver is involved.",
    r"test_efficient_launch_configuration": "The test expects no warning, and cuda.core warns that "
    "nvJitLink is not installed.",
}
"""Regular expression, searched for in the test's id, a newline and the error; and the reason."""

_INTRODUCTION = """\
# Conformance of the simulated CUDA driver with numba-cuda's tests

numba-cuda {version}'s own tests, run with the unmodified wheel on the simulated CUDA driver of
nbrt's tests (`tests/simulated_cuda`), with two devices and without a GPU. They check the
simulation: a call of numba-cuda that the simulation answers as a GPU does can be trusted in nbrt's
tests. This page is written by
`python -m tests.conformance.numba_cuda_driver --json results.json --report`; nothing in it is
edited by hand. The tests themselves come with numba-cuda.

A test is *not applicable* (n.a.) where it needs a package that is not installed, or skips itself.
Beside nbrt's test extras, numba-cuda's tests use filecheck, cffi and cloudpickle, which were
installed for this run, and nvJitLink, which was not: numba-cuda then links PTX by the driver.
"""


def page(results: Results, version: str) -> str:
    """Write the page."""
    return "\n".join([_INTRODUCTION.format(version=version), *sections(results, FOLDERS, REASONS)])
