"""Forty kernels whose texts are equal for nbrt, numba-cuda, Numba and Warp.

A body computes one element of the output, or one row of a reduction. Each system puts its own way
to the index of the element around it: a thread, or a loop in Numba. Every body comes in float32 and
in float64, as two kernels. Warp has no barriers on CPUs, so none has a barrier;
`nbrt_kernels` has kernels with barriers and shared memory.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

__all__ = ["BLOCKS", "FORTY", "Body", "source"]

BLOCKS = {1: 256, 2: (32, 8)}
"""The blocks of nbrt's launches, by the number of indices."""


@dataclass(frozen=True, slots=True)
class Body:
    """A kernel without its first lines.

    Attributes
    ----------
    name : str
        Its name, without the dtype.
    parameters : str
        Names and kinds, the output first: ``1f`` for a contiguous array of the floating dtype with
        one axis, ``2i`` for one of int32 with two, ``f`` and ``i`` for numbers.
    indices : int
        Its index is ``i``, or ``i`` and ``j``.
    text : str
        Python. ``real(x)`` is a constant of the floating dtype.
    """

    name: str
    parameters: str
    indices: int
    text: str

    def kinds(self) -> list[tuple[str, str]]:
        """Return the names of the parameters and their kinds."""
        return [tuple(each.split(":")) for each in self.parameters.split()]  # type: ignore[misc]

    def signature(self, dtype: str) -> str:
        """Return the types of the parameters, by Numba's names."""
        numba = [_numba(kind, dtype) for _, kind in self.kinds()]
        return f"void({', '.join(numba)})"


_ELEMENTWISE = (
    Body("saxpy", "out:1f a:f x:1f y:1f", 1, "out[i] = a * x[i] + y[i]"),
    Body("clamp", "out:1f x:1f low:f high:f", 1, "out[i] = min(max(x[i], low), high)"),
    Body("sigmoid", "out:1f x:1f", 1, "out[i] = real(1) / (real(1) + exp(-x[i]))"),
    Body(
        "gelu",
        "out:1f x:1f",
        1,
        """
        v = x[i]
        inner = real(0.7978845608) * (v + real(0.044715) * v * v * v)
        out[i] = real(0.5) * v * (real(1) + tanh(inner))
        """,
    ),
    Body(
        "adam",
        "out:1f gradient:1f m:1f v:1f rate:f epsilon:f",
        1,
        """
        g = gradient[i]
        first = real(0.9) * m[i] + real(0.1) * g
        second = real(0.999) * v[i] + real(0.001) * g * g
        m[i] = first
        v[i] = second
        out[i] = out[i] - rate * first / (sqrt(second) + epsilon)
        """,
    ),
    Body(
        "gray",
        "out:2f rgb:3f red:f green:f blue:f",
        2,
        "out[i, j] = red * rgb[i, j, 0] + green * rgb[i, j, 1] + blue * rgb[i, j, 2]",
    ),
    Body("transpose", "out:2f x:2f", 2, "out[i, j] = x[j, i]"),
    Body(
        "mandelbrot",
        "out:2i left:f top:f step:f most:i",
        2,
        """
        cx = left + real(j) * step
        cy = top + real(i) * step
        zx = real(0)
        zy = real(0)
        count = int32(0)
        while count < most and zx * zx + zy * zy <= real(4):
            moved = zx * zx - zy * zy + cx
            zy = real(2) * zx * zy + cy
            zx = moved
            count += 1
        out[i, j] = count
        """,
    ),
)

