"""What the CPU compiler makes of a kernel, for people: lowering, loops, LLVM IR, assembly."""

from __future__ import annotations

import inspect
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nbrt.backends.captures import Captures
from nbrt.backends.cpu.simt.frontend.source import kernel_function
from nbrt.backends.cpu.simt.runtime.arguments import argument_types
from nbrt.backends.cpu.simt.runtime.dispatcher import EntryDispatcher
from nbrt.backends.cpu.simt.runtime.vector_loops import innermost_loops

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.inspection import Loop, Lowering
    from nbrt.typing import Dim3

__all__ = ["CpuCode"]


class CpuCode:
    """A kernel for CPU devices, compiled when a property is first read: a `HostCode`.

    Parameters
    ----------
    function : callable
        The kernel, or a ``cuda.jit`` dispatcher of it.
    args : tuple
        Arguments, or what has the same types.
    block : tuple of int
        Threads in a block.
    """

    def __init__(self, function: Callable[..., object], args: tuple[Any, ...], block: Dim3) -> None:
        self._function = kernel_function(function)
        self._block = block
        self._args = args

    @cached_property
    def signature(self) -> str:
        """The kernel's name, its parameters and their types."""
        types = argument_types(self._function, self._args)
        bound = inspect.signature(self._function, follow_wrapped=False).bind(*types)
        parameters = ", ".join(f"{name}: {typ}" for name, typ in bound.arguments.items())
        return f"{self._function.__name__}({parameters})"

    @cached_property
    def lowering(self) -> Lowering:
        """How the kernel was cut, and why."""
        _ = self._library
        return self._entry.lowering

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """The innermost loops of the LLVM IR."""
        return innermost_loops(self.llvm)

    @cached_property
    def llvm(self) -> str:
        """LLVM IR after optimisation."""
        return str(self._library.get_llvm_str())

    @cached_property
    def asm(self) -> str:
        """Machine code as assembly."""
        return str(self._library.get_asm_str())

    @cached_property
    def _library(self) -> Any:
        return self._entry.prepare(self._args).library

    @cached_property
    def _entry(self) -> EntryDispatcher:
        from nbrt.backends.cpu.simt.frontend.pipeline import KernelBody

        captures = Captures(self._function)
        return EntryDispatcher(captures, lambda: KernelBody(captures), self._block, None)
