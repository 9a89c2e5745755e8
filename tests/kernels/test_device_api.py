"""Random numbers inside kernels equal the elements of a generator's draws."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core import types

import nbrt
from helpers.kernels import compile_ptx, launch
from kernels.test_ptx import assert_ieee
from nbrt_kernels._dialect import cuda
from nbrt_kernels.random import normal2, normal4, randint4, uniform2, uniform4
from nbrt_kernels.random.reference import (
    integers_reference,
    normal_reference,
    uniform_reference,
)

SEED, OFFSET, N = 2**63 + 12345, 4 * (2**32 - 20), 400


def uniform4_kernel(out, seed, offset):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = uniform4(seed, offset, i)


def normal4_kernel(out, seed, offset):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = normal4(seed, offset, i)


def uniform2_kernel(out, seed, offset):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i, 0], out[i, 1] = uniform2(seed, offset, i)


def normal2_kernel(out, seed, offset):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i, 0], out[i, 1] = normal2(seed, offset, i)


def randint4_kernel(out, seed, offset, low, high):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = randint4(seed, offset, i, low, high)


FLOATS = pytest.mark.parametrize(
    ("kernel", "dtype", "width", "reference"),
    [
        (uniform4_kernel, "float32", 4, uniform_reference),
        (uniform2_kernel, "float64", 2, uniform_reference),
        (normal4_kernel, "float32", 4, normal_reference),
        (normal2_kernel, "float64", 2, normal_reference),
    ],
)


@FLOATS
def test_floats_equal_a_draw(kernel, dtype, width, reference):
    out = np.zeros((N // width, width), dtype)
    launch(kernel, (N // width,), out, np.uint64(SEED), np.uint64(OFFSET))
    assert np.array_equal(out.ravel(), reference(N, SEED, OFFSET, dtype))


# Of 2**31 + 1 nearly every second word is rejected, of 2**32 none.
@pytest.mark.parametrize(
    ("low", "high"), [(-7, 1000), (-(2**31), 1), (-(2**62), 2**32 - 2**62)], ids=str
)
def test_integers_equal_a_draw(low, high):
    out = np.zeros((N // 4, 4), np.int64)
    launch(randint4_kernel, (N // 4,), out, np.uint64(SEED), np.uint64(OFFSET), low, high)
    assert np.array_equal(out.ravel(), integers_reference(N, low, high, SEED, OFFSET))


def test_they_equal_a_generators_numbers_at_its_state():
    generator = nbrt.Generator(7, device="cpu:0")
    generator.random(10)
    seed, offset = generator.state
    expected = generator.standard_normal(8, dtype="float32")
    out = np.zeros((2, 4), np.float32)
    launch(normal4_kernel, (2,), out, seed, offset)
    assert np.array_equal(out.ravel(), expected)


@FLOATS
def test_floats_compile_to_ieee_instructions(kernel, dtype, width, reference):
    out = types.Array(getattr(types, dtype), 2, "C")
    assert_ieee(compile_ptx(kernel, (out, types.uint64, types.uint64), (8, 0)))


def test_ranges_that_are_none_end():
    """Undefined ranges must not hang."""

    def kernel(out, low, high):
        x0, _, _, _ = randint4(7, 0, cuda.grid(1), low, high)
        out[cuda.grid(1)] = x0

    out = np.zeros(64, np.int64)
    for low, high in ((5, 2), (0, 2**40)):
        launch(kernel, (64,), out, low, high)
    assert out.min() >= 0
