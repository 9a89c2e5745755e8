"""The functions of the CUDA driver that numba-cuda's host code calls, on CPU devices of nbrt."""
