"""The limit on the static shared memory of a kernel: CUDA compiles no kernel beyond it."""

from __future__ import annotations

import re
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from nbrt.backends.cpu.simt.frontend.pipeline import marker_places
from nbrt.backends.cpu.simt.placeholders import SHARED, shared_extent
from nbrt.errors import LaunchError

__all__ = [
    "STATIC_SHARED_LIMIT",
    "check_static_shared",
    "emit_shared_check",
    "static_shared_bytes",
]

STATIC_SHARED_LIMIT = 48 * 1024
"""Bytes of shared memory that a kernel can declare; on a GPU, dynamic memory goes beyond."""

_CALLED = re.compile(rf'^(?!declare).*@"?({re.escape(SHARED)}\d+\.[^"(]*)"?\(', re.MULTILINE)


def static_shared_bytes(module: str) -> int:
    """Return the bytes of all static shared arrays that a module of LLVM assembly uses."""
    return sum(shared_extent(marker)[0] for marker in set(_CALLED.findall(module)))


def check_static_shared(body: Any, used: int) -> None:
    """Check that a kernel declares no more shared memory than any GPU has for it.

    Parameters
    ----------
    body : numba CompileResult
        The compiled kernel.
    used : int
        Bytes of static shared memory.

    Raises
    ------
    LaunchError
        If they are more than a kernel can declare.
    """
    if used > STATIC_SHARED_LIMIT:
        places = [place for place in marker_places(body) if place.startswith("cuda.shared.array ")]
        raise LaunchError(
            f"expected at most {STATIC_SHARED_LIMIT} bytes of static shared memory per block in "
            f"kernel {body.fndesc.qualname}, got {used} bytes ({', '.join(places)}); use smaller "
            "tiles, or dynamic shared memory, of which a GPU may have more: declare "
            "cuda.shared.array(0, ...) and launch with kernel[grid, block, stream, nbytes]"
        )


def emit_shared_check(context: Any, builder: ir.IRBuilder, static: int, dynamic: ir.Value) -> None:
    """Emit into an entry: raise LaunchError if static and dynamic shared memory are too much.

    Parameters
    ----------
    context, builder
        Numba's target context, and where the code goes.
    static : int
        Bytes that the kernel declares.
    dynamic : llvmlite value
        Bytes that the launch asks for.
    """
    if static == 0:
        return
    room = STATIC_SHARED_LIMIT - static
    too_many = builder.icmp_signed(">", dynamic, ir.IntType(64)(room))
    with cgutils.if_unlikely(builder, too_many):
        message = (
            f"expected at most {room} bytes of dynamic shared memory beside the {static} bytes "
            "that the kernel declares, got more; use smaller tiles"
        )
        context.call_conv.return_user_exc(builder, LaunchError, (message,))
