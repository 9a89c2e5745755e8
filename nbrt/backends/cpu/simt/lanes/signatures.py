"""The parameters of block functions, and what their modules declare."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nbrt.backends.cpu.simt import placeholders

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.llvm.model import Function

__all__ = ["block_parameters", "declared_symbols"]


def block_parameters(function: Function, strip: int = 1) -> str:
    """Return the parameters of the block function of a thread, for up to `strip` blocks."""
    parameters = ", ".join(f"{p.type} {p.text}" for p in function.parameters)
    shared = f"ptr %{placeholders.SHARED}at, i64 %{placeholders.SHARED}bytes"
    blocks = ", i64 %nbrt.blocks" if strip > 1 else ""
    return f"{parameters}, {shared}, ptr %nbrt.stop, ptr %nbrt.where{blocks}"


def declared_symbols(outside: str) -> set[str]:
    """Return the symbols that the rest of a module declares."""
    return set(
        re.findall(r'^(?:declare|define)[^@\n]*@"?([-a-zA-Z$._0-9]+)', outside, re.MULTILINE)
    )
