"""`ShadowBlock`: one use of a block of memory; `AddressMap`: which range of addresses is whose."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nbrt._internal.callsite import CallSite
    from nbrt._internal.device import Device
    from nbrt.observe.races.footprint import Footprint

__all__ = [
    "AccessKey",
    "AccessMode",
    "AddressMap",
    "MemoryAccess",
    "ShadowBlock",
    "Span",
    "StreamKey",
    "StreamName",
]

Span: TypeAlias = tuple[int, int]
"""A range of addresses: the first, and the one behind the last."""

AccessMode: TypeAlias = Literal["reads", "writes", "updates", "uses"]
"""``updates``: by atomic operations of a kernel alone. ``uses``: cannot be seen from outside."""


class StreamKey(NamedTuple):
    """A raw stream: its handle, or where there are none, its queue."""

    device: Device
    raw: object


class StreamName(NamedTuple):
    """A raw stream, and how to call it in a report."""

    key: StreamKey
    text: str


AccessKey: TypeAlias = tuple[StreamKey, AccessMode, bool]
"""Stream, mode, and whether it is a launch's."""


@dataclass(eq=False, slots=True)
class MemoryAccess:
    """What one command did to one array.

    Attributes
    ----------
    mode, footprint, block
        What it did, to which bytes of which block.
    label : str
        The command.
    stream, site
        The stream it was given to, and where.
    is_recorded : bool
        The runtime sees to it that the memory is not handed out before the command is done, if
        that is on another stream than the one it was allocated for.
    step : int
        Which one of the stream's commands it is, once it was accepted.
    is_launch : bool
        Whether a kernel did it, which writes what it is not known to read.
    """

    mode: AccessMode
    footprint: Footprint
    block: ShadowBlock
    label: str
    stream: StreamName
    site: CallSite
    is_recorded: bool = False
    step: int = 0
    is_launch: bool = False

    @property
    def kind(self) -> AccessKey:
        """What tells it from a later one of the same bytes that takes its place."""
        return self.stream.key, self.mode, self.is_launch


@dataclass(eq=False, slots=True)
class ShadowBlock:
    """A block of memory from its allocation to its free, and on until it is handed out again.

    Attributes
    ----------
    device, address, nbytes
        The memory.
    stream : StreamName
        The stream it was allocated for.
    allocated, freed : CallSite or None
        Where; None: before the watch began, and not yet.
    freed_at : int
        The step of its stream at which it was freed.
    accesses : dict
        The last of every kind, by (stream, footprint, mode); those of earlier tenants among them,
        as long as they are not known to be done.
    poisoned : tuple of (int, int)
        The ranges of it that hold poison.
    """

    device: Device
    address: int
    nbytes: int
    stream: StreamName
    allocated: CallSite | None
    freed: CallSite | None = None
    freed_at: int = 0
    accesses: dict[object, MemoryAccess] = field(default_factory=dict)
    poisoned: tuple[Span, ...] = ()

    @property
    def is_freed(self) -> bool:
        """Whether its arrays are gone."""
        return self.freed is not None


class AddressMap:
    """Ranges of addresses, which do not overlap, and their tenancies.

    Devices and host share one space of addresses, as with CUDA's unified addressing.
    """

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._entries: list[tuple[int, int, ShadowBlock]] = []

    def find(self, begin: int, end: int) -> list[tuple[int, int, ShadowBlock]]:
        """Return the entries that a range touches."""
        first, last = self._places(begin, end)
        return self._entries[first:last]

    def insert(self, block: ShadowBlock) -> list[tuple[int, int, ShadowBlock]]:
        """Give a block its range; return what it takes from others."""
        begin, end = block.address, block.address + block.nbytes
        taken = self.cut(begin, end)
        place = bisect.bisect_left(self._begins, begin)
        self._begins.insert(place, begin)
        self._entries.insert(place, (begin, end, block))
        return taken

    def cut(self, begin: int, end: int) -> list[tuple[int, int, ShadowBlock]]:
        """Forget a range; return what was there."""
        first, last = self._places(begin, end)
        touched = self._entries[first:last]
        left = [
            (low, high, block)
            for start, stop, block in touched
            for low, high in ((start, min(stop, begin)), (max(start, end), stop))
            if low < high
        ]
        self._entries[first:last] = left
        self._begins[first:last] = [entry[0] for entry in left]
        return [(max(low, begin), min(high, end), block) for low, high, block in touched]

    def __iter__(self) -> Iterator[tuple[int, int, ShadowBlock]]:
        return iter(list(self._entries))

    def _places(self, begin: int, end: int) -> tuple[int, int]:
        first = bisect.bisect_right(self._begins, begin) - 1
        if first < 0 or self._entries[first][1] <= begin:
            first += 1
        return first, max(first, bisect.bisect_left(self._begins, end))
