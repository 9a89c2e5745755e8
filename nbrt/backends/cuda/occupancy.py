"""How many blocks fit on a multiprocessor: NVIDIA's occupancy calculation, without a GPU.

Limits are those of the CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability"; granularities and the calculation are those of ``cuda_occupancy.h``, which the CUDA
runtime's package contains and the tests compare with.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbrt.backends.inspection import Occupancy
from nbrt.errors import ArgumentError

if TYPE_CHECKING:
    from nbrt.backends.inspection import Resources

__all__ = ["LIMITS", "Limits", "capability_of", "occupancy_of"]

_WARP = 32
_REGISTERS = 64 * 1024
"""32-bit registers of a multiprocessor, and most of a block: the same since 7.0."""

_REGISTER_UNIT = 256
"""Registers are given out to warps in pieces of this many."""

_PARTITIONS = 4
"""Quarters of a multiprocessor; each has its own quarter of the registers."""

_MAX_REGISTERS = 255
_MAX_THREADS = 1024
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What a multiprocessor of one compute capability holds at a time.

    Attributes
    ----------
    warps, blocks : int
        Resident warps and blocks.
    shared, shared_per_block : int
        Bytes of shared memory, and what one block may have of it after opting in.
    shared_unit, shared_reserved : int
        Piece in which it is given out; bytes that the system takes for every block.
    """

    warps: int
    blocks: int
    shared: int
    shared_per_block: int
    shared_unit: int = 128
    shared_reserved: int = _KIB


def _limits(warps: int, blocks: int, shared_kib: int) -> Limits:
    return Limits(warps, blocks, shared_kib * _KIB, (shared_kib - 1) * _KIB)


LIMITS: dict[tuple[int, int], Limits] = {
    (7, 0): Limits(64, 32, 96 * _KIB, 96 * _KIB, shared_unit=256, shared_reserved=0),
    (7, 5): Limits(32, 16, 64 * _KIB, 64 * _KIB, shared_unit=256, shared_reserved=0),
    (8, 0): _limits(64, 32, 164),
    (8, 6): _limits(48, 16, 100),
    (8, 7): _limits(48, 16, 164),
    (8, 9): _limits(48, 24, 100),
    (9, 0): _limits(64, 32, 228),
    (10, 0): _limits(64, 32, 228),
    (10, 3): _limits(64, 32, 228),
    (11, 0): _limits(48, 24, 228),
    (12, 0): _limits(48, 24, 100),
    (12, 1): _limits(48, 24, 100),
}
"""Compute capability -> limits."""

_GPUS = {
    (7, 0): ("V100",),
    (7, 5): ("T4", "RTX 2060", "RTX 2070", "RTX 2080", "RTX 2080 Ti", "Quadro RTX 6000"),
    (8, 0): ("A100", "A30"),
    (8, 6): ("A2", "A10", "A10G", "A16", "A40", "RTX A4000", "RTX A6000", "RTX 3060", "RTX 3070",
             "RTX 3080", "RTX 3090"),
    (8, 7): ("Jetson AGX Orin", "Jetson Orin Nano"),
    (8, 9): ("L4", "L40", "L40S", "RTX 4060", "RTX 4070", "RTX 4080", "RTX 4090", "RTX 6000 Ada"),
    (9, 0): ("H100", "H200", "GH200"),
    (10, 0): ("B200", "GB200"),
    (10, 3): ("B300", "GB300"),
    (11, 0): ("Jetson T5000", "Jetson Thor"),
    (12, 0): ("RTX 5060", "RTX 5070", "RTX 5080", "RTX 5090", "RTX PRO 6000"),
    (12, 1): ("GB10", "DGX Spark"),
}  # fmt: skip


def _plain(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|[\s_-]", "", name.lower())


_BY_NAME = {_plain(name): capability for capability, names in _GPUS.items() for name in names}


def capability_of(gpu: str) -> tuple[int, int]:
    """Return the compute capability of a GPU by its name, or of ``sm_90``, ``9.0``.

    Raises
    ------
    ArgumentError
        If the name is not in the table; names the nearest that is.

    Examples
    --------
    >>> capability_of("RTX 4090"), capability_of("sm_120")
    ((8, 9), (12, 0))
    """
    name = _plain(gpu)
    number = re.fullmatch(r"(?:sm|compute|cc)?(\d+)\.?(\d)[af]?", name)
    if number:
        capability = int(number[1]), int(number[2])
        if capability in LIMITS:
            return capability
    elif name in _BY_NAME:
        return _BY_NAME[name]
    known = [known for names in _GPUS.values() for known in names]
    near = difflib.get_close_matches(name, _BY_NAME, n=1)
    spelt = next((known for known in known if near and _plain(known) == near[0]), None)
    hint = f"; did you mean {spelt!r}?" if spelt else ""
    numbers = ", ".join(f"sm_{major}{minor}" for major, minor in LIMITS)
    raise ArgumentError(
        f"expected a GPU ({', '.join(known)}) or a compute capability ({numbers}), got {gpu!r}"
        f"{hint}"
    )


def occupancy_of(
    capability: tuple[int, int], resources: Resources, threads: int, dynamic_shared: int = 0
) -> Occupancy:
    """Return how many blocks fit on one multiprocessor at a time.

    Parameters
    ----------
    capability : tuple of int
        One of `LIMITS`.
    resources : Resources
        What ptxas says of the kernel.
    threads : int
        Threads of a block.
    dynamic_shared : int
        Bytes of shared memory per block that the launch adds.
    """
    limits = LIMITS[capability]
    warps = -(-threads // _WARP)
    shared = resources.static_shared + dynamic_shared
    room = {
        "warps": limits.warps // warps if threads <= _MAX_THREADS else 0,
        "blocks": limits.blocks,
        "registers": _blocks_by_registers(resources.registers, warps),
        "shared memory": _blocks_by_shared(limits, shared),
    }
    # Every block would have room for these; what is not used limits nothing.
    used = {"warps", "blocks"} | ({"registers"} if resources.registers else set())
    if shared + limits.shared_reserved:
        used.add("shared memory")
    blocks = min(room[name] for name in used)
    limiting = tuple(name for name in room if name in used and room[name] == blocks)
    return Occupancy(blocks, blocks * warps, limits.warps, limiting)


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
