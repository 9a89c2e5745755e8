"""Launch limits of GPUs, for programs that run without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nbrt._internal.gpus import limits_of
from nbrt.backends.cpu.simt.codegen.block_calls import STATIC_SHARED_LIMIT

if TYPE_CHECKING:
    from nbrt.typing import Dim3

__all__ = ["Violation", "static_shared_violations", "violations"]

_MAX_THREADS = 1024
_MAX_BLOCK = (1024, 1024, 64)
_MAX_GRID = (2**31 - 1, 65535, 65535)


class Violation(NamedTuple):
    """A limit that a launch exceeds, and how to correct it.

    `block` and `thread` are the first beyond the limit; (0, 0, 0) where every block exceeds it.
    """

    message: str
    advice: str
    block: Dim3 = (0, 0, 0)
    thread: Dim3 = (0, 0, 0)


def violations(target: str, grid: Dim3, block: Dim3, static: int, dynamic: int) -> list[Violation]:
    """Return the limits of a GPU, such as ``"H100"``, that a launch exceeds.

    `static` and `dynamic` are the bytes of shared memory that the kernel declares and that the
    launch asks for.
    """
    exceeded = []
    threads = block[0] * block[1] * block[2]
    if threads > _MAX_THREADS:
        message = f"{threads} threads per block, where {target} has room for {_MAX_THREADS}"
        x, y = _MAX_THREADS % block[0], _MAX_THREADS // block[0]
        first = (x, y % block[1], y // block[1])
        exceeded.append(Violation(message, "use more blocks of fewer threads", thread=first))
    for name, extents, limit in (("thread", block, _MAX_BLOCK), ("block", grid, _MAX_GRID)):
        over = [axis for axis in range(3) if extents[axis] > limit[axis]]
        if over:
            container = "block" if name == "thread" else "grid"
            message = f"a {container} of {extents}, where {target} allows at most {limit}"
            advice = "put the long side along x, or cover the rest with a loop in the kernel"
            x, y, z = (limit[axis] if axis == over[0] else 0 for axis in range(3))
            exceeded.append(Violation(message, advice, **{name: (x, y, z)}))
    available, used = limits_of(target).shared_per_block, static + dynamic
    if used > available:
        message = f"{used} bytes of shared memory per block, where {target} has {available}"
        exceeded.append(Violation(message, "use smaller tiles"))
    return exceeded


def static_shared_violations(static: int, dynamic: int) -> list[Violation]:
    """Return the limit of static shared memory if a kernel exceeds it, on every device."""
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
