"""Passes on Numba IR: from the Python function of a kernel to typed code of one thread."""
