"""One function through both compilers, up to LLVM IR or PTX, without a device."""

from __future__ import annotations

import cmath
import linecache
import math
import operator
import random
import re
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import cuda
from numba.core import errors

from nbrt.backends.captures import Captures
from nbrt.backends.cpu.simt.frontend.pipeline import KernelBody
from nbrt.backends.cpu.simt.runtime.arguments import argument_types
from nbrt.backends.cpu.simt.runtime.diagnostics import translated
from nbrt.backends.cpu.simt.thread_context import SimtContextType
from nbrt.backends.cuda.ptx import compile_ptx
from nbrt.backends.plain_messages import plain_messages
from nbrt.errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["cpu_refusal", "cuda_refusal", "function_of", "refused_in_batch"]

CAPABILITY = (9, 0)
_BATCH = 12
"""Larger kernels take longer to optimise than the compiler takes to start."""

_LINKED = {"vprintf", "numba_attempt_nocopy_reshape"}
"""Symbols that the CUDA linker finds: in the driver, and in a file that numba-cuda links."""

_MODULES = {"np": np, "math": math, "cmath": cmath, "operator": operator, "random": random}


def function_of(
    body: str, names: Mapping[str, Any] | None = None, parameters: str = "x, y, o"
) -> Callable[..., None]:
    """Make a function of source text; tracebacks find its lines."""
    source = f"def kernel({parameters}):\n{textwrap.indent(body, '    ')}\n"
    file = f"<{body}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope: dict[str, Any] = {**_MODULES, "cuda": cuda, **(names or {})}
    exec(compile(source, file, "exec"), scope)
    return scope["kernel"]


def cpu_refusal(function: Any, arguments: Sequence[Any]) -> str | None:
    """Return why the CPU compiler refuses a kernel, or None; it makes LLVM IR of it only."""
    types = argument_types(function, arguments)
    try:
        with plain_messages(errors):
            KernelBody(Captures(function)).whole((SimtContextType((1, 1, 1)), *types))
    except Exception as error:  # noqa: BLE001 - as the launch does
        return str(translated(function, error))
    return None


def cuda_refusal(function: Any, arguments: Sequence[Any]) -> str | None:
    """Return why CUDA refuses a kernel, or None: no PTX, or a symbol that no linker finds."""
    try:
        ptx = compile_ptx(function, tuple(arguments), CAPABILITY)
    except CompileError as error:
        return str(error)
    unknown = set(re.findall(r"\.extern \.func\s+(?:\([^)]*\)\s*)?(\w+)", ptx)) - _LINKED
    return f"unknown symbols {unknown}" if unknown else None


def refused_in_batch(
    bodies: Sequence[str],
    arguments: Sequence[Any],
    refusal: Callable[[Any, Sequence[Any]], str | None],
    names: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Return which bodies a compiler refuses, with its reason.

    Some at a time are compiled as device functions of one kernel, and one by one if that fails.
    """
    found: dict[str, str] = {}
    for start in range(0, len(bodies), _BATCH):
        batch = bodies[start : start + _BATCH]
        parts = {
            f"part_{number}": cuda.jit(device=True)(function_of(body, names))
            for number, body in enumerate(batch)
        }
        calls = "\n".join(f"{name}(x, y, o)" for name in parts)
        if refusal(function_of(calls, parts), arguments) is not None:
            single = {body: refusal(function_of(body, names), arguments) for body in batch}
            found |= {body: reason for body, reason in single.items() if reason is not None}
    return found
