"""Memory of CUDA devices: CuPy's pools, the driver's, and virtual memory that grows in place."""
