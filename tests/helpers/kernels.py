"""Running kernels on the CPU compiler, and compiling them to PTX without a GPU."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from numba.core import types
from numba.cuda import compile_ptx as _numba_compile_ptx
from numba.cuda import dispatcher

from nbrt.backends.cpu.simt import SimtKernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COMPUTE_CAPABILITIES = ((8, 0), (9, 0))

_compiled = cache(SimtKernel)


def launch(
    kernel: Callable[..., None],
    threads: tuple[int, ...],
    *arguments: Any,
    block: tuple[int, ...] = (64,),
) -> None:
    """Run a kernel on the CPU with enough blocks for the threads along x, y, z."""
    shape = (*block, 1, 1)[:3]
    extent = (*threads, 1, 1)[:3]
    grid = tuple(-(-n // b) for n, b in zip(extent, shape, strict=True))
    _compiled(kernel).plan(grid, shape)(*arguments)


def numba_type(name: str) -> Any:
    """Return the Numba type of a name like ``float32[:,::1]``."""
    scalar, bracket, layout = name.partition("[")
    element = getattr(types, scalar)
    return types.Array(element, layout.count(":") - 1, "C") if bracket else element


@contextmanager
def _device_of(capability: tuple[int, int]) -> Iterator[None]:
    """Let numba-cuda compile device functions without a driver.

    It asks the current device for its compute capability there, also when the kernel itself is
    compiled for a given one; only that question is answered here.
    """
    real = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
    try:
        yield
    finally:
        dispatcher.get_current_device = real


def compile_ptx(
    kernel: Callable[..., None], signature: tuple[Any, ...], capability: tuple[int, int]
) -> str:
    """Compile a kernel to PTX; skips the test where the CUDA compiler library is missing."""
    reason = _missing_compiler()
    if reason:
        pytest.skip(reason)
    return _compile(kernel, signature, capability)


def _compile(
    kernel: Callable[..., None], signature: tuple[Any, ...], capability: tuple[int, int]
) -> str:
    with _device_of(capability):
        text, _ = _numba_compile_ptx(kernel, signature, cc=capability)
    return str(text)


@cache
def _missing_compiler() -> str:
    """Say why nothing can be compiled to PTX here; empty if it can."""

    def store_one(out: Any) -> None:
        out[0] = 1

    try:
        _compile(store_one, (types.Array(types.int32, 1, "C"),), COMPUTE_CAPABILITIES[0])
    except Exception as error:
        # The library is found by cuda-pathfinder, whose error class is private.
        if type(error).__name__ not in {"DynamicLibNotFoundError", "NvvmSupportError"}:
            raise
        return "no NVVM or NVRTC: install cuda-toolkit[nvrtc,nvvm]"
    return ""
