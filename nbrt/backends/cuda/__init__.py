"""CUDA devices: numba-cuda compiles, CuPy's pools hold memory, the CUDA bindings fill the gaps."""
