"""Philox draws: device code, fill kernels with their launch table, and NumPy references."""

from __future__ import annotations

from nbrt_kernels.random.fill import DRAWS, DrawSpec
from nbrt_kernels.random.parameters import (
    integer_parameters,
    normal_parameters,
    uniform_parameters,
)
from nbrt_kernels.random.philox import block_words, philox4x32, philox4x32_reference
from nbrt_kernels.random.reference import (
    bits_reference,
    integers_reference,
    normal_reference,
    uniform_reference,
)

__all__ = [
    "DRAWS",
    "DrawSpec",
    "bits_reference",
    "block_words",
    "integer_parameters",
    "integers_reference",
    "normal_parameters",
    "normal_reference",
    "philox4x32",
    "philox4x32_reference",
    "uniform_parameters",
    "uniform_reference",
]
