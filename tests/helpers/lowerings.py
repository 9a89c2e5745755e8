"""Run kernels with every lowering and engine, and compare the results with plain Python."""

from __future__ import annotations

from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pytest
from numba import typeof

from nbrt.backends.cpu.interpret import interpret
from nbrt.backends.cpu.launch import CpuProgram
from nbrt.backends.cpu.simt import coroutines
from nbrt.backends.cpu.simt.codegen import lowering
from nbrt.backends.cpu.simt.lanes import block
from nbrt.backends.cpu.simt.llvm.model import CannotLowerError
from nbrt.backends.cpu.simt.processor import processor
from nbrt.backends.cpu.simt.runtime.inspection import CpuCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["LOWERINGS", "agree", "code_of", "dim3", "force", "interpreted", "launched", "run"]

LOWERINGS = ("lanes", "coroutines")


@contextmanager
def force(kind: str) -> Iterator[None]:
    """Compile kernels whose threads wait for each other in one lowering only.

    Kernels whose blocks wait for each other become coroutines in any case.
    """
    to_coroutines = lowering.lower_to_coroutines

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise CannotLowerError(f"the test compiles {kind} only")

    def to_grid(code: Any, kinds: set[str], reasons: Any = (), **options: Any) -> Any:
        if "grid" not in kinds:
            raise CannotLowerError(reasons[0])
        return to_coroutines(code, kinds, reasons, **options)

    assert kind in LOWERINGS
    with pytest.MonkeyPatch.context() as patch:
        if kind == "coroutines":
            patch.setattr(block, "lanes_block", refuse)
            patch.setattr(block, "one_lane_block", refuse)
        else:
            patch.setattr(lowering, "lower_to_coroutines", to_grid)
            patch.setattr(coroutines, "coroutine_resident", refuse)
        yield


def dim3(size: int | tuple[int, ...]) -> tuple[int, int, int]:
    """Fill a size up to three axes."""
    sizes = (size,) if isinstance(size, int) else size
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copy arrays among arguments."""
    return tuple(a.copy() if isinstance(a, np.ndarray) else a for a in args)


_codes: dict[Any, CpuCode] = {}
"""By kernel, block and types of arguments: the code inspected last."""


def code_of(kernel: Callable[..., Any], block: Any, *args: Any) -> CpuCode:
    """Return the code of a kernel, compiled once for sizes that follow one another.

    Not for tests that change the compiler between two calls.
    """
    key = kernel, dim3(block), tuple(map(typeof, args))
    if key not in _codes:
        _codes.clear()
        _codes[key] = CpuCode(kernel, args, dim3(block))
    return _codes[key]


def launched(kernel: Callable[..., Any], grid: Any, block: Any, *args: Any) -> CpuCode:
    """Run a kernel, and return its code: what ran, compiled once for the launch and the inspection.

    Not for tests that change the compiler between two calls.
    """
    code = code_of(kernel, block, *args)
    program = CpuProgram(kernel, cache=False)
    program._entries[dim3(block), None] = code._entry
    program.plan(0, dim3(grid), dim3(block))(*args)
    return code


@lru_cache(maxsize=8)
def _program(kernel: Callable[..., Any]) -> tuple[CpuProgram, dict[Any, dict[Any, Any]]]:
    """Return the program of a kernel, and its compiled entries by lowering and vector registers.

    The lowerings share the code of one thread, and the tests of a parametrized function its kernel.
    """
    return CpuProgram(kernel, cache=False), {}


def run(
    kind: str, kernel: Callable[..., Any], grid: Any, block: Any, *args: Any, shared: int = 0
) -> tuple[Any, ...]:
    """Run a kernel in a forced lowering on copies of the arguments, and give these."""
    args = copied(args)
    program, entries = _program(kernel)
    registers = processor().vector_registers if kind == "lanes" else None  # a test may set them
    program._entries = entries.setdefault((kind, registers), {})
    with force(kind):
        program.plan(0, dim3(grid), dim3(block), shared)(*args)
    return args


def interpreted(
    kernel: Callable[..., Any], grid: Any, block: Any, *args: Any, shared: int = 0
) -> tuple[Any, ...]:
    """Run a kernel in plain Python on copies of the arguments, and give these."""
    args = copied(args)
    interpret(kernel, dim3(grid), dim3(block), shared, args)
    return args


def agree(
    kernel: Callable[..., Any],
    grid: Any,
    block: Any,
    *args: Any,
    shared: int = 0,
    rtol: float = 0,
    expected: Any = None,
) -> None:
    """Run a kernel in each lowering: its arrays must be as plain Python leaves them.

    `expected` is for kernels that take too long there: what the first argument must hold then.
    """
    wanted = (expected,)
    if expected is None:
        wanted = interpreted(kernel, grid, block, *args, shared=shared)
    for kind in LOWERINGS:
        got = run(kind, kernel, grid, block, *args, shared=shared)
        for place, (mine, right) in enumerate(zip(got, wanted, strict=False)):
            if isinstance(right, np.ndarray):
                message = f"argument {place} of {kernel.__name__} in {kind}"
                if rtol:
                    np.testing.assert_allclose(mine, right, rtol=rtol, err_msg=message)
                else:
                    np.testing.assert_array_equal(mine, right, err_msg=message)
