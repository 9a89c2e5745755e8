"""Shadow state of memory: blocks, accesses to them, and a map of the address space."""

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
    "BlockRange",
    "MemoryAccess",
    "ShadowBlock",
    "Span",
    "StreamKey",
    "StreamName",
]

Span: TypeAlias = tuple[int, int]
"""A half-open range of addresses."""

AccessMode: TypeAlias = Literal["reads", "writes", "updates", "uses"]
"""``updates``: only by atomic operations of a kernel. ``uses``: unknown."""


class StreamKey(NamedTuple):
    """The identity of a raw stream: its handle or, without handles, its queue."""

    device: Device
    raw: object


class StreamName(NamedTuple):
    """A raw stream and its name in reports."""

    key: StreamKey
    text: str


AccessKey: TypeAlias = tuple[StreamKey, AccessMode, bool]
"""Stream, mode, and whether a launch made the access."""


@dataclass(eq=False, slots=True)
class MemoryAccess:
    """The access of one command to one array.

    Attributes
    ----------
    mode, footprint, block
        Mode of the access, its bytes, and their block.
    label : str
        The command.
    stream, site
        Stream and call site of the command.
    is_recorded : bool
        Whether the runtime delays the reuse of the memory until the command is done, if the command
        is on another stream than the allocation.
    step : int
        Number of the command in its stream, once it is accepted.
    is_launch : bool
        Whether a kernel launch made the access; an unknown access of a launch may write.
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
    def key(self) -> AccessKey:
        """A later access to the same bytes with the same key replaces this one."""
        return self.stream.key, self.mode, self.is_launch


@dataclass(eq=False, slots=True)
class ShadowBlock:
    """A block of memory from its allocation until its reuse after the free.

    Attributes
    ----------
    device, address, nbytes
        The memory.
    stream : StreamName
        Stream of the allocation.
    allocated, freed : CallSite or None
        Call sites; None if the allocation preceded the checker, or the block is not freed.
    freed_at : int
        Step of its stream at the free.
    accesses : dict
        The latest access for each key and footprint, including accesses to earlier blocks of the
        memory that may still be running.
    poisoned : tuple of (int, int)
        Address ranges that contain poison.
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
        """Whether the block was freed."""
        return self.freed is not None


BlockRange: TypeAlias = tuple[int, int, ShadowBlock]
"""A half-open range of addresses, and its block."""


class AddressMap:
    """Disjoint ranges of addresses with their blocks.

    Devices and host share one address space, as with CUDA's unified addressing.
    """

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ranges: list[BlockRange] = []

    def find(self, begin: int, end: int) -> list[BlockRange]:
        """Return the ranges that overlap with an address range."""
        first, last = self._indices(begin, end)
        return self._ranges[first:last]

    def insert(self, block: ShadowBlock) -> list[BlockRange]:
        """Insert the range of a block; return the ranges that it replaces."""
        begin, end = block.address, block.address + block.nbytes
        replaced = self.cut(begin, end)
        index = bisect.bisect_left(self._begins, begin)
        self._begins.insert(index, begin)
        self._ranges.insert(index, (begin, end, block))
        return replaced

    def cut(self, begin: int, end: int) -> list[BlockRange]:
        """Remove an address range; return the ranges removed."""
        first, last = self._indices(begin, end)
        overlapping = self._ranges[first:last]
        rest = [
            (low, high, block)
            for start, stop, block in overlapping
            for low, high in ((start, min(stop, begin)), (max(start, end), stop))
            if low < high
        ]
        self._ranges[first:last] = rest
        self._begins[first:last] = [low for low, _, _ in rest]
        return [(max(low, begin), min(high, end), block) for low, high, block in overlapping]

    def __iter__(self) -> Iterator[BlockRange]:
        return iter(list(self._ranges))

    def _indices(self, begin: int, end: int) -> tuple[int, int]:
        first = bisect.bisect_right(self._begins, begin) - 1
        if first < 0 or self._ranges[first][1] <= begin:
            first += 1
        return first, max(first, bisect.bisect_left(self._begins, end))
