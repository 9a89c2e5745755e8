"""`DeviceMemory`: what the pools of a fake device hold; `DriverNumbers`: what a driver chooses."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nbrt.errors import OutOfMemoryError

if TYPE_CHECKING:
    from nbrt.backends.interface import DeviceProperties
    from nbrt.backends.pools import PoolBase

__all__ = ["Assumption", "DeviceFullError", "DeviceMemory", "DriverNumbers"]

_MIB = 1 << 20


class Assumption(NamedTuple):
    """A number that a plan assumes.

    Attributes
    ----------
    name : str
        What it is.
    nbytes : int
        Its value.
    reason : str
        Where the value is from.
    """

    name: str
    nbytes: int
    reason: str


_NAMES_AND_REASONS = {
    "context": (
        "context of CUDA",
        "about what nvidia-smi shows for a process without arrays on recent GPUs",
    ),
    "page": (
        "granularity of virtual memory",
        "what cuMemGetAllocationGranularity returns on GPUs so far",
    ),
    "pool_unit": (
        "granularity of the pools of cudaMallocAsync",
        "cudaMemPoolAttrReservedMemCurrent after one small cudaMallocAsync",
    ),
}
"""Attribute of `DriverNumbers` -> the name and the reason of the assumption."""


@dataclass(frozen=True, slots=True)
class DriverNumbers:
    """Numbers of bytes that CUDA's driver chooses: assumptions.

    Attributes
    ----------
    context : int
        What a process takes of each device that it uses, beside all pools.
    page : int
        The granularity of virtual memory.
    pool_unit : int
        The granularity of the memory that a pool of cudaMallocAsync takes.
    """

    context: int = 512 * _MIB
    page: int = 2 * _MIB
    pool_unit: int = 32 * _MIB

    def assumptions(self) -> list[Assumption]:
        """Return every number with its reason."""
        return [
            Assumption(name, getattr(self, attribute), reason)
            for attribute, (name, reason) in _NAMES_AND_REASONS.items()
        ]


class DeviceFullError(OutOfMemoryError):
    """The device has no more memory, which a pool may change by returning some."""


class DeviceMemory:
    """The memory of one fake device, which its pools share.

    Parameters
    ----------
    kind : str
        The kind of device: cpu or cuda.
    properties : DeviceProperties
        Its properties.
    enforce : bool, optional
        Pools raise OutOfMemoryError where the device has no more memory; False: they never do.
    driver : DriverNumbers, optional
        The numbers of the driver of a cuda device.

    Attributes
    ----------
    kind, properties, enforce, driver
        The parameters.
    """

    def __init__(
        self,
        kind: str,
        properties: DeviceProperties,
        *,
        enforce: bool = False,
        driver: DriverNumbers | None = None,
    ) -> None:
        self.kind = kind
        self.properties = properties
        self.enforce = enforce
        self.driver = driver or DriverNumbers()
        self._pools: weakref.WeakSet[PoolBase] = weakref.WeakSet()

    @property
    def usable(self) -> int:
        """Bytes that the pools can have in all."""
        context = self.driver.context if self.kind == "cuda" else 0
        return max(0, self.properties.total_memory - context)

    def held(self) -> int:
        """Return the bytes that the pools hold."""
        return sum(pool.reserved() for pool in self._pools)

    def info(self) -> tuple[int, int]:
        """Return (free, total) bytes; free is 0 where pools hold more than there is."""
        return max(0, self.usable - self.held()), self.properties.total_memory

    def add(self, pool: PoolBase) -> None:
        """Count the memory of a pool as long as the pool lives."""
        self._pools.add(pool)

    def limit_of(self, pool: PoolBase, nbytes: int | None) -> int | None:
        """Return the limit of a pool that a user has limited to `nbytes`."""
        if not self.enforce:
            return nbytes
        room = max(0, self.usable - self.held() + pool.reserved())
        return room if nbytes is None else min(nbytes, room)

    def check(self, nbytes: int) -> None:
        """Raise `DeviceFullError` if the device has no room for so many more bytes."""
        if self.enforce and self.held() + nbytes > self.usable:
            raise DeviceFullError(
                f"expected room for {nbytes} bytes on a device of {self.usable} usable bytes, got "
                f"{self.held()} held by its pools; free arrays or request less"
            )
