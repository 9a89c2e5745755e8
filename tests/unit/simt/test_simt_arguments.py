"""Arguments of every kind that a kernel takes, builtins of the dialect, and what is refused."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import cuda

from helpers.simt_reference import fma
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.errors import ArgumentTypeError, CompileError

ONE = ((1, 1, 1), (8, 1, 1))


def launch(kernel: Any, *args: Any, grid: int = 1) -> None:
    CpuProgram(kernel, cache=False).plan(0, (grid, 1, 1), (8, 1, 1))(*args)


def scale(out: Any, a: Any, factor: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out[i] = a[i] * factor


@pytest.mark.parametrize(
    "dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "c8", "c16"]
)
def test_arrays_and_scalars_of_every_number_type(dtype: str) -> None:
    a = np.arange(8).astype(dtype)
    out = np.zeros_like(a)
    launch(scale, out, a, a.dtype.type(3))
    np.testing.assert_array_equal(out, a * a.dtype.type(3))


@pytest.mark.parametrize("factor", [3, 2.5, True, np.bool_(True), np.float32(0.5), 1 + 2j])
def test_python_scalars(factor: Any) -> None:
    a, out = np.arange(8.0), np.zeros(8, np.complex128)
    launch(scale, out, a, factor)
    np.testing.assert_array_equal(out, a * factor)


def test_boolean_arrays() -> None:
    def kernel(out: Any, a: Any) -> None:
        i = cuda.grid(1)
        out[i] = not a[i]

    a = np.arange(8) % 3 == 0
    out = np.zeros(8, bool)
    launch(kernel, out, a)
    np.testing.assert_array_equal(out, ~a)


def test_strided_reversed_readonly_and_fortran_arrays() -> None:
    def kernel(out: Any, a: Any) -> None:
        i = cuda.grid(1)
        if i < a.shape[0]:
            for j in range(a.shape[1]):
                out[i, j] = a[i, j] + 1

    base = np.arange(96.0).reshape(8, 12)
    frozen = base.copy()
    frozen.flags.writeable = False
    for a in (base[:, ::3], base[::-1, ::-2], np.asfortranarray(base), frozen, base.T[:8]):
        out = np.zeros((8, 24))[:, ::2][:, : a.shape[1]]
        launch(kernel, out, a)
        np.testing.assert_array_equal(out, a + 1)


def test_arrays_of_rank_zero_and_without_elements() -> None:
    def kernel(out: Any, scalar: Any) -> None:
        i = cuda.grid(1)
        if i < out.size:
            out[i] += 1
        elif i == 7:
            scalar[()] = out.size

    scalar = np.array(5)
    launch(kernel, np.zeros(0), scalar)
    assert scalar == 0


def test_writing_to_a_readonly_array_does_not_compile() -> None:
    out = np.zeros(8)
    out.flags.writeable = False
    with pytest.raises(CompileError, match="setitem"):
        launch(scale, out, np.zeros(8), 1.0)


def test_structured_arrays() -> None:
    def kernel(points: Any) -> None:
        i = cuda.grid(1)
        points[i].x = points[i].y * 2
        points[i]["y"] = i

    points = np.zeros(8, [("x", "f4"), ("y", "i8")])
    points["y"] = np.arange(8) + 3
    launch(kernel, points)
    np.testing.assert_array_equal(points["x"], (np.arange(8) + 3) * 2)


class Pair(NamedTuple):
    first: Any
    second: Any


def test_tuples_and_named_tuples() -> None:
    def kernel(pair: Any, triple: Any) -> None:
        i = cuda.grid(1)
        a, b, c = triple
        pair.first[i] = pair.second[i] * a + b[i] * c[0]

    first, second, b = np.zeros(8), np.arange(8.0), np.arange(8)
    launch(kernel, Pair(first, second), (3, b, (0.5, 1)))
    np.testing.assert_array_equal(first, second * 3 + b * 0.5)


def test_default_arguments() -> None:
    def kernel(out: Any, n: Any = 4, by: Any = 0.5) -> None:
        i = cuda.grid(1)
        if i < n:
            out[i] += by

    plan = CpuProgram(kernel, cache=False).plan(0, *ONE)
    for args in ((), (6,), (6, 2.0)):
        out = np.zeros(8)
        plan.prepare((out, *args))
        plan(out, *args)
        n, by = (*args, *(4, 0.5)[len(args) :])
        np.testing.assert_array_equal(out, np.where(np.arange(8) < n, by, 0))


def test_star_arguments() -> None:
    def kernel(out: Any, *rest: Any) -> None:
        i = cuda.grid(1)
        out[i] = rest[0][i] + rest[1] + len(rest)

    out = np.zeros(8)
    launch(kernel, out, np.arange(8.0), 5)
    np.testing.assert_array_equal(out, np.arange(8) + 7)


def test_a_kernel_without_arguments() -> None:
    def kernel() -> None:
        cuda.grid(1)

    launch(kernel)


def test_each_type_gets_its_own_version_in_any_order() -> None:
    def kernel(out: Any, a: Any) -> None:
        out[0] = a / 3

    program = CpuProgram(kernel, cache=False)
    plan = program.plan(0, (1, 1, 1), (1, 1, 1))
    out = np.zeros(1)
    for a in (1.0, np.float32(1), 1, np.uint8(1), True, np.int16(1)):
        plan(out, a)
        assert out[0] == 1 / 3  # also for float32: Numba promotes float32 / int64 to float64
    assert len(program.entry((1, 1, 1)).overloads) == 6


# -- builtins --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fma_is_fused(dtype: Any) -> None:
    def kernel(a: Any, b: Any, c: Any, fused: Any, separate: Any) -> None:
        i = cuda.grid(1)
        if i < a.size:
            fused[i] = cuda.fma(a[i], b[i], c[i])
            separate[i] = a[i] * b[i] + c[i]

    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 1000)).astype(dtype)
    c = -(a * b) * dtype(1.0000001)
    fused, separate = np.zeros_like(a), np.zeros_like(a)
    launch(kernel, a, b, c, fused, separate, grid=125)
    np.testing.assert_array_equal(fused, [fma(*v) for v in zip(a, b, c, strict=True)])
    # Neither contracted nor reordered: two roundings where the kernel writes two operations.
    np.testing.assert_array_equal(separate, a * b + c)
    assert (fused != separate).any()


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
def test_bit_counting(dtype: str) -> None:
    def kernel(a: Any, out: Any) -> None:
        i = cuda.grid(1)
        out[0, i], out[1, i], out[2, i] = cuda.popc(a[i]), cuda.clz(a[i]), cuda.ffs(a[i])

    a = np.array([0, 1, 2, 3, 12, 96, 127, -1]).astype(dtype)
    out = np.zeros((3, 8), np.int64)
    launch(kernel, a, out)
    width = 8 * a.itemsize
    bits = [format(int(v) % 2**width, f"0{width}b") for v in a]
    np.testing.assert_array_equal(out[0], [b.count("1") for b in bits])
    np.testing.assert_array_equal(out[1], [len(b) - len(b.lstrip("0")) for b in bits])
    np.testing.assert_array_equal(out[2], [b[::-1].find("1") + 1 for b in bits])


def test_reversed_bits_selection_and_cube_root() -> None:
    def kernel(a: Any, x: Any, out: Any, real: Any) -> None:
        i = cuda.grid(1)
        out[i] = cuda.brev(a[i])
        real[0, i] = cuda.cbrt(x[i])
        real[1, i] = cuda.selp(i < 4, x[i], -x[i])
        cuda.threadfence()

    a, x = (np.arange(8) * 7).astype(np.uint32), np.arange(8.0) - 3
    out, real = np.zeros_like(a), np.zeros((2, 8))
    launch(kernel, a, x, out, real)
    np.testing.assert_array_equal(out, [int(format(v, "032b")[::-1], 2) for v in a])
    np.testing.assert_allclose(real[0], np.cbrt(x), rtol=4e-16)
    np.testing.assert_array_equal(real[1], np.where(np.arange(8) < 4, x, -x))


def test_constant_arrays() -> None:
    table = np.arange(8.0) ** 2

    def kernel(out: Any) -> None:
        values = cuda.const.array_like(table)
        i = cuda.grid(1)
        out[i] = values[i] + table[7 - i]

    out = np.zeros(8)
    launch(kernel, out)
    np.testing.assert_array_equal(out, table + table[::-1])


# -- refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("text", "str"),
        ([1, 2], "list"),
        ({}, "dict"),
        (np.array([None]), "numpy.ndarray of dtype object"),
        (object(), "object"),
        ((1, "text"), "tuple"),
    ],
)
def test_other_types_are_refused(value: Any, named: str) -> None:
    plan = CpuProgram(scale, cache=False).plan(0, *ONE)
    for call in (plan, lambda *args: plan.prepare(args)):
        with pytest.raises(ArgumentTypeError, match="'factor'") as caught:
            call(np.zeros(8), np.zeros(8), value)
        assert f"has the type {named}" in str(caught.value)
        assert "accepted are" in str(caught.value)


@pytest.mark.parametrize("value", [2**70, -(2**63) - 1, (1, (2**64,))])
def test_integers_beyond_64_bits_are_refused(value: Any) -> None:
    plan = CpuProgram(scale, cache=False).plan(0, *ONE)
    for call in (plan, lambda *args: plan.prepare(args)):
        with pytest.raises(ArgumentTypeError, match=r"'factor' holds an integer outside"):
            call(np.zeros(8), np.zeros(8), value)


@pytest.mark.parametrize("count", [0, 2, 4])
@pytest.mark.parametrize("grid", [1, 3])
def test_a_wrong_number_of_arguments_is_refused(count: int, grid: int) -> None:
    plan = CpuProgram(scale, cache=False).plan(0, (grid, 1, 1), (8, 1, 1))
    for call in (plan, lambda *args: plan.prepare(args)):
        with pytest.raises(ArgumentTypeError, match=r"scale\(out: .*, a: .*, factor: .*\)"):
            call(*[np.zeros(8)] * count)
