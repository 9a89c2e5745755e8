"""numba-cuda's own tests as a conformance suite: its programs, run by nbrt on CPU devices.

    python -m tests.conformance [PATH] [--engine nbrt|simulator] [--json FILE] [--report FILE]

PATH is numba-cuda's folder of tests (``numba/cuda/tests`` of a checkout); without it, the one that
came with the installed numba-cuda. None of those tests is kept here. Every test of the folders
runs, one process for each file, with a time limit for each test:

- ``nbrt``: with ``NBRT_NUMBA_CUDA=1``, which puts nbrt under numba-cuda's host code
  (`nbrt.compat.numba_cuda`). A test is *not applicable* where it asks for something that only
  exists with a GPU: the complete rules, with their reasons, are in `rules`.
- ``simulator``: the same tests under ``NUMBA_ENABLE_CUDASIM=1``, for comparison.

Results go to a JSON file, which keeps those of the other engine, and to docs/conformance.md.
"""

FOLDERS = ("cudapy", "cudadrv", "cudasim", "doc_examples", "nocuda")
"""Folders of numba-cuda's tests."""

PACKAGES_OF_TESTS = ("filecheck", "cffi", "cloudpickle", "psutil")
"""Packages that the tests import, besides those of nbrt's test extras."""
