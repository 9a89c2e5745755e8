"""What a GPU of a compute capability can launch, for programs that run where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nbrt._internal.gpus import limits_of
from nbrt.backends.cpu.simt.codegen.static_shared import STATIC_SHARED_LIMIT

if TYPE_CHECKING:
    from nbrt.typing import Dim3

__all__ = ["Violation", "static_shared_violations", "violations"]

_MAX_THREADS = 1024
_MAX_BLOCK = (1024, 1024, 64)
_MAX_GRID = (2**31 - 1, 65535, 65535)


class Violation(NamedTuple):
    """What a GPU could not launch.

    Attributes
    ----------
    message, advice : str
        What is too large, and what to do.
    block, thread : tuple of int
        The first that there is no room for; the first of all where every block asks for too much.
    """

    message: str
    advice: str
    block: Dim3 = (0, 0, 0)
    thread: Dim3 = (0, 0, 0)


def violations(target: str, grid: Dim3, block: Dim3, static: int, dynamic: int) -> list[Violation]:
    """List what a GPU could not launch.

    Parameters
    ----------
    target : str
        Such as ``"sm_90"`` or ``"H100"``.
    grid, block : tuple of int
        The launch.
    static, dynamic : int
        Bytes of shared memory that the kernel declares, and that the launch asks for.
    """
    found = []
    threads = block[0] * block[1] * block[2]
    if threads > _MAX_THREADS:
        message = f"{threads} threads per block, where {target} has room for {_MAX_THREADS}"
        x, y = _MAX_THREADS % block[0], _MAX_THREADS // block[0]
        first = (x, y % block[1], y // block[1])
        found.append(Violation(message, "use more blocks of fewer threads", thread=first))
    for what, asked, most in (("block", block, _MAX_BLOCK), ("grid", grid, _MAX_GRID)):
        over = [at for at in range(3) if asked[at] > most[at]]
        if over:
            x, y, z = (most[at] if at == over[0] else 0 for at in range(3))
            found.append(
                Violation(
                    f"a {what} of {asked}, where {target} allows at most {most}",
                    "put the long side along x, or cover the rest with a loop in the kernel",
                    **{"thread" if what == "block" else "block": (x, y, z)},
                )
            )
    most_bytes = limits_of(target).shared_per_block
    if static + dynamic > most_bytes:
        message = (
            f"{static + dynamic} bytes of shared memory per block, where {target} has {most_bytes}"
        )
        found.append(Violation(message, "use smaller tiles"))
    return found


def static_shared_violations(static: int, dynamic: int) -> list[Violation]:
    """List what is refused without checks, too: more shared memory than a kernel can declare."""
    if static == 0 or static + dynamic <= STATIC_SHARED_LIMIT:
        return []
    if static <= STATIC_SHARED_LIMIT:
        message = (
            f"{static} bytes of static and {dynamic} bytes of dynamic shared memory, where "
            f"{STATIC_SHARED_LIMIT} in all are the most on a CPU device"
        )
        return [Violation(message, "use smaller tiles")]
    return [
        Violation(
            f"{static} bytes of static shared memory, where {STATIC_SHARED_LIMIT} is the most on "
            "every GPU",
            "use smaller tiles, or declare it as cuda.shared.array(0, ...) and give the size with "
            "the launch",
        )
    ]
