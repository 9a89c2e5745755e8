"""The SIMT compiler: a kernel in the Numba CUDA dialect becomes a native CPU function.

In processing order: `frontend` (passes on Numba IR), `codegen` with the lowerings `lanes` and
`coroutines` (the entry function of a launch), `runtime` (argument types, cache, launches).
"""
