"""The kernels of the library on a CUDA device, against their NumPy references."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import nbrt
from nbrt_kernels import KERNELS

if TYPE_CHECKING:
    from nbrt_kernels.specs import KernelSpec

pytestmark = pytest.mark.gpu

# Sizes that leave the last block of each axis partly empty.
SHAPES = {1: (1000,), 2: (17, 70), 3: (3, 9, 35)}


@pytest.mark.parametrize("spec", KERNELS.values(), ids=list(KERNELS))
def test_kernel_equals_its_reference(spec: KernelSpec) -> None:
    example = spec.example(SHAPES[spec.dimensions], 3)
    block = (*(spec.block or (16, 4)[: spec.dimensions]), 1, 1)[:3]
    threads = (*example.threads, 1, 1)[:3]
    grid = tuple(-(-n // b) for n, b in zip(threads, block, strict=True))
    arguments = [
        nbrt.to(argument, "cuda:0") if isinstance(argument, np.ndarray) else argument
        for argument in example.arguments
    ]
    nbrt.kernel(spec.function)[grid, block](*arguments)
    result = nbrt.to_host(arguments[0])
    difference = np.abs(result - example.expected).max()
    assert difference <= spec.tolerance * np.abs(example.expected).max()
