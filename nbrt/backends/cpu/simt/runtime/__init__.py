"""Kernels at run time: argument types, compiled versions, the disk cache and launches."""
