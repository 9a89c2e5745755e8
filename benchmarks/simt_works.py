"""The seven works of `benchmarks.simt`: inputs, launch, NumPy form, and expected results."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import simt_kernels
from benchmarks.simt_kernels import SCAN_BLOCK, SUM_BLOCK, TILE, WARP
from nbrt_kernels.elementwise import saxpy
from nbrt_kernels.images import mandelbrot, mandelbrot_reference

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["WORKS", "Problem", "Work", "aligned", "empty_out", "random_floats"]

_LEFT, _TOP, _WIDTH, _ITERATIONS = np.float32(-2.0), np.float32(-1.25), 2.5, 100
_BLOCK = 256
_HISTOGRAM_BLOCKS = 128


@dataclass(slots=True)
class Problem:
    """One launch of a kernel at one size, and the expected result.

    Attributes
    ----------
    arguments : tuple
        As the kernel takes them, the output first.
    expected : ndarray
        What the output holds after the first call.
    grid, block : tuple of int
        The launch.
    numpy : callable
        NumPy's form of the work on the same arguments; returns or fills the output.
    tolerance : float
        Allowed error relative to the largest expected value.
    differing : float
        Allowed share of elements outside it: a contracted product may move a point on a border.
    """

    arguments: tuple[Any, ...]
    expected: np.ndarray
    grid: tuple[int, ...]
    block: tuple[int, ...]
    numpy: Callable[..., object]
    tolerance: float = 1e-5
    differing: float = 0.0

    def check(self, name: str, result: Any) -> None:
        """Raise unless `result` is right."""
        result = np.asarray(result, np.float64).reshape(self.expected.shape)
        error = np.abs(result - self.expected)
        wrong = (~(error <= self.tolerance * np.abs(self.expected).max())).mean()
        if wrong > self.differing:
            raise AssertionError(f"{name}: {wrong:.3%} of the elements are wrong")


@dataclass(frozen=True, slots=True)
class Work:
    """One row of the table.

    Attributes
    ----------
    name, heading : str
        Its key, and its title with the size.
    kernel : callable
        The kernel, undecorated.
    problem : callable
        ``problem(size)``.
    size, small : int
        Measured, and for the CUDA simulator and first calls.
    items : callable
        Elements of one call, by size.
    nbytes : float
        Bytes that an element must move; 0 where memory is not what bounds it.
    """

    name: str
    heading: str
    kernel: Callable[..., None]
    problem: Callable[[int], Problem]
    size: int
    small: int
    items: Callable[[int], int] = int
    nbytes: float = 0.0


def aligned(array: np.ndarray) -> np.ndarray:
    """Copy an array to a page boundary, where OpenCL uses its memory in place."""
    raw = np.zeros(array.nbytes + 4096, np.uint8)
    start = -raw.ctypes.data % 4096
    found = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def random_floats(*shape: int) -> np.ndarray:
    """Draw float32 values from [0, 1)."""
    return aligned(np.random.default_rng(1).random(shape, np.float32))


def empty_out(shape: Any, dtype: Any = np.float32) -> np.ndarray:
    """Return zeros to write a result to."""
    return aligned(np.zeros(shape, dtype))


def _saxpy(n: int) -> Problem:
    a, x, y, out = np.float32(2.5), random_floats(n), random_floats(n), empty_out(n)

    def numpy(out: Any, a: Any, x: Any, y: Any) -> None:
        np.multiply(x, a, out=out)
        np.add(out, y, out=out)

    return Problem((out, a, x, y), a * x + y, (n // _BLOCK,), (_BLOCK,), numpy)


def _block_sum(n: int) -> Problem:
    x, blocks = random_floats(n), n // SUM_BLOCK

    def numpy(out: Any, x: Any) -> None:
        np.sum(x.reshape(-1, SUM_BLOCK), axis=1, out=out)

    expected = x.reshape(-1, SUM_BLOCK).sum(1, np.float64)
    return Problem((empty_out(blocks), x), expected, (blocks,), (SUM_BLOCK,), numpy)


def _matmul(n: int) -> Problem:
    a, b = random_floats(n, n), aligned(random_floats(n, n)[::-1])

    def numpy(out: Any, a: Any, b: Any) -> None:
        np.matmul(a, b, out=out)

    expected = a.astype(np.float64) @ b.astype(np.float64)
    grid = (n // TILE, n // TILE)
    return Problem((empty_out((n, n)), a, b), expected, grid, (TILE, TILE), numpy)


def _block_scan(n: int) -> Problem:
    x = random_floats(n)

    def numpy(out: Any, x: Any) -> None:
        shape = (-1, SCAN_BLOCK)
        np.cumsum(x.reshape(shape), axis=1, out=out.reshape(shape))

    expected = np.cumsum(x.reshape(-1, SCAN_BLOCK), axis=1, dtype=np.float64).reshape(-1)
    return Problem((empty_out(n), x), expected, (n // SCAN_BLOCK,), (SCAN_BLOCK,), numpy)


def _histogram(n: int) -> Problem:
    values = aligned(np.random.default_rng(1).integers(0, 256, n, np.uint8))

    def numpy(out: Any, values: Any) -> None:
        out[:] = np.bincount(values, minlength=256)

    # Fewer blocks for the simulator, so that the grid-stride loop has an iteration or two.
    blocks = max(1, min(_HISTOGRAM_BLOCKS, n // 2 // _BLOCK))
    expected = np.bincount(values, minlength=256)
    return Problem((empty_out(256, np.int32), values), expected, (blocks,), (_BLOCK,), numpy, 0.0)


def _warp_sum(n: int) -> Problem:
    x = random_floats(n)

    def numpy(out: Any, x: Any) -> None:
        np.sum(x.reshape(-1, WARP), axis=1, out=out)

    expected = x.reshape(-1, WARP).sum(1, np.float64)
    return Problem((empty_out(n // WARP), x), expected, (n // _BLOCK,), (_BLOCK,), numpy)


def _mandelbrot(n: int) -> Problem:
    step = np.float32(_WIDTH / n)
    view = (_LEFT, _TOP, step, step, _ITERATIONS)

    def numpy(out: Any, left: Any, top: Any, step_x: Any, step_y: Any, iterations: int) -> None:
        x = left + step_x * np.arange(n, dtype=np.float32)
        y = top + step_y * np.arange(n, dtype=np.float32)
        c = (x[None, :] + np.complex64(1j) * y[:, None]).ravel()
        counts, where, z = out.reshape(-1), np.arange(c.size), np.zeros_like(c)
        counts[:] = 0
        for _ in range(iterations):
            inside = z.real * z.real + z.imag * z.imag <= 4
            where, z, c = where[inside], z[inside], c[inside]
            counts[where] += 1
            z = z * z + c

    expected = mandelbrot_reference((n, n), *view)
    block = (32, 8)
    grid = (n // block[0], n // block[1])
    return Problem((empty_out((n, n), np.int32), *view), expected, grid, block, numpy, 0.0, 0.005)


_K = simt_kernels

#: In the order of the tables.
WORKS: tuple[Work, ...] = (
    Work("saxpy", "saxpy, 2^24 float32", saxpy, _saxpy, 1 << 24, 4096, nbytes=12),
    Work("reduce", "block sums, 2^22 float32", _K.block_sum, _block_sum, 1 << 22, 2048, nbytes=4),
    Work("matmul", "tiled matmul, 512 x 512 float32", _K.matmul, _matmul, 512, 32, lambda n: n**3),
    Work("scan", "block scan, 2^20 float32", _K.block_scan, _block_scan, 1 << 20, 2048),
    Work("histogram", "histogram, 2^22 bytes", _K.histogram, _histogram, 1 << 22, 16384),
    Work("shuffle", "warp sums, 2^20 float32", _K.warp_sum, _warp_sum, 1 << 20, 2048),
    Work(
        "mandelbrot",
        "Mandelbrot set, 512 x 512, 100 iterations",
        mandelbrot,
        _mandelbrot,
        512,
        32,
        lambda n: math.prod((n, n)),
    ),
)
