"""Run a kernel in the CUDA dialect thread by thread in plain Python, as an oracle.

The kernel's own function runs, under globals in which the names of ``numba.cuda`` are replaced by
plain Python values for the thread at hand. Barrier-free kernels only.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import itertools
import types
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import cuda

Dim3 = tuple[int, int, int]

_libm = ctypes.CDLL(ctypes.util.find_library("m"))
for _name, _type in (("fma", ctypes.c_double), ("fmaf", ctypes.c_float)):
    getattr(_libm, _name).argtypes = [_type] * 3
    getattr(_libm, _name).restype = _type


def fma(a: Any, b: Any, c: Any) -> Any:
    """Fused multiply-add by the C library, which is correctly rounded."""
    if all(isinstance(value, np.float32) for value in (a, b, c)):
        return np.float32(_libm.fmaf(a, b, c))
    return np.float64(_libm.fma(a, b, c))


class Index(NamedTuple):
    x: int
    y: int
    z: int


class _Local:
    @staticmethod
    def array(shape: Any, dtype: Any, alignment: int | None = None) -> np.ndarray:
        return np.empty(shape, np.dtype(str(dtype)) if not isinstance(dtype, type) else dtype)


class FakeCuda:
    """``numba.cuda`` for one thread."""

    warpsize = 32
    local = _Local
    fma = staticmethod(fma)

    def __init__(self, grid: Dim3, block: Dim3) -> None:
        self.gridDim, self.blockDim = Index(*grid), Index(*block)

    def place(self, block: Dim3, thread: Dim3) -> None:
        self.blockIdx, self.threadIdx = Index(*block), Index(*thread)
        width, height, _ = self.blockDim
        self.laneid = (thread[0] + width * (thread[1] + height * thread[2])) % 32

    def grid(self, ndim: int) -> Any:
        all_axes = zip(self.blockIdx, self.blockDim, self.threadIdx, strict=True)
        values = tuple(b * extent + t for b, extent, t in all_axes)
        return values[0] if ndim == 1 else values[:ndim]

    def gridsize(self, ndim: int) -> Any:
        values = tuple(g * b for g, b in zip(self.gridDim, self.blockDim, strict=True))
        return values[0] if ndim == 1 else values[:ndim]


def _replace(value: Any, fake: FakeCuda, done: dict[int, Any]) -> Any:
    if value is cuda:
        return fake
    if value is numba:
        return types.SimpleNamespace(cuda=fake, float32=np.float32, float64=np.float64)
    python = getattr(value, "py_func", None)
    if isinstance(python, types.FunctionType):
        return _rebind(python, fake, done)
    for name in (
        "threadIdx",
        "blockIdx",
        "blockDim",
        "gridDim",
        "grid",
        "gridsize",
        "local",
        "fma",
    ):
        if value is getattr(cuda, name):
            return getattr(fake, name)
    return value


def _names(code: types.CodeType) -> set[str]:
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def _rebind(function: types.FunctionType, fake: FakeCuda, done: dict[int, Any]) -> Any:
    """Copy a function under globals in which the dialect's names are the fake's."""
    if id(function) not in done:
        names = _names(function.__code__)
        used = {n: v for n, v in function.__globals__.items() if n in names}
        scope = {"__builtins__": __builtins__}
        cells = tuple(
            types.CellType(_replace(cell.cell_contents, fake, done))
            for cell in function.__closure__ or ()
        )
        code, name, defaults = function.__code__, function.__name__, function.__defaults__
        done[id(function)] = types.FunctionType(code, scope, name, defaults, cells)
        scope.update({n: _replace(v, fake, done) for n, v in used.items()})
    return done[id(function)]


def run_reference(kernel: Any, grid: Dim3, block: Dim3, *args: Any) -> None:
    """Run every thread of a launch, one after the other."""
    function = getattr(kernel, "py_func", kernel)
    fake = FakeCuda(grid, block)
    for at in itertools.product(*(range(n) for n in reversed(grid))):
        for thread in itertools.product(*(range(n) for n in reversed(block))):
            fake.place(at[::-1], thread[::-1])
            # Bound anew for each thread: ``from numba.cuda import threadIdx`` is a plain value.
            _rebind(function, fake, {})(*args)
