"""Random numbers: device functions, kernels that fill arrays, and NumPy references.

`uniform4` and the other functions of `nbrt_kernels.random.device` compute numbers inside a kernel.
`fills_of` returns the launches that fill an array with a draw. The references compute the same bits
in NumPy.
"""

from __future__ import annotations

from nbrt_kernels.random._index_maps import global_index
from nbrt_kernels.random.device import normal2, normal4, randint4, uniform2, uniform4
from nbrt_kernels.random.philox import block_words, philox4x32, philox4x32_reference
from nbrt_kernels.random.reference import (
    bits_reference,
    integers_reference,
    normal_reference,
    uniform_reference,
)
from nbrt_kernels.random.requests import Fill, fills_of

__all__ = [
    "Fill",
    "bits_reference",
    "block_words",
    "fills_of",
    "global_index",
    "integers_reference",
    "normal2",
    "normal4",
    "normal_reference",
    "philox4x32",
    "philox4x32_reference",
    "randint4",
    "uniform2",
    "uniform4",
    "uniform_reference",
]
