"""Estimates of the work of kernels, against counts of the operations that their source does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nbrt
from nbrt_kernels import elementwise, linalg
from nbrt_kernels.specs import KERNELS

WITHOUT = {"bilateral", "mandelbrot", "histogram_partial", "segmented_scan"}
"""Their work depends on values, or is no simple formula."""


@pytest.mark.parametrize("name", KERNELS)
def test_bytes_count_each_array_once(name: str) -> None:
    spec = KERNELS[name]
    if spec.cost is None:
        assert name in WITHOUT
        return
    arguments = spec.example((5, 6, 7)[: spec.dimensions], 0).arguments
    flops, nbytes = spec.cost(*arguments)
    assert nbytes == sum(a.nbytes for a in arguments if isinstance(a, np.ndarray))
    assert flops is not None
    assert flops >= 0


class Counting(float):
    """A number that counts the operations on it, a fused multiply-add as two."""

    count = 0

    def _counted(self, value: float) -> Counting:
        Counting.count += 1
        return Counting(value)

    def __add__(self, other: Any) -> Counting:
        return self._counted(float(self) + float(other))

    def __sub__(self, other: Any) -> Counting:
        return self._counted(float(self) - float(other))

    def __mul__(self, other: Any) -> Counting:
        return self._counted(float(self) * float(other))

    __radd__, __rmul__ = __add__, __mul__


def test_flops_of_a_product_of_matrices_are_those_of_the_schoolbook() -> None:
    a = np.array([[Counting(i + j) for j in range(3)] for i in range(4)], object)
    b = np.array([[Counting(i - j) for j in range(5)] for i in range(3)], object)
    Counting.count = 0
    out = np.array([[Counting(0)] * 5 for _ in range(4)], object)
    for i, j, k in np.ndindex(4, 5, 3):
        out[i, j] = out[i, j] + a[i, k] * b[k, j]
    whole = [np.zeros((1, *shape)) for shape in ((4, 5), (4, 3), (3, 5))]
    assert nbrt.kernel(linalg.batched_matmul).cost(*whole) == nbrt.KernelCost(
        Counting.count, sum(array.nbytes for array in whole)
    )


def test_flops_of_elementwise_kernels_are_those_of_their_expression() -> None:
    n, a, b = 7, Counting(2), Counting(3)
    x, y = [Counting(1)] * n, [Counting(2)] * n
    vector = np.zeros(n, np.float32)
    for kernel, scalars, expression in (
        (elementwise.saxpy, (1.0,), lambda i: a * x[i] + y[i]),
        (elementwise.axpby, (1.0, 1.0), lambda i: a * x[i] + b * y[i]),
        (elementwise.square, None, lambda i: x[i] * x[i]),
    ):
        Counting.count = 0
        for i in range(n):
            expression(i)
        if scalars is None:
            args: tuple[Any, ...] = (vector, vector)
        else:
            args = (vector, scalars[0], vector, *scalars[1:], vector)
        cost = nbrt.kernel(kernel).cost(*args)
        assert cost is not None
        assert cost.flops == Counting.count
