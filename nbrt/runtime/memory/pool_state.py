"""`PoolState`: the facts of a pool that its allocations and the event log need."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nbrt._internal.device import Device
    from nbrt.backends.interface import DeviceInterface
    from nbrt.runtime.memory.statistics import Statistics

__all__ = ["PoolState"]


class PoolState:
    """One pool: its device, its names and its statistics.

    Attributes
    ----------
    device : Device
        The device.
    interface : DeviceInterface or None
        Its backend.
    id : tuple of (int, int)
        (0, 0) for the default pool of a device, (0, n) for others, as torch numbers them; (1, n)
        for pools of page-locked host memory.
    kind, name : str
        The kind of pool, and the user's name for it, which may be empty.
    statistics : Statistics or None
        The statistics of the pool; None if they equal those of the device.
    is_closed : bool
        Freed blocks go back to the system.
    is_reused_directly : bool
        The block that was freed last may be reused on any stream.
    returns_at_once : bool
        Freed blocks go back to the backend at the end of their arrays.
    """

    __slots__ = (
        "device",
        "id",
        "interface",
        "is_closed",
        "is_reused_directly",
        "kind",
        "name",
        "returns_at_once",
        "statistics",
    )

    def __init__(
        self,
        device: Device,
        number: int,
        kind: str,
        name: str = "",
        interface: DeviceInterface | None = None,
    ) -> None:
        self.device = device
        self.interface = interface
        self.id = (int(kind == "pinned"), number)
        self.kind = kind
        self.name = name
        self.statistics: Statistics | None = None
        self.is_closed = False
        self.is_reused_directly = False
        self.returns_at_once = False

    def __repr__(self) -> str:
        name = f", name={self.name!r}" if self.name else ""
        return f"MemoryPool({str(self.device)!r}, {self.kind!r}{name}, id={self.id})"