_REDUCTIONS = (
    Body(
        "row_sum",
        "out:1f x:2f",
        1,
        """
        total = real(0)
        for k in range(x.shape[1]):
            total += x[i, k]
        out[i] = total
        """,
    ),
    Body(
        "softmax",
        "rows:1f x:2f out:2f",
        1,
        """
        largest = x[i, 0]
        for k in range(x.shape[1]):
            largest = max(largest, x[i, k])
        total = real(0)
        for k in range(x.shape[1]):
            value = exp(x[i, k] - largest)
            out[i, k] = value
            total += value
        for k in range(x.shape[1]):
            out[i, k] = out[i, k] / total
        rows[i] = total
        """,
    ),
    Body(
        "layer_norm",
        "rows:1f x:2f out:2f weight:1f bias:1f epsilon:f",
        1,
        """
        total = real(0)
        for k in range(x.shape[1]):
            total += x[i, k]
        mean = total / real(x.shape[1])
        squares = real(0)
        for k in range(x.shape[1]):
            squares += (x[i, k] - mean) * (x[i, k] - mean)
        scale = real(1) / sqrt(squares / real(x.shape[1]) + epsilon)
        for k in range(x.shape[1]):
            out[i, k] = (x[i, k] - mean) * scale * weight[k] + bias[k]
        rows[i] = mean
        """,
    ),
    Body(
        "matmul",
        "out:2f a:2f b:2f",
        2,
        """
        total = real(0)
        for k in range(a.shape[1]):
            total += a[i, k] * b[k, j]
        out[i, j] = total
        """,
    ),
    Body(
        "spmv",
        "out:1f values:1f columns:1i offsets:1i x:1f",
        1,
        """
        total = real(0)
        for k in range(offsets[i], offsets[i + 1]):
            total += values[k] * x[columns[k]]
        out[i] = total
        """,
    ),
    Body(
        "nearest",
        "out:1i points:2f centres:2f",
        1,
        """
        best = int32(0)
        least = real(1e30)
        for c in range(centres.shape[0]):
            square = real(0)
            for d in range(points.shape[1]):
                distance = points[i, d] - centres[c, d]
                square += distance * distance
            if square < least:
                least = square
                best = int32(c)
        out[i] = best
        """,
    ),
    Body(
        "nbody",
        "out:1f bodies:2f pulls:2f softening:f",
        1,
        """
        ax = real(0)
        ay = real(0)
        az = real(0)
        for k in range(bodies.shape[0]):
            dx = bodies[k, 0] - bodies[i, 0]
            dy = bodies[k, 1] - bodies[i, 1]
            dz = bodies[k, 2] - bodies[i, 2]
            square = dx * dx + dy * dy + dz * dz + softening
            pull = bodies[k, 3] / (square * sqrt(square))
            ax += pull * dx
            ay += pull * dy
            az += pull * dz
        pulls[i, 0] = ax
        pulls[i, 1] = ay
        pulls[i, 2] = az
        out[i] = sqrt(ax * ax + ay * ay + az * az)
        """,
    ),
)

_STENCILS = (
    Body(
        "jacobi",
        "out:2f u:2f source:2f",
        2,
        """
        if i > 0 and j > 0 and i < u.shape[0] - 1 and j < u.shape[1] - 1:
            total = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]
            out[i, j] = (total - source[i, j]) * real(0.25)
        else:
            out[i, j] = u[i, j]
        """,
    ),
    Body(
        "heat",
        "front:2f u:3f out:3f rate:f",
        2,
        """
        north = max(i - 1, 0)
        south = min(i + 1, u.shape[1] - 1)
        west = max(j - 1, 0)
        east = min(j + 1, u.shape[2] - 1)
        for z in range(u.shape[0]):
            here = u[z, i, j]
            total = u[max(z - 1, 0), i, j] + u[min(z + 1, u.shape[0] - 1), i, j]
            total += u[z, north, j] + u[z, south, j] + u[z, i, west] + u[z, i, east]
            out[z, i, j] = here + rate * (total - real(6) * here)
        front[i, j] = out[0, i, j]
        """,
    ),
    Body(
        "convolve",
        "out:2f x:2f weights:2f",
        2,
        """
        total = real(0)
        for p in range(weights.shape[0]):
            for q in range(weights.shape[1]):
                row = i + p - weights.shape[0] // 2
                column = j + q - weights.shape[1] // 2
                if row >= 0 and row < x.shape[0] and column >= 0 and column < x.shape[1]:
                    total += weights[p, q] * x[row, column]
        out[i, j] = total
        """,
    ),
    Body(
        "blur",
        "out:2f x:2f weights:1f",
        2,
        """
        total = real(0)
        for p in range(weights.shape[0]):
            column = min(max(j + p - weights.shape[0] // 2, 0), x.shape[1] - 1)
            total += weights[p] * x[i, column]
        out[i, j] = total
        """,
    ),
    Body(
        "bilateral",
        "out:2f x:2f weights:1f factor:f",
        2,
        """
        here = x[i, j]
        total = real(0)
        norm = real(0)
        reach = weights.shape[0] // 2
        for p in range(weights.shape[0]):
            for q in range(weights.shape[0]):
                row = min(max(i + p - reach, 0), x.shape[0] - 1)
                column = min(max(j + q - reach, 0), x.shape[1] - 1)
                difference = x[row, column] - here
                weight = weights[p] * weights[q] * exp(factor * difference * difference)
                total += weight * x[row, column]
                norm += weight
        out[i, j] = total / norm
        """,
    ),
)

