"""Blocks per multiprocessor: NVIDIA's occupancy calculation, without a GPU.

Limits are those of `nbrt._internal.gpus`; the calculation is that of ``cuda_occupancy.h`` of the
CUDA runtime's package, with which the tests compare it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbrt._internal.gpus import LIMITS
from nbrt.backends.inspection import Occupancy
from nbrt.errors import NotSupportedError

if TYPE_CHECKING:
    from nbrt._internal.gpus import Limits
    from nbrt.backends.inspection import Resources

__all__ = ["max_threads_by_registers", "occupancy_of"]

_WARP = 32
_REGISTERS = 64 * 1024
"""32-bit registers of a multiprocessor and limit of a block, the same since 7.0."""

_REGISTER_UNIT = 256
"""Allocation unit of the registers of a warp."""

_PARTITIONS = 4
"""Partitions of a multiprocessor; each has a quarter of the registers."""

_MIN_CAPABILITY = (7, 0)
"""Older multiprocessors allocate registers differently."""

_MAX_REGISTERS = 255
_MAX_THREADS = 1024


def occupancy_of(
    capability: tuple[int, int], resources: Resources, threads: int, dynamic_shared: int = 0
) -> Occupancy:
    """Return the number of blocks that run on one multiprocessor at a time.

    Parameters
    ----------
    capability : tuple of int
        One of `LIMITS`.
    resources : Resources
        The resources of the kernel, as ptxas reports them.
    threads : int
        Threads of a block.
    dynamic_shared : int
        Bytes of shared memory per block that the launch adds.

    Raises
    ------
    NotSupportedError
        If the compute capability is less than 7.0.
    """
    if capability < _MIN_CAPABILITY:
        raise NotSupportedError(
            f"expected a GPU of compute capability 7.0 or newer for its occupancy, got "
            f"{capability[0]}.{capability[1]}"
        )
    limits = LIMITS[capability]
    warps = -(-threads // _WARP)
    shared = resources.static_shared + dynamic_shared
    room = {
        "warps": limits.warps // warps if threads <= _MAX_THREADS else 0,
        "blocks": limits.blocks,
        "registers": _blocks_by_registers(resources.registers, warps),
        "shared memory": _blocks_by_shared(limits, shared),
    }
    # An unused resource limits nothing.
    used = {"warps", "blocks"} | ({"registers"} if resources.registers else set())
    if shared + limits.shared_reserved:
        used.add("shared memory")
    blocks = min(room[name] for name in used)
    limiting = tuple(name for name in room if name in used and room[name] == blocks)
    return Occupancy(blocks, blocks * warps, limits.warps, limiting)


def max_threads_by_registers(registers: int) -> int:
    """Return the most threads of a block whose registers fit on a multiprocessor.

    Parameters
    ----------
    registers : int
        Of each thread.
    """
    per_warp = _round_up(max(registers, 1) * _WARP, _REGISTER_UNIT)
    return min(_MAX_THREADS, _REGISTERS // per_warp // _PARTITIONS * _PARTITIONS * _WARP)


def _blocks_by_registers(registers: int, warps: int) -> int:
    per_warp = _round_up(max(registers, 1) * _WARP, _REGISTER_UNIT)
    if registers > _MAX_REGISTERS or per_warp * _round_up(warps, _PARTITIONS) > _REGISTERS:
        return 0
    resident = _REGISTERS // _PARTITIONS // per_warp * _PARTITIONS
    return resident // warps


def _blocks_by_shared(limits: Limits, shared: int) -> int:
    if shared > limits.shared_per_block:
        return 0
    taken = _round_up(shared + limits.shared_reserved, limits.shared_unit)
    return limits.shared // taken if taken else limits.blocks


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
