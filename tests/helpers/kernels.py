"""Run kernels on the CPU compiler, and compile them to PTX without a GPU."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numba.core import types
from numba.cuda import compile_ptx as _numba_compile_ptx
from numba.cuda import dispatcher

from nbrt.backends.cpu.backend import CpuInterface
from nbrt.backends.cpu.launch import CpuProgram
from nbrt_kernels.random import Fill, fills_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nbrt.backends.draw import Draw
    from nbrt.testing.draws import DrawCase

COMPUTE_CAPABILITIES = ((8, 0), (9, 0))

_MARGIN = 64

_compiled = cache(CpuProgram)


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
    _compiled(kernel).plan(0, grid, shape)(*arguments)


def memory_dtype(dtype: str) -> str:
    """Return the dtype of the array that a fill kernel stores elements of a dtype in."""
    return {"bfloat16": "uint16", "bool": "uint8"}.get(dtype, dtype)


def run_draw(draw: Draw, *, gpu: bool = False, block: int | None = None) -> np.ndarray:
    """Return what the fill kernels of a draw make, in blocks of so many threads.

    With `gpu` they are those for a GPU, on the CPU all the same.
    """
    room = np.full(draw.local_size + _MARGIN, 7, memory_dtype(draw.dtype))
    out = room[: draw.local_size]
    state = np.uint64(draw.seed), np.uint64(draw.offset)
    for fill in fills_of(draw, gpu=gpu):
        target = out if fill.target is None else fill.target
        part = target if fill.part is None else target[fill.part]
        arguments = part, state, np.uint64(fill.skip_blocks), *fill.arguments
        launch(fill.kernel, (fill.threads,), *arguments, block=(block or fill.block,))
    assert np.all(room[draw.local_size :] == 7), "written past the end"
    return out


def draws_of(case: DrawCase) -> list[Draw]:
    """Return what a case asks of a backend, without drawing."""
    draws: list[Draw] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuInterface, "draw", lambda _self, _queue, _out, draw: draws.append(draw))
        case.draw(1, 12, "cpu:0")
    return draws


def numba_type(name: str) -> Any:
    """Return the Numba type of a name like ``float32[:,::1]``."""
    scalar, bracket, layout = name.partition("[")
    element = getattr(types, scalar)
    return types.Array(element, layout.count(":") - 1, "C") if bracket else element


def fill_signature(fill: Fill, dtype: str) -> tuple[Any, ...]:
    """Return the Numba types of what a fill kernel takes for elements of a dtype."""
    element = numba_type(f"{memory_dtype(dtype if fill.target is None else 'bool')}[::1]")
    arguments = (
        numba_type(f"{value.dtype}[::1]" if np.ndim(value) else value.dtype.name)
        for value in fill.arguments
    )
    return (element, types.UniTuple(types.uint64, 2), types.uint64, *arguments)


@contextmanager
def device_of(capability: tuple[int, int]) -> Iterator[None]:
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
    with device_of(capability):
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
