# No `from __future__ import annotations`: Taichi reads the annotations of its kernels as objects.
"""The works in Taichi's own idiom: on the CPU it has no barriers, so an iteration does a block."""

from typing import Any

__all__ = ["FORMS"]


def _vector(ti: Any, dtype: Any = None) -> Any:
    return ti.types.ndarray(dtype=dtype or ti.f32, ndim=1)


def _saxpy(ti: Any) -> Any:
    vector = _vector(ti)

    @ti.kernel
    def saxpy(out: vector, a: ti.f32, x: vector, y: vector):
        for i in range(out.shape[0]):
            out[i] = a * x[i] + y[i]

    return saxpy


def _sums(length: int) -> Any:
    def form(ti: Any) -> Any:
        vector = _vector(ti)

        @ti.kernel
        def sums(out: vector, x: vector):
            for block in range(out.shape[0]):
                total = ti.f32(0.0)
                for i in range(length):
                    total += x[block * length + i]
                out[block] = total

        return sums

    return form


def _matmul(ti: Any) -> Any:
    matrix = ti.types.ndarray(dtype=ti.f32, ndim=2)

    @ti.kernel
    def matmul(out: matrix, a: matrix, b: matrix):
        for i in range(out.shape[0]):
            for j in range(out.shape[1]):
                out[i, j] = 0.0
            for k in range(a.shape[1]):
                factor = a[i, k]
                for j in range(out.shape[1]):
                    out[i, j] = out[i, j] + factor * b[k, j]

    return matmul


def _scan(ti: Any) -> Any:
    vector = _vector(ti)

    @ti.kernel
    def scan(out: vector, x: vector):
        for block in range(out.shape[0] // 512):
            total = ti.f32(0.0)
            for i in range(512):
                total += x[block * 512 + i]
                out[block * 512 + i] = total

    return scan


def _histogram(ti: Any) -> Any:
    counts, values_of = _vector(ti, ti.i32), _vector(ti, ti.u8)

    @ti.kernel
    def histogram(out: counts, values: values_of):
        for i in range(values.shape[0]):
            ti.atomic_add(out[ti.cast(values[i], ti.i32)], 1)

    return histogram


def _mandelbrot(ti: Any) -> Any:
    matrix = ti.types.ndarray(dtype=ti.i32, ndim=2)

    @ti.kernel
    def mandelbrot(
        out: matrix, left: ti.f32, top: ti.f32, step_x: ti.f32, step_y: ti.f32, iterations: ti.i32
    ):
        for y, x in ti.ndrange(out.shape[0], out.shape[1]):
            cx = left + x * step_x
            cy = top + y * step_y
            zx = ti.f32(0.0)
            zy = ti.f32(0.0)
            count = 0
            while count < iterations and zx * zx + zy * zy <= 4.0:
                next_x = zx * zx - zy * zy + cx
                zy = 2.0 * zx * zy + cy
                zx = next_x
                count += 1
            out[y, x] = count

    return mandelbrot


#: By work: ``form(taichi)`` gives the kernel, which takes the arguments of the CUDA kernel.
FORMS = {
    "saxpy": _saxpy,
    "reduce": _sums(256),
    "matmul": _matmul,
    "scan": _scan,
    "histogram": _histogram,
    "shuffle": _sums(32),
    "mandelbrot": _mandelbrot,
}
