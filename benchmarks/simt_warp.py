# No `from __future__ import annotations`: Warp reads the annotations of its kernels as objects.
"""The works in Warp's own idiom: on the CPU it has no barriers, so a thread does a block's work."""

from typing import Any

__all__ = ["FORMS"]


def _saxpy(wp: Any, n: int) -> tuple[Any, Any]:
    @wp.kernel(enable_backward=False)
    def saxpy(
        out: wp.array(dtype=wp.float32),
        a: wp.float32,
        x: wp.array(dtype=wp.float32),
        y: wp.array(dtype=wp.float32),
    ):
        i = wp.tid()
        out[i] = a * x[i] + y[i]

    return saxpy, n


def _sums(length: int) -> Any:
    def form(wp: Any, n: int) -> tuple[Any, Any]:
        count = wp.constant(length)

        @wp.kernel(enable_backward=False, module="unique")
        def sums(out: wp.array(dtype=wp.float32), x: wp.array(dtype=wp.float32)):
            block = wp.tid()
            total = wp.float32(0.0)
            for i in range(count):
                total += x[block * count + i]
            out[block] = total

        return sums, n // length

    return form


def _matmul(wp: Any, n: int) -> tuple[Any, Any]:
    @wp.kernel(enable_backward=False)
    def matmul(
        out: wp.array2d(dtype=wp.float32),
        a: wp.array2d(dtype=wp.float32),
        b: wp.array2d(dtype=wp.float32),
    ):
        i = wp.tid()
        for j in range(out.shape[1]):
            out[i, j] = 0.0
        for k in range(a.shape[1]):
            factor = a[i, k]
            for j in range(out.shape[1]):
                out[i, j] = out[i, j] + factor * b[k, j]

    return matmul, n


def _scan(wp: Any, n: int) -> tuple[Any, Any]:
    @wp.kernel(enable_backward=False)
    def scan(out: wp.array(dtype=wp.float32), x: wp.array(dtype=wp.float32)):
        start = wp.tid() * 512
        total = wp.float32(0.0)
        for i in range(512):
            total += x[start + i]
            out[start + i] = total

    return scan, n // 512


def _histogram(wp: Any, n: int) -> tuple[Any, Any]:
    @wp.kernel(enable_backward=False)
    def histogram(out: wp.array(dtype=wp.int32), values: wp.array(dtype=wp.uint8)):
        wp.atomic_add(out, wp.int32(values[wp.tid()]), 1)

    return histogram, n


def _mandelbrot(wp: Any, n: int) -> tuple[Any, Any]:
    @wp.kernel(enable_backward=False)
    def mandelbrot(
        out: wp.array2d(dtype=wp.int32),
        left: wp.float32,
        top: wp.float32,
        step_x: wp.float32,
        step_y: wp.float32,
        iterations: wp.int32,
    ):
        y, x = wp.tid()
        cx = left + wp.float32(x) * step_x
        cy = top + wp.float32(y) * step_y
        zx = wp.float32(0.0)
        zy = wp.float32(0.0)
        count = wp.int32(0)
        while count < iterations and zx * zx + zy * zy <= 4.0:
            next_x = zx * zx - zy * zy + cx
            zy = 2.0 * zx * zy + cy
            zx = next_x
            count += 1
        out[y, x] = count

    return mandelbrot, (n, n)


#: By work: ``form(warp, size)`` gives the kernel and its threads. There are no shuffles.
FORMS = {
    "saxpy": _saxpy,
    "reduce": _sums(256),
    "matmul": _matmul,
    "scan": _scan,
    "histogram": _histogram,
    "shuffle": _sums(32),
    "mandelbrot": _mandelbrot,
}
