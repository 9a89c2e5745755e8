"""What a GPU of a compute capability can launch, for programs that run where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt.errors import ArgumentError

if TYPE_CHECKING:
    from nbrt.typing import Dim3

__all__ = ["STATIC_SHARED_LIMIT", "check_target", "faults"]

STATIC_SHARED_LIMIT = 48 * 1024
"""Bytes of shared memory that a kernel can declare; only dynamic memory goes beyond."""

_DYNAMIC_LIMITS = {
    "sm_70": 96,
    "sm_72": 96,
    "sm_75": 64,
    "sm_80": 163,
    "sm_86": 99,
    "sm_87": 163,
    "sm_89": 99,
    "sm_90": 227,
    "sm_100": 227,
    "sm_120": 99,
}
"""KiB of shared memory that a block can have at most (CUDA C++ Programming Guide, Compute
Capabilities, "Maximum amount of shared memory per thread block")."""

_MAX_THREADS = 1024
_MAX_BLOCK = (1024, 1024, 64)
_MAX_GRID = (2**31 - 1, 65535, 65535)


def check_target(target: str | None) -> None:
    """Raise `ArgumentError` if a GPU's name is unknown; None is fine."""
    if target is not None and target not in _DYNAMIC_LIMITS:
        raise ArgumentError(
            f"expected target to be one of {', '.join(_DYNAMIC_LIMITS)}, got {target!r}"
        )


def faults(
    target: str, grid: Dim3, block: Dim3, static: int, dynamic: int
) -> list[tuple[str, str]]:
    """List what a GPU could not launch.

    Parameters
    ----------
    target : str
        Such as ``"sm_90"``.
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
    most_bytes = _DYNAMIC_LIMITS[target] * 1024
    if static + dynamic > most_bytes:
        found.append(
            (
                f"{static + dynamic} bytes of shared memory per block, where {target} has "
                f"{most_bytes}",
                "use smaller tiles",
            )
        )
    return found
