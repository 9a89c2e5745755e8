"""What a GPU of a compute capability can launch, for programs that run where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt._internal.gpus import limits_of

if TYPE_CHECKING:
    from nbrt.typing import Dim3

__all__ = ["STATIC_SHARED_LIMIT", "faults"]

STATIC_SHARED_LIMIT = 48 * 1024
"""Bytes of shared memory that a kernel can declare; only dynamic memory goes beyond."""

_MAX_THREADS = 1024
_MAX_BLOCK = (1024, 1024, 64)
_MAX_GRID = (2**31 - 1, 65535, 65535)


def faults(
    target: str, grid: Dim3, block: Dim3, static: int, dynamic: int
) -> list[tuple[str, str]]:
    """List what a GPU could not launch.

    Parameters
    ----------
    target : str
        Such as ``"sm_90"`` or ``"H100"``.
    grid, block : tuple of int
        The launch.
    static, dynamic : int
        Bytes of shared memory that the kernel declares, and that the launch asks for.

    Returns
    -------
    list of (str, str)
        What is too large, and what to do.
    """
    found = []
    threads = block[0] * block[1] * block[2]
    if threads > _MAX_THREADS:
        found.append(
            (
                f"{threads} threads per block, where {target} has room for {_MAX_THREADS}",
                "use more blocks of fewer threads",
            )
        )
    for what, asked, most in (("block", block, _MAX_BLOCK), ("grid", grid, _MAX_GRID)):
        if any(size > limit for size, limit in zip(asked, most, strict=True)):
            found.append(
                (
                    f"a {what} of {asked}, where {target} allows at most {most}",
                    "put the long side along x, or cover the rest with a loop in the kernel",
                )
            )
    if static > STATIC_SHARED_LIMIT:
        found.append(
            (
                f"{static} bytes of static shared memory, where {STATIC_SHARED_LIMIT} is the most",
                "declare it as cuda.shared.array(0, ...) and give the size with the launch",
            )
        )
    most_bytes = limits_of(target).shared_per_block
    if static + dynamic > most_bytes:
        found.append(
            (
                f"{static + dynamic} bytes of shared memory per block, where {target} has "
                f"{most_bytes}",
                "use smaller tiles",
            )
        )
    return found
