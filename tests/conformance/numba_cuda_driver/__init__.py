"""numba-cuda's own tests on the simulated CUDA driver.

    python -m tests.conformance.numba_cuda_driver [--only TEXT] [--json FILE] [--report FILE]

The tests come with the installed numba-cuda; none of them is kept here. Each file runs in its own
process on two simulated devices, with a time limit for each test. Results go to a JSON file, which
keeps those of other files, and to docs/conformance_numba_cuda_driver.md.

A test is *not applicable* where it needs a package that is not installed, or skips itself.
"""

FOLDERS = ("core", "cudadrv", "cudapy", "doc_examples", "nocuda", "nrt")
"""Folders of numba-cuda's tests, but for benchmarks and tests of its simulator."""
