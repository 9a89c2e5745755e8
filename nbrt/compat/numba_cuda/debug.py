"""Exceptions of kernels with ``debug=True``, as numba-cuda raises them."""

from __future__ import annotations

import os.path
from pathlib import Path
from typing import TYPE_CHECKING

from nbrt.backends.cpu.block_scheduler import raising_thread

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["debug_error"]

_PACKAGE = str(Path(__file__).parents[2])


def debug_error(error: Exception) -> Exception | None:
    """Return numba-cuda's exception for one that a kernel raised; None: the launch raised it.

    It has the class of the kernel's exception. Its message begins with the place in the kernel and
    with the index of the thread and of the block, each as [z, y, x].
    """
    index = raising_thread(error)
    if index is None:
        return None
    block, thread = index
    prefix = f"{_place(error.__traceback__)}tid={list(thread[::-1])} ctaid={list(block[::-1])}"
    first, rest = error.args[:1], error.args[1:]
    message = f"{prefix}: {first[0]}" if first else prefix
    return type(error)(message, *rest)


def _place(trace: TracebackType | None) -> str:
    """Return the place in the kernel, the last one of a traceback; empty if it is unknown."""
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    if code.co_filename.startswith(_PACKAGE):
        return ""
    file = os.path.abspath(code.co_filename)  # as numba-cuda writes it
    return f"In function {code.co_name!r}, file {file}, line {trace.tb_lineno}, "
