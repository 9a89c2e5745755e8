"""CuPy's own tests on the simulated CUDA driver.

    python -m tests.conformance.cupy [--source PLACE] [--groups NAME,...] [--every N]
                                     [--json FILE] [--report FILE]

PLACE is a git repository of CuPy, or a folder with a checkout; without it, the repository at
GitHub. The tests of the installed version are taken from it, and none is kept here. Each file runs
in its own process, with a time limit for each test. Results go to a JSON file, which keeps those of
other groups, and to docs/conformance_cupy.md.

A test is *not applicable* where it needs a library that is not installed, machine code for a GPU
(`cupy.cuda.thrust`, `cupy.cuda.cub`, the generator of random bits), arrays and textures, or where
it skips itself.
"""

GROUPS = {
    "memory": (
        "cuda_tests/test_memory.py",
        "cuda_tests/test_memory_hook.py",
        "cuda_tests/test_pinned_memory.py",
        "cuda_tests/memory_hooks_tests",
    ),
    "streams and events": ("cuda_tests/test_stream.py", "cuda_tests/test_graph.py"),
    "devices": (
        "cuda_tests/test_device.py",
        "cuda_tests/test_driver.py",
        "cuda_tests/test_runtime.py",
    ),
    "core": ("core_tests",),
    "fusion": ("core_tests/fusion_tests",),
    "creation": ("creation_tests",),
    "indexing": ("indexing_tests",),
    "math": ("math_tests",),
}
"""Files and folders of CuPy's ``tests/cupy_tests``, by group."""
