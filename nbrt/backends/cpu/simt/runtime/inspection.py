"""Inspection of a kernel on CPU devices: lowering, vector loops, LLVM IR, assembly."""

from __future__ import annotations

import inspect
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nbrt.backends.captures import Captures
from nbrt.backends.cpu.simt.code_options import CodeOptions
from nbrt.backends.cpu.simt.codegen.block_loops import CLAIM_SUFFIX
from nbrt.backends.cpu.simt.frontend.source import kernel_function
from nbrt.backends.cpu.simt.llvm.text import FunctionText
from nbrt.backends.cpu.simt.runtime.arguments import argument_types
from nbrt.backends.cpu.simt.runtime.declared_types import declared_types
from nbrt.backends.cpu.simt.runtime.dispatcher import EntryDispatcher
from nbrt.backends.inspection import Loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbrt.backends.inspection import Lowering
    from nbrt.typing import Dim3

__all__ = ["CpuCode", "innermost_loops"]


class CpuCode:
    """A kernel for CPU devices, compiled when a property is first read: a `HostCode`.

    Parameters
    ----------
    function : callable
        The kernel, or a ``cuda.jit`` dispatcher of it.
    args : tuple
        Arguments, or values of the same types.
    block : tuple of int
        Threads in a block.
    """

    def __init__(self, function: Callable[..., object], args: tuple[Any, ...], block: Dim3) -> None:
        self._function = kernel_function(function)
        self._options = CodeOptions.of(function)
        self._block = block
        declared = declared_types(function, self._function)
        self._args = args if declared is None else declared.converted(args)

    @cached_property
    def signature(self) -> str:
        """The kernel's name, its parameters and their types."""
        types = argument_types(self._function, self._args)
        bound = inspect.signature(self._function, follow_wrapped=False).bind(*types)
        parameters = ", ".join(f"{name}: {typ}" for name, typ in bound.arguments.items())
        return f"{self._function.__name__}({parameters})"

    @cached_property
    def lowering(self) -> Lowering:
        """The lowering of the kernel, and its reasons."""
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
    def captures(self) -> Captures:
        """The captured values that the kernel is compiled with."""
        return Captures(self._function)

    @cached_property
    def _entry(self) -> EntryDispatcher:
        from nbrt.backends.cpu.simt.frontend.pipeline import KernelBody

        captures = self.captures
        return EntryDispatcher(
            captures, lambda: KernelBody(captures, options=self._options), self._block, None
        )


_FUNCTION = re.compile(r"^define ([^(\n]*)[^\n]*\{[^\n]*\n(.*?)^\}", re.M | re.S)
_VECTOR = re.compile(r"<(\d+) x ([\w.]+)>")
_CALL = re.compile(r"\bcall\b[^@\n]*@\"?([\w$.]+)")
_LOOP_METADATA = re.compile(r"!llvm\.loop (!\d+)")
_NODE = re.compile(r"^(!\d+) = (?:distinct )?!\{([^\n]*)\}$", re.M)
_VECTORISED = '!"llvm.loop.isvectorized"'


def innermost_loops(module: str) -> tuple[Loop, ...]:
    """Return the kernel's loops without inner loops, in the order of the text.

    Loops for the remainder of a vector loop are left out, and those that claim blocks.

    Parameters
    ----------
    module : str
        LLVM IR after optimisation.
    """
    innermost: list[Loop] = []
    nodes = dict(_NODE.findall(module))
    for match in _FUNCTION.finditer(module):
        if match[1].rstrip('"').endswith(CLAIM_SUFFIX):
            continue
        function = FunctionText(match[2].splitlines())
        loops = function.loops()
        for label in function.blocks:
            if label not in loops or any(h in loops[label].blocks for h in loops if h != label):
                continue
            depth = sum(label in outer.blocks for outer in loops.values())
            inside = [b for b in function.blocks.values() if b.label in loops[label].blocks]
            lines = [line for block in inside for line in block.lines]
            loop = _described(label.strip('"'), depth, lines)
            if not _is_remainder(loop, lines, nodes):
                innermost.append(loop)
    return tuple(innermost)


def _is_remainder(loop: Loop, lines: list[str], nodes: dict[str, str]) -> bool:
    if loop.lanes > 1:
        return loop.block.startswith("vec.epilog.")
    operands = [nodes.get(name, "") for line in lines for name in _LOOP_METADATA.findall(line)]
    named = [name for text in operands for name in re.findall(r"!\d+", text)]
    return any(_VECTORISED in nodes.get(name, "") for name in named)


def _described(label: str, depth: int, lines: list[str]) -> Loop:
    vectors = [(int(n), element) for line in lines for n, element in _VECTOR.findall(line)]
    # Vectors of i1 are masks, not data.
    data = [vector for vector in vectors if vector[1] != "i1"] or vectors
    lanes, element = max(data, key=lambda vector: vector[0]) if data else (1, "")
    calls = {name for line in lines for name in _CALL.findall(line) if not name.startswith("llvm.")}
    return Loop(label, depth, lanes, element, tuple(sorted(calls)))
