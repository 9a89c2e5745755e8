"""The kernel library of nbrt: device code and NumPy references.

A kernel is a plain Python function in the Numba CUDA dialect.  To run one, decorate it::

    saxpy = nbrt.kernel(nbrt_kernels.saxpy)
    saxpy.forall(n)(out, np.float32(2.0), x, y)

The library imports neither nbrt nor CuPy.  `KERNELS` lists all kernels with example inputs; random
numbers are in `nbrt_kernels.random`.
"""

from __future__ import annotations

from nbrt_kernels.clustering import kmeans_step
from nbrt_kernels.elementwise import axpby, clamp, make_map, saxpy, square
from nbrt_kernels.filters import (
    EDGE_CLAMP,
    EDGE_ZERO,
    bilateral,
    bilateral_range_factor,
    box_blur,
    conv2d,
    gaussian_columns,
    gaussian_rows,
    gaussian_weights,
)
from nbrt_kernels.histograms import column_sum, histogram_partial, histogram_plan
from nbrt_kernels.images import add_noise, mandelbrot, rgb_to_gray, transpose
from nbrt_kernels.linalg import batched_matmul, matmul, spmv_csr
from nbrt_kernels.particles import nbody
from nbrt_kernels.row_ops import bitonic_sort, layer_norm, segmented_scan, softmax
from nbrt_kernels.specs import KERNELS, Example, KernelSpec
from nbrt_kernels.stencils import heat_step, jacobi_step

__all__ = [
    "EDGE_CLAMP",
    "EDGE_ZERO",
    "KERNELS",
    "Example",
    "KernelSpec",
    "add_noise",
    "axpby",
    "batched_matmul",
    "bilateral",
    "bilateral_range_factor",
    "bitonic_sort",
    "box_blur",
    "clamp",
    "column_sum",
    "conv2d",
    "gaussian_columns",
    "gaussian_rows",
    "gaussian_weights",
    "heat_step",
    "histogram_partial",
    "histogram_plan",
    "jacobi_step",
    "kmeans_step",
    "layer_norm",
    "make_map",
    "mandelbrot",
    "matmul",
    "nbody",
    "rgb_to_gray",
    "saxpy",
    "segmented_scan",
    "softmax",
    "spmv_csr",
    "square",
    "transpose",
]
