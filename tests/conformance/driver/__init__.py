"""Foreign test suites on the simulated CUDA driver, with a page of results.

    python -m tests.conformance.driver [--only TEXT] [--json FILE] [--page]

numba-cuda's own tests come with the installed package; none of them is kept here. Each file runs in
its own process (`worker`) on two simulated devices, with a time limit for each test. `reasons`
names the reason of each failure. ``--page`` writes docs/conformance_numba_cuda_driver.md from the
results in the JSON file, which keeps those of files that are not run again.
"""
