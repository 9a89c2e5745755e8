"""What a lowering of the block starts from."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["THREAD_PARAMETERS", "ThreadIR"]

THREAD_PARAMETERS = 2
"""Where the fields of the hidden argument begin: after the result and the exception info."""


@dataclass(frozen=True)
class ThreadIR:
    """One thread of a kernel as LLVM IR, all it calls inlined, markers in place of the block."""

    module: str
    """Text of the module: values and blocks have names."""

    name: str
    """Symbol of the thread's function."""

    block: tuple[int, int, int]
    """Threads of a block along x, y and z."""