_BODIES = (*_ELEMENTWISE, *_REDUCTIONS, *_STENCILS)

FORTY: tuple[tuple[str, Body, str], ...] = tuple(
    (f"{body.name}_{dtype}", body, dtype) for body in _BODIES for dtype in ("float32", "float64")
)
"""The name, body and floating dtype of each kernel."""

_BEGINS = {
    "cuda": "from numba import cuda\nfrom math import exp, sqrt, tanh\nfrom numpy import int32, ",
    "njit": "from math import exp, sqrt, tanh\nfrom numpy import int32, ",
    "warp": "import warp as wp\nfrom warp import exp, int32, sqrt, tanh, ",
}

_INDEX = {
    ("cuda", 1): "i = cuda.grid(1)\nif i < out.shape[0]:",
    ("cuda", 2): "j, i = cuda.grid(2)\nif i < out.shape[0] and j < out.shape[1]:",
    ("njit", 1): "for i in range(out.shape[0]):",
    ("njit", 2): "for i in range(out.shape[0]):\n    for j in range(out.shape[1]):",
    ("warp", 1): "i = wp.tid()\nif i < out.shape[0]:",
    ("warp", 2): "i, j = wp.tid()\nif i < out.shape[0] and j < out.shape[1]:",
}


def source(system: str, name: str, body: Body, dtype: str) -> str:
    """Return the module of one kernel.

    Parameters
    ----------
    system : {"cuda", "njit", "warp"}
        Its form: the CUDA dialect of nbrt and numba-cuda, loops for Numba, or Warp.
    name, body, dtype
        The kernel, from `FORTY`.
    """
    kinds = body.kinds()
    index = _INDEX[system, body.indices].replace("out.", f"{kinds[0][0]}.")
    depth = 8 if (system, body.indices) == ("njit", 2) else 4
    text = textwrap.dedent(body.text).strip().replace("real(", f"{dtype}(")
    if system == "warp":
        header = ", ".join(f"{each}: {_warp(kind, dtype)}" for each, kind in kinds)
    else:
        header = ", ".join(each for each, _ in kinds)
    return "\n".join(
        [
            _BEGINS[system] + dtype,
            "@wp.kernel(enable_backward=False)" if system == "warp" else "",
            f"def {name}({header}):",
            textwrap.indent(index, "    "),
            textwrap.indent(text, " " * (4 + depth)),
            "",
        ]
    )


def _numba(kind: str, dtype: str) -> str:
    element = "int32" if kind[-1] == "i" else dtype
    return element if len(kind) == 1 else f"{element}[{':, ' * (int(kind[0]) - 1)}::1]"


def _warp(kind: str, dtype: str) -> str:
    element = "wp.int32" if kind[-1] == "i" else f"wp.{dtype}"
    return element if len(kind) == 1 else f"wp.array{kind[0]}d(dtype={element})"
