"""numba-cuda's own tests as a conformance suite: its kernels, compiled by nbrt for the CPU.

    python -m tests.conformance [PATH] [--engine nbrt|simulator] [--json FILE] [--report FILE]

PATH is numba-cuda's folder of tests (``numba/cuda/tests`` of a checkout); without it, the one that
came with the installed numba-cuda. None of those tests is kept here. Every test of ``cudapy`` and
``doc_examples`` runs, one process for each file, with a time limit for each test:

- ``nbrt``: `adapter` puts nbrt under ``numba.cuda``. ``@cuda.jit`` makes a dispatcher whose
  launches go through ``nbrt.kernel``, device memory is host memory. A test is *not applicable*
  where it asks for something that only exists with a GPU (PTX, linking, the driver): the complete
  rules, with their reasons, are in `rules`.
- ``simulator``: the same tests under ``NUMBA_ENABLE_CUDASIM=1``, for comparison.

Results go to a JSON file, which keeps those of the other engine, and to docs/conformance.md.
"""

FOLDERS = ("cudapy", "doc_examples")
