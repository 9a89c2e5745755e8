"""The limit on the static shared memory of a kernel: CUDA compiles no kernel beyond it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from nbrt.backends.cpu.simt.markers import SHARED, shared_extent
from nbrt.backends.cpu.simt.pipeline import marker_places
from nbrt.errors import LaunchError

if TYPE_CHECKING:
    from nbrt.backends.cpu.simt.llvm.code import ThreadCode

__all__ = ["STATIC_SHARED_LIMIT", "check_static_shared", "static_shared_bytes"]

STATIC_SHARED_LIMIT = 48 * 1024
"""Bytes of shared memory that a kernel can declare; on a GPU, dynamic memory goes beyond."""

_CALLED = re.compile(rf'^(?!declare).*@"?({re.escape(SHARED)}\d+\.[^"(]*)"?\(', re.MULTILINE)


def static_shared_bytes(module: str) -> int:
    """Return the bytes of all static shared arrays that a module of LLVM assembly uses."""
    return sum(shared_extent(marker)[0] for marker in set(_CALLED.findall(module)))


def check_static_shared(body: Any, code: ThreadCode) -> int:
    """Return the bytes of static shared memory of a kernel.

    Parameters
    ----------
    body : numba CompileResult
        The compiled kernel.
    code : ThreadCode
        What one thread does.

    Raises
    ------
    LaunchError
        If they are more than a kernel can declare.
    """
    used = static_shared_bytes(code.module)
    if used > STATIC_SHARED_LIMIT:
        places = [place for place in marker_places(body) if place.startswith("cuda.shared.array ")]
        raise LaunchError(
            f"expected at most {STATIC_SHARED_LIMIT} bytes of static shared memory per block in "
            f"kernel {body.fndesc.qualname}, got {used} bytes ({', '.join(places)}); use smaller "
            "tiles, or dynamic shared memory, of which a GPU may have more: declare "
            "cuda.shared.array(0, ...) and launch with kernel[grid, block, stream, nbytes]"
        )
    return used
